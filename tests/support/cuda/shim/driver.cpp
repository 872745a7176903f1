// A process that holds memory and runs the kernels of one .cu file, as a GPU does for its host.
//
// Commands come on the standard input, each a line and its bytes: `a SIZE ALIGN` allocates, `w ADDRESS SIZE` and SIZE
// bytes writes, `r ADDRESS SIZE` reads, `f ADDRESS` frees, `l KERNEL GRID BLOCK ARGUMENT...` launches. The answer is 8
// bytes (for an allocation, the address), or the bytes of a read. An allocation has exactly the requested size, so that
// the address sanitizer detects any byte beyond it. It begins at an odd multiple of ALIGN (at least 16). All numbers are
// decimal; kernels' arguments have 64 bits.
#include <dlfcn.h>

#include <map>

#include "cuda_shim.h"

#include KERNELS

extern "C" void __asan_poison_memory_region(const volatile void *, std::size_t) __attribute__((weak));
extern "C" void __asan_unpoison_memory_region(const volatile void *, std::size_t) __attribute__((weak));

namespace {

using shim::Number;

std::map<Number, Number> alignments;

Number allocate(Number size, Number align) {
    void *memory = nullptr;
    if (posix_memalign(&memory, 2 * align, align + size)) std::abort();
    if (__asan_poison_memory_region) __asan_poison_memory_region(memory, align);
    alignments[(Number)memory + align] = align;
    return (Number)memory + align;
}

void release(Number address) {
    Number align = alignments.at(address);
    if (__asan_unpoison_memory_region) __asan_unpoison_memory_region((void *)(address - align), align);
    std::free((void *)(address - align));
}

void launch(char *rest) {
    Number values[shim::MAX_ARGUMENTS] = {};
    char *name = std::strtok(rest, " ");
    void *entry = dlsym(RTLD_DEFAULT, name);
    if (!entry) std::fprintf(stderr, "no kernel %s\n", name), std::abort();
    unsigned grid = (unsigned)std::strtoull(std::strtok(nullptr, " "), nullptr, 10);
    unsigned block = (unsigned)std::strtoull(std::strtok(nullptr, " "), nullptr, 10);
    for (Number *number = values; char *word = std::strtok(nullptr, " ");) *number++ = std::strtoull(word, nullptr, 10);
    shim::launch(entry, grid, block, values);
}

}  // namespace

int main() {
    char line[4096];
    while (std::fgets(line, sizeof line, stdin)) {
        line[std::strcspn(line, "\n")] = 0;
        char *rest = line + 2, *more = nullptr;
        Number first = *line == 'l' ? 0 : std::strtoull(rest, &more, 10), second = more ? std::strtoull(more, nullptr, 10) : 0;
        Number answer = 0;
        if (*line == 'a') {
            answer = allocate(first, second);
        } else if (*line == 'w') {
            if (std::fread((void *)first, 1, second, stdin) != second) return 1;
        } else if (*line == 'f') {
            release(first);
        } else if (*line == 'l') {
            launch(rest);
        }
        if (*line == 'r') {
            std::fwrite((void *)first, 1, second, stdout);
        } else {
            std::fwrite(&answer, sizeof answer, 1, stdout);
        }
        std::fflush(stdout);
    }
}
