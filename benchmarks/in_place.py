"""Batches of a LeRobot dataset on the hub: gear-data in place, and LeRobot's download and streaming.

    python benchmarks/in_place.py --install --json in_place.json

A process serves a dataset of 50 episodes and two cameras of 640 x 480 by the hub's API. It answers each request after
`--latency` seconds, and sends `--bandwidth` bytes a second. Each contender is a process with empty caches. It draws a
first batch of 8 frames of each camera, and then further batches with a step of `--step` seconds before each.

*first batch*: seconds from opening the dataset, without imports. gear-data draws it from all frames. `LeRobotDataset`
downloads all files first, and `StreamingLeRobotDataset` draws from a buffer of 1000 frames. *processor* is of the same
span, of all cores. *waits*: share of the time of the other steps. *fetched to used*: bytes of video that the hub sent
for batches, to the bytes of the groups of pictures that were decoded.

`--layouts` names LeRobot's versions: v3.0 has one file of each camera, v2.1 one for each episode; LeRobot 0.6 reads
v3.0. Streaming needs torchcodec, which needs FFmpeg's libraries.

`--quick` shows that all parts run; its figures mean little.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
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

# The checkout's own gear_data and tests, installed or not.
sys.path.insert(0, str(ROOT))

from feeding.contenders import SETUP_TIMEOUT_SECONDS, Contender, Process, find_python
from feeding.environments import ContenderError, add_environment_options, install
from filming.data import CODECS, Size, write_lerobot, write_lerobot_v21
from filming.hub import REPOSITORY, SlowHub, slow_hub

ENVIRONMENT = "lerobot-0.6"
GEAR = Contender("gear", "gear-data, in place", "gear_in_place.py", "source")
CONTENDERS = (
    GEAR,
    Contender("download", "LeRobot, download", "lerobot_in_place.py", "source", ENVIRONMENT, ("--way", "download")),
    Contender("streaming", "LeRobot, streaming", "lerobot_in_place.py", "source", ENVIRONMENT, ("--way", "streaming")),
)
#: Version of LeRobot's layout -> what writes it, and who reads it.
LAYOUTS: dict[str, tuple[Callable[..., Path], tuple[Contender, ...]]] = {
    "v3.0": (write_lerobot, CONTENDERS),
    "v2.1": (write_lerobot_v21, (GEAR,)),
}
#: Seconds to the first batch, share of waiting, bytes fetched to bytes used: at most.
TARGETS = {"first": 10.0, "waits": 0.02, "fetched": 1.3}
FULL: dict[str, Any] = {
    "episodes": 50, "episode": 150, "height": 480, "width": 640, "batch_size": 8, "steps": 200, "step": 0.05,
    "latency": 0.05, "bandwidth": 100.0, "rounds": 3, "codec": "h264", "layouts": "v3.0,v2.1",
}  # fmt: skip
QUICK: dict[str, Any] = {
    "episodes": 3, "episode": 12, "height": 64, "width": 96, "batch_size": 2, "steps": 4, "step": 0.01,
    "latency": 0.001, "rounds": 1, "codec": "mpeg4",
}  # fmt: skip


def measure(wanted: Contender, hub: SlowHub, scratch: Path, args: argparse.Namespace) -> dict[str, Any]:
    """Returns the record of one run.

    Raises:
        ContenderError: it is not installed, or it ended.
    """
    python = find_python(wanted, args.venvs, dict(args.python))
    own = ["--data", str(scratch), "--endpoint", hub.url, "--repository", REPOSITORY, "--seed", str(args.seed)]
    own += ["--batch-size", str(args.batch_size), "--steps", str(args.steps), "--step", str(args.step)]
    process = Process(wanted, python, own, scratch / f"{wanted.name}.log")
    try:
        found: dict[str, Any] = {"imports": process.hear(SETUP_TIMEOUT_SECONDS)}
        for part in ("open", "first", "steps"):
            hub.take()
            print(part, file=process.child.stdin, flush=True)
            found[part] = process.hear(SETUP_TIMEOUT_SECONDS + 10 * args.steps * args.step)
            found[part]["sent"] = vars(hub.take())
    finally:
        process.close()
    return found


def _until_first(run: Mapping[str, Any], value: Callable[[Any], float]) -> float:
    return value(run["open"]) + value(run["first"])


def waits(run: Mapping[str, Any], step: float) -> float:
    waited = run["steps"]["waited"]
    return float(waited / (waited + step * run["steps"]["steps"]))


def fetched(run: Mapping[str, Any]) -> float | None:
    """Returns the bytes of video that were sent for batches, to the bytes of the groups used; None if unknown."""
    used = run["steps"].get("group_bytes")
    return None if not used else sum(run[part]["sent"]["video_bytes"] for part in ("first", "steps")) / float(used)


def summary(row: Mapping[str, Any], step: float) -> dict[str, float | None]:
    """Returns the medians over the rounds."""
    runs = row["rounds"]

    def median(values: Sequence[float | None]) -> float | None:
        known = [value for value in values if value is not None]
        return statistics.median(known) if known else None

    return {
        "first": median([_until_first(run, lambda part: part["seconds"]) for run in runs]),
        "processor": median([_until_first(run, lambda part: part["processor"]) for run in runs]),
        "requests": median([_until_first(run, lambda part: part["sent"]["requests"]) for run in runs]),
        "megabytes": median([_until_first(run, lambda part: part["sent"]["bytes"] / 1e6) for run in runs]),
        "waits": median([waits(run, step) for run in runs]),
        "batch_processor": median([run["steps"]["processor"] / max(1, run["steps"]["steps"]) for run in runs]),
        "fetched": median([fetched(run) for run in runs]),
    }


HEADER = (
    "contender", "first batch s", "processor s", "requests", "MB", "waits", "processor ms a batch", "fetched to used",
    "versions",
)  # fmt: skip


def table(rows: Sequence[Mapping[str, Any]], step: float) -> str:
    cells = []
    for row in rows:
        if "failure" in row:
            cells.append([row["title"], *["-"] * (len(HEADER) - 2), row["failure"]])
            continue
        found = summary(row, step)
        versions = ", ".join(f"{name} {version}" for name, version in row["rounds"][0]["steps"]["versions"].items())
        named = [figure(found[name]) for name in ("first", "processor", "requests", "megabytes")]
        share = f"{100 * (found['waits'] or 0):.1f} %"
        batch = figure(1e3 * (found["batch_processor"] or 0))
        cells.append([row["title"], *named, share, batch, figure(found["fetched"]), versions])
    return format_table(HEADER, cells)


def judged(row: Mapping[str, Any], step: float) -> str:
    """Returns the line that compares gear-data with the targets."""
    if "failure" in row:
        return "targets: not measured"
    found = summary(row, step)
    parts = []
    for name, what in (("first", "first batch s"), ("waits", "waits"), ("fetched", "fetched to used")):
        value = found[name]
        met = value is not None and value <= TARGETS[name]
        parts.append(f"{what} {figure(value)} (target {TARGETS[name]:g}: {'met' if met else 'missed'})")
    return "; ".join(parts)


def race(layout: str, scratch: Path, args: argparse.Namespace) -> list[dict[str, Any]]:
    """Returns a row for each contender, with its rounds, or the reason of its failure."""
    write, contenders = LAYOUTS[layout]
    size = Size(args.episodes * args.episode, args.episode, args.height, args.width)
    progress(f"{layout}: making two cameras of {size.frames:,} frames")
    cameras = ["observation.images.front", "observation.images.wrist"]
    source = write(scratch / layout, CODECS[args.codec], size, args.seed, cameras)
    rows: list[dict[str, Any]] = [{"name": each.name, "title": each.title, "rounds": []} for each in contenders]
    with slow_hub(source, args.latency, 1e6 * args.bandwidth) as hub:
        for number in range(args.rounds):
            for row, wanted in zip(rows, contenders, strict=True):
                if "failure" in row:
                    continue
                progress(f"{layout}, round {number + 1} of {args.rounds}: {wanted.title}")
                try:
                    row["rounds"].append(measure(wanted, hub, scratch, args))
                except (ContenderError, OSError) as error:
                    row["failure"] = str(error)
    progress("")
    return rows


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layouts", help=f"LeRobot's versions, by commas: {', '.join(LAYOUTS)} (default both)")
    parser.add_argument("--codec", choices=CODECS, help="of the videos (default h264)")
    parser.add_argument("--episodes", type=int, help="episodes of 150 steps (default 50)")
    parser.add_argument("--batch-size", type=int, help="frames of each camera in a batch (default 8)")
    parser.add_argument("--steps", type=int, help="batches to draw (default 200)")
    parser.add_argument("--step", type=float, help="seconds of a training step (default 0.05)")
    parser.add_argument("--latency", type=float, help="seconds before an answer of the hub (default 0.05)")
    parser.add_argument("--bandwidth", type=float, help="of the hub, in MB/s (default 100)")
    parser.add_argument("--rounds", type=int, help="measurements of each contender (default 3)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the data and of the order (default 0)")
    add_environment_options(parser, ENVIRONMENT)
    parser.add_argument("--quick", action="store_true", help="little data, few batches: shows that all of it runs")
    parser.add_argument("--json", type=Path, help="write the full record here")
    parser.set_defaults(**FULL)
    return parser


def main(arguments: Sequence[str] | None = None) -> None:
    parser = make_parser()
    args = parse_with_quick(parser, arguments, QUICK)
    layouts = args.layouts.split(",")
    if unknown := [name for name in layouts if name not in LAYOUTS]:
        parser.error(f"unknown layouts {', '.join(unknown)}; known: {', '.join(LAYOUTS)}")
    if args.install and ENVIRONMENT not in dict(args.python):
        try:
            install(args.venvs, ENVIRONMENT)
        except ContenderError as error:
            print(f"{ENVIRONMENT}: {error}", file=sys.stderr)
    facts = machine_facts()
    print(f"`{command_line()}`\n\n{describe_machine(facts)}", flush=True)
    record: dict[str, Any] = {"benchmark": "in_place", "machine": facts, "command": command_line(), "tables": []}
    with tempfile.TemporaryDirectory(prefix="gear-bench-") as scratch:
        for layout in layouts:
            rows = race(layout, Path(scratch), args)
            size = f"{args.episodes} episodes of {args.episode} steps, two cameras of {args.width} x {args.height}"
            print(
                f"\n## LeRobot {layout}, {args.codec}: {size}\n\n{table(rows, args.step)}\n\n"
                f"{judged(rows[0], args.step)}",
                flush=True,
            )
            record["tables"].append({"layout": layout, "rows": rows})
    if args.json is not None:
        write_json(args.json, record)


if __name__ == "__main__":
    main()
