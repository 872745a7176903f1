"""Which windows a batch is made of: pure functions of (seed, step)."""
