"""Batches per second, side by side: gear-data, its peers, the floor, and a plain memory copy.

The report has one table for each shape. Every contender is a process with its own interpreter, because their
requirements conflict. All contenders are set up first. Then they are measured one at a time in alternating rounds, so
that other load on the machine affects all of them. The tables give medians. `--json` adds minima and maxima, each
contender's versions, and the keys it delivers.

Padded bytes are the bytes of the arrays in a contender's batch: the steps' columns with padding, timesteps and mask.
The count is the same for all. A ratio is gear-data's figure divided by the contender's figure of the same round; the
table gives the median over the rounds, inline (prefetch=0) and with a prefetch thread (prefetch=2). The floor is a
compiled program that draws and gathers the same windows into the same arrays, and does nothing else, on one thread.
`memcpy` is one thread's copy of 1 GiB to 1 GiB, both not in the cache. The data of a shape whose name ends in -large
has at least ten times the size of the last-level cache.

`--wait`, `--leak` and `--profile` measure gear-data only. Without `--all` they run without the tables of contenders.
`--against CHECKOUT` compares this gear-data with another checkout of the repository, instead of its peers. `--quick`
shows that all parts run; its figures mean little.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from common import ROOT, command_line, describe_machine, machine_facts, parse_with_quick, progress, spread, write_json
from feeding.chart import write_charts
from feeding.contenders import (
    CONTENDERS,
    INLINE,
    SETUP_TIMEOUT_SECONDS,
    THREADS,
    Contender,
    Process,
    chosen_contenders,
    find_python,
    other_checkout,
    run_rounds,
    run_script,
)
from feeding.data import Data, DataStore
from feeding.environments import ContenderError, add_environment_options, install
from feeding.report import (
    contender_notes,
    contender_table,
    memory_table,
    profile_table,
    summarise,
    wait_table,
)
from feeding.scenarios import FAMILIES, SCENARIOS, Scenario, chosen_scenarios

#: The cache of a large server, for systems that do not report theirs: large data is then large there too.
ASSUMED_CACHE_BYTES = 64 << 20
MEMORY_BATCH = ("--batch-size", "16", "--context", "20")
#: Values of arguments, and of sizes that have no option: the usual ones, and the ones for `--quick`.
FULL = {"seconds": 2.0, "repetitions": 5, "leak_batches": 100_000, "most_steps": None, "cold_bytes": 1 << 30}
QUICK = {"seconds": 0.05, "repetitions": 1, "leak_batches": 1000, "most_steps": 5000, "cold_bytes": 16 << 20}


def options(scenario: Scenario, data: Data, args: argparse.Namespace) -> list[str]:
    """Returns the arguments of a peer's script."""
    return [
        *("--seconds", str(args.seconds), "--seed", str(args.seed), "--contract", data.contract),
        *("--batch-size", str(scenario.batch_size), "--context", str(scenario.context)),
        # Only if needed: another checkout may not know the option.
        *(["--cold-bytes", str(args.cold_bytes)] if args.quick else []),
    ]


def start_all(
    contenders: Sequence[Contender], scenario: Scenario, data: Data, args: argparse.Namespace, logs: Path
) -> tuple[dict[str, Process], dict[str, str]]:
    """Starts the contenders one after another, each when the one before is ready.

    Some measure their settings in the set-up, which others would disturb.

    Returns:
        The processes, and the reasons of those that failed.
    """
    given = dict(args.python)
    started: dict[str, Process] = {}
    failures: dict[str, str] = {}
    for contender in contenders:
        environment = contender.environment
        try:
            if args.install and environment is not None and environment not in given:
                install(args.venvs, environment)
            progress(f"{scenario.name}: setting up {contender.name}")
            own = ["--data", str(getattr(data, contender.data)), *options(scenario, data, args)]
            python = find_python(contender, args.venvs, given)
            process = Process(contender, python, own, logs / f"{scenario.name}-{contender.name}.log")
            started[contender.name] = process
            process.hear(SETUP_TIMEOUT_SECONDS)
        except (ContenderError, OSError) as error:
            failures[contender.name] = str(error)
    progress("")
    return started, failures


def race(scenario: Scenario, data: Data, args: argparse.Namespace, logs: Path) -> list[dict[str, Any]]:
    """Returns a row for every contender of the scenario."""
    contenders = [c for c in chosen_contenders(args.peers) if c.name in {INLINE, THREADS, *scenario.peers}]
    if args.against is not None:
        ours = [c for c in contenders if c.name in (INLINE, THREADS)]
        contenders = [*ours, *other_checkout(args.against)]
    processes, failures = start_all(contenders, scenario, data, args, logs)
    try:
        live = {name: process for name, process in processes.items() if name not in failures}
        measured = run_rounds(live, args.seconds, args.repetitions, failures)
    finally:
        for process in processes.values():
            process.close()
    return [
        summarise(contender, measured, scenario.targets.get(contender.name))
        if contender.name in measured
        else {"name": contender.name, "title": contender.title, "failure": failures[contender.name]}
        for contender in contenders
    ]


def gear_script(
    script: str, scenario: Scenario, data: Data, args: argparse.Namespace, logs: Path, checkout: Path = ROOT
) -> dict[str, Any]:
    """Runs a script of a checkout's peers/, and returns its record."""
    progress(f"{scenario.name}: {script} of {checkout.name}")
    own = ["--data", str(data.dataset), *options(scenario, data, args), "--repetitions", str(args.repetitions)]
    # Another checkout may not know the option.
    if script == "gear_profile.py" and checkout == ROOT:
        own += ["--steps", str(data.steps)]
    record = run_script(script, *own, log=logs / f"{scenario.name}-{script}.log", checkout=checkout)
    progress("")
    name = scenario.name if checkout == ROOT else f"{scenario.name}, {checkout.name}"
    return {"scenario": name, **record}


def profile_rows(scenario: Scenario, data: Data, args: argparse.Namespace, logs: Path) -> list[dict[str, Any]]:
    """Returns a row for each checkout."""
    checkouts = [ROOT] if args.against is None else [args.against, ROOT]
    return [gear_script("gear_profile.py", scenario, data, args, logs, checkout) for checkout in checkouts]


def wait_rows(scenario: Scenario, data: Data, args: argparse.Namespace, logs: Path) -> list[dict[str, Any]]:
    """Returns a row for every kind of training step."""
    rounds = gear_script("gear_wait.py", scenario, data, args, logs)["rounds"]
    return [
        {
            "scenario": scenario.name,
            "consumer": consumer,
            **{
                quantity: spread([record[quantity] for record in rounds if record["consumer"] == consumer])
                for quantity in ("wait_fraction", "wait_us_median", "wait_us_p99")
            },
        }
        for consumer in dict.fromkeys(record["consumer"] for record in rounds)
    ]


def memory_rows(data: Data, args: argparse.Namespace, logs: Path) -> list[dict[str, Any]]:
    """Returns a row for each prefetch depth."""
    rows = []
    for prefetch in ("0", "2"):
        progress(f"memory, prefetch={prefetch}")
        own = ["--data", str(data.dataset), "--contract", data.contract, *MEMORY_BATCH]
        extra = ["--prefetch", prefetch, "--batches", str(args.leak_batches)]
        rows.append(run_script("gear_memory.py", *own, *extra, log=logs / f"memory-{prefetch}.log"))
    progress("")
    return rows


def named_source(text: str) -> tuple[str, Path]:
    name, separator, path = text.partition("=")
    if not separator or name not in FAMILIES:
        raise argparse.ArgumentTypeError(f"give DATA=PATH, where DATA is one of {', '.join(FAMILIES)}")
    if not Path(path).exists():
        raise argparse.ArgumentTypeError(f"{path}: no such file or folder")
    return name, Path(path).resolve()


def named_checkout(text: str) -> Path:
    path = Path(text).resolve()
    if not (path / "gear_data" / "__init__.py").is_file():
        raise argparse.ArgumentTypeError(f"{path} is not a checkout of gear-data")
    return path


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__,
        epilog="example: python benchmarks/feed.py --install --source hopper=hopper.parquet --all --json feed.json",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--source",
        type=named_source,
        action="append",
        default=[],
        metavar="DATA=PATH",
        help="use this source, in any format that gear_data.convert reads, instead of random data of the same shape; "
        f"DATA is one of {', '.join(FAMILIES)}; Hopper in Parquet, one row per episode; may be given several times",
    )
    shapes = ", ".join(scenario.name for scenario in SCENARIOS)
    parser.add_argument("--shapes", help=f"comma-separated names (default all: {shapes})")
    names = ", ".join(contender.name for contender in CONTENDERS)
    parser.add_argument("--peers", help=f"comma-separated names (default all: {names})")
    parser.add_argument("--wait", action="store_true", help="time that a trainer waits for batches, with steps of 5 ms")
    parser.add_argument("--leak", action="store_true", help="growth of memory over many batches")
    parser.add_argument(
        "--against", type=named_checkout, metavar="CHECKOUT", help="compare with gear-data of another checkout"
    )
    parser.add_argument("--profile", action="store_true", help="time of each stage of a batch")
    parser.add_argument("--all", action="store_true", help="the tables of all contenders, and the three above")
    parser.add_argument("--seconds", type=float, help="length of one measurement (default 2)")
    parser.add_argument("--repetitions", type=int, help="measurements of each contender (default 5)")
    parser.add_argument("--leak-batches", type=int, help="batches drawn by --leak (default 100,000)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the data and of the windows (default 0)")
    add_environment_options(parser)
    parser.add_argument(
        "--quick", action="store_true", help="little data, short measurements: shows that all of it runs"
    )
    parser.add_argument("--json", type=Path, help="write the full record here")
    parser.add_argument(
        "--charts", type=Path, metavar="FOLDER", help="write the first table's chart here, for light and dark pages"
    )
    parser.set_defaults(**FULL)
    return parser


def parse_arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = make_parser()
    args = parse_with_quick(parser, arguments, QUICK)
    if args.all:
        args.wait = args.leak = args.profile = True
    args.race = args.all or not (args.wait or args.leak or args.profile)
    if args.charts is not None and not args.race:
        parser.error("--charts needs the tables of contenders: add --all, or leave the other parts out")
    if args.against is not None and args.wait:
        parser.error("--against compares tables and --profile, not --wait")
    return args


def show(title: str, *lines: str) -> None:
    """Prints a section of the report as soon as it is complete: a run takes minutes."""
    print(f"\n## {title}\n", *lines, sep="\n", flush=True)


def run(args: argparse.Namespace, scenarios: Sequence[Scenario], store: DataStore, record: dict[str, Any]) -> None:
    """Measures and prints the requested sections, and adds each to `record`.

    Raises:
        ContenderError: the data cannot be made, or a script of gear-data fails.
    """
    for scenario in scenarios:
        data = store.get(scenario.family, scenario.large)
        if args.race:
            rows = race(scenario, data, args, store.scratch)
            show(f"{FAMILIES[scenario.family].title}: {scenario.name}", data.describe(), "", contender_table(rows))
            batch = [scenario.batch_size, scenario.context]
            facts = {"scenario": scenario.name, "data": data.describe(), "batch": batch}
            record["scenarios"].append({**facts, "contenders": rows})
        if args.wait:
            record["wait"] += wait_rows(scenario, data, args, store.scratch)
        if args.profile:
            record["profile"] += profile_rows(scenario, data, args, store.scratch)
    if args.race:
        show("The contenders", contender_notes([entry["contenders"] for entry in record["scenarios"]]))
    if args.wait:
        show("Time that a trainer waits (prefetch=2)", wait_table(record["wait"]))
    if args.leak:
        record["memory"] = memory_rows(store.get(scenarios[0].family, large=False), args, store.scratch)
        show(f"Memory over {args.leak_batches:,} batches of 16 x 20", memory_table(record["memory"]))
    if args.profile:
        show("Time of a batch (prefetch=0), microseconds", profile_table(record["profile"]))


def main(arguments: Sequence[str] | None = None) -> None:
    args = parse_arguments(arguments)
    scenarios = chosen_scenarios(args.shapes)
    facts = machine_facts()
    cache = facts["last_level_cache_bytes"] or ASSUMED_CACHE_BYTES
    print(f"`{command_line()}`\n\n{describe_machine(facts)}")
    print(f"median of {args.repetitions} x {args.seconds:g} s, in alternating rounds", flush=True)
    settings = {name: getattr(args, name) for name in ("seconds", "repetitions", "seed")}
    record: dict[str, Any] = {"benchmark": "feed", "machine": facts, "command": command_line(), "settings": settings}
    record.update({part: [] for part in ("scenarios", "wait", "memory", "profile")})
    failure = None
    with tempfile.TemporaryDirectory(prefix="gear-bench-") as scratch:
        try:
            store = DataStore(Path(scratch), dict(args.source), args.seed, cache, args.most_steps)
            run(args, scenarios, store, record)
        except ContenderError as error:
            failure = str(error)  # earlier sections are still written
    if args.json is not None:
        write_json(args.json, record)
    if failure is not None:
        sys.exit(failure)
    check_measured(record["scenarios"])
    if args.charts is not None:
        write_charts(record["scenarios"][0], args.charts)


def check_measured(scenarios: Sequence[Mapping[str, Any]]) -> None:
    """Raises SystemExit if gear-data itself failed.

    The other figures then have nothing to compare with.
    """
    for scenario in scenarios:
        for row in scenario["contenders"]:
            if row["name"] in (INLINE, THREADS) and "failure" in row:
                sys.exit(f"{scenario['scenario']}: {row['title']} was not measured: {row['failure']}")


if __name__ == "__main__":
    main()
