"""Encoders whose threads have the priority of other threads."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

_THREADS = Path("/proc/self/task")


def open_encoder(context: Any) -> None:
    """Opens a codec context of PyAV, and gives its threads the normal scheduling policy.

    SVT-AV1 run by root asks for the real-time policy SCHED_FIFO at the highest priority
    (`svt_create_thread`). Its threads then stop all other processes of a small machine for minutes.
    Threads that were real-time before stay so.

    Raises:
        av.FFmpegError: the encoder does not take these settings.
    """
    before = set(_real_time_threads())
    try:
        context.open(strict=False)
    finally:
        for thread in set(_real_time_threads()) - before:
            _set_normal(thread)


def _real_time_threads() -> list[int]:
    return [thread for thread in map(int, os.listdir(_THREADS)) if _is_real_time(thread)]


def _is_real_time(thread: int) -> bool:
    try:
        return os.sched_getscheduler(thread) in (os.SCHED_FIFO, os.SCHED_RR)
    except ProcessLookupError:  # the thread has ended
        return False


def _set_normal(thread: int) -> None:
    try:
        os.sched_setscheduler(thread, os.SCHED_OTHER, os.sched_param(0))
    except ProcessLookupError:  # the thread has ended
        return
