"""Minari's HDF5 and Arrow layouts."""
