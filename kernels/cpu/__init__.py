"""Numba kernels for the CPU.

A kernel module is loaded at its first use, because importing Numba takes a second.

Callers import this package at module level, and name the module at the call: `cpu.collect.collect(...)`.

A kernel that another kernel calls is compiled into its caller. Numba's cache notices only changes of the caller's
file: after you edit such a kernel, delete `kernels/cpu/__pycache__`.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import Any

_MODULES = frozenset(
    {
        "collect",
        "convert",
        "gather",
        "goals",
        "images",
        "integer_weights",
        "padding",
        "random",
        "relative",
        "remote_rows",
        "returns",
        "row_ranges",
        "statistics",
        "step_mask",
        "turns",
        "weight_tree",
        "windows",
    }
)


@cache
def _listen() -> None:
    """Begins, once, to tell the user that kernels are being compiled."""
    import_module("gear_data.kernels.compile_notice").listen()


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        _listen()
        return import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
