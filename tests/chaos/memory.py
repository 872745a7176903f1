"""Too little memory, in every write path.

The address space of a job may grow by a random part of what the job needs, so that allocations fail at random places:
in Python, in NumPy, in Arrow, and where threads and processes start.

The job gives the right result, or ends with a typed error, a MemoryError, or an error of a library that says the same
in its own words. A library may also end the process. In each case nothing half-done looks finished, and the same job,
run again with enough memory, leaves the files of an undisturbed run, byte for byte.
"""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

from gear_data.errors import GearError
from tests.chaos.result import ChaosResult, Limit
from tests.support.chaos.case_folder import Whole, copy_case, last_lines, log_of, wrong_after
from tests.support.chaos.small_memory import (
    ended_by_library,
    has_error_of_library,
    measured,
    need_of,
    small_memory,
)
from tests.support.chaos.system_calls import refusal, supervise
from tests.support.chaos.visits import visits
from tests.support.chaos.write_paths import Job, inside

#: Outcomes of a job.
_RIGHT, _TYPED, _UNTYPED = "right result", "typed error", "MemoryError"
_LIBRARY, _ENDED = "error of a library", "ended by a library"


def run(seed: int, limit: Limit) -> ChaosResult:
    """Runs the write paths in turn with too little memory."""
    if (reason := refusal()) is not None:
        return ChaosResult("memory", seed, 0, {}, skipped={"all": reason})
    tried: Counter[str] = Counter()
    failures: list[str] = []
    needs: dict[str, int] = {}
    for visit in visits(limit):
        whole, name = visit.whole, visit.whole.path.name
        if name not in needs:
            copy_case(whole.template, visit.folder)
            job = inside(visit.folder, measured(whole.path.run))
            needs[name] = need_of(supervise(job, visit.folder, log_of(visit.folder)))
        extra = round(needs[name] * random.Random(f"{seed} {visit.round} {name}").random() ** 3)
        outcome, failure = _press(whole, visit.folder, extra)
        tried[outcome] += 1
        failures += [f"case {visit.case}: {name}, {extra >> 10} of {needs[name] >> 10} KiB: {failure}"] * bool(failure)
    return ChaosResult("memory", seed, tried.total(), dict(tried), tuple(failures))


def _press(whole: Whole, case: Path, extra: int) -> tuple[str, str | None]:
    """Runs one write path with too little memory; returns the outcome and the failure."""
    copy_case(whole.template, case)
    ended = supervise(inside(case, _limited(whole.path.run, extra)), case, log_of(case))
    failure = "a process outlived the main process" if ended.orphans else None
    outcome = next((each for each in (_TYPED, _UNTYPED) if f"outcome: {each}" in ended.output), _RIGHT)
    if ended_by_library(ended):
        outcome = _ENDED
    elif has_error_of_library(ended):
        outcome = _LIBRARY
    elif ended.status != 0:
        failure = f"exit status {ended.status}: {last_lines(ended.output)}"
    return outcome, failure or wrong_after(whole, case)


def _limited(job: Job, extra: int) -> Job:
    """Returns a job whose process may add some bytes of address space."""

    def run(folder: Path) -> None:
        try:
            with small_memory(extra):
                job(folder)
        except (GearError, MemoryError) as error:
            print(f"outcome: {_TYPED if isinstance(error, GearError) else _UNTYPED}: {type(error).__name__}: {error}")

    return run
