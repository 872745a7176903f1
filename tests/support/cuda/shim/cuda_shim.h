// Runs a .cu file on a CPU, so that tests check the source of a kernel without a GPU.
//
// The threads of a block are fibers on one thread of the process. A fiber runs until it waits for its warp or block, or
// ends. Blocks run one after another. This detects wrong results, accesses outside of memory and unaligned ones (with the
// sanitizers), missing waits (the order of threads is reversed at every launch), and deadlocks. It detects no races
// between blocks, and says nothing about speed.
//
// Why: docs/explanation/decisions/cuda-shim.md
#pragma once

#include <sys/mman.h>
#include <ucontext.h>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>
#include <vector>

#define __global__
#define __device__
#define __noinline__ __attribute__((noinline))
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __shared__ static

struct dim3 {
    unsigned x = 1, y = 1, z = 1;
};
struct alignas(16) ulonglong2 {
    unsigned long long x, y;
};

namespace shim {

// Small, because the address sanitizer unpoisons a whole stack at every switch to it.
const std::size_t STACK = 32 << 10;
enum State { READY, AT_WARP, AT_BLOCK, DONE };

struct Fiber {
    ucontext_t context;
    void *stack = nullptr;
    State state = DONE;
    unsigned long long shared = 0;  // with the other threads of the warp
};

inline std::vector<Fiber> fibers;
inline unsigned current, threads;
inline ucontext_t scheduler;
inline void (*kernel)(const unsigned long long *);
inline const unsigned long long *arguments;

inline void wait(State state) {
    fibers[current].state = state;
    swapcontext(&fibers[current].context, &scheduler);
}

inline void body() {
    kernel(arguments);
    wait(DONE);
}

// Releases the threads of a warp or a block if all of them wait. Ended threads of a block do not count.
inline bool release(State waiting, unsigned first, unsigned last) {
    for (unsigned i = first; i < last; i++) {
        if (fibers[i].state != waiting && (waiting == AT_WARP || fibers[i].state != DONE)) return false;
    }
    bool any = false;
    for (unsigned i = first; i < last; i++) {
        if (fibers[i].state == waiting) fibers[i].state = READY, any = true;
    }
    return any;
}

// Each warp runs as far as it can before the next one, so that a missing wait for other warps shows.
inline void run_block(bool backwards) {
    if (fibers.size() < threads) fibers.resize(threads);
    for (unsigned i = 0; i < threads; i++) {
        Fiber &fiber = fibers[i];
        if (!fiber.stack) fiber.stack = mmap(0, STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        getcontext(&fiber.context);
        fiber.context.uc_stack = {fiber.stack, 0, STACK};
        fiber.context.uc_link = nullptr;
        makecontext(&fiber.context, body, 0);
        fiber.state = READY;
    }
    unsigned warps = (threads + 31) / 32;
    do {
        for (unsigned turn = 0; turn < warps; turn++) {
            unsigned first = (backwards ? warps - 1 - turn : turn) * 32, last = first + 32 < threads ? first + 32 : threads;
            do {
                for (unsigned i = first; i < last; i++) {
                    current = backwards ? first + last - 1 - i : i;
                    if (fibers[current].state == READY) swapcontext(&scheduler, &fibers[current].context);
                }
            } while (release(AT_WARP, first, last));
        }
    } while (release(AT_BLOCK, 0, threads));
    for (unsigned i = 0; i < threads; i++) {
        if (fibers[i].state == DONE) continue;
        std::fprintf(stderr, "thread %u waits for threads that never arrive\n", i);
        std::abort();
    }
}

}  // namespace shim

inline dim3 gridDim, blockDim, blockIdx;
struct ThreadIndex {
    struct {
        operator unsigned() const { return shim::current; }
    } x;
} inline threadIdx;

inline void __syncthreads() { shim::wait(shim::AT_BLOCK); }
inline void __syncwarp(unsigned = ~0U) { shim::wait(shim::AT_WARP); }

template <class T> T __shfl_sync(unsigned, T value, int lane) {
    static_assert(sizeof(T) <= 8);
    std::memcpy(&shim::fibers[shim::current].shared, &value, sizeof(T));
    __syncwarp();
    std::memcpy(&value, &shim::fibers[shim::current / 32 * 32 + (lane & 31)].shared, sizeof(T));
    __syncwarp();
    return value;
}
template <class T> T __shfl_xor_sync(unsigned mask, T value, int apart) {
    return __shfl_sync(mask, value, (int)(shim::current % 32) ^ apart);
}
template <class T> T __shfl_up_sync(unsigned mask, T value, unsigned apart) {
    int lane = (int)(shim::current % 32);
    return __shfl_sync(mask, value, lane < (int)apart ? lane : lane - (int)apart);
}
inline unsigned __ballot_sync(unsigned, int flag) {
    unsigned bits = 0;
    shim::fibers[shim::current].shared = flag != 0;
    __syncwarp();
    for (unsigned i = 0; i < 32; i++) bits |= (unsigned)shim::fibers[shim::current / 32 * 32 + i].shared << i;
    __syncwarp();
    return bits;
}

// Loads an aligned word. As on a GPU, bytes around an array may be read with its own if they are in the same word: an
// aligned word never crosses a page. A word without any byte of an allocation is an error.
extern "C" int __asan_address_is_poisoned(const volatile void *) __attribute__((weak));
__attribute__((no_sanitize("address"))) inline ulonglong2 load_word(const ulonglong2 *place, bool wanted) {
    if (!wanted) return {0, 0};
    bool held = !__asan_address_is_poisoned || (std::uintptr_t)place % 16;
    for (int i = 0; i < 16 && !held; i++) held = !__asan_address_is_poisoned((const char *)place + i);
    if (!held || (std::uintptr_t)place % 16) {
        std::fprintf(stderr, "the kernel loads a word at %p, outside of all memory\n", (const void *)place);
        std::abort();
    }
    return *place;
}

template <class T> T atomicAdd(T *place, T value) { return *place += value, *place - value; }
template <class T> T atomicMin(T *place, T value) {
    T old = *place;
    if (value < old) *place = value;
    return old;
}
template <class T> T atomicCAS(T *place, T expected, T value) {
    T old = *place;
    if (old == expected) *place = value;
    return old;
}

template <class T> T min(T a, T b) { return b < a ? b : a; }
template <class T> T max(T a, T b) { return a < b ? b : a; }
inline double __dmul_rn(double a, double b) { return a * b; }
inline double __dadd_rn(double a, double b) { return a + b; }
inline int __popc(unsigned a) { return __builtin_popcount(a); }
inline int __popcll(unsigned long long a) { return __builtin_popcountll(a); }
inline int __ffs(int a) { return __builtin_ffs(a); }
inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
    return (unsigned long long)((unsigned __int128)a * b >> 64);
}
template <class To, class From> To shim_bits(From value) {
    To bits;
    static_assert(sizeof(To) == sizeof(From));
    std::memcpy(&bits, &value, sizeof(To));
    return bits;
}
inline long long __double_as_longlong(double a) { return shim_bits<long long>(a); }
inline double __longlong_as_double(long long a) { return shim_bits<double>(a); }

namespace shim {

typedef unsigned long long Number;
const std::size_t MAX_ARGUMENTS = 24;
inline void *entry;

template <std::size_t... I> void call(const Number *values, std::index_sequence<I...>) {
    // A kernel takes fewer arguments. In calling conventions that pass arguments in registers and then on the caller's
    // stack, the kernel ignores the others.
    reinterpret_cast<void (*)(decltype((void)I, Number())...)>(entry)(values[I]...);
}

// Runs a kernel to its end. numbers: MAX_ARGUMENTS numbers.
inline void launch(void *kernel_entry, unsigned grid, unsigned block, const Number *values) {
    entry = kernel_entry;
    gridDim.x = grid;
    blockDim.x = threads = block;
    arguments = values;
    kernel = [](const Number *numbers) { call(numbers, std::make_index_sequence<MAX_ARGUMENTS>()); };
    static bool backwards;
    for (blockIdx.x = 0; blockIdx.x < grid; blockIdx.x++) run_block(backwards);
    backwards = !backwards;
}

}  // namespace shim

// The kernels' float. CuPy always compiles with -ftz=true: a conversion between float and double gives 0 if the float is
// subnormal.
struct Flushed {
    float value;

    static float flushed(float value) {
        return std::fpclassify(value) == FP_SUBNORMAL ? std::copysign(0.0f, value) : value;
    }
    Flushed(long long number) : value((float)number) {}
    explicit Flushed(double number) : value(flushed((float)number)) {}
    operator double() const { return flushed(value); }
};
inline Flushed __double2float_rn(double a) { return Flushed(a); }
inline unsigned __float_as_uint(Flushed a) { return shim_bits<unsigned>(a.value); }
#define float Flushed
