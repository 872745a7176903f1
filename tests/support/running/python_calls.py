"""Python functions that run while something happens."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from typing import Any


def python_calls(action: Callable[[], Any]) -> list[str]:
    """Returns the names of Python functions that run in this thread during a call.

    The called function itself is compiled code, such as `list.clear`.

    An interrupt may be raised in each of them. If the interpreter calls the function to end an object, it drops the
    interrupt.
    """
    names = []

    def record(frame: Any, event: str, argument: Any) -> None:
        if event == "call":
            names.append(frame.f_code.co_qualname)

    gc.disable()
    sys.setprofile(record)
    try:
        action()
    finally:
        sys.setprofile(None)
        gc.enable()
    return names
