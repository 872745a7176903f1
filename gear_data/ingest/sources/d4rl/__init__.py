"""D4RL's flat HDF5 files."""
