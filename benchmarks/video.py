"""Camera video: batches of frames, beside LeRobot and plain sequential decoding.

    python benchmarks/video.py --install --json video.json

A batch has 32 samples of two frames (steps -10 and 0) and sixteen actions. The command makes LeRobot v3.0 datasets of
640 x 480, one for each codec, and converts them. The camera is fixed, as a robot's is. Every contender is a process
with its own interpreter. In each round, each contender is started, measured cold and then warm; the tables give medians
over the rounds.

*Cold*: the page cache has dropped the files where the system allows it, and no frame is decoded: the time of the first
batches, with the start of workers. *Warm*: samples per second after that. The caches that a contender has are as they
are: gear-data keeps 256 MiB of decoded frames, and LeRobot its open decoders.

The contenders of gear-data say how many threads decode. With one thread, batches are built when the loop asks for them,
and with two, up to two batches ahead; `ahead` and `inline` say where it is the other way.

Ratios are of the same round. `float32` is what LeRobot gives: [B, T, 3, H, W] from 0 to 1. `busy` is the process's
processor time divided by the time of its decoding threads. `plain decoding` reads the files from begin to end in one
thread, without batches: the limit, in frames per second.

`--leak` measures memory over many batches, of gear-data only. `--quick` shows that all parts run; its figures mean
little.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from common import (
    ROOT,
    command_line,
    describe_machine,
    figure,
    format_table,
    machine_facts,
    parse_with_quick,
    progress,
    spread,
    write_json,
)

# The checkout's own gear_data, installed or not.
sys.path.insert(0, str(ROOT))

from feeding.contenders import SETUP_TIMEOUT_SECONDS, Contender, Process, find_python
from feeding.environments import ContenderError, add_environment_options, install
from filming.data import CODECS, Size, drop_page_cache, video_files, write_lerobot

import gear_data

LEROBOT = "lerobot"
#: Name -> arguments of peers/gear_frames.py.
_OURS = {
    "gear, 1 thread, float32": ("--threads", "1", "--prefetch", "0", "--preset", "lerobot"),
    "gear, 1 thread, uint8": ("--threads", "1", "--prefetch", "0"),
    "gear, 2 threads, float32": ("--threads", "2", "--prefetch", "2", "--preset", "lerobot"),
    "gear, 2 threads, uint8": ("--threads", "2", "--prefetch", "2"),
    "gear, 1 thread, ahead, uint8": ("--threads", "1", "--prefetch", "2"),
    "gear, 2 threads, inline, uint8": ("--threads", "2", "--prefetch", "0"),
}
#: On two cores, the default number of threads and of batches that are built ahead, and the other settings.
DEFAULT = "gear, 2 threads, uint8"
OTHERS = ("gear, 1 thread, uint8", "gear, 1 thread, ahead, uint8", "gear, 2 threads, inline, uint8")
CONTENDERS = (
    *(Contender(name, name, "gear_frames.py", "dataset", arguments=each) for name, each in _OURS.items()),
    *(
        Contender(
            f"lerobot {backend}, {workers} workers",
            f"LeRobot, {backend}, {workers} workers",
            "lerobot_frames.py",
            "source",
            LEROBOT,
            ("--backend", backend, "--workers", str(workers)),
        )
        for backend in ("torchcodec", "pyav")
        for workers in (0, 2)
    ),
    Contender("plain decoding", "plain sequential decoding, 1 thread", "sequential_frames.py", "source"),
)
PLAIN = "plain decoding"
#: gear-data's rate divided by LeRobot's best: in this process, and with two workers.
IN_PROCESS, WITH_WORKERS, AV1_WITH_WORKERS = 10.0, 5.0, 8.0
BUSY, OF_PLAIN = 0.9, 0.7
LEAK_BYTES = 1 << 30
FRAMES_OF_SAMPLE = 2
FULL: dict[str, Any] = {
    "seconds": 10.0, "rounds": 3, "cold_batches": 4, "leak_batches": 10_000, "frames": 4000, "episode": 250,
    "height": 480, "width": 640, "batch_size": 32, "resize": 224,
}  # fmt: skip
QUICK: dict[str, Any] = {
    "seconds": 0.05, "rounds": 1, "cold_batches": 1, "leak_batches": 20, "frames": 60, "episode": 30, "height": 64,
    "width": 96, "batch_size": 4, "resize": 32,
}  # fmt: skip


def not_installable(args: argparse.Namespace) -> str | None:
    """Creates LeRobot's environment if `--install` says so, and returns the reason if that fails."""
    if args.install and LEROBOT not in dict(args.python):
        try:
            install(args.venvs, LEROBOT)
        except ContenderError as error:
            return str(error)
    return None


def ask(process: Process, request: str, patience: float) -> dict[str, Any]:
    print(request, file=process.child.stdin, flush=True)
    return process.hear(patience)


def start(contender: Contender, folder: Path, resize: int, args: argparse.Namespace) -> Process:
    """Starts a contender and waits until it is ready.

    Raises:
        ContenderError: it is not installed, or it ended.
    """
    own = ["--data", str(folder / contender.data), "--batch-size", str(args.batch_size), "--seed", str(args.seed)]
    python = find_python(contender, args.venvs, dict(args.python))
    process = Process(contender, python, [*own, "--resize", str(resize)], folder / f"{contender.script}.log")
    try:
        process.hear(SETUP_TIMEOUT_SECONDS)
    except ContenderError:
        process.close()
        raise
    return process


def measure(contender: Contender, folder: Path, resize: int, args: argparse.Namespace) -> dict[str, Any]:
    """Returns the records of one cold and one warm measurement."""
    process = start(contender, folder, resize, args)
    try:
        drop_page_cache(folder)
        cold = ask(process, f"cold {args.cold_batches}", 600 + 60 * args.cold_batches)
        warm = ask(process, f"warm {args.seconds}", 600 + 10 * args.seconds)
    finally:
        process.close()
    return {"cold": cold, "warm": warm}


def compile_kernels(folder: Path, args: argparse.Namespace) -> None:
    """Draws a batch of each kind, so that no measurement compiles kernels. They are kept on disk."""
    for contender in CONTENDERS:
        if contender.name in ("gear, 1 thread, float32", "gear, 1 thread, uint8"):
            progress(f"compiling: {contender.title}")
            process = start(contender, folder, 0, args)
            try:
                ask(process, "cold 1", SETUP_TIMEOUT_SECONDS)
            finally:
                process.close()


def samples_per_second(record: Mapping[str, Any]) -> float:
    return float(record["batches"] * record["samples"] / record["seconds"])


def race(folder: Path, resize: int, args: argparse.Namespace) -> list[dict[str, Any]]:
    """Returns a row for every contender, with its records in the order of the rounds, or the reason of its failure."""
    rows: list[dict[str, Any]] = [{"name": each.name, "title": each.title, "rounds": []} for each in CONTENDERS]
    for contender, row in zip(CONTENDERS, rows, strict=True):
        if contender.environment is not None and args.not_installable is not None:
            row["failure"] = args.not_installable
    for number in range(args.rounds):
        for contender, row in zip(CONTENDERS, rows, strict=True):
            if "failure" in row:
                continue
            progress(f"{folder.name}, round {number + 1} of {args.rounds}: {contender.title}")
            try:
                row["rounds"].append(measure(contender, folder, resize, args))
            except (ContenderError, OSError) as error:
                row["failure"] = str(error)
    progress("")
    return rows


def rates(rows: Sequence[Mapping[str, Any]], name: str, temperature: str) -> list[float]:
    """Returns samples per second in each round; empty if the contender failed."""
    row = next(row for row in rows if row["name"] == name)
    return [] if "failure" in row else [samples_per_second(each[temperature]) for each in row["rounds"]]


def best(rows: Sequence[Mapping[str, Any]], names: Sequence[str], temperature: str) -> list[float]:
    """Returns the best rate of some contenders, in each round."""
    known = [found for name in names if (found := rates(rows, name, temperature))]
    return [max(each) for each in zip(*known, strict=True)]


def ratio(ours: Sequence[float], theirs: Sequence[float]) -> float | None:
    """Returns the median of the rounds' ratios; None if one side was not measured."""
    return statistics.median(a / b for a, b in zip(ours, theirs, strict=True)) if ours and theirs else None


def judge(rows: Sequence[Mapping[str, Any]], codec: str, resize: int) -> list[dict[str, Any]]:
    """Returns the warm ratios, each with its target; None where there is no target."""
    lerobot = {
        count: best(rows, [f"lerobot {backend}, {count} workers" for backend in ("torchcodec", "pyav")], "warm")
        for count in (0, 2)
    }
    with_workers = AV1_WITH_WORKERS if codec == "av1" else WITH_WORKERS
    found = []
    for dtype in ("float32", "uint8"):
        one, two = (rates(rows, f"gear, {number}, {dtype}", "warm") for number in ("1 thread", "2 threads"))
        found += [
            (f"1 thread, {dtype}, to LeRobot's best in process", ratio(one, lerobot[0]), IN_PROCESS),
            (f"2 threads, {dtype}, to LeRobot's best with 2 workers", ratio(two, lerobot[2]), with_workers),
        ]
    default, others = rates(rows, DEFAULT, "warm"), best(rows, OTHERS, "warm")
    found.append(("2 threads, prefetch=2, uint8: to the best of the other three", ratio(default, others), 1.0))
    row = next(row for row in rows if row["name"] == DEFAULT)
    busy = [each["warm"]["cpu_seconds"] / (2 * each["warm"]["seconds"]) for each in row["rounds"]]
    found.append(("2 threads, uint8: share of time that decoding threads are busy", ratio(busy, [1] * len(busy)), BUSY))
    target = OF_PLAIN if CODECS[codec].group == 2 and not resize else None
    plain = ratio(rates(rows, "gear, 1 thread, uint8", "warm"), rates(rows, PLAIN, "warm"))
    found.append(("1 thread, uint8: frames/s to plain decoding", plain, target))
    return [{"what": what, "value": value, "target": target} for what, value, target in found]


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Formats the samples and frames per second."""
    cells = []
    for row in rows:
        if "failure" in row:
            cells.append([row["title"], "-", "-", "-", "-", row["failure"]])
            continue
        cold, warm = (rates([row], row["name"], each) for each in ("cold", "warm"))
        memory = max(each["warm"]["memory"]["peak"] for each in row["rounds"])
        frames = statistics.median(warm) * FRAMES_OF_SAMPLE
        numbers = [figure(value) for value in (statistics.median(cold), statistics.median(warm), frames)]
        versions = ", ".join(f"{name} {version}" for name, version in row["rounds"][0]["warm"]["versions"].items())
        cells.append([row["title"], *numbers, figure(memory / (1 << 20)), versions])
    return format_table(
        ["contender", "cold samples/s", "warm samples/s", "warm frames/s", "peak MiB", "versions"], cells
    )


def verdict(found: Mapping[str, Any]) -> str:
    if found["value"] is None:
        return f"{found['what']}: not measured"
    target = found["target"]
    judged = "" if target is None else f" (target {target:g}: {'met' if found['value'] >= target else 'missed'})"
    return f"{found['what']}: {found['value']:.2f}{judged}"


def leak(folder: Path, args: argparse.Namespace) -> list[dict[str, Any]]:
    """Returns the memory of gear-data after more and more batches."""
    contender = next(each for each in CONTENDERS if each.name == DEFAULT)
    process = start(contender, folder, 0, args)
    found, drawn = [], 0
    try:
        for part in (0.01, 0.1, 0.5, 1.0):
            count = max(1, round(part * args.leak_batches)) - drawn
            if count > 0:
                progress(f"memory: {drawn + count:,} of {args.leak_batches:,} batches")
                record = ask(process, f"memory {count}", 600 + 60 * count)
                drawn += count
                found.append({"batches": drawn, **record["memory"]})
    finally:
        process.close()
    progress("")
    return found


def leak_table(found: Sequence[Mapping[str, Any]]) -> str:
    marks = [[f"{mark['batches']:,}", *(figure(mark[name] / (1 << 20)) for name in _MARKS)] for mark in found]
    peak = found[-1]["peak"]
    judged = "met" if peak < LEAK_BYTES else "missed"
    text = format_table(["batches", *(f"{name} MiB" for name in _MARKS)], marks)
    return f"{text}\n\nmost resident memory: {peak / (1 << 20):,.0f} MiB (target below 1 GiB: {judged})"


_MARKS = ("resident", "anonymous", "peak")


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    help = f"comma-separated codecs (default all: {', '.join(CODECS)})"
    parser.add_argument("--codecs", default=",".join(CODECS), help=help)
    parser.add_argument("--frames", type=int, help="frames of a dataset (default 4,000)")
    parser.add_argument("--seconds", type=float, help="length of one warm measurement (default 10)")
    parser.add_argument("--rounds", type=int, help="measurements of each contender (default 3)")
    parser.add_argument("--cold-batches", type=int, help="batches of one cold measurement (default 4)")
    parser.add_argument("--resize", type=int, help="the second table has frames of this size (default 224; 0: none)")
    parser.add_argument("--leak", action="store_true", help="memory over many batches, without the tables")
    parser.add_argument("--leak-batches", type=int, help="batches drawn by --leak (default 10,000)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the data and of the samples (default 0)")
    add_environment_options(parser, LEROBOT)
    parser.add_argument(
        "--quick", action="store_true", help="little data, short measurements: shows that all of it runs"
    )
    parser.add_argument("--json", type=Path, help="write the full record here")
    parser.set_defaults(**FULL)
    return parser


def report(folder: Path, args: argparse.Namespace) -> list[dict[str, Any]]:
    """Measures and prints a codec's tables, and returns their records."""
    codec = folder.name
    if args.leak:
        found = leak(folder, args)
        print(f"\n## {codec}: memory\n\n{leak_table(found)}", flush=True)
        return [{"codec": codec, "memory": found}]
    records = []
    for resize in dict.fromkeys((0, args.resize)):
        rows = race(folder, resize, args)
        judged = judge(rows, codec, resize)
        shape = f"{resize} x {resize}" if resize else f"{args.width} x {args.height}"
        kilobytes = sum(path.stat().st_size for path in video_files(folder / "source")) / args.frames / 1000
        how = f"key frame at every {CODECS[codec].group}th frame, {kilobytes:.1f} KB a frame"
        title = f"{codec}, {how}, batches of {shape}"
        print(f"\n## {title}\n\n{table(rows)}\n", *map(verdict, judged), sep="\n", flush=True)
        contenders = [{**row, "warm": spread(rates(rows, row["name"], "warm") or [0.0])} for row in rows]
        records.append({"codec": codec, "resize": resize, "contenders": contenders, "ratios": judged})
    return records


def main(arguments: Sequence[str] | None = None) -> None:
    parser = make_parser()
    args = parse_with_quick(parser, arguments, QUICK)
    codecs = args.codecs.split(",")
    if unknown := [name for name in codecs if name not in CODECS]:
        parser.error(f"unknown codecs {', '.join(unknown)}; known: {', '.join(CODECS)}")
    args.not_installable = not_installable(args)
    facts = machine_facts()
    print(f"`{command_line()}`\n\n{describe_machine(facts)}")
    print(f"median of {args.rounds} rounds; warm: {args.seconds:g} s; cold: {args.cold_batches} batches", flush=True)
    record: dict[str, Any] = {"benchmark": "video", "machine": facts, "command": command_line(), "tables": []}
    with tempfile.TemporaryDirectory(prefix="gear-bench-") as scratch:
        for number, codec in enumerate(codecs):
            folder = Path(scratch) / codec
            progress(f"{codec}: making {args.frames:,} frames")
            size = Size(args.frames, args.episode, args.height, args.width)
            write_lerobot(folder / "source", CODECS[codec], size, args.seed)
            gear_data.convert(folder / "source", folder / "dataset", progress=False)
            progress("")
            if number == 0 and not args.leak:
                compile_kernels(folder, args)
            record["tables"] += report(folder, args)
    if args.json is not None:
        write_json(args.json, record)
    failed = [row for each in record["tables"] for row in each.get("contenders", []) if "failure" in row]
    if ours := [row for row in failed if row["name"].startswith("gear")]:
        sys.exit(f"{ours[0]['title']} was not measured: {ours[0]['failure']}")


if __name__ == "__main__":
    main()
