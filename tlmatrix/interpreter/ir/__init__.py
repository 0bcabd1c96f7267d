"""The tile IR of a kernel as plain Python objects, and rewrites that normalize it."""
