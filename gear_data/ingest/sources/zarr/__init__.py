"""Zarr stores, versions 2 and 3: opening, reading of arrays, and Diffusion Policy's layout."""
