"""Episodes in any HDF5, NumPy or Zarr tree.

Their names show them, or a mapping describes them.
"""
