"""Harnesses of datasets that grow."""
