"""Runs entries of specs with an axis `world` on several ranks: simulated, or a process each."""
