"""Groups failures by their probable cause: for the reports of runs and of fuzzing."""
