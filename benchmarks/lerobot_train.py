"""lerobot-train's own DataLoader, with LeRobot's dataset and with gear-data's.

    python benchmarks/lerobot_train.py --install --json lerobot_train.json

A batch has 8 samples of 8 steps and four cameras of 640 x 480, uint8, drawn by LeRobot's `EpisodeAwareSampler`. Both
datasets are read in one environment of LeRobot 0.6.1, by the same DataLoader with the same workers. Each combination is
a process. In each round each is started and measured twice: without training, for frames per second, and with a step of
`--step` seconds after each batch, for the share of time that training waits. Processor-seconds are those of the process
and its workers without training; they depend less on what else the machine does.

Ratios are of the same round, and the tables give medians. *Plain decoding* is the limit of what reads every frame with
FFmpeg: it decodes the files from begin to end in one thread, each frame once. gear-data keeps 256 MiB of decoded frames
in each process. LeRobot decodes by PyAV; `--backend torchcodec` needs the system's FFmpeg.

`--quick` shows that all parts run; its figures mean little.
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
    write_json,
)

# The checkout's own gear_data, installed or not.
sys.path.insert(0, str(ROOT))

from feeding.contenders import SETUP_TIMEOUT_SECONDS, Contender, Process, find_python
from feeding.environments import ContenderError, add_environment_options, install
from filming.data import CODECS, Size, write_lerobot

ENVIRONMENT = "lerobot-0.6"
DATASETS = {"gear": "gear-data", "lerobot": "LeRobot"}
#: Decodes each frame once, in one thread.
PLAIN = "plain"
#: gear-data's frames per second divided by LeRobot's, with the same workers.
TARGET = 5.0
FULL: dict[str, Any] = {
    "seconds": 5.0, "rounds": 2, "step": 0.25, "workers": [0, 2, 4], "codecs": "h264,av1", "frames": 750,
    "episode": 250, "cameras": 4, "height": 480, "width": 640, "batch_size": 8, "window": 8,
}  # fmt: skip
QUICK: dict[str, Any] = {
    "seconds": 0.2, "rounds": 1, "step": 0.01, "workers": [0], "codecs": "av1", "frames": 40, "episode": 20,
    "cameras": 2, "height": 64, "width": 96, "batch_size": 2, "window": 2,
}  # fmt: skip


def contender(dataset: str, workers: int, args: argparse.Namespace) -> Contender:
    arguments = ("--dataset", dataset, "--workers", str(workers), "--window", str(args.window))
    title = "plain decoding, one thread" if dataset == PLAIN else f"{DATASETS[dataset]}, {workers} workers"
    return Contender(
        f"{dataset} {workers}", title, "lerobot_training.py", "source", ENVIRONMENT,
        (*arguments, "--backend", args.backend),
    )  # fmt: skip


def measure(wanted: Contender, source: Path, args: argparse.Namespace) -> dict[str, Any]:
    """Returns the records without and with training.

    Raises:
        ContenderError: it is not installed, or it ended.
    """
    python = find_python(wanted, args.venvs, dict(args.python))
    own = ["--data", str(source), "--batch-size", str(args.batch_size), "--seed", str(args.seed)]
    process = Process(wanted, python, own, source.parent / f"{wanted.name}.log")
    try:
        process.hear(SETUP_TIMEOUT_SECONDS)
        found = []
        for step in (0.0, args.step):
            print(args.seconds, step, file=process.child.stdin, flush=True)
            found.append(process.hear(600 + 10 * args.seconds))
    finally:
        process.close()
    return {"free": found[0], "training": found[1]}


def race(source: Path, args: argparse.Namespace) -> list[dict[str, Any]]:
    """Returns a row for each number of workers and dataset, and for the limit: its rounds, or why it failed."""
    rows: list[dict[str, Any]] = [
        {"dataset": dataset, "workers": workers, "contender": contender(dataset, workers, args), "rounds": []}
        for dataset, workers in [*((each, count) for count in args.workers for each in DATASETS), (PLAIN, 0)]
    ]
    for number in range(args.rounds):
        for row in rows:
            if "failure" in row:
                continue
            progress(f"{source.parent.name}, round {number + 1} of {args.rounds}: {row['contender'].title}")
            try:
                row["rounds"].append(measure(row["contender"], source, args))
            except (ContenderError, OSError) as error:
                row["failure"] = str(error)
    progress("")
    for row in rows:
        row["title"] = row.pop("contender").title
    return rows


def rates(row: Mapping[str, Any]) -> list[float]:
    return [each["free"]["frames"] / each["free"]["seconds"] for each in row["rounds"]]


def processor(row: Mapping[str, Any]) -> list[float]:
    """Returns the processor-seconds of 1,000 frames in each round."""
    return [1000 * each["free"]["processor"] / each["free"]["frames"] for each in row["rounds"]]


def waiting(row: Mapping[str, Any]) -> list[float]:
    return [each["training"]["waited"] / each["training"]["seconds"] for each in row["rounds"]]


def ratios(rows: Sequence[Mapping[str, Any]], workers: int) -> list[float]:
    """Returns the ratio of each round with so many workers; empty if a side was not measured."""
    ours, theirs = (
        next(row for row in rows if (row["dataset"], row["workers"]) == (dataset, workers)) for dataset in DATASETS
    )
    if "failure" in ours or "failure" in theirs:
        return []
    return [a / b for a, b in zip(rates(ours), rates(theirs), strict=True)]


def limits(rows: Sequence[Mapping[str, Any]], workers: int) -> list[float]:
    """Returns LeRobot's processor-seconds divided by those of plain decoding, of each round; empty if one failed."""
    wanted = [("lerobot", workers), (PLAIN, 0)]
    theirs, plain = (next(row for row in rows if (row["dataset"], row["workers"]) == each) for each in wanted)
    if "failure" in theirs or "failure" in plain:
        return []
    return [a / b for a, b in zip(processor(theirs), processor(plain), strict=True)]


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    cells = []
    for row in rows:
        if "failure" in row:
            cells.append([row["title"], "-", "-", "-", row["failure"]])
            continue
        versions = ", ".join(f"{name} {version}" for name, version in row["rounds"][0]["free"]["versions"].items())
        share = f"{100 * statistics.median(waiting(row)):.1f} %"
        medians = [figure(statistics.median(found(row))) for found in (rates, processor)]
        cells.append([row["title"], *medians, share, versions])
    return format_table(
        ["dataset", "frames/s", "processor-seconds of 1,000 frames", "a training step waits", "versions"], cells
    )


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--codecs", help=f"of the videos, by commas: {', '.join(CODECS)} (default h264,av1)")
    parser.add_argument("--frames", type=int, help="frames of each camera (default 750)")
    parser.add_argument("--workers", type=int, nargs="+", help="workers of the DataLoader (default 0 2 4)")
    parser.add_argument("--seconds", type=float, help="of each measurement (default 5)")
    parser.add_argument("--rounds", type=int, help="measurements of each contender (default 2)")
    parser.add_argument("--step", type=float, help="seconds of a training step (default 0.25)")
    parser.add_argument("--backend", default="pyav", help="LeRobot's decoder: torchcodec or pyav (default pyav)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the data and of the order (default 0)")
    add_environment_options(parser, ENVIRONMENT)
    parser.add_argument(
        "--quick", action="store_true", help="little data, short measurements: shows that all of it runs"
    )
    parser.add_argument("--json", type=Path, help="write the full record here")
    parser.set_defaults(**FULL)
    return parser


def main(arguments: Sequence[str] | None = None) -> None:
    parser = make_parser()
    args = parse_with_quick(parser, arguments, QUICK)
    codecs = args.codecs.split(",")
    if unknown := [name for name in codecs if name not in CODECS]:
        parser.error(f"unknown codecs {', '.join(unknown)}; known: {', '.join(CODECS)}")
    if args.install and ENVIRONMENT not in dict(args.python):
        try:
            install(args.venvs, ENVIRONMENT)
        except ContenderError as error:
            print(f"{ENVIRONMENT}: {error}", file=sys.stderr)
    facts = machine_facts()
    print(f"`{command_line()}`\n\n{describe_machine(facts)}", flush=True)
    record: dict[str, Any] = {"benchmark": "lerobot_train", "machine": facts, "command": command_line(), "tables": []}
    cameras = [f"observation.images.camera_{number}" for number in range(args.cameras)]
    with tempfile.TemporaryDirectory(prefix="gear-bench-") as scratch:
        for codec in codecs:
            source = Path(scratch) / codec / "source"
            progress(f"{codec}: making {args.cameras} cameras of {args.frames:,} frames")
            write_lerobot(
                source, CODECS[codec], Size(args.frames, args.episode, args.height, args.width), args.seed, cameras
            )
            rows = race(source, args)
            print(f"\n## {codec}, {args.cameras} cameras of {args.width} x {args.height}\n\n{table(rows)}\n")
            for workers in args.workers:
                found = ratios(rows, workers)
                judged = "not measured"
                if found:
                    ratio = statistics.median(found)
                    judged = f"{ratio:.2f} (target {TARGET:g}: {'met' if ratio >= TARGET else 'missed'})"
                limit = limits(rows, workers)
                if limit:
                    judged += f"; plain decoding with as many cores as LeRobot had: {statistics.median(limit):.2f}"
                print(f"{workers} workers, gear-data to LeRobot: {judged}", flush=True)
            ratio_of = {str(workers): ratios(rows, workers) for workers in args.workers}
            record["tables"].append({"codec": codec, "rows": rows, "ratios": ratio_of})
    if args.json is not None:
        write_json(args.json, record)


if __name__ == "__main__":
    main()
