"""How fast batches come, side by side: gear-data, its peers, and a plain memory copy.

Every contender is a process with an interpreter of its own (their requirements clash). All are set up first; then they
are measured one at a time, turn about, so that what a machine does between two rounds falls on all of them alike. The
table gives medians; `--json` adds the least and the most, each contender's versions, and what it delivers.

Padded bytes are the bytes of the arrays a contender delivers in a batch, the same count for all. The ratio is the
median over rounds of gear-data's figure by the contender's in the same round.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from common import (
    ROOT,
    describe_machine,
    figure,
    format_table,
    machine_facts,
    parquet_files,
    progress,
    read_parquet,
    spread,
    synthetic_episodes,
    write_json,
    write_npz,
    write_parquet,
)
from environments import HERE, ContenderError, install, is_installed, last_line, requirements, venv_python

SETUP_TIMEOUT_SECONDS = 600.0
GEAR = "gear"


@dataclass(frozen=True)
class Contender:
    name: str
    title: str
    script: str
    data: Literal["parquet", "npz"]
    #: Its environment, and its file under requirements/; None: the interpreter that runs this.
    environment: str | None = None
    arguments: tuple[str, ...] = ()


CONTENDERS = (
    Contender(GEAR, "gear-data", "gear_loader.py", "parquet"),
    Contender("gear-serial", "gear-data, prefetch=0", "gear_loader.py", "parquet", arguments=("--prefetch", "0")),
    Contender("torchrl", "TorchRL SliceSampler (memory)", "torchrl_slices.py", "npz", "torchrl"),
    Contender("dt", "Decision Transformer loader", "dt_numpy.py", "npz"),
    Contender(
        "dt-published",
        "Decision Transformer loader, returns summed per window",
        "dt_numpy.py",
        "npz",
        arguments=("--returns", "published"),
    ),
    Contender("d3rlpy", "d3rlpy", "d3rlpy_trajectories.py", "npz", "d3rlpy"),
    Contender("reverb", "Reverb TrajectoryDataset (same process)", "reverb_trajectories.py", "npz", "reverb"),
    Contender("hf", "HF datasets rows + collator (states only)", "hf_rows.py", "parquet", "hf"),
    Contender(
        "hf-arrow",
        "HF datasets Arrow rows + collator (states only)",
        "hf_rows.py",
        "parquet",
        "hf",
        ("--rows", "arrow"),
    ),
    Contender("memcpy", "memcpy, 1 thread", "memcpy_ceiling.py", "npz"),
)


def environment_variables(contender: Contender, scratch: Path) -> dict[str, str]:
    # What a contender leaves behind when it is killed goes with the scratch folder.
    variables = {**os.environ, "TMPDIR": str(scratch)}
    if contender.environment is None:
        # The checkout's own gear_data, installed or not; environments of peers stay as they are.
        variables["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    return variables


class Process:
    """One contender, set up and waiting; it measures when it is told to."""

    def __init__(self, contender: Contender, python: Path, data: Path, options: Sequence[str], log: Path) -> None:
        self.contender, self.log = contender, log
        command = [str(python), str(HERE / "peers" / contender.script), "--data", str(data), "--on-request"]
        with log.open("w") as errors:
            self.child = subprocess.Popen(
                [*command, *options, *contender.arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env=environment_variables(contender, log.parent),
            )

    def hear(self, timeout: float) -> dict[str, Any]:
        watchdog = threading.Timer(timeout, self.child.kill)
        watchdog.start()
        try:
            line = self.child.stdout.readline() if self.child.stdout else ""
        finally:
            watchdog.cancel()
        if not line:
            self.child.wait()
            raise ContenderError(f"failed: {last_line(self.log.read_text(errors='replace'))}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def measure(self, seconds: float) -> dict[str, Any]:
        if self.child.stdin is None or self.child.poll() is not None:
            raise ContenderError(f"failed: {last_line(self.log.read_text(errors='replace'))}")
        print("measure", file=self.child.stdin, flush=True)
        return self.hear(60 + 10 * seconds)

    def close(self) -> None:
        if self.child.stdin is not None:
            self.child.stdin.close()
        try:
            self.child.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self.child.kill()
            self.child.wait()


def find_python(contender: Contender, venvs: Path, given: Mapping[str, Path]) -> Path:
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
    """Every contender's measurements, turn about; one that stops goes to `failures` and its turns are over."""
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


def ratio(gear: Sequence[Mapping[str, Any]], other: Sequence[Mapping[str, Any]], quantity: str) -> float | None:
    pairs = [(ours[quantity], theirs[quantity]) for ours, theirs in zip(gear, other, strict=True)]
    if not pairs or any(theirs is None for _, theirs in pairs):
        return None
    return float(statistics.median(ours / theirs for ours, theirs in pairs))


def summarise(
    contender: Contender, records: Sequence[Mapping[str, Any]], gear: Sequence[Mapping[str, Any]] | None
) -> dict[str, Any]:
    last = records[-1]
    windows = [record["windows_per_s"] for record in records]
    return {
        "name": contender.name,
        "title": contender.title,
        "padded_gb_per_s": spread([record["padded_gb_per_s"] for record in records]),
        "windows_per_s": None if None in windows else spread(windows),
        "gear_ratio_gb": None if gear is None else ratio(gear, records, "padded_gb_per_s"),
        "gear_ratio_windows": None if gear is None else ratio(gear, records, "windows_per_s"),
        **{key: last[key] for key in ("padded_bytes_per_batch", "delivers", "versions", "notes")},
    }


def print_table(rows: Sequence[Mapping[str, Any]]) -> None:
    cells = []
    for row in rows:
        if "failure" in row:
            cells.append([row["title"], "-", "-", "-", "-", row["failure"]])
            continue
        rate = row["windows_per_s"]
        cells.append(
            [
                row["title"],
                figure(row["padded_gb_per_s"]["median"]),
                "-" if rate is None else f"{rate['median']:,.0f}",
                figure(row["gear_ratio_gb"]),
                figure(row["gear_ratio_windows"]),
                row["notes"],
            ]
        )
    print(
        format_table(["contender", "padded GB/s", "windows/s", "gear / it, GB/s", "gear / it, windows", "notes"], cells)
    )


def chosen(names: str | None) -> list[Contender]:
    """gear-data always, because the ratios are to it; of the others those named, or all."""
    known = {contender.name: contender for contender in CONTENDERS}
    if names is None:
        return list(CONTENDERS)
    wanted = [name.strip() for name in names.split(",") if name.strip()]
    unknown = [name for name in wanted if name not in known]
    if unknown:
        raise SystemExit(f"unknown peers {', '.join(unknown)}; known: {', '.join(known)}")
    return [contender for contender in CONTENDERS if contender.name in {GEAR, *wanted}]


def named_path(text: str) -> tuple[str, Path]:
    name, separator, path = text.partition("=")
    if not separator or not requirements(name).is_file():
        raise argparse.ArgumentTypeError("give ENVIRONMENT=PATH, such as torchrl=venv/bin/python")
    return name, Path(path)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__,
        epilog="example: python benchmarks/feed.py --install --peers torchrl,d3rlpy,memcpy --json feed.json",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--source",
        type=Path,
        help="Parquet file or folder, a row an episode: observations, actions, rewards, dones "
        "(default: 200,000 Hopper-shaped steps made on the fly)",
    )
    names = ", ".join(contender.name for contender in CONTENDERS)
    parser.add_argument("--peers", help=f"comma-separated names (default all: {names})")
    parser.add_argument("--seconds", type=float, default=2.0, help="length of one measurement (default 2)")
    parser.add_argument("--repetitions", type=int, default=5, help="measurements of each (default 5)")
    parser.add_argument("--batch-size", type=int, default=256, help="windows in a batch (default 256)")
    parser.add_argument("--context", type=int, default=20, help="steps in a window (default 20)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the data and of the draw (default 0)")
    parser.add_argument("--venvs", type=Path, default=ROOT / ".bench-venvs", help="folder of the peers' environments")
    parser.add_argument("--install", action="store_true", help="make the environments that are missing")
    parser.add_argument(
        "--python",
        type=named_path,
        action="append",
        default=[],
        metavar="ENVIRONMENT=PATH",
        help="use this interpreter for a peer instead of its environment; may be given several times",
    )
    parser.add_argument("--json", type=Path, help="write the full record here")
    args = parser.parse_args()
    if args.source is not None and not args.source.exists():
        parser.error(f"--source {args.source}: no such file or folder")
    return args


def start_all(
    contenders: Sequence[Contender], args: argparse.Namespace, data: Mapping[str, Path], logs: Path
) -> tuple[dict[str, Process], dict[str, str]]:
    """(set-up processes, why the others are not): all start at once, then each is waited for."""
    options = [
        *("--seconds", str(args.seconds), "--batch-size", str(args.batch_size)),
        *("--context", str(args.context), "--seed", str(args.seed)),
    ]
    given = dict(args.python)
    started: dict[str, Process] = {}
    failures: dict[str, str] = {}
    for contender in contenders:
        environment = contender.environment
        try:
            if args.install and environment is not None and environment not in given:
                install(args.venvs, environment)
            python = find_python(contender, args.venvs, given)
            log = logs / f"{contender.name}.log"
            started[contender.name] = Process(contender, python, data[contender.data], options, log)
        except (ContenderError, OSError) as error:
            failures[contender.name] = str(error)
    for name, process in started.items():
        progress(f"setting up {name}")
        try:
            process.hear(SETUP_TIMEOUT_SECONDS)
        except ContenderError as error:
            failures[name] = str(error)
    progress("")
    return started, failures


def main() -> None:
    args = parse_arguments()
    contenders = chosen(args.peers)
    facts = machine_facts()
    with tempfile.TemporaryDirectory(prefix="gear-bench-") as scratch:
        folder = Path(scratch)
        if args.source is None:
            episodes = synthetic_episodes(seed=args.seed)
            source = folder / "episodes.parquet"
            write_parquet(episodes, source)
        else:
            source = args.source.resolve()
            parquet_files(source)
            episodes = read_parquet(source)
        write_npz(episodes, folder / "steps.npz")
        data = {"parquet": source, "npz": folder / "steps.npz"}
        processes, failures = start_all(contenders, args, data, folder)
        try:
            live = {name: process for name, process in processes.items() if name not in failures}
            measured = run_rounds(live, args.seconds, args.repetitions, failures)
        finally:
            for process in processes.values():
                process.close()

    gear = measured.get(GEAR)
    rows = [
        summarise(contender, measured[contender.name], gear)
        if contender.name in measured
        else {"name": contender.name, "title": contender.title, "failure": failures[contender.name]}
        for contender in contenders
    ]
    origin = "synthetic" if args.source is None else "given source"
    print(describe_machine(facts))
    print(
        f"{origin}: {episodes.steps:,} steps, {len(episodes):,} episodes, {episodes.observations.shape[1]} "
        f"observations, {episodes.actions.shape[1]} actions; batch {args.batch_size} x {args.context}; "
        f"median of {args.repetitions} x {args.seconds:g} s, interleaved"
    )
    print()
    print_table(rows)
    if args.json is not None:
        settings = {
            "source": origin,
            "steps": episodes.steps,
            "episodes": len(episodes),
            **{name: getattr(args, name) for name in ("batch_size", "context", "seconds", "repetitions", "seed")},
        }
        write_json(args.json, {"benchmark": "feed", "machine": facts, "settings": settings, "contenders": rows})
    if gear is None:
        sys.exit(f"gear-data was not measured: {failures[GEAR]}")


if __name__ == "__main__":
    main()
