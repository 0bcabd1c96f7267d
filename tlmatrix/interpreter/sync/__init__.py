"""The concurrency core: agents, their vector clocks, what they wait for and in which order."""
