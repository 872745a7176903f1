"""Servers of buckets that run here, and what is recorded into them."""
