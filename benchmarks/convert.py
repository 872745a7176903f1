"""Measures the speed and the memory of gear_data.convert against a floor.

The floor is pyarrow: read_table of the same Parquet files, written as one uncompressed Arrow IPC file. Both ways end
with fsync of the files and of their folder. The source is in the page cache for both. Times come from a warm process,
in alternating rounds. The table gives medians.

Peak memory is measured in a fresh process per conversion, minus the peak of a process that only imports the same
modules. Sources are one episode (the fixed cost: modules and memory pools), the data once, and copies of the files:
memory that grows with the copies is not bounded. gear-data's bound is a few row groups plus one shard's write buffer.
The bound shows only where the data is larger than a shard, hence the second, small shard size.

--layout measures single layouts, each against its own floor (convert_layouts.py) on one core, and two cores against
one. --jobs measures the default number of jobs, one and two (convert_jobs.py). --small measures the processor time of
many small files and episodes, and of the guard of Zarr stores (convert_small.py). --quick shows that all parts run; its
figures mean little.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.ipc
import pyarrow.parquet as pq
from common import (
    ROOT,
    describe_machine,
    machine_facts,
    parquet_files,
    parse_with_quick,
    progress,
    spread,
    synthetic_episodes,
    write_json,
    write_parquet,
)
from convert_jobs import measure_jobs, print_jobs, run_way
from convert_layouts import LAYOUTS, measure, measure_cores, measure_layout, print_layouts
from convert_report import MIB, Memory, Scale, Timing, print_memory, print_times
from convert_small import measure_small, print_small

WAYS = ("floor", "gear")
#: Values of arguments, and of sizes that have no option: the usual ones, and the ones for `--quick`.
FULL = {"repetitions": 5, "memory_repetitions": 3, "steps": 200_000, "layout_divisor": 1}
QUICK = {"repetitions": 1, "memory_repetitions": 1, "steps": 2000, "layout_divisor": 2000}


def fsync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def convert_floor(source: Path, destination: Path, shard_bytes: int) -> None:
    """Does the least work of any conversion.

    It writes one file and ignores `shard_bytes`.
    """
    destination.mkdir()
    table = pa.concat_tables([pq.read_table(file) for file in parquet_files(source)])
    target = destination / "data.arrow"
    with pa.OSFile(str(target), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    fsync(target)
    fsync(destination)


def convert_gear(source: Path, destination: Path, shard_bytes: int) -> None:
    import gear_data  # here: the floor's process must not import it

    gear_data.convert(source, destination, shard_bytes=shard_bytes, progress=False)


CONVERSIONS: dict[str, Callable[[Path, Path, int], None]] = {"floor": convert_floor, "gear": convert_gear}


def timed(way: str, source: Path, destination: Path, shard_bytes: int) -> float:
    start = time.perf_counter()
    CONVERSIONS[way](source, destination, shard_bytes)
    elapsed = time.perf_counter() - start
    shutil.rmtree(destination)
    return elapsed


def peak_bytes() -> int:
    """Returns this process's peak resident bytes, its children included.

    On Linux the peak is VmHWM: ru_maxrss also counts memory that the parent had resident before exec.
    """
    unit = 1 if sys.platform == "darwin" else 1024
    children = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * unit
    try:
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024 + children
    except OSError:
        pass  # not Linux
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit + children


def run_worker(way: str, source: Path | None, destination: Path, shard_bytes: int) -> None:
    """Runs one conversion in this fresh process, and prints the peak of its memory.

    Without a source it only imports the modules.
    """
    if way == "gear":
        import gear_data

        _ = gear_data.convert  # names are loaded when first used
    if source is not None:
        CONVERSIONS[way](source, destination, shard_bytes)
    print(json.dumps({"peak_bytes": peak_bytes()}))


def fresh_peak(way: str, source: Path | None, scratch: Path, shard_bytes: int) -> int:
    destination = scratch / "fresh"
    command = [sys.executable, str(Path(__file__).resolve()), "--worker", way, "--destination", str(destination)]
    command += ["--shard-bytes", str(shard_bytes)]
    if source is not None:
        command += ["--source", str(source)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=worker_environment())
    if done.returncode:
        raise SystemExit(f"measuring {way} failed:\n{done.stderr}")
    if destination.exists():
        shutil.rmtree(destination)
    answer: dict[str, int] = json.loads(done.stdout.splitlines()[-1])
    return answer["peak_bytes"]


def worker_environment() -> dict[str, str]:
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    return {**os.environ, "PYTHONPATH": path}


def make_scale(files: Sequence[Path], copies: int, scratch: Path) -> Scale:
    folder = scratch / f"source-{copies}x"
    folder.mkdir()
    if copies:
        for copy in range(copies):
            for index, file in enumerate(files):
                shutil.copyfile(file, folder / f"part-{copy:04d}-{index:04d}.parquet")
    else:
        with pq.ParquetFile(files[0]) as file:
            pq.write_table(file.read_row_group(0).slice(0, 1), folder / "part.parquet")
    made = parquet_files(folder)
    return Scale(
        copies=copies,
        folder=folder,
        parquet_bytes=sum(path.stat().st_size for path in made),
        arrow_bytes=sum(pq.read_table(path).nbytes for path in made),
    )


def measure_times(scale: Scale, shard_sizes: Sequence[int], repetitions: int, scratch: Path) -> list[Timing]:
    """Times the floor and gear-data at each shard size.

    They run in alternating rounds, after a warm-up round.
    """
    jobs = [("floor", shard_sizes[0]), *(("gear", size) for size in shard_sizes)]
    seconds: dict[tuple[str, int], list[float]] = {job: [] for job in jobs}
    for repetition in range(repetitions + 1):
        for way, size in jobs:
            progress(f"{scale.label}: time, round {repetition} of {repetitions}: {way}")
            elapsed = timed(way, scale.folder, scratch / "timed", size)
            if repetition:
                seconds[way, size].append(elapsed)
    progress("")
    floor = seconds[jobs[0]]
    return [
        Timing(
            copies=scale.copies,
            shard_bytes=size,
            floor_seconds=spread(floor),
            gear_seconds=spread(seconds["gear", size]),
            gear_to_floor=statistics.median(
                least / ours for least, ours in zip(floor, seconds["gear", size], strict=True)
            ),
        )
        for size in shard_sizes
    ]


def measure_memory(
    scale: Scale, shard_sizes: Sequence[int], repetitions: int, baselines: Mapping[str, float], scratch: Path
) -> list[Memory]:
    records = []
    for way, size in [("floor", None), *(("gear", size) for size in shard_sizes)]:
        progress(f"{scale.label}: memory of {way}")
        peaks = [fresh_peak(way, scale.folder, scratch, size or shard_sizes[0]) for _ in range(repetitions)]
        above = spread([peak - baselines[way] for peak in peaks])
        records.append(Memory(scale.copies, way, size, baselines[way], above))
    progress("")
    return records


def largest_row_group(files: Sequence[Path]) -> int:
    """Returns the Arrow bytes of the largest row group.

    A reader holds a row group in memory.
    """
    largest = 0
    for path in files:
        with pq.ParquetFile(path) as file:
            for index in range(file.num_row_groups):
                largest = max(largest, file.read_row_group(index).nbytes)
    return largest


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__,
        epilog="example: python benchmarks/convert.py --source episodes.parquet --scale 64 --json convert.json",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--source",
        type=Path,
        help="Parquet file or folder with one row per episode: observations, actions, rewards, dones "
        "(default: 200,000 synthetic steps of Hopper's shape)",
    )
    parser.add_argument("--repetitions", type=int, help="timed conversions of each (default 5)")
    parser.add_argument(
        "--scale",
        type=int,
        action="append",
        default=[],
        help="also measure N copies, in addition to 1 and 8",
        metavar="N",
    )
    parser.add_argument(
        "--shard-bytes",
        type=int,
        default=512 * MIB,
        help="largest shard of the main runs (default 512 MiB, as in convert)",
    )
    parser.add_argument(
        "--small-shard-bytes",
        type=int,
        default=16 * MIB,
        help="largest shard of the runs that show the bound of memory (default 16 MiB)",
    )
    parser.add_argument("--quick", action="store_true", help="little data, one round: shows that all of it runs")
    parser.add_argument("--scratch", type=Path, help="folder to work in; its disk is part of the measurement")
    parser.add_argument("--json", type=Path, help="write the full record here")
    parser.add_argument(
        "--layout",
        choices=[*LAYOUTS, "all"],
        action="append",
        help="measure this layout in place of --source; may be given several times",
    )
    parser.add_argument("--small", action="store_true", help="measure many small files and episodes instead")
    parser.add_argument("--jobs", action="store_true", help="measure numbers of jobs instead")
    parser.add_argument("--worker-jobs", help=argparse.SUPPRESS)
    parser.add_argument("--worker-layout", choices=LAYOUTS, help=argparse.SUPPRESS)
    parser.add_argument("--worker-cores", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--worker", choices=WAYS, help=argparse.SUPPRESS)
    parser.add_argument("--destination", type=Path, help=argparse.SUPPRESS)
    parser.set_defaults(**FULL)
    return parser


def parse_arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = make_parser()
    args = parse_with_quick(parser, arguments, QUICK)
    if args.source is not None and not args.source.exists():
        parser.error(f"--source {args.source}: no such file or folder")
    return args


def run_layouts(names: Sequence[str], args: argparse.Namespace) -> None:
    facts = machine_facts()
    records = []
    with tempfile.TemporaryDirectory(prefix="gear-bench-", dir=args.scratch) as folder:
        for name in names:
            progress(f"layout {name}")
            # Starting workers takes most of the time of a small conversion.
            two_cores = not args.quick or name == names[0]
            script = Path(__file__).resolve(), worker_environment()
            records.append(
                measure_layout(name, Path(folder), args.repetitions, args.layout_divisor, two_cores, *script)
            )
    progress("")
    print(describe_machine(facts))
    print_layouts(records)
    if args.json is not None:
        write_json(args.json, {"benchmark": "convert layouts", "machine": facts, "layouts": records})


def run_small(args: argparse.Namespace) -> None:
    sys.path.insert(0, str(ROOT))
    facts = machine_facts()
    with tempfile.TemporaryDirectory(prefix="gear-bench-", dir=args.scratch) as folder:
        records = measure_small(Path(folder), args.repetitions, args.layout_divisor)
    print(describe_machine(facts))
    print_small(records)
    if args.json is not None:
        write_json(args.json, {"benchmark": "convert small things", "machine": facts, "cases": records})


def run_jobs(args: argparse.Namespace) -> None:
    facts = machine_facts()
    with tempfile.TemporaryDirectory(prefix="gear-bench-", dir=args.scratch) as folder:
        script = Path(__file__).resolve(), worker_environment()
        records = measure_jobs(Path(folder), args.repetitions, args.layout_divisor, *script)
    print(describe_machine(facts))
    print_jobs(records)
    if args.json is not None:
        write_json(args.json, {"benchmark": "convert jobs", "machine": facts, "cases": records})


def main(arguments: Sequence[str] | None = None) -> None:
    args = parse_arguments(arguments)
    if args.worker_layout is not None:
        if args.worker_cores is None:
            print(json.dumps(measure(args.worker_layout, args.source, args.destination, args.repetitions)))
        else:
            print(json.dumps(measure_cores(args.source, args.destination, args.worker_cores)))
        return
    if args.worker_jobs is not None:
        print(json.dumps(run_way(args.worker_jobs, args.source, args.destination)))
        return
    if args.small:
        run_small(args)
        return
    if args.jobs:
        run_jobs(args)
        return
    if args.layout:
        run_layouts(list(LAYOUTS) if "all" in args.layout else args.layout, args)
        return
    if args.worker is not None:
        run_worker(args.worker, args.source, args.destination, args.shard_bytes)
        return
    # Import this checkout's gear_data, installed or not.
    sys.path.insert(0, str(ROOT))
    shard_sizes = (args.shard_bytes, args.small_shard_bytes)
    facts = machine_facts()
    with tempfile.TemporaryDirectory(prefix="gear-bench-", dir=args.scratch) as name:
        scratch = Path(name)
        if args.source is None:
            made = scratch / "episodes.parquet"
            write_parquet(synthetic_episodes(args.steps), made)
            files = [made]
        else:
            files = parquet_files(args.source)
        row_group = largest_row_group(files)
        baselines = {
            way: statistics.median(
                fresh_peak(way, None, scratch, args.shard_bytes) for _ in range(args.memory_repetitions)
            )
            for way in WAYS
        }
        scales, timings, memory = [], [], []
        for copies in sorted({0, 1, 8, *args.scale}):
            scale = make_scale(files, copies, scratch)
            scales.append(scale)
            if copies:
                timings += measure_times(scale, shard_sizes, args.repetitions, scratch)
            memory += measure_memory(scale, shard_sizes, args.memory_repetitions, baselines, scratch)
            shutil.rmtree(scale.folder)

    origin = "synthetic" if args.source is None else "given source"
    print(describe_machine(facts))
    print(
        f"{origin}: {len(files)} Parquet files of {scales[1].parquet_bytes / MIB:.1f} MiB; largest row group "
        f"{row_group / MIB:.2f} MiB as Arrow; fsync in both ways; median of {args.repetitions}, interleaved"
    )
    print("\nTime (warm process)\n")
    print_times(scales, timings)
    print(f"\nPeak memory (fresh process each, median and largest of {args.memory_repetitions})\n")
    print_memory(memory)
    if args.json is not None:
        record: dict[str, Any] = {
            "benchmark": "convert",
            "machine": facts,
            "settings": {"source": origin, "repetitions": args.repetitions, "fsync": "both ways"},
            "largest_row_group_bytes": row_group,
            "scales": [{key: value for key, value in asdict(scale).items() if key != "folder"} for scale in scales],
            "timings": [asdict(timing) for timing in timings],
            "memory": [asdict(one) for one in memory],
        }
        write_json(args.json, record)


if __name__ == "__main__":
    main()
