"""The constants of the CUDA kernels that depend on the hardware, in one place.

Why: docs/explanation/decisions/gpu-collection.md
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Build:
    """Constants of one build of `gear_collect`.

    A thread gets at most 65,536 / (threads * resident) registers. The kernel needs 116 for sm_90; with fewer, ptxas
    spills registers to memory. `tests/kernels/cuda/test_compile.py` checks that the default builds spill none.

    Attributes:
        threads: the most threads of a block, a multiple of 32.
        resident: blocks that run on a multiprocessor at the same time.
        unroll: words of 16 bytes that a lane loads before it uses the first. A block holds
            threads / 32 * (512 * unroll + 16) bytes in shared memory, at most 48 KiB.
    """

    threads: int
    resident: int
    unroll: int = 4


@dataclass(frozen=True)
class Tuning:
    """Constants of the collecting kernel, as an H100 over PCIe 5 x16 confirmed them: see benchmarks/RESULTS.md.

    Attributes:
        device, pinned: the builds for columns in device memory and in pinned memory. Equal builds are compiled once.
        pinned_blocks: the most blocks that read pinned memory, unless an `sm_budget` is given. Some 80 KB in flight
            saturate PCIe; a block of 512 threads has up to 32 KB in flight. More blocks only occupy multiprocessors.
        piece: bytes of a window's output that a warp processes at a time.
        ordered_bytes: from more bytes of pinned columns than this, kernels read windows in the order of their
            addresses. Random reads of larger memory miss the TLB.
        ordered_window: but only windows whose outputs have at most this many bytes. Longer windows gain nothing.
    """

    device: Build = Build(512, 1)
    pinned: Build = Build(512, 1)
    pinned_blocks: int = 32
    piece: int = 8192
    ordered_bytes: int = 1 << 30
    ordered_window: int = 2 << 10

    def build(self, pinned: bool) -> Build:
        """Returns the build for columns in pinned or in device memory."""
        return self.pinned if pinned else self.device

    def options(self, pinned: bool) -> tuple[str, ...]:
        """Returns the compiler's options that set the constants of `collect.cu`."""
        build = self.build(pinned)
        return (
            f"-DGEAR_THREADS={build.threads}",
            f"-DGEAR_RESIDENT={build.resident}",
            f"-DGEAR_UNROLL={build.unroll}",
            f"-DGEAR_PIECE={self.piece}",
        )


DEFAULT = Tuning()
