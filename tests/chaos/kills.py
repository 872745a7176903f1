"""SIGKILL in every write path.

The kill comes before one of the file operations of the path, or at a random moment. Many runs kill before every
operation.

After the kill the destination is missing, is refused with a hint, or is whole. The same job, run again as the
documentation says, leaves the files that an unkilled run leaves, byte for byte, and nothing else: no temporary file,
lock, shared memory or process.
"""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

from tests.chaos.result import ChaosResult, Limit
from tests.support.chaos.case_folder import Whole, copy_case, failure_of, last_lines, log_of, wrong_after
from tests.support.chaos.system_calls import Answer, Call, refusal, supervise
from tests.support.chaos.visits import visits
from tests.support.chaos.write_paths import inside


def run(seed: int, limit: Limit) -> ChaosResult:
    """Kills write paths in turn.

    Every fourth kill of a path comes at a random moment, the others before a file operation.
    """
    if (reason := refusal()) is not None:
        return ChaosResult("kills", seed, 0, {}, skipped={"all": reason})
    tried: Counter[str] = Counter()
    failures: list[str] = []
    for visit in visits(limit):
        name = visit.whole.path.name
        failure = _kill(visit.whole, visit.folder, seed, visit.round)
        tried[name.partition(" ")[0]] += 1
        failures += [f"case {visit.case}: {name}, {failure}"] if failure else []
    return ChaosResult("kills", seed, tried.total(), dict(tried), tuple(failures))


def _kill(whole: Whole, case: Path, seed: int, visit: int) -> str | None:
    """Kills one run; returns the failure."""
    copy_case(whole.template, case)
    body = inside(case, whole.path.run)
    if visit % 4 == 3:
        seconds = random.Random(f"{seed} {visit}").uniform(0, whole.seconds)
        what = f"killed after {seconds:.4f} s"
        ended = supervise(body, case, log_of(case), kill_after=seconds)
    else:
        place = whole.place(seed, visit - visit // 4)
        what = f"killed before {place}"

        def answer(call: Call) -> Answer:
            return Answer.KILL if call.number == place.number else Answer.PASS

        ended = supervise(body, case, log_of(case), answer)
    failure = failure_of(ended)
    if failure is None and ended.status not in (0, -9):
        failure = f"exit status {ended.status}: {last_lines(ended.output)}"
    failure = failure or wrong_after(whole, case)
    return f"{what}: {failure}" if failure else None
