"""Choosing episodes: outliers, duplicates, and saving what is left."""
