"""Recording: steps per second that are inserted, beside Reverb, TorchRL, Flashbax, LeRobot and Minari.

    python benchmarks/writer.py --install --json writer.json

A step has observations, actions (3 float32), a reward, terminated and truncated. Observations are Hopper's (11 float32,
episodes of 1,000 steps) or frames (84 x 84 uint8, episodes of 200 steps). Steps come in batches of 32 environments, or
one by one. Every contender is a process with its own interpreter. Contenders are measured in alternating rounds; the
tables give medians over the rounds, and ratios are of the same round.

`steps/s` counts until the contender's store has the steps: gear-data's journal, or Reverb's server. `with the finish`
also counts what makes the recording complete on disk: `close`, a checkpoint, `dumps`, `finalize`, `create_dataset`. A
`call` appends a step of all environments, and ends their episodes.

Sampling: batches of 256 windows of 20 steps from a store of 500,000 Hopper steps, without a writer, and beside one that
inserts 100,000 steps per second. All writers but one insert into the store that is sampled. gear-data's writer has a
process of its own; it publishes a generation each second, and the loader takes it.

`--quick` shows that all parts run; its figures mean little.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from common import command_line, describe_machine, machine_facts, parse_with_quick, progress, write_json
from feeding.contenders import SETUP_TIMEOUT_SECONDS, Contender, Process, find_python
from feeding.environments import ContenderError, add_environment_options, install
from recording.contenders import OURS, RECORDERS, SAMPLERS, Recorder, chosen
from recording.report import (
    insertion_table,
    judge_insertion,
    judge_sampling,
    notes,
    sampling_table,
    verdict,
)

SHAPES = ("hopper", "frames")
#: The finish of a recording may take this long.
PATIENCE_SECONDS = 600.0
FULL: dict[str, Any] = {"seconds": 5.0, "rounds": 3, "environments": 32, "fill": 500_000, "rate": 100_000.0}
QUICK: dict[str, Any] = {"seconds": 0.05, "rounds": 1, "environments": 4, "fill": 4000, "rate": 10_000.0}


def installable(recorders: Sequence[Recorder], args: argparse.Namespace) -> dict[str, str]:
    """Creates the missing environments if `--install` says so, and returns the reasons of those that failed."""
    failures = {}
    for environment in dict.fromkeys(each.contender.environment for each in recorders):
        if args.install and environment is not None and environment not in dict(args.python):
            try:
                install(args.venvs, environment)
            except ContenderError as error:
                failures[environment] = str(error)
    return failures


def start(contender: Contender, shape: str, folder: Path, args: argparse.Namespace) -> Process:
    """Starts a contender and waits until it is ready.

    Raises:
        ContenderError: it is not installed, or it ended.
    """
    if contender.environment in args.not_installable:
        raise ContenderError(args.not_installable[contender.environment])
    own = ["--shape", shape, "--environments", str(args.environments), "--seed", str(args.seed)]
    python = find_python(contender, args.venvs, dict(args.python))
    process = Process(contender, python, own, folder / f"{contender.script}.log")
    try:
        process.hear(SETUP_TIMEOUT_SECONDS)
    except ContenderError:
        process.close()
        raise
    return process


def ask(process: Process, *request: object) -> dict[str, Any]:
    print(*request, file=process.child.stdin, flush=True)
    return process.hear(PATIENCE_SECONDS)


def measure_insertion(recorder: Recorder, shape: str, folder: Path, args: argparse.Namespace) -> dict[str, Any]:
    """Returns the records of one round: batches of environments, and steps one by one."""
    process = start(recorder.contender, shape, folder, args)
    try:
        batches = ask(process, "insert", args.environments, args.seconds)
        return {"batches": batches, "single": ask(process, "insert", 0, args.seconds)}
    finally:
        process.close()


def measure_sampling(recorder: Recorder, shape: str, folder: Path, args: argparse.Namespace) -> dict[str, Any]:
    """Returns the records of one round: sampling without a writer, beside one, and that writer's own record."""
    with ExitStack() as stack:
        sampler = start(recorder.contender, shape, folder, args)
        stack.callback(sampler.close)
        writer = sampler
        if recorder.writer_apart:
            writer = start(recorder.contender, shape, folder, args)
            stack.callback(writer.close)
        store = ask(sampler, "fill", args.fill)["store"]
        alone = ask(sampler, "sample", args.seconds)
        ask(writer, "start", args.rate, store)
        beside = ask(sampler, "sample", args.seconds)
        return {"alone": alone, "beside": beside, "writer": ask(writer, "stop")}


def race(
    what: str, recorders: Sequence[Recorder], shape: str, folder: Path, args: argparse.Namespace
) -> list[dict[str, Any]]:
    """Returns a row for every contender, with its records in the order of the rounds, or the reason of its failure."""
    measure = {"insertion": measure_insertion, "sampling": measure_sampling}[what]
    rows: list[dict[str, Any]] = [
        {
            "name": each.name,
            "title": each.contender.title,
            "process_dies": each.process_dies,
            "power_fails": each.power_fails,
            "rounds": [],
        }
        for each in recorders
    ]
    for number in range(args.rounds):
        for recorder, row in zip(recorders, rows, strict=True):
            if "failure" in row:
                continue
            progress(f"{what}, {shape}, round {number + 1} of {args.rounds}: {recorder.contender.title}")
            try:
                row["rounds"].append(measure(recorder, shape, folder, args))
            except (ContenderError, OSError) as error:
                row["failure"] = str(error)
    progress("")
    return rows


def report(folder: Path, args: argparse.Namespace) -> dict[str, Any]:
    """Measures and prints the tables, and returns their records."""
    recorders = chosen(args.recorders)
    args.not_installable = installable(recorders, args)
    record: dict[str, Any] = {"insertion": [], "sampling": [], "targets": []}
    for shape in SHAPES:
        rows = race("insertion", [each for each in recorders if each in RECORDERS], shape, folder, args)
        judged = judge_insertion(shape, rows)
        print(f"\n## Insertion: {shape}\n\n{insertion_table(rows, args.environments)}\n", flush=True)
        print(*map(verdict, judged), sep="\n", flush=True)
        record["insertion"].append({"shape": shape, "contenders": rows})
        record["targets"] += judged
    samplers = [each for each in recorders if each.writer_apart is not None]
    sampled = race("sampling", samplers, "hopper", folder, args)
    judged = judge_sampling(sampled, args.rate)
    print(f"\n## Sampling beside a writer at {args.rate:,.0f} steps/s: hopper\n\n{sampling_table(sampled)}\n")
    print(*map(verdict, judged), sep="\n")
    record["sampling"], record["targets"] = sampled, record["targets"] + judged
    contenders = [*record["insertion"][0]["contenders"], *sampled]
    print(f"\n## The contenders\n\n{notes(contenders)}", flush=True)
    return record


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = ", ".join(each.name for each in (*RECORDERS, *SAMPLERS))
    parser.add_argument("--recorders", help=f"comma-separated names (default all: {names})")
    parser.add_argument("--seconds", type=float, help="length of one measurement (default 5)")
    parser.add_argument("--rounds", type=int, help="measurements of each contender (default 3)")
    parser.add_argument("--environments", type=int, help="environments in a batch (default 32)")
    parser.add_argument("--fill", type=int, help="steps in the store that is sampled (default 500,000)")
    parser.add_argument("--rate", type=float, help="steps per second beside the sampler (default 100,000)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the steps and of the samples (default 0)")
    add_environment_options(parser)
    parser.add_argument("--quick", action="store_true", help="few steps, short measurements: shows that all of it runs")
    parser.add_argument("--json", type=Path, help="write the full record here")
    parser.set_defaults(**FULL)
    return parser


def main(arguments: Sequence[str] | None = None) -> None:
    args = parse_with_quick(make_parser(), arguments, QUICK)
    facts = machine_facts()
    print(f"`{command_line()}`\n\n{describe_machine(facts)}")
    print(f"median of {args.rounds} x {args.seconds:g} s, in alternating rounds", flush=True)
    settings = {name: getattr(args, name) for name in (*FULL, "seed")}
    record: dict[str, Any] = {"benchmark": "writer", "machine": facts, "command": command_line(), "settings": settings}
    with tempfile.TemporaryDirectory(prefix="gear-bench-") as scratch:
        record |= report(Path(scratch), args)
    if args.json is not None:
        write_json(args.json, record)
    for rows in (record["insertion"][0]["contenders"], record["sampling"]):
        failed = next((row for row in rows if row["name"] == OURS and "failure" in row), None)
        if failed is not None:
            sys.exit(f"gear-data was not measured: {failed['failure']}")


if __name__ == "__main__":
    main()
