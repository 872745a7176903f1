"""Runs the checks of a module in a guest."""

from __future__ import annotations

import time
import traceback
from collections.abc import Iterator, Mapping
from typing import Any


def run(functions: Mapping[str, Any], world: object) -> Iterator[dict[str, Any]]:
    """Runs each `check_...` function in order.

    Yields its name without the prefix, its error (or None) and seconds.
    """
    for name, check in list(functions.items()):
        if name.startswith("check_"):
            begun, problem = time.monotonic(), None
            try:
                check(world)
            except BaseException:
                problem = traceback.format_exc()
            seconds = time.monotonic() - begun
            print(name, "failed" if problem else "ok", round(seconds, 2), flush=True)
            yield {"check": name.removeprefix("check_"), "problem": problem, "seconds": seconds}
