"""Harnesses of processes that are interrupted, or that end, in the middle of their work."""
