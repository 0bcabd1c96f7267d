"""Several GPUs simulated in this process: ranks, streams, symmetric memory, flags.

`simulate` runs a program on ranks that are threads, one of which runs at a time. What they enqueue
on simulated streams runs as tasks beside them, and the blocks of kernels that use flags are tasks
of their own. One seeded scheduler chooses the task that runs next.
"""
