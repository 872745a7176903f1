"""Compiled kernels: the inner loops of selection and collection.

`cpu` holds Numba kernels. `cuda` holds the `.cu` sources of GPU kernels, and the functions that launch them. Both
implement the same functions and give the same bits; tests run the `.cu` sources on a CPU and compare.
`output_plan` defines the plan that both collecting kernels read, and `window_plan` the plan that both drawing kernels
read.

Why: docs/explanation/decisions/linked-folders.md
"""
