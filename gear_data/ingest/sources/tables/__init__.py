"""Parquet files and `datasets` objects, with one row per step or per episode."""
