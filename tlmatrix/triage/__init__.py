"""Decides which failures show the same fault: for the reports of runs, and for fuzzing."""
