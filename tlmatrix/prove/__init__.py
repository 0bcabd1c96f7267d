"""Proves properties of kernels for all values of their symbolic dims and integer tensors."""
