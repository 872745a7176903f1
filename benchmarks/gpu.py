"""Measures the GPU path on this machine's GPU.

The results stand next to the machine's own limits. A command takes less than 8 minutes. Three commands run all cases
of all sections, and a fourth one writes the results:

    python benchmarks/gpu.py --only a,b,c,h --json gpu-kernels.json
    python benchmarks/gpu.py --only i,e --json gpu-loaders.json
    python benchmarks/gpu.py --only d,f,g,j --json gpu-rest.json
    python benchmarks/gpu.py --write-results gpu-kernels.json gpu-loaders.json gpu-rest.json

(a) ceilings: pinned memory read by the copy engine and by kernels, copies within the device, an empty launch;
(b) collection from pinned memory; (c) collection from device memory; (d) selection;
(e) Decision Transformer training steps per second, by loader, also as a CUDA graph; (f) constants of the collector to
try first, and the batches from which the GPU is faster than the CPU; (g) filters by cuDF, if cudf-polars is installed;
(h) collection from tables of 2, 16 and 64 GiB, as they fit; (i) batches of SequenceLoader and of peers; (j) frames of
cameras, copied as YUV and converted by a kernel, against copies of the finished array.

Every section runs in a separate process. If a section fails, the report says so, and the other sections run. Batches
and draws are compared with the CPU's before they are timed. The GPU's clocks are warmed for 0.3 s before each case.
Kernels are timed between CUDA events: medians of groups of launches, over sets of windows and outputs of four times the
L2. Small batches are also timed in a CUDA graph. Sections (e) and (i), and the comparison of CPU and GPU, are timed by
the clock. Pinned memory is the segment of residency `pinned`; a section fails if CUDA does not register it. The
benchmark needs CuPy; (e) also needs torch and transformers, (i) torch, and (g) Polars and cuDF. Without a GPU, it exits
with status 1.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from common import ROOT, command_line, describe_machine, machine_facts, progress, versions, write_json

# The checkout's own gear_data, installed or not.
sys.path.insert(0, str(ROOT))

from gpu_sections import collection as gpu_collection
from gpu_sections.ceilings import DEVICE_COPY, SM_READS, ceilings
from gpu_sections.device import Gpu, gpu_facts, no_gpu
from gpu_sections.filters import filters
from gpu_sections.footprints import footprints
from gpu_sections.frames import frames
from gpu_sections.knobs import knobs
from gpu_sections.report import Section, from_json, table, verdict
from gpu_sections.results import PAGE, ResultsError, write_results
from gpu_sections.selection import selection

from gear_data.collection.collector import Collector
from gear_data.collection.plan import CollectSource
from gear_data.residency.device.registration import FALLBACK_VARIABLE

#: In the order in which they run. A command leaves out the last ones if its time is over.
TITLES = {
    "a": "ceilings of the machine",
    "b": "collection from pinned memory, against kernels that only read pinned memory",
    "c": "collection from device memory, against the copy within the device",
    "i": "batches of SequenceLoader and of peers",
    "e": "training steps a second, against the same batch each time",
    "h": "collection from large tables, against the ceilings",
    "f": "constants of the collector, against those built in; time by the CPU to time by the GPU",
    "d": "selection",
    "g": "filters, time by the CPU to time by cuDF",
    "j": "frames of cameras, time to copy the array to time to copy and convert YUV",
}
#: Seconds of a command, and the most of each section.
TOTAL_SECONDS = 460.0
SECONDS = {
    "a": 40.0,
    "b": 100.0,
    "c": 80.0,
    "d": 80.0,
    "e": 140.0,
    "f": 90.0,
    "g": 40.0,
    "h": 120.0,
    "i": 140.0,
    "j": 40.0,
}
#: Sections that are compared with the ceilings of (a).
_COMPARED = "bcdhi"
#: Seconds in which a section may start and end, in addition to its own.
_GRACE_SECONDS = 40.0
#: Characters of a failed process's output that the record keeps.
_ERROR_BYTES = 8000


def run_section(name: str, found: dict[str, Any], folder: Path, quick: bool, end: float) -> Section:
    """Runs one section in this process.

    Args:
        found: the facts of (a), for the sections in `_COMPARED`.
        folder: a folder for data.
        end: the time (of `time.monotonic`) after which no further case starts.
    """

    def left() -> float:
        return end - time.monotonic()

    if name == "e":
        # Only this section imports torch and transformers.
        from gpu_sections.training import training

        return training(folder, quick, left)
    if name == "i":
        from gpu_sections.feeds import feeds

        return feeds(folder, found["bytes_per_second"], quick, left)
    if name == "g":
        return filters(quick, left)
    gpu = Gpu()
    if name == "a":
        return ceilings(gpu, quick)
    if name == "f":
        return knobs(gpu, quick, left)
    if name == "j":
        return frames(gpu, quick, left)
    if name == "h":
        return footprints(gpu, found["bytes_per_second"], quick, left)
    empty = found["empty_launch_seconds"]
    if name == "d":
        return selection(gpu, empty, quick, left)
    where, ceiling = ("pinned", SM_READS) if name == "b" else ("device", DEVICE_COPY)
    return gpu_collection.collection(gpu, where, found["bytes_per_second"][ceiling], empty, quick, left)


def run_apart(name: str, ceilings: dict[str, Any], quick: bool, seconds: float) -> dict[str, Any]:
    """Runs a section in a separate process.

    Returns {"status": "ok", "section": ...}, or {"status": "failed", ...} with the reason.
    """
    command = [
        sys.executable, __file__, "--worker", name, "--ceilings", json.dumps(ceilings), "--seconds", str(seconds),
        *(["--quick"] if quick else []),
    ]  # fmt: skip
    begun = time.perf_counter()
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds + _GRACE_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return {"status": "failed", "reason": f"took more than {seconds + _GRACE_SECONDS:.0f} s"}
    took = time.perf_counter() - begun
    lines = done.stdout.strip().splitlines()
    if done.returncode or not lines:
        reason = reason_of(done.returncode, done.stderr)
        return {"status": "failed", "seconds": took, "reason": reason, "errors": done.stderr[-_ERROR_BYTES:]}
    return {"status": "ok", "seconds": took, "section": json.loads(lines[-1])}


def compile_cpu_kernels() -> None:
    """Compiles the kernels once for all sections.

    This takes a while on a new machine; the result is cached on disk.
    """
    progress("compiling the CPU's kernels")
    case = gpu_collection.CollectCase(0, 2, 2)
    steps = gpu_collection.HostSteps(np.zeros(1 << 20, np.uint8), case.schema())
    Collector([CollectSource(steps, case.schema(), case.outputs())], 2, reuse=True)(
        steps.draw(np.random.default_rng(0), 2, case.context)
    )
    progress("")


def reason_of(status: int, errors: str) -> str:
    """Returns the last lines of a process's output."""
    lines = [line for line in errors.strip().splitlines() if line.strip()]
    return f"ended with status {status}: " + " | ".join(lines[-3:])


def run_all(
    names: str,
    quick: bool,
    end: float,
    run: Callable[..., dict[str, Any]] = run_apart,
    save: Callable[[dict[str, Any]], None] = lambda record: None,
) -> dict[str, Any]:
    """Runs the sections with these letters, in order, and prints each at its end.

    Section (a) also runs if another section needs it.

    Args:
        end: the time (of `time.monotonic`) by which all sections must end. If it comes early, every section gets less
            time, except with `quick`, where the cases are few.
        save: gets the record after each section, so that a command that is stopped leaves one.
    """
    wanted = [name for name in TITLES if name in names or (name == "a" and {*names} & {*_COMPARED})]
    record: dict[str, Any] = {}
    ceilings: dict[str, Any] = {}
    for number, name in enumerate(wanted):
        left = end - time.monotonic() - _GRACE_SECONDS
        needed = SECONDS[name] if quick else sum(SECONDS[later] for later in wanted[number:])
        seconds = SECONDS[name] * min(1.0, left / needed)
        if seconds < 10:
            record[name] = {"status": "left out", "reason": f"the time is over: run --only {name}"}
        elif name in _COMPARED and not ceilings:
            record[name] = {"status": "left out", "reason": "(a), which it is compared with, failed"}
        else:
            record[name] = run(name, ceilings, quick, seconds)
        if name == "a" and record[name]["status"] == "ok":
            ceilings = record[name]["section"]["facts"]
        save(record)
        print(f"\n({name}) {TITLES[name]}\n")
        if record[name]["status"] == "ok":
            print(table(from_json(record[name]["section"])))
            print(f"{record[name]['seconds']:.0f} s", flush=True)
        else:
            print(f"{record[name]['status']}: {record[name]['reason']}", flush=True)
    return record


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--only", type=_letters, default="".join(TITLES), metavar="a,b", help="letters of sections, default all"
    )
    parser.add_argument("--quick", action="store_true", help="a few small cases of each")
    parser.add_argument("--json", type=Path, help="write the full record here")
    parser.add_argument("--seconds", type=float, default=TOTAL_SECONDS, help=f"limit, default {TOTAL_SECONDS:.0f}")
    parser.add_argument(
        "--write-results", type=Path, nargs="+", metavar="FILE",
        help="measure nothing; write these records of --json into RESULTS.md",
    )  # fmt: skip
    parser.add_argument("--worker", choices=TITLES, help=argparse.SUPPRESS)
    parser.add_argument("--ceilings", type=json.loads, help=argparse.SUPPRESS)
    return parser


def _letters(text: str) -> str:
    letters = text.replace(",", "").replace(" ", "")
    if not letters or set(letters) - TITLES.keys():
        raise argparse.ArgumentTypeError(f"sections are {', '.join(TITLES)}, not {text!r}")
    return letters


def main(arguments: Sequence[str] | None = None) -> int:
    begun = time.monotonic()
    args = make_parser().parse_args(arguments)
    if args.write_results is not None:
        try:
            write_results(args.write_results, PAGE, TITLES)
        except ResultsError as error:
            print(f"nothing written: {error}", file=sys.stderr)
            return 1
        return 0
    # A copy for each process would be another memory than the one that is measured.
    os.environ.pop(FALLBACK_VARIABLE, None)
    reason = no_gpu()
    if reason is not None:
        print(f"not run: {reason}", file=sys.stderr)
        return 1
    if args.worker is not None:
        with tempfile.TemporaryDirectory(prefix="gear-bench-") as folder:
            section = run_section(args.worker, args.ceilings, Path(folder), args.quick, begun + args.seconds)
        print(json.dumps(section.to_json()))
        return 0
    facts = machine_facts()
    facts["versions"] |= versions(("cupy-cuda13x", "cupy-cuda12x", "torchrl", "transformers"))
    facts["gpu"] = gpu_facts()
    print(describe_machine(facts), facts["gpu"]["gpu"], sep=", ")
    compile_cpu_kernels()

    def save(record: dict[str, Any]) -> None:
        if args.json is not None:
            whole = {"benchmark": "gpu", "command": command_line(), "quick": args.quick, "machine": facts}
            write_json(args.json, {**whole, "sections": record})

    record = run_all(args.only, args.quick, begun + args.seconds, save=save)
    sections = {name: from_json(item["section"]) for name, item in record.items() if item["status"] == "ok"}
    print(f"\n{verdict(sections)}")
    return 0 if all(item["status"] == "ok" for item in record.values()) else 1


if __name__ == "__main__":
    raise SystemExit(main())
