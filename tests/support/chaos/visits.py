"""Visits of the write paths in turn, as long as a limit allows."""

from __future__ import annotations

import importlib
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.chaos.result import Limit
from tests.support.chaos.case_folder import Whole, run_whole
from tests.support.chaos.write_paths import WRITE_PATHS, warm_up


@dataclass(frozen=True)
class Visit:
    """One case of a harness.

    Attributes:
        case: number of the case.
        round: how often the write path was visited before.
        index: position of the write path in `WRITE_PATHS`.
        whole: the write path, and a run of it without faults.
        folder: folder for the case. All cases have the same one.
    """

    case: int
    round: int
    index: int
    whole: Whole
    folder: Path


def visits(limit: Limit) -> Iterator[Visit]:
    """Yields the visits that the limit allows.

    The first visit of a write path runs the path once without faults.
    """
    warm_up()
    with tempfile.TemporaryDirectory(prefix="gear-chaos-") as scratch:
        folder = Path(scratch, "case")
        wholes: dict[str, Whole] = {}
        for number in limit.numbers():
            round_, index = divmod(number, len(WRITE_PATHS))
            path = WRITE_PATHS[index]
            if path.name not in wholes:
                for module in path.modules:
                    importlib.import_module(module)
                wholes[path.name] = run_whole(path, folder)
            yield Visit(number, round_, index, wholes[path.name], folder)
