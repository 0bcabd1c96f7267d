"""Times a spec's entry against other implementations, with verdicts from confidence intervals.

`Machine` holds all that needs a GPU: the backend and a clock. Importing this package does not
import PyTorch.
"""
