"""Helpers that any package may use: retries, locks, progress bars, images, ranks, typed JSON, private folders."""
