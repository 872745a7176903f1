"""Replay buffers of Stable-Baselines3, whose arrays were saved as `.npz` or HDF5."""
