"""Other generations of a dataset that grows."""
