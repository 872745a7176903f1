"""Clocks that jump by years, in every write path.

`time.time` gives another year at every call, and the files that a job left have times of other years when the next run
finds them. Half of the jobs are killed before a file operation, and continued under the jumping clock. In the
end the files are equal to the files of a run under a steady clock, byte for byte.

`time.monotonic` does not jump. Sources keep their times, because a source with another time counts as changed.
"""

from __future__ import annotations

import os
import random
import time
from collections import Counter
from pathlib import Path

from tests.chaos.result import ChaosResult, Limit
from tests.support.chaos.case_folder import Whole, copy_case, failure_of, last_lines, log_of, wrong_after
from tests.support.chaos.system_calls import Answer, Call, refusal, supervise
from tests.support.chaos.visits import visits
from tests.support.chaos.write_paths import Job, inside

_YEAR = 365 * 86400.0
#: Seconds that a clock is wrong by. A clock that runs since 1970 is wrong by the whole time.
_JUMPS = (-50 * _YEAR, -10 * _YEAR, -3600.0, 0.0, 3600.0, 10 * _YEAR, 75 * _YEAR)


def run(seed: int, limit: Limit) -> ChaosResult:
    """Runs the write paths in turn under jumping clocks.

    Every second case has a kill.
    """
    if (reason := refusal()) is not None:
        return ChaosResult("clocks", seed, 0, {}, skipped={"all": reason})
    tried: Counter[str] = Counter()
    failures: list[str] = []
    for visit in visits(limit):
        killed = (visit.round + visit.index) % 2 == 1
        failure = _jump(visit.whole, visit.folder, seed, visit.round, killed=killed)
        tried["killed and continued" if killed else "whole"] += 1
        failures += [f"case {visit.case}: {visit.whole.path.name}{failure}"] if failure else []
    return ChaosResult("clocks", seed, tried.total(), dict(tried), tuple(failures))


def _jump(whole: Whole, case: Path, seed: int, visit: int, *, killed: bool) -> str | None:
    """Runs one write path under a jumping clock; returns the failure."""
    rng = random.Random(f"{seed} {visit} {whole.path.name}")
    place = whole.place(seed, visit)
    copy_case(whole.template, case)
    _change_times(case, rng)

    def answer(call: Call) -> Answer:
        return Answer.KILL if killed and call.number == place.number else Answer.PASS

    ended = supervise(inside(case, _jumping(whole.path.run, rng.random())), case, log_of(case), answer)
    failure = failure_of(ended)
    if failure is None and ended.status not in ((0, -9) if killed else (0,)):
        failure = f"exit status {ended.status}: {last_lines(ended.output)}"
    _change_times(case, rng)
    failure = failure or wrong_after(whole, case, lambda job: _jumping(job, rng.random()))
    return f"{f', killed before {place}' if killed else ''}: {failure}" if failure else None


def _jumping(job: Job, seed: float) -> Job:
    """Returns a job in whose process `time.time` jumps."""

    def run(folder: Path) -> object:
        rng, now = random.Random(seed), time.time
        time.time = lambda: now() + rng.choice(_JUMPS)
        return job(folder)

    return run


def _change_times(case: Path, rng: random.Random) -> None:
    """Gives the files and folders of a case times of other years, except the source."""
    for path in sorted(case.rglob("*")):
        if "source" not in path.relative_to(case).parts:
            when = max(0.0, time.time() + rng.choice(_JUMPS))
            os.utime(path, (when, when), follow_symlinks=False)
