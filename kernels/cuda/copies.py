"""Launches of the plain copies of `copy.cu`: ceilings for what kernels read."""

from __future__ import annotations

from gear_data.kernels.cuda.launch_arguments import Launcher

_BLOCK = 512
WORD_BYTES = 16
#: Bytes of a run of `copy_runs`. Each run touches two lines of 128 bytes.
RUN_BYTES = 128


def copy_words(launcher: Launcher, target: int, source: int, nbytes: int, blocks: int) -> None:
    """Copies contiguous bytes.

    Args:
        target, source: addresses, multiples of 16.
        nbytes: a multiple of 16.
        blocks: blocks of 512 threads.
    """
    launcher.launch("gear_copy_words", blocks, _BLOCK, target, source, nbytes // WORD_BYTES)


def copy_runs(launcher: Launcher, target: int, source: int, nbytes: int, places: int, blocks: int) -> None:
    """Copies runs of RUN_BYTES from scattered places.

    Args:
        target, source, blocks: see `copy_words`.
        nbytes: bytes of the target, a multiple of 16.
        places: a power of two; the source has RUN_BYTES * places + RUN_BYTES // 2 bytes.
    """
    launcher.launch("gear_copy_runs", blocks, _BLOCK, target, source, nbytes // WORD_BYTES, places - 1)
