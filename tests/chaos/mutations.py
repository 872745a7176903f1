"""Damaged sources and datasets, against an independent reading.

tests/fuzz/readers.py makes the cases, for all formats in turn: bits, bytes, files and tables are changed, also
under valid checksums. The outcome is the values that another library reads, or a typed error, within limits of time and
memory, in a process that does not crash.
"""

from __future__ import annotations

import os
import tempfile
from collections import Counter
from pathlib import Path

from tests.chaos.result import ChaosResult, Limit
from tests.fuzz import readers
from tests.support.makers.grown import GROWN_MAKERS
from tests.support.makers.videos import VIDEO_MAKERS
from tests.support.source_makers import MAKERS


def run(seed: int, limit: Limit) -> ChaosResult:
    """Damages a source of each format in turn.

    Every second case damages a gear dataset: one of columns, one with videos, or one that grew.
    """
    os.fsync = lambda _: None  # durability is not needed here
    names = [*MAKERS, *VIDEO_MAKERS, *GROWN_MAKERS]
    readers.warm_up(names)
    datasets = ("gear", "gear-videos", *GROWN_MAKERS)
    names = [name for name in names if name not in datasets]
    tried: Counter[str] = Counter()
    failures: list[str] = []
    with tempfile.TemporaryDirectory(prefix="gear-chaos-") as scratch:
        sources: dict[str, Path | None] = {}
        for number in limit.numbers():
            of_kind = datasets if number % 2 else names
            name = of_kind[number // 2 % len(of_kind)]
            if name not in sources:
                sources[name] = readers.make_sources([name], Path(scratch)).get(name)
            if (source := sources[name]) is None:
                continue
            case = readers.FuzzCase(seed, name, number)
            outcome = readers.run(case, source, Path(tempfile.gettempdir(), "gear-fuzz"))
            tried[f"{'datasets' if name in datasets else 'sources'} {outcome}"] += 1
            failures += [f"case {number}: python -m tests.fuzz.readers {case}"] if outcome == "failed" else []
    skipped = {name: "its library is not installed" for name, source in sources.items() if source is None}
    return ChaosResult("mutations", seed, tried.total(), dict(sorted(tried.items())), tuple(failures), skipped)
