"""Helpers that any package may use.

They are small and independent: retries, locks, progress bars, images, paths, ranks, typed JSON and so on.
"""
