"""Datasets as tables of other libraries: Arrow, Polars, HuggingFace `datasets`, and HTML."""
