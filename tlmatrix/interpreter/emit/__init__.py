"""Emits the Python source of a kernel from its IR: one emitter, and rules by kind of node."""
