"""Generations of a dataset that grows: their records, and the leases of their readers."""
