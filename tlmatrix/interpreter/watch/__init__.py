"""What watches a program: sanitizers, coverage, recording, tracing of NaN.

`registry` lists the observers. `memory` weaves sanitizers into a program, `monitor` is their other
half, with `shadows` of memory, the `order` of blocks, `bounds` and `packed` sequences. `counts` is
coverage, `recording` and `recorders` serve explanations, `races` notes accesses of warp roles.
"""
