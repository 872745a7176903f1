"""Datasets that grow: generations of sealed journals, eviction, compaction."""
