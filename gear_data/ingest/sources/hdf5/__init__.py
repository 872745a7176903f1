"""Defensive reading of HDF5 files, shared by D4RL, Minari and robomimic."""
