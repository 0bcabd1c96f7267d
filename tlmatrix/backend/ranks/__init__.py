"""Runs an entry on several ranks: simulated in one process, or with one process per rank."""
