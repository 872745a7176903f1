"""Measures the first batch of a process, beside imports that it cannot do without.

    python benchmarks/first_batch.py --json first_batch.json

Each program is a process of its own, and they take turns. Kernels are in Numba's cache, and modules are compiled, as
pip leaves them. Seconds of the processor are disturbed less by other processes than seconds of the clock.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from common import (
    ROOT,
    command_line,
    format_table,
    machine_facts,
    progress,
    spread,
    synthetic_episodes,
    write_json,
    write_parquet,
)

import gear_data

_BATCH = (
    "import gear_data, sys; "
    "next(iter(gear_data.SequenceLoader(gear_data.open(sys.argv[1]), 256, context=20, framework='{}')))"
)
#: Name -> program. Its argument is a dataset.
PROGRAMS = {
    "import numpy, pyarrow": "import numpy, pyarrow",
    "import numpy, pyarrow, numba": "import numpy, pyarrow, numba",
    "batch of NumPy": _BATCH.format("numpy"),
    "import torch": "import torch",
    "batch of torch": _BATCH.format("torch"),
    "gear-data --help": "from gear_data.cli import main; main(['--help'])",
}


def seconds(program: str, path: Path) -> tuple[float, float]:
    """Returns the seconds of a process: of the processor, and of the clock."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    # With this variable, every process would compile all modules of the checkout.
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    began = time.perf_counter()
    process = subprocess.Popen([sys.executable, "-c", program, str(path)], env=environment, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    elapsed = time.perf_counter() - began
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, process.args)
    return usage.ru_utime + usage.ru_stime, elapsed


def measure(path: Path, rounds: int) -> Mapping[str, dict[str, Any]]:
    """Returns name of a program -> `spread` of both kinds of seconds, over the rounds."""
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in PROGRAMS}
    for number in range(-1, rounds):  # before the first round, kernels are compiled and files are read
        progress(f"round {number + 1} of {rounds}")
        for name, program in PROGRAMS.items():
            measured = seconds(program, path)
            if number >= 0:
                found[name].append(measured)
    return {
        name: {
            kind: spread(values) for kind, values in zip(("processor", "clock"), zip(*each, strict=True), strict=True)
        }
        for name, each in found.items()
    }


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9, help="processes of each program (default 9)")
    parser.add_argument("--json", type=Path, help="write the full record here")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    args = make_parser().parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="gear-bench-") as folder:
        source, path = Path(folder) / "source.parquet", Path(folder) / "dataset"
        write_parquet(synthetic_episodes(50_000), source)
        gear_data.convert(source, path, progress=False)
        machine = machine_facts()
        results = measure(path, args.rounds)
    rows = [
        [name, *(f"{each[kind]['median']:.2f}" for kind in ("processor", "clock"))] for name, each in results.items()
    ]
    print(format_table(["a process", "processor s", "clock s"], rows))
    if args.json is not None:
        write_json(args.json, {"command": command_line(), "machine": machine, "results": results})
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
