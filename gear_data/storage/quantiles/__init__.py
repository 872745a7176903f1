"""Quantiles of columns: computed exactly, and stored."""
