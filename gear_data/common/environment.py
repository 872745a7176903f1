"""What surrounds this process: typed environment variables, cores, and the CUDA device."""

from __future__ import annotations

import os
import sys

from gear_data.errors import InvalidArgumentError


def usable_cores() -> int:
    """Returns the number of cores that this process may use. macOS tells only the machine's cores."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def current_cuda_device() -> int | None:
    """Returns torch's current CUDA device of this thread; None: torch does not use CUDA in this process.

    A process that has not used CUDA is not made to: it could not be forked any more.
    """
    torch = sys.modules.get("torch")
    return int(torch.cuda.current_device()) if torch is not None and torch.cuda.is_initialized() else None


def env_seconds(variable: str, default: float) -> float:
    """Returns a time limit in seconds.

    Raises:
        InvalidArgumentError: the value is not a finite number above 0.
    """
    text = os.environ.get(variable, str(default))
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise InvalidArgumentError(f"${variable} is {text!r}; set it to a number of seconds above 0")
    return seconds


def env_flag(variable: str) -> bool:
    """Returns a flag that is off by default.

    Raises:
        InvalidArgumentError: the value is neither 0 nor 1.
    """
    text = os.environ.get(variable, "0")
    if text not in ("", "0", "1"):
        raise InvalidArgumentError(f"${variable} is {text!r}; set it to 0 or 1")
    return text == "1"


def env_int(variable: str, default: int, low: int, high: int) -> int:
    """Returns a whole number from `low` to `high`.

    Raises:
        InvalidArgumentError: the value is not a whole number, or it is out of range.
    """
    text = os.environ.get(variable, str(default))
    if not (text.isascii() and text.isdigit()) or not low <= int(text) <= high:
        raise InvalidArgumentError(f"${variable} is {text!r}; set it to a whole number from {low} to {high}")
    return int(text)
