"""Sources of named arrays: `.npz` archives and folders of `.npy` files."""
