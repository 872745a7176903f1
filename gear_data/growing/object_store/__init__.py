"""Generations in an object store."""
