"""Checks of a machine with a GPU, also without a network.

`scripts/gpu_check.sh` runs them.

`bundle` packs the checkout with the packages that `wheels` finds and `machine.json` lacks. `interpreter` finds the
Python that has the packages, and `steps` runs the checks. `probe` measures how the driver treats host memory. On the
machine with the GPU they need the standard library only; the probe needs CuPy.
"""
