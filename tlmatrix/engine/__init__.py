"""Runs jobs in processes: groups of cases (`cases`), and searches (`searches`).

`pool` hands jobs to workers, replaces those that a case ends, and writes the results file.
`worker` is what a job runs with. An executor places workers: `pool.LocalProcesses` on this machine,
`ray` on a cluster.
"""
