"""Feeding training: presets, prefetching, the torch loader."""
