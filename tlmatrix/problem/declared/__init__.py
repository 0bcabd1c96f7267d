"""Problems that a spec declares: inputs, outputs and reference."""
