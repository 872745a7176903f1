"""Frameworks whose arrays a batch can have: torch, NumPy and JAX."""
