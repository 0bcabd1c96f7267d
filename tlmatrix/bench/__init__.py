"""Timings of a spec's entry beside other implementations, and verdicts from their intervals.

What needs a GPU comes from outside as a `Machine`: where kernels run, and a clock. Importing this
package pulls in no PyTorch.
"""
