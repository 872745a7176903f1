// The kernels of one .cu file as a library. They run on the memory of the process that loads it.
#include "cuda_shim.h"

#include KERNELS

extern "C" void shim_launch(void *entry, unsigned grid, unsigned block, const unsigned long long *values) {
    shim::launch(entry, grid, block, values);
}
