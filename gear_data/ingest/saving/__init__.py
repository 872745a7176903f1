"""Saving some episodes of a dataset as a dataset of their own."""
