"""Sources in memory: episodes, arrays of steps, transitions and tables."""
