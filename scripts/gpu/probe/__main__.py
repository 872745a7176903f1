"""Runs the probe.

Each part runs in a separate process, because a process cannot use CUDA after an error of a kernel.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import platform
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from scripts.gpu.probe.measurements import PARTS, first_line

#: Timeout of one process. CUDA takes seconds to start, and the kernel is compiled once.
SECONDS = 90.0


def machine() -> dict[str, Any]:
    """Returns facts of the machine, and the versions of all installed packages."""
    return {
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "libc": " ".join(platform.libc_ver()),
        "cores": len(os.sched_getaffinity(0)),
        "memory_bytes": os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
        "packages": {
            str(found.metadata["Name"]): found.version
            for found in importlib.metadata.distributions()
            if found.metadata["Name"]
        },
    }


def run_part(part: str) -> dict[str, Any]:
    """Runs the measurements of a part in separate processes.

    Returns name -> result. If a process ends early, the measurement that ended it is recorded with the reason, and
    another process continues after it.
    """
    found: dict[str, Any] = {}
    while missing := [name for name in PARTS[part] if name not in found]:
        command = [sys.executable, "-m", "scripts.gpu.probe", "--part", part, "--from", missing[0]]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
        except subprocess.TimeoutExpired as error:
            # Python gives the output of a process that was killed as bytes.
            output = error.stdout.decode() if isinstance(error.stdout, bytes) else error.stdout or ""
            reason = f"took more than {SECONDS:.0f} s"
        else:
            output = done.stdout
            reason = f"the process ended with status {done.returncode}: {_last_line(done.stderr)}"
        results = dict(filter(None, map(_result, output.splitlines())))
        # After an error that was printed, a process ends by itself. Otherwise the next measurement ended it.
        late = missing[len(results) :]
        found |= results
        if late and not any(_failed(result) for result in results.values()):
            found[late[0]] = {"error": reason}
    return found


def _result(line: str) -> tuple[str, Any] | None:
    """Reads a line that `measure` printed. Returns None for any other line."""
    try:
        name, result = json.loads(line)
    except (ValueError, TypeError):
        return None
    return name, result


def _failed(result: object) -> bool:
    return isinstance(result, dict) and result.keys() == {"error"}


def _last_line(text: str) -> str:
    return (text.strip().splitlines() or ["no message"])[-1]


def measure(part: str, first: str) -> None:
    """Measures a part in this process, from one measurement on, up to the first error.

    Prints a JSON line [name, result] for each.
    """
    from scripts.gpu.probe.device import ProbedDevice

    device = ProbedDevice()
    names = list(PARTS[part])
    for name in names[names.index(first) :]:
        try:
            result = PARTS[part][name](device)
        except Exception as error:  # a fact that this machine lacks, or an error of CUDA, is a result
            # After an error of a kernel, every call of this process fails: the next measurement needs another process.
            print(json.dumps([name, {"error": first_line(error)}]), flush=True)
            return
        print(json.dumps([name, result]), flush=True)


def no_gpu() -> str | None:
    """Returns the reason why there is nothing to probe, or None."""
    try:
        import cupy
    except ImportError as error:
        return f"CuPy cannot be imported ({error}): install cupy-cuda13x or cupy-cuda12x"
    return None if cupy.cuda.is_available() else "CuPy finds no GPU: check nvidia-smi and CUDA_VISIBLE_DEVICES"


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m scripts.gpu.probe", description=__doc__)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the record here, too")
    parser.add_argument("--part", choices=PARTS, help=argparse.SUPPRESS)
    parser.add_argument("--from", dest="first", help=argparse.SUPPRESS)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    args = make_parser().parse_args(arguments)
    if args.part is not None:
        measure(args.part, args.first)
        return 0
    reason = no_gpu()
    record: dict[str, Any] = {"probe": 1, "machine": machine()}
    record |= {"error": reason} if reason else {part: run_part(part) for part in PARTS}
    text = json.dumps(record, indent=1)
    print(text)
    if args.json is not None:
        args.json.write_text(text + "\n")
    return 1 if reason else 0


if __name__ == "__main__":
    raise SystemExit(main())
