"""The outcome of one harness, and the limit of its run."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from itertools import count
from pathlib import Path
from types import ModuleType

_ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Limit:
    """Cases of a run: for some seconds, or a number of cases.

    Attributes:
        first: the number of the first case.
    """

    seconds: float = float("inf")
    runs: int | None = None
    first: int = 0

    def numbers(self) -> Iterator[int]:
        """Yields the numbers of the cases to run. There is at least one."""
        end = time.monotonic() + self.seconds
        yield self.first
        for number in count(self.first + 1):
            if (self.runs is not None and number >= self.first + self.runs) or time.monotonic() >= end:
                return
            yield number


@dataclass(frozen=True)
class ChaosResult:
    """Outcome of a harness: counts of its cases, and failures.

    A case is a function of (harness, seed, number of the case), so each failure names the seed and the number.
    """

    harness: str
    seed: int
    runs: int
    #: Kind of case -> number of runs.
    tried: Mapping[str, int]
    #: One line each, with the number of the case.
    failures: tuple[str, ...] = ()
    #: Kind of case that this machine does not allow -> reason.
    skipped: Mapping[str, str] = field(default_factory=dict)
    #: Measurements, one line each.
    notes: tuple[str, ...] = ()


def run_in_own_process(harness: ModuleType, seed: int, limit: Limit) -> ChaosResult:
    """Runs a harness in a fresh process, which may fork: it has no threads.

    A harness that ends with an error, or takes the process with it, is a failure.
    """
    name = harness.__name__.rpartition(".")[2]
    with tempfile.TemporaryDirectory(prefix="gear-chaos-") as folder:
        file = Path(folder, "result.json")
        command = [sys.executable, "-m", __name__, harness.__name__, str(seed), json.dumps(asdict(limit)), str(file)]
        # Programs of the harness import from `tests`, too.
        paths = os.pathsep.join(filter(None, [str(_ROOT), os.environ.get("PYTHONPATH")]))
        environment = {**os.environ, "PYTHONPATH": paths, "HF_HUB_OFFLINE": "1", "TF_CPP_MIN_LOG_LEVEL": "3"}
        # No pipe: a process that the harness leaves behind would keep it open.
        log = Path(folder, "stderr")
        with log.open("w") as errors:
            done = subprocess.run(command, env=environment, stderr=errors, check=False)
        if not file.exists():
            why = log.read_text(errors="replace").strip().splitlines()[-3:]
            return ChaosResult(name, seed, 0, {}, (f"the harness ended with status {done.returncode}: {why}",))
        record = json.loads(file.read_text())
    return ChaosResult(**{**record, "failures": tuple(record["failures"]), "notes": tuple(record["notes"])})


def markdown(results: list[ChaosResult]) -> str:
    """Returns the table of the results, as the README shows it."""
    lines = ["| harness | cases | runs | failures |", "|---|---|---:|---:|"]
    for result in results:
        done = ", ".join(f"{kind} {times:,}" for kind, times in result.tried.items())
        missing = "".join(f"; not run: {kind} ({reason})" for kind, reason in result.skipped.items())
        lines.append(f"| {result.harness} | {done}{missing} | {result.runs:,} | {len(result.failures):,} |")
    return "\n".join(lines)


def _main(module: str, seed: str, limit: str, file: str) -> None:
    result = importlib.import_module(module).run(int(seed), Limit(**json.loads(limit)))
    Path(file).write_text(json.dumps({**vars(result), "tried": dict(result.tried)}))


if __name__ == "__main__":
    _main(*sys.argv[1:])
