"""The steps of a check, and their groups. A group runs for at most nine minutes."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO

from scripts.gpu.errors import ROOT, GpuCheckError
from scripts.gpu.interpreter import Interpreter

#: Seconds of a group. Machines that stop a command after ten minutes have time to unpack a bundle first.
SECONDS = 530.0
#: The tools of compute-sanitizer, and their options. Failed API calls are not reported: the tests raise them, and
#: libraries probe with calls that fail.
SANITIZERS = {"memcheck": ("--report-api-errors=no",), "racecheck": (), "synccheck": ()}
#: The sanitizers are slow, so tests with many generated examples are left out.
_SANITIZED = ("tests/gpu/test_kernels.py", "-k", "device and not test_any")
#: Groups of steps, and the share of the group's time that each step may take. Time that a step leaves is divided
#: among the later ones.
GROUPS = {
    "first": {"probe": 60.0, "doctor": 90.0, "tests": 200.0, "quick": 180.0},
    "rest": {"benchmark": 380.0, "memcheck": 70.0, "racecheck": 40.0, "synccheck": 40.0},
}
STEPS = tuple(step for group in GROUPS.values() for step in group)
#: Processes of the tests. One that CUDA's driver stops, or that a kernel hangs in, is replaced.
_WORKERS = 4
#: Seconds of a test. It ends with the stacks of its threads, and its process ends if that does not stop it.
_TEST_SECONDS, _HANG_SECONDS = 100, 120
#: Seconds in which the benchmark ends before it is stopped.
_MARGIN_SECONDS = 5.0
#: Seconds between two looks at a step's output.
_POLL_SECONDS = 0.2
_RECORD = "steps.json"


@dataclass(frozen=True)
class StepResult:
    """How a step ended.

    Attributes:
        status: passed, failed, timed out or skipped.
        seconds: how long it took.
        command: its command line.
        reason: why it did not pass; None if it did.
    """

    status: str
    seconds: float
    command: list[str]
    reason: str | None = None

    @property
    def ok(self) -> bool:
        return self.status in ("passed", "skipped")


def parse_steps(text: str) -> Mapping[str, float]:
    """Returns the steps of a group, or one step, and the share of the time of each.

    Raises:
        GpuCheckError: there is no such group or step.
    """
    name, _, sections = text.partition(":")
    if text in GROUPS:
        return GROUPS[text]
    if text in STEPS or (name == "benchmark" and sections):
        return {text: 1.0}
    raise GpuCheckError(f"unknown step {text!r}; known: {', '.join((*GROUPS, *STEPS))}, and benchmark:SECTIONS")


def command_of(step: str, python: str, results: Path, seconds: float) -> list[str] | None:
    """Returns the command of a step; None if this machine lacks its tool.

    Args:
        seconds: after which the step is stopped.
    """
    name, _, sections = step.partition(":")
    record = results / f"{file_name(step)}.json"
    if name == "probe":
        return [python, "-m", "scripts.gpu.probe", "--json", str(record)]
    if name == "doctor":
        # Compiles the CPU's kernels, which the tests and the benchmark would otherwise wait for.
        return [python, "-m", "gear_data.cli", "doctor", "--warm"]
    if name == "tests":
        return [python, "-m", "pytest", "-v", "-p", "no:cacheprovider", "-n", str(_WORKERS), "-o",
                f"timeout={_TEST_SECONDS}", "-o", f"faulthandler_timeout={_HANG_SECONDS}", "tests/gpu"]  # fmt: skip
    if name in ("quick", "benchmark"):
        options = ["--quick"] if name == "quick" else ["--only", sections] if sections else []
        return [python, "benchmarks/gpu.py", *options, "--seconds", f"{max(0.0, seconds - _MARGIN_SECONDS):.0f}",
                "--json", str(record)]  # fmt: skip
    if shutil.which("compute-sanitizer") is None:
        return None
    return ["compute-sanitizer", "--tool", name, *SANITIZERS[name], "--error-exitcode", "9", python, "-m", "pytest",
            "-q", "-x", "-p", "no:cacheprovider", *_SANITIZED]  # fmt: skip


def file_name(step: str) -> str:
    """Returns the name of a step's files, without a suffix."""
    return step.replace(":", "-").replace(",", "")


def run_steps(steps: Mapping[str, float], python: Interpreter, results: Path, seconds: float = SECONDS) -> list[str]:
    """Runs steps in order, also after one that fails. Returns the failed ones.

    Args:
        steps: name -> share of the time that is left to it and the later ones.
        results: the folder of the files that the steps leave.
        seconds: of all steps.
    """
    results.mkdir(parents=True, exist_ok=True)
    end = time.monotonic() + seconds
    names = list(steps)
    found = {}
    for number, step in enumerate(names):
        share = steps[step] / sum(steps[later] for later in names[number:])
        print(f"== {step}", flush=True)
        found[step] = run_step(step, python, results, share * max(0.0, end - time.monotonic()))
        _record(results, step, found[step])
    for step, result in found.items():
        reason = "" if result.reason is None else f": {result.reason}"
        print(f"== {step} {result.status}, {result.seconds:.0f} s{reason}", flush=True)
    return [step for step, result in found.items() if not result.ok]


def run_step(step: str, python: Interpreter, results: Path, seconds: float) -> StepResult:
    """Runs one step. Its output goes to a file, and from there to the terminal."""
    command = command_of(step, python.path, results, seconds)
    if command is None:
        return StepResult("skipped", 0.0, [], "compute-sanitizer is not installed; it comes with the CUDA toolkit")
    begun = time.monotonic()
    output = results / f"{file_name(step)}.txt"
    with output.open("wb") as file, output.open("rb") as written:
        # A new session, so that the processes that the step starts end with it.
        process = subprocess.Popen(
            command, cwd=ROOT, env={**python.environment(), "GEAR_DATA_REQUIRE_GPU": "1"}, stdout=file,
            stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
        try:
            while process.poll() is None and time.monotonic() < begun + seconds:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(_POLL_SECONDS)
                _show(written)
        finally:
            late = process.poll() is None
            if late:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        _show(written)
    took = round(time.monotonic() - begun, 1)
    if late:
        return StepResult("timed out", took, command, f"took more than {seconds:.0f} s")
    status = process.returncode
    return StepResult("failed", took, command, f"status {status}") if status else StepResult("passed", took, command)


def _show(written: IO[bytes]) -> None:
    print(written.read().decode(errors="replace"), end="", flush=True)


def _record(results: Path, step: str, result: StepResult) -> None:
    """Adds a result to the record of the folder, which earlier calls began."""
    file = results / _RECORD
    record = json.loads(file.read_text()) if file.exists() else {}
    file.write_text(json.dumps({**record, step: asdict(result)}, indent=1) + "\n")
