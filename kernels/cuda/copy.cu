// Plain copies by the multiprocessors. They measure how fast kernels can read a kind of memory.
//
// Both kernels copy 16-byte words, issue the loads of a round before its stores, and check nothing. So they are ceilings
// for collection. This file includes no headers.

typedef unsigned int u32;
typedef unsigned long long u64;
typedef ulonglong2 Word;

namespace {

// Loads that a thread issues before its first store.
const u32 UNROLL = 4;
// Words of a run: 128 bytes.
const u64 RUN_BITS = 3, RUN_MASK = (1 << RUN_BITS) - 1;

__device__ u64 thread() { return (u64)blockIdx.x * blockDim.x + threadIdx.x; }

__device__ u64 thread_count() { return (u64)gridDim.x * blockDim.x; }

// The word from which word i of a scattered copy comes. A run begins in the middle of a line of 128 bytes.
__device__ u64 place_of(u64 i, u64 mask) {
    u64 run = ((i >> RUN_BITS) * 0x9E3779B97F4A7C15ULL >> 20) & mask;
    return (run << RUN_BITS) + (1 << (RUN_BITS - 1)) + (i & RUN_MASK);
}

}  // namespace

// Copies contiguous words.
extern "C" __global__ void gear_copy_words(Word *target, const Word *source, u64 words) {
    u64 stride = thread_count();
    for (u64 at = thread(); at < words; at += UNROLL * stride) {
        Word held[UNROLL] = {};
#pragma unroll
        for (u32 u = 0; u < UNROLL; u++) {
            if (at + u * stride < words) held[u] = source[at + u * stride];
        }
#pragma unroll
        for (u32 u = 0; u < UNROLL; u++) {
            if (at + u * stride < words) target[at + u * stride] = held[u];
        }
    }
}

// Copies runs of 8 words from scattered places. mask: a power of two, minus 1; the source has 8 * (mask + 1) + 4 words.
extern "C" __global__ void gear_copy_runs(Word *target, const Word *source, u64 words, u64 mask) {
    u64 stride = thread_count();
    for (u64 at = thread(); at < words; at += UNROLL * stride) {
        Word held[UNROLL] = {};
#pragma unroll
        for (u32 u = 0; u < UNROLL; u++) {
            if (at + u * stride < words) held[u] = source[place_of(at + u * stride, mask)];
        }
#pragma unroll
        for (u32 u = 0; u < UNROLL; u++) {
            if (at + u * stride < words) target[at + u * stride] = held[u];
        }
    }
}
