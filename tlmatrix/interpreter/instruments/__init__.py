"""What may be woven into a program: sanitizers, coverage, recording, tracing of NaN."""
