"""Disks that fill up or fail, in every write path.

- one file operation fails with EIO;
- from some operation on, all that take space fail with ENOSPC;
- every write is cut short;
- a tmpfs is too small for the job.

A job on such a disk succeeds or ends with a typed error, and leaves nothing half-done that looks finished. The same
job, run again on a good disk, leaves the files of a run without faults, byte for byte.
"""

from __future__ import annotations

import errno
import random
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path

from gear_data.errors import GearError
from tests.chaos.result import ChaosResult, Limit
from tests.support.chaos.case_folder import Whole, copy_case, failure_of, last_lines, log_of, wrong_after
from tests.support.chaos.small_disk import PAGE, enlarge, own_mounts, small_disk
from tests.support.chaos.system_calls import PLAIN_WRITES, SPACE, Answer, Call, refusal, supervise
from tests.support.chaos.visits import visits
from tests.support.chaos.write_paths import Job, inside

_SMALL = "small tmpfs"
_KINDS = ("EIO", "ENOSPC", "short writes", _SMALL)
_REFUSED = "typed error"


def run(seed: int, limit: Limit) -> ChaosResult:
    """Lets the disk fail in the write paths in turn, in one way after the other."""
    if (reason := refusal()) is not None:
        return ChaosResult("disks", seed, 0, {}, skipped={"all": reason})
    unmountable = own_mounts()
    kinds = [kind for kind in _KINDS if unmountable is None or kind != _SMALL]
    tried: Counter[str] = Counter()
    failures: list[str] = []
    for visit in visits(limit):
        kind = kinds[(visit.round + visit.index) % len(kinds)]
        failure = _fail(visit.whole, visit.folder, seed, visit.round, kind)
        tried[kind] += 1
        failures += [f"case {visit.case}: {visit.whole.path.name}, {kind}{failure}"] if failure else []
    skipped = {} if unmountable is None else {_SMALL: unmountable}
    return ChaosResult("disks", seed, tried.total(), dict(tried), tuple(failures), skipped)


def _fail(whole: Whole, case: Path, seed: int, visit: int, kind: str) -> str | None:
    """Runs one write path on a bad disk; returns the failure."""
    place = whole.place(seed, visit)
    what = f" at {place}" if kind in ("EIO", "ENOSPC") else ""
    with ExitStack() as stack:
        if kind == _SMALL:
            least, most = _pages(whole.before), _pages(whole.after)
            pages = random.Random(f"{seed} {visit} {whole.path.name}").randint(least, max(least, most))
            what = f" of {pages} pages"
            stack.enter_context(small_disk(case, pages))
        copy_case(whole.template, case)
        ended = supervise(inside(case, _typed(whole.path.run)), case, log_of(case), _fault(kind, place))
        failure = failure_of(ended)
        if failure is None and ended.status != 0:
            failure = f"exit status {ended.status}: {last_lines(ended.output)}"
        if failure is None and kind == "short writes" and _REFUSED in ended.output:
            failure = last_lines(ended.output)
        if kind == _SMALL:
            enlarge(case)
        failure = failure or wrong_after(whole, case)
    return f"{what}: {failure}" if failure else None


def _pages(contents: Mapping[str, bytes]) -> int:
    """Returns the size of a folder on a disk in memory."""
    return sum(1 + -(-len(data) // PAGE) for data in contents.values())


def _typed(job: Job) -> Job:
    """Returns a job that may end with a GearError."""

    def run(folder: Path) -> None:
        try:
            job(folder)
        except GearError as error:
            print(f"{_REFUSED}: {type(error).__name__}: {error}")

    return run


def _fault(kind: str, place: Call) -> Callable[[Call], Answer | int]:
    """Returns the answers of a disk that fails at a call."""

    def answer(call: Call) -> Answer | int:
        if kind == "short writes" and call.name in PLAIN_WRITES:
            return Answer.SHORT
        if kind == "EIO" and call.number == place.number:
            return errno.EIO
        if kind == "ENOSPC" and call.number >= place.number and call.name in SPACE:
            return errno.ENOSPC
        return Answer.PASS

    return answer
