"""Facts about a kernel, each a pure function of its IR."""
