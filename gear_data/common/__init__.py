"""Helpers that any package may use.

They are small and independent: retries, locks, progress bars, images, paths, ranks, extras and typed JSON.
"""
