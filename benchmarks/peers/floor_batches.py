"""The floor: a program that draws gear-data's windows, and gathers them into the arrays of its batch.

It is `floor.c`, compiled by the machine's C compiler (`$CC`, or cc). Without a C compiler it is `floor_numba.py`.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from harness import Steps

#: The contracts that the floor has.
CONTRACTS = ("decision_transformer", "transitions")
#: The guide has at least as many entries.
_GUIDE_ENTRIES = 256
_SOURCE = Path(__file__).with_name("floor.c")

#: fill(seed, step, batch size, context, *addresses of the arrays) fills a batch.
Fill = Callable[..., object]


class Floor:
    """Batches of windows that begin at random steps, as gear-data's uniform sampler draws them.

    Args:
        steps: the steps of all episodes.
        contract: one of `CONTRACTS`.
        batch_size, context: windows of a batch, and the most steps of a window.
        seed: seed of the draw.
        fresh: whether each batch has new tensors; else every batch is in the same memory.

    Attributes:
        compiler: what compiled the program.
    """

    def __init__(self, steps: Steps, contract: str, batch_size: int, context: int, seed: int, *, fresh: bool) -> None:
        self._arrays = _arrays(steps, contract, batch_size, context)
        self._kept = None if fresh else self._empty()
        self._arguments = seed, batch_size, context
        compiler = shutil.which(os.environ.get("CC", "cc"))
        self.compiler = "Numba" if compiler is None else Path(compiler).name
        self._fill = _numba_fill(steps, contract) if compiler is None else _c_fill(steps, contract, compiler)

    def batch(self, step: int) -> dict[str, torch.Tensor]:
        """Returns the batch of a step: key -> tensor [B, ...]."""
        batch = self._empty() if self._kept is None else self._kept
        seed, batch_size, context = self._arguments
        self._fill(seed, step, batch_size, context, *[tensor.data_ptr() for tensor in batch.values()])
        return batch

    def _empty(self) -> dict[str, torch.Tensor]:
        return {key: torch.empty(shape, dtype=dtype) for key, shape, dtype in self._arrays}


def _arrays(
    steps: Steps, contract: str, batch_size: int, context: int
) -> list[tuple[str, tuple[int, ...], torch.dtype]]:
    """Returns (key, shape, dtype) of the arrays of a batch."""
    width, action_width = _widths(steps)
    whole, each, number, count = (batch_size, context), (batch_size,), torch.float32, torch.int64
    if contract == "transitions":
        return [
            ("observations", (batch_size, width), number),
            ("actions", (batch_size, action_width), number),
            ("rewards", each, number),
            ("terminated", each, torch.bool),
            ("next_observations", (batch_size, width), number),
            ("masks", each, number),
            ("valid_count", each, count),
        ]
    return [
        ("states", (*whole, width), number),
        ("actions", (*whole, action_width), number),
        ("rewards", (*whole, 1), number),
        ("returns_to_go", (*whole, 1), number),
        ("timesteps", whole, count),
        ("attention_mask", whole, number),
        ("valid_count", each, count),
    ]


def _widths(steps: Steps) -> tuple[int, int]:
    """Returns the elements of an observation and of an action."""
    return steps.columns["observations"].shape[1], steps.columns["actions"].shape[1]


def _tables(steps: Steps, contract: str) -> dict[str, np.ndarray]:
    """Returns the arrays that a program reads, by the names of `struct steps`.

    A window of transitions does not begin at the last step of an episode that did not terminate.
    """
    lengths = steps.lengths
    terminated = np.zeros(len(steps), np.uint8)
    terminated[(steps.starts + lengths - 1)[steps.terminated]] = 1
    anchors = lengths - ~steps.terminated if contract == "transitions" else lengths
    names = {"observations": "observations", "actions": "actions", "rewards": "rewards", "returns": "returns_to_go"}
    return {
        **{field: np.ascontiguousarray(steps.columns[name], np.float32) for field, name in names.items()},
        "terminated": terminated,
        "starts": np.concatenate([[0], np.cumsum(lengths)]),
        "anchors": np.concatenate([[0], np.cumsum(anchors)]),
    }


class _Steps(ctypes.Structure):
    """`struct steps` of floor.c."""

    _fields_: Sequence[tuple[str, type]] = [
        *((name, ctypes.c_void_p) for name in ("observations", "actions", "rewards", "returns")),
        *((name, ctypes.c_void_p) for name in ("terminated", "starts", "anchors", "guide")),
        *((name, ctypes.c_int64) for name in ("shift", "total", "width", "action_width")),
    ]


def _c_fill(steps: Steps, contract: str, compiler: str) -> Fill:
    """Returns the function of the contract in floor.c.

    Raises:
        CalledProcessError: the compiler fails; it says why on stderr.
    """
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        library = Path(folder) / "floor.so"
        optimised = ("-O3", "-march=native", "-shared", "-fPIC")
        subprocess.run([compiler, *optimised, "-o", str(library), str(_SOURCE)], check=True)
        fill = getattr(ctypes.CDLL(str(library)), contract)
    tables = _tables(steps, contract)
    last = int(tables["anchors"][-1]) - 1
    shift = max(0, last.bit_length() - max(len(steps.lengths), _GUIDE_ENTRIES).bit_length() + 1)
    points = np.minimum(np.arange((last >> shift) + 2) << shift, last)
    tables["guide"] = (np.searchsorted(tables["anchors"], points, "right") - 1).astype(np.uint32)
    width, action_width = _widths(steps)
    addresses = {name: array.ctypes.data for name, array in tables.items()}
    whole = _Steps(**addresses, shift=shift, total=last + 1, width=width, action_width=action_width)
    whole.tables = tables  # the program has only their addresses
    fill.argtypes = [ctypes.c_void_p, *[ctypes.c_int64] * 4, *[ctypes.c_void_p] * 7]
    fill.restype = None
    reference = ctypes.byref(whole)
    return lambda *arguments: fill(reference, *arguments)


def _numba_fill(steps: Steps, contract: str) -> Fill:
    """Returns the function of the contract in floor_numba.py."""
    import floor_numba

    fill, tables = getattr(floor_numba, contract), tuple(_tables(steps, contract).values())
    return lambda *arguments: fill(tables, *arguments)
