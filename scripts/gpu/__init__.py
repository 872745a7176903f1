"""Checks of a machine with a GPU, also without a network.

`scripts/gpu_check.sh` runs them.

`wheels` finds the packages of a bundle, `parts` writes and reads its archives, and `installation` installs them.
`steps` runs the checks. `probe` measures how the driver treats host memory. On the machine with the GPU they need
the standard library only; the probe needs CuPy.
"""
