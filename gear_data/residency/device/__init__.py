"""Residencies that a GPU reads, and batches that a GPU collects.

`columns` copies the columns of a dataset to memory that kernels read. `collector` fills batches on a device:
`window_sampler` draws windows there, `reader` launches the collecting kernel for one dataset, `staging` copies rows
that no kernel can read in place, and `buffers` holds the inputs of batches in pinned memory. `stream` has the loaders'
stream, and the memory of batches. `memory` allocates and copies. `shared_device_memory` lets processes share the
columns on a device, in `virtual_memory`.
"""
