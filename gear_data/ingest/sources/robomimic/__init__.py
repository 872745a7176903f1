"""robomimic's HDF5 layout, which Isaac Lab, LIBERO and MimicGen write, too."""
