"""SIGKILL in every write path.

The kill comes before one of the file operations of the path, or at a random moment.

After the kill the destination is missing, is refused with a hint, or is whole. The same job, run again as the
documentation says, leaves the files that an unkilled run leaves, byte for byte, and nothing else: no temporary file,
lock, shared memory or process.
"""

from __future__ import annotations

import random
import shutil
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from tests.chaos.result import ChaosResult, Limit
from tests.support.chaos.system_calls import Answer, Call, Ended, refusal, supervise
from tests.support.chaos.write_paths import WRITE_PATHS, WritePath, inside, warm_up

#: Rows of processes with host memory, which the next process removes. They have the numbers of processes.
_HOST_REGISTRY = "tmp/gear-data-host-"


@dataclass(frozen=True)
class Whole:
    """A write path that ran without a kill.

    Attributes:
        template: Folder with the inputs of the path.
        contents: Files of the folder after the run.
        calls: File operations of the run.
        seconds: Wall time of the run.
    """

    path: WritePath
    template: Path
    contents: dict[str, bytes]
    calls: tuple[Call, ...]
    seconds: float

    def points(self) -> list[list[int]]:
        """Returns the numbers of the calls, grouped by operation and file."""
        groups: dict[tuple[str, str], list[int]] = {}
        for call in self.calls:
            groups.setdefault((call.name, call.file), []).append(call.number)
        return list(groups.values())

    def half_written(self, case: Path) -> str | None:
        """Returns a file of a case that has neither its first nor its last contents, under its final name."""
        before, found = contents(self.template), contents(case)
        for file, data in self.contents.items():
            if file in found and found[file] not in (data, before.get(file)):
                return file
        return None


def run(seed: int, limit: Limit) -> ChaosResult:
    """Kills write paths in turn.

    Three of four kills come before a random file operation, the others at a random moment.
    """
    if (reason := refusal()) is not None:
        return ChaosResult("kills", seed, 0, {}, skipped={"all": reason})
    warm_up()
    tried: Counter[str] = Counter()
    failures: list[str] = []
    with tempfile.TemporaryDirectory(prefix="gear-chaos-") as scratch:
        work = Path(scratch)
        wholes: dict[str, Whole] = {}
        for number in limit.numbers():
            rng = random.Random(f"{seed} {number}")
            path = WRITE_PATHS[number % len(WRITE_PATHS)]
            if path.name not in wholes:
                wholes[path.name] = run_whole(path, work)
            moment = rng.random() < 0.25
            failure = _kill(wholes[path.name], work / "case", rng, moment=moment)
            tried[f"{path.name}, {'at a moment' if moment else 'at an operation'}"] += 1
            failures += [f"case {number}: {failure}"] if failure else []
    return ChaosResult("kills", seed, tried.total(), dict(sorted(tried.items())), tuple(failures))


def run_whole(path: WritePath, work: Path) -> Whole:
    """Runs a write path once without a fault.

    The folder is always the same, because manifests name their sources.
    """
    template, case = work / f"{path.name}.template", work / "case"
    shutil.rmtree(case, ignore_errors=True)
    case.mkdir()
    run_quietly(inside(case, path.prepare), case)
    case.rename(template)
    copy_case(template, case)
    ended = run_quietly(inside(case, path.run), case)
    return Whole(path, template, contents(case), ended.calls, ended.seconds)


def run_quietly(body: object, folder: Path) -> Ended:
    """Runs `body` in a process, without faults; it must succeed."""
    ended = supervise(body, folder, folder.with_suffix(".log"))  # type: ignore[arg-type]
    if ended.status != 0:
        raise RuntimeError(f"a run without faults failed: {ended.output}")
    return ended


def copy_case(template: Path, case: Path) -> Path:
    """Copies the inputs of a write path to the folder of a case."""
    shutil.rmtree(case, ignore_errors=True)
    shutil.copytree(template, case, symlinks=True)
    return case


def _kill(whole: Whole, case: Path, rng: random.Random, *, moment: bool) -> str | None:
    """Kills one run; returns the failure."""
    path = whole.path
    copy_case(whole.template, case)
    log = case.with_suffix(".log")
    if moment:
        seconds = rng.uniform(0, whole.seconds)
        at = f"after {seconds:.4f} s"
        ended = supervise(inside(case, path.run), case, log, kill_after=seconds)
    else:
        place = rng.choice(rng.choice(whole.points()))
        at = f"before {whole.calls[place]}"

        def answer(call: Call) -> Answer:
            return Answer.KILL if call.number == place else Answer.PASS

        ended = supervise(inside(case, path.run), case, log, answer)
    what = f"{path.name}, killed {at}"
    if ended.status not in (0, -9):
        return f"{what}: exit status {ended.status}: {last_line(ended.output)}"
    if ended.orphans:
        return f"{what}: a process outlived the killed one"
    if "Traceback" in ended.output:
        return f"{what}: printed a traceback: {last_line(ended.output)}"
    if (file := whole.half_written(case)) is not None:
        return f"{what}: {file} is half-written"
    found = supervise(lambda: path.check(case), case, log)
    if found.status != 0:
        return f"{what}: {last_line(found.output)}"
    if found.calls:
        return f"{what}: looking at the folder changed it: {found.calls[0]}"
    again = supervise(inside(case, path.again), case, log)
    if again.status != 0:
        return f"{what}; the next run failed: {last_line(again.output)}"
    difference = contents_differ(whole.contents, contents(case))
    return f"{what}; after the next run, {difference}" if difference else None


def contents(folder: Path) -> dict[str, bytes]:
    """Returns name -> contents of all files in a folder, and of its subfolders, which have none."""
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else b""
        for path in folder.rglob("*")
        if _HOST_REGISTRY not in str(path)
    }


def contents_differ(expected: dict[str, bytes], found: dict[str, bytes]) -> str | None:
    """Returns the first difference of two folders; None if they are equal."""
    for file in sorted(expected.keys() | found.keys()):
        if file not in found:
            return f"{file} is missing"
        if file not in expected:
            return f"{file} is left"
        if expected[file] != found[file]:
            return f"{file} differs"
    return None


def last_line(output: str) -> str:
    """Returns the last lines of a process's output as one."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    return " | ".join(lines[-3:]) or "no output"
