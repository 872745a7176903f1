"""Cluster: a dataset whose shards are in the memory of several machines."""
