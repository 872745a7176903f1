"""The steps of a check. Each runs for at most nine minutes."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from scripts.gpu.errors import ROOT, GpuCheckError
from scripts.gpu.installation import Interpreter

#: Seconds of a step. Machines that are lent for ten minutes a command can run any step.
SECONDS = 540.0
#: The tools of compute-sanitizer, and their options. Failed API calls are not reported: the tests raise them, and
#: libraries probe with calls that fail.
SANITIZERS = {"memcheck": ("--report-api-errors=no",), "racecheck": (), "synccheck": ()}
#: The sanitizers are slow, so tests with many generated examples are left out.
_SANITIZED = ("tests/gpu/test_kernels.py", "-k", "device and not test_any")
#: Sections of benchmarks/gpu.py that one command has time for.
BENCHMARKS = ("benchmark:abch", "benchmark:ie", "benchmark:dfgj")
STEPS = ("probe", "doctor", "tests", *BENCHMARKS, *SANITIZERS)
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


def parse_steps(texts: Sequence[str]) -> list[str]:
    """Returns the names of steps. `benchmark` stands for all its sections.

    Raises:
        GpuCheckError: there is no such step.
    """
    found: list[str] = []
    for text in texts:
        name, _, sections = text.partition(":")
        if text not in (*STEPS, "benchmark") and not (name == "benchmark" and sections):
            raise GpuCheckError(f"unknown step {text!r}; known: {', '.join(STEPS)}, and benchmark:SECTIONS")
        found += BENCHMARKS if text == "benchmark" else [text]
    return found


def command_of(step: str, python: str, results: Path) -> list[str] | None:
    """Returns the command of a step; None if this machine lacks its tool."""
    name, _, sections = step.partition(":")
    record = results / f"{file_name(step)}.json"
    if name == "probe":
        return [python, "-m", "scripts.gpu.probe", "--json", str(record)]
    if name == "doctor":
        # Compiles the CPU's kernels, which the tests and the benchmark would otherwise wait for.
        return [python, "-m", "gear_data.cli", "doctor", "--warm"]
    if name == "tests":
        return [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/gpu"]
    if name == "benchmark":
        return [python, "benchmarks/gpu.py", "--only", sections, "--json", str(record)]
    if shutil.which("compute-sanitizer") is None:
        return None
    return ["compute-sanitizer", "--tool", name, *SANITIZERS[name], "--error-exitcode", "9", python, "-m", "pytest",
            "-q", "-x", "-p", "no:cacheprovider", *_SANITIZED]  # fmt: skip


def file_name(step: str) -> str:
    """Returns the name of a step's files, without a suffix."""
    return step.replace(":", "-").replace(",", "")


def run_steps(steps: Sequence[str], python: Interpreter, results: Path, seconds: float = SECONDS) -> list[str]:
    """Runs steps in order, also after one that fails. Returns the failed ones."""
    results.mkdir(parents=True, exist_ok=True)
    failed = []
    for step in steps:
        print(f"== {step}", flush=True)
        result = run_step(step, python, results, seconds)
        _record(results, step, result)
        if result.reason is not None:
            print(f"== {step} {result.status}: {result.reason}", flush=True)
        if not result.ok:
            failed.append(step)
    return failed


def run_step(step: str, python: Interpreter, results: Path, seconds: float) -> StepResult:
    """Runs one step. Its output goes to the terminal and to a file."""
    command = command_of(step, python.path, results)
    if command is None:
        return StepResult("skipped", 0.0, [], "compute-sanitizer is not installed; it comes with the CUDA toolkit")
    begun = time.monotonic()
    # A new session, so that the processes that the step starts end with it.
    process = subprocess.Popen(
        command, cwd=ROOT, env={**python.environment(), "GEAR_DATA_REQUIRE_GPU": "1"}, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True, errors="replace", start_new_session=True,
    )  # fmt: skip
    late = threading.Event()

    def end() -> None:
        late.set()
        os.killpg(process.pid, signal.SIGKILL)

    timer = threading.Timer(seconds, end)
    timer.start()
    with (results / f"{file_name(step)}.txt").open("w") as file:
        for line in process.stdout or ():
            print(line, end="", flush=True)
            file.write(line)
            file.flush()
    status = process.wait()
    timer.cancel()
    took = round(time.monotonic() - begun, 1)
    if late.is_set():
        return StepResult("timed out", took, command, f"took more than {seconds:.0f} s")
    return StepResult("failed", took, command, f"status {status}") if status else StepResult("passed", took, command)


def _record(results: Path, step: str, result: StepResult) -> None:
    """Adds a result to the record of the folder, which earlier calls began."""
    file = results / _RECORD
    record = json.loads(file.read_text()) if file.exists() else {}
    file.write_text(json.dumps({**record, step: asdict(result)}, indent=1) + "\n")
