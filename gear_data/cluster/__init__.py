"""Cluster: a dataset whose shards are in the memory of several machines.

`faults` is a table of the events that can go wrong: what detects them, within which time, and the outcome.
"""
