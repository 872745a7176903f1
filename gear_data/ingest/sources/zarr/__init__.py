"""Zarr stores: reading of their arrays, and Diffusion Policy's layout."""
