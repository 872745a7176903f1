"""Stores: files, shards and tables of datasets, on this machine or on other nodes."""
