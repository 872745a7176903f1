"""The compared libraries, the contenders.

Each one runs in its own process and environment, because their requirements conflict.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from common import ROOT, progress

from feeding.environments import HERE, ContenderError, is_installed, last_line, venv_python

SETUP_TIMEOUT_SECONDS = 600.0
INLINE, THREADS = "gear-inline", "gear"


@dataclass(frozen=True)
class Contender:
    name: str
    title: str
    script: str
    #: The path of `feeding.data.Data` that the contender reads.
    data: Literal["dataset", "source", "steps"]
    #: Name of its environment, and of its file under requirements/; None: this interpreter.
    environment: str | None = None
    arguments: tuple[str, ...] = ()
    #: The checkout whose gear_data it imports.
    checkout: Path = ROOT


CONTENDERS = (
    Contender(INLINE, "gear-data, prefetch=0", "gear_loader.py", "dataset", arguments=("--prefetch", "0")),
    Contender(THREADS, "gear-data, prefetch=2", "gear_loader.py", "dataset", arguments=("--prefetch", "2")),
    Contender("floor", "the floor, new tensors", "floor.py", "steps"),
    Contender("floor-kept", "the floor, tensors used again", "floor.py", "steps", arguments=("--kept",)),
    Contender("torchrl", "TorchRL SliceSampler, memory", "torchrl_slices.py", "steps", "torchrl"),
    Contender(
        "torchrl-memmap",
        "TorchRL SliceSampler, memmap",
        "torchrl_slices.py",
        "steps",
        "torchrl",
        ("--storage", "memmap"),
    ),
    Contender("dt", "Decision Transformer loop", "dt_numpy.py", "steps"),
    Contender(
        "dt-published",
        "Decision Transformer loop, returns summed per window",
        "dt_numpy.py",
        "steps",
        arguments=("--returns", "published"),
    ),
    Contender("d3rlpy", "d3rlpy", "d3rlpy_trajectories.py", "steps", "d3rlpy"),
    Contender("reverb", "Reverb TrajectoryDataset, same process", "reverb_trajectories.py", "steps", "reverb"),
    Contender("hf", "HF datasets rows + collator, states only", "hf_rows.py", "source", "hf"),
    Contender(
        "hf-arrow",
        "HF datasets Arrow rows + collator, states only",
        "hf_rows.py",
        "source",
        "hf",
        ("--rows", "arrow"),
    ),
    Contender("ogbench", "OGBench's GCDataset in NumPy", "goals_numpy.py", "steps"),
    Contender("numpy", "NumPy index loop", "numpy_transitions.py", "steps"),
    Contender("ogbench-transitions", "OGBench Dataset.sample", "ogbench_transitions.py", "steps", "flashbax"),
    Contender("torchrl-transitions", "TorchRL ReplayBuffer", "torchrl_transitions.py", "steps", "torchrl"),
    Contender("d3rlpy-transitions", "d3rlpy, transitions", "d3rlpy_transitions.py", "steps", "d3rlpy"),
    Contender("flashbax", "Flashbax item buffer", "flashbax_transitions.py", "steps", "flashbax"),
    Contender("numpy-shifts", "NumPy loop that pads and cuts images", "numpy_shifts.py", "steps"),
    Contender(
        "gear-converted",
        "gear-data, one column since the conversion, prefetch=0",
        "gear_loader.py",
        "dataset",
        arguments=("--prefetch", "0", "--converted"),
    ),
    Contender("numpy-stacks", "NumPy loop with np.concatenate", "numpy_stacks.py", "steps"),
    Contender("torchrl-priorities", "TorchRL prioritized buffer", "torchrl_priorities.py", "steps", "torchrl"),
    Contender("memcpy", "memcpy, 1 thread", "memcpy_ceiling.py", "steps"),
    Contender(
        "memcpy-hot", "memcpy, 1 thread, into a hot batch", "memcpy_ceiling.py", "steps", arguments=("--into", "batch")
    ),
)


def own_variables(scratch: Path, checkout: Path = ROOT) -> dict[str, str]:
    """Returns environment variables for a checkout's gear_data.

    With them Python imports this gear_data, installed or not.
    """
    path = os.pathsep.join(filter(None, [str(checkout), os.environ.get("PYTHONPATH")]))
    return {**os.environ, "TMPDIR": str(scratch), "PYTHONPATH": path}


def run_script(script: str, *arguments: str, log: Path, checkout: Path = ROOT) -> dict[str, Any]:
    """Runs a script of a checkout's peers/, and returns the JSON that it prints.

    The script runs in this interpreter.

    Raises:
        ContenderError: the script failed; the message holds its last line.
    """
    command = [sys.executable, str(checkout / HERE.relative_to(ROOT) / "peers" / script), *arguments]
    with log.open("w") as errors:
        done = subprocess.run(
            command,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            check=False,
            env=own_variables(log.parent, checkout),
        )
    if done.returncode:
        raise ContenderError(f"{script} failed: {last_line(log.read_text(errors='replace'))}")
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


class Process:
    """One contender's process. It is set up once and measures on request."""

    def __init__(self, contender: Contender, python: Path, options: Sequence[str], log: Path) -> None:
        self.contender, self.log = contender, log
        # Temporary files of a killed contender are deleted with the scratch folder. The peers' environments get no
        # PYTHONPATH.
        own = contender.environment is None
        variables = own_variables(log.parent, contender.checkout) if own else {**os.environ, "TMPDIR": str(log.parent)}
        command = [str(python), str(HERE / "peers" / contender.script), "--on-request", *options, *contender.arguments]
        with log.open("w") as errors:
            self.child = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True, env=variables
            )

    def hear(self, timeout: float) -> dict[str, Any]:
        watchdog = threading.Timer(timeout, self.child.kill)
        watchdog.start()
        try:
            line = self.child.stdout.readline() if self.child.stdout else ""
        finally:
            watchdog.cancel()
        if not line:
            status = self.child.wait()
            raise ContenderError(f"ended with status {status}: {last_line(self.log.read_text(errors='replace'))}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def measure(self, seconds: float) -> dict[str, Any]:
        print("measure", file=self.child.stdin, flush=True)
        return self.hear(60 + 10 * seconds)

    def close(self) -> None:
        if self.child.stdin is not None:
            # A process that ended has not read the last request, which is written again here.
            with suppress(BrokenPipeError):
                self.child.stdin.close()
        try:
            self.child.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self.child.kill()
            self.child.wait()


def other_checkout(path: Path) -> list[Contender]:
    """Returns gear-data as contenders, from another checkout of the repository."""
    ours = [contender for contender in CONTENDERS if contender.name in (INLINE, THREADS)]
    return [
        replace(contender, name=f"{contender.name}@{path.name}", title=f"{contender.title}, {path.name}", checkout=path)
        for contender in ours
    ]


def find_python(contender: Contender, venvs: Path, given: Mapping[str, Path]) -> Path:
    """Returns a contender's interpreter.

    Raises ContenderError if its environment is not installed.
    """
    if contender.environment is None:
        return Path(sys.executable)
    if contender.environment in given:
        return given[contender.environment]
    folder = venvs / contender.environment
    if not is_installed(folder, contender.environment):
        raise ContenderError("not installed (run with --install)")
    return venv_python(folder)


def run_rounds(
    processes: Mapping[str, Process], seconds: float, repetitions: int, failures: dict[str, str]
) -> dict[str, list[dict[str, Any]]]:
    """Measures all contenders in alternating rounds.

    A contender that stops is added to `failures`, and skipped from then on.
    """
    measured: dict[str, list[dict[str, Any]]] = {name: [] for name in processes}
    for repetition in range(repetitions):
        for name, process in processes.items():
            if name in failures:
                continue
            progress(f"round {repetition + 1} of {repetitions}: {name}")
            try:
                measured[name].append(process.measure(seconds))
            except (ContenderError, OSError) as error:
                failures[name] = str(error)
    progress("")
    return {name: records for name, records in measured.items() if name not in failures}


def chosen_contenders(names: str | None) -> list[Contender]:
    """Returns the named contenders (None: all), and gear-data, which the ratios need.

    Raises SystemExit for an unknown name.
    """
    known = {contender.name: contender for contender in CONTENDERS}
    if names is None:
        return list(CONTENDERS)
    wanted = [name.strip() for name in names.split(",") if name.strip()]
    if unknown := [name for name in wanted if name not in known]:
        raise SystemExit(f"unknown peers {', '.join(unknown)}; known: {', '.join(known)}")
    return [contender for contender in CONTENDERS if contender.name in {INLINE, THREADS, *wanted}]
