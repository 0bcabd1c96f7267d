"""Random cases of a spec: drawn, run, aimed at where kernels break, shrunk when they fail.

A drawn case is an ordinary resolved `Case` (`origin` "fuzz"): it runs, repeats and is written in
`regressions` like any other. Hypothesis is imported when a search begins, not with this package.
"""

__all__: list[str] = []
