"""Reads trajectory datasets of many formats and converts them to GEAR shards."""
