"""Fuzzing: generates cases of a spec, runs them, and shrinks those that fail.

A fuzz case is an ordinary resolved `Case` with the origin "fuzz". Hypothesis is imported when a
search begins, not with this package.
"""

__all__: list[str] = []
