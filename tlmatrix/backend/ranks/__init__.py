"""Running an entry on several ranks at once: simulated, or a process a rank."""
