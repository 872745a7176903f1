"""Rate limits: writers and training wait for each other."""
