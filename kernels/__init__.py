"""Compiled kernels. `cpu` is Numba; GPU kernels stand beside it."""
