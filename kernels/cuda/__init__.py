"""CUDA kernels for GPUs, and everything that is needed to run them.

Nothing here needs Numba.

`collect.cu`, `select.cu` and `frames.cu` hold the kernels; they include no headers. `copy.cu` has plain copies, to
measure by. `launcher` compiles them with CuPy at their first use. `launch_arguments`, `frames` and `copies` have one
function for each operation. They compute arguments and grid sizes, and work with any `Launcher`, so tests run the same
sources on a CPU. `tuning` has the constants that depend on the hardware. `driver_library` opens the driver's library.
`cudf` evaluates filters on a GPU, and `nvml` lists the GPUs of this machine.
"""
