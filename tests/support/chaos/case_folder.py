"""The folder of a case: its inputs, and its files after a run.

The files after a run with a fault are compared with the files after a run without faults.
"""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.support.chaos.system_calls import Call, Ended, supervise
from tests.support.chaos.write_paths import Job, WritePath, inside

#: Rows of processes with host memory, which the next process removes, and code that TensorFlow writes. Their names
#: differ from run to run.
_OTHERS = ("tmp/gear-data-host-", "tmp/__autograph_generated_file")


@dataclass(frozen=True)
class Whole:
    """A write path that ran without a fault.

    Attributes:
        template: folder with the inputs of the path.
        before: files of the folder before the run.
        after: files of the folder after the run.
        calls: file operations of the run.
        seconds: wall time of the run.
    """

    path: WritePath
    template: Path
    before: dict[str, bytes]
    after: dict[str, bytes]
    calls: tuple[Call, ...]
    seconds: float

    def place(self, seed: int, visit: int) -> Call:
        """Returns the call for a visit of this path. Many visits go to all calls.

        The first visits go to different operations and files.
        """
        rng = random.Random(f"{seed} {self.path.name}")
        groups: dict[tuple[str, str], list[Call]] = {}
        for call in rng.sample(self.calls, len(self.calls)):
            groups.setdefault((call.name, call.file), []).append(call)
        order = [group[0] for group in groups.values()] + [call for group in groups.values() for call in group[1:]]
        return order[visit % len(order)]


def run_whole(path: WritePath, case: Path) -> Whole:
    """Runs a write path once without a fault.

    The folder is the folder of all cases, because manifests name their sources.
    """
    template = case.with_name(f"{path.name}.template")
    shutil.rmtree(case, ignore_errors=True)
    case.mkdir()
    _run_quietly(path, path.prepare, case)
    case.rename(template)
    copy_case(template, case)
    ended = _run_quietly(path, path.run, case)
    return Whole(path, template, contents(template), contents(case), ended.calls, ended.seconds)


def _run_quietly(path: WritePath, job: Job, case: Path) -> Ended:
    ended = supervise(inside(case, job), case, log_of(case))
    if ended.status != 0:
        raise RuntimeError(f"{path.name}: a run without faults ended with status {ended.status}: {ended.output}")
    return ended


def copy_case(template: Path, case: Path) -> None:
    """Copies the inputs of a write path to the folder of a case. Hard links stay links."""
    copied: dict[int, str] = {}

    def copy(source: str, target: str) -> None:
        file = os.stat(source, follow_symlinks=False).st_ino
        if file in copied:
            os.link(copied[file], target)
        else:
            copied[file] = shutil.copy2(source, target, follow_symlinks=False)

    shutil.rmtree(case, ignore_errors=True)
    shutil.copytree(template, case, symlinks=True, dirs_exist_ok=True, copy_function=copy)


def log_of(case: Path) -> Path:
    """Returns the file for the output of a case's processes."""
    return case.with_suffix(".log")


def failure_of(ended: Ended) -> str | None:
    """Returns the failure of a job's processes; None if they did what a fault allows."""
    if ended.orphans:
        return "a process outlived the main process"
    if "Traceback" in ended.output:
        return f"printed a traceback: {last_lines(ended.output)}"
    return None


def wrong_after(whole: Whole, case: Path, around: Callable[[Job], Job] = lambda job: job) -> str | None:
    """Returns the failure of a folder after a fault: at once, or after the next run.

    It is None if all is well. `around` changes the job of the next run.
    """
    found = contents(case)
    for file, data in whole.after.items():
        if file in found and found[file] not in (data, whole.before.get(file)):
            return f"{file} is half-written"
    looked = supervise(lambda: whole.path.check(case), case, log_of(case))
    if looked.status != 0:
        return last_lines(looked.output)
    if looked.calls:
        return f"looking at the folder changed it: {looked.calls[0]}"
    again = supervise(inside(case, around(whole.path.again)), case, log_of(case))
    if again.status != 0:
        return f"the next run failed: {last_lines(again.output)}"
    difference = _difference(whole.after, contents(case))
    return f"after the next run, {difference}" if difference else None


def contents(folder: Path) -> dict[str, bytes]:
    """Returns name -> contents of all files in a folder.

    Subfolders are listed too, without contents.
    """
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else b""
        for path in folder.rglob("*")
        if not any(name in str(path) for name in _OTHERS)
    }


def _difference(expected: dict[str, bytes], found: dict[str, bytes]) -> str | None:
    for file in sorted(expected.keys() | found.keys()):
        if file not in found:
            return f"{file} is missing"
        if file not in expected:
            return f"{file} is left"
        if expected[file] != found[file]:
            return f"{file} differs"
    return None


def last_lines(output: str) -> str:
    """Returns the last lines of a process's output as one."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    return " | ".join(lines[-3:]) or "no output"
