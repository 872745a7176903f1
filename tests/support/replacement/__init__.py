"""Datasets that are replaced, and files that are truncated, under a reader."""
