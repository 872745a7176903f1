"""`gear-data inspect`, `report` and `verify`."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gear_data
from gear_data.cli.arguments import (
    add_command,
    add_dataset,
    add_where,
    is_mixture,
    names,
    open_dataset,
    print_json,
)
from gear_data.cli.curation import plain
from gear_data.common.progress import format_bytes, pluralize
from gear_data.errors import InvalidArgumentError
from gear_data.storage.atomic import write_text

#: Windows of a batch in the page of a mixture.
_MIXTURE_BATCH = 256


def add_commands(commands: Any) -> None:
    """Declares the commands of this group."""
    _add_inspect(commands)
    _add_report(commands)
    _add_verify(commands)


def _add_inspect(commands: Any) -> None:
    summary = "show the columns, statistics, returns and lengths of a dataset"
    example = "gear-data inspect hopper/\n  gear-data inspect hopper/ --full --columns actions,rewards"
    example += "\n  gear-data inspect robot/ --full --by task --quantiles 0.01,0.5,0.99 --json"
    parser = add_command(commands, "inspect", _inspect, summary, example)
    add_dataset(parser)
    add_where(parser)
    help = "also show statistics and exact quantiles of every column and element, and of returns and lengths"
    parser.add_argument("--full", action="store_true", help=help)
    help = "for --full: columns to show; default: all of a fixed size; may be repeated"
    parser.add_argument("--columns", type=names, action="extend", metavar="A,B", help=help)
    help = "for --full: probabilities of the quantiles, default 0.01,0.5,0.99; the columns are read once more for "
    help += "them; may be repeated"
    parser.add_argument("--quantiles", type=_probabilities, action="extend", metavar="P,Q", help=help)
    help = "for --full: show each value of a column of the episode table separately"
    parser.add_argument("--by", metavar="COLUMN", help=help)


def _probabilities(text: str) -> list[float]:
    """Parses '0.01,0.99'."""
    try:
        return [float(each) for each in names(text)]
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"expected numbers separated by commas, not {text!r}") from error


def _inspect(options: argparse.Namespace) -> int:
    from gear_data.cli.description import describe
    from gear_data.reports.facts import summarize

    if not options.full:
        given = [name for name in ("columns", "quantiles", "by") if getattr(options, name) is not None]
        if given:
            raise InvalidArgumentError(f"--{given[0]} is for --full", hint="add --full")
    dataset = open_dataset(options)
    groups = _full(dataset, options) if options.full else []
    if options.json:
        print_json({**summarize(dataset), **({"by": options.by, "groups": groups} if options.full else {})})
        return 0
    print(describe(dataset))
    for group in groups:
        name = "" if options.by is None else f"{options.by} {group['value']}: "
        print(f"\n{name}{pluralize(group['episodes'], 'episode')}, {pluralize(group['steps'], 'step')}")
        print("\n".join(_statistics_table(group["rows"])))
    return 0


def _full(dataset: gear_data.Dataset, options: argparse.Namespace) -> list[dict[str, Any]]:
    """Returns the statistics of the dataset, or of each value of the column --by."""
    from gear_data.dataset.curation.column_statistics import statistics_rows

    views: dict[Any, gear_data.Dataset] = {None: dataset} if options.by is None else dataset.split_by(options.by)
    probabilities = [0.01, 0.5, 0.99] if options.quantiles is None else options.quantiles
    return [
        {
            "value": plain(value),
            "episodes": len(view),
            "steps": view.num_steps,
            "rows": statistics_rows(view, options.columns, probabilities),
        }
        for value, view in views.items()
    ]


def _statistics_table(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Returns the rows of `statistics_rows` as an aligned table."""
    from gear_data.cli.description import table
    from gear_data.dataset.curation.column_statistics import MOMENTS

    probabilities = list(rows[0]["quantiles"])
    lines = [["column", "count", "not finite", *MOMENTS, *(f"q{each}" for each in probabilities)]]
    for row in rows:
        element = row["element"] if row["name"] is None else row["name"]
        name = row["column"] if element is None else f"{row['column']}[{element}]"
        numbers = [row[kind] for kind in MOMENTS] + [row["quantiles"][each] for each in probabilities]
        lines.append([name, f"{row['count']:,}", f"{row['not_finite']:,}", *(f"{number:.5g}" for number in numbers)])
    return table(lines)


def _add_report(commands: Any) -> None:
    example = (
        "gear-data report hopper/\n"
        "  gear-data report hopper/ hopper.html --weights 'exp(return / 1000)' --compare hopper-2/\n"
        "  gear-data report pusht/ pusht.html --frames 40\n"
        "  gear-data report mix.yaml"
    )
    summary = "write an HTML page that shows a dataset or a mixture, for any browser, without a server"
    parser = add_command(commands, "report", _report, summary, example)
    add_dataset(parser)
    help = "file to write; default NAME-report.html, with the name of the dataset's folder"
    parser.add_argument("output", metavar="OUT", nargs="?", help=help)
    add_where(parser)
    help = "frames of each camera and viewed episode to embed; default: as many as 2.4 MB of the page hold"
    parser.add_argument("--frames", type=int, default=0, metavar="N", help=help)
    help = "show the draws and the effective sample size of a sampler: uniform, shuffle or fifo"
    parser.add_argument("--sampler", help=help)
    help = "the same of a sampler that weights each episode's steps: SQL over the episode table"
    parser.add_argument("--weights", metavar="SQL", help=help)
    help = "another dataset or source, whose columns are compared"
    parser.add_argument("--compare", metavar="OTHER", help=help)


def _report_mixture(options: argparse.Namespace) -> int:
    """Writes the page of a mixture's file."""
    from gear_data.loaders.mixing.table import mixture_facts
    from gear_data.reports.mixture import mixture_page
    from gear_data.reports.page import check_charts

    for flag, given in (
        ("--where", bool(options.where)),
        ("--sampler", options.sampler is not None),
        ("--weights", options.weights is not None),
        ("--compare", options.compare is not None),
    ):
        if given:
            raise InvalidArgumentError(
                f"{flag} is for a dataset, and {options.dataset} is a mixture", hint="leave it out"
            )
    name = Path(options.dataset).stem
    check_charts()
    mixture = gear_data.Mixture.from_yaml(options.dataset)
    facts = mixture_facts(mixture, _MIXTURE_BATCH)
    path = Path(options.output or f"{name}-report.html")
    write_text(path, mixture_page(name, facts, [each.dataset for each in mixture.components], options.frames))
    size = path.stat().st_size
    if options.json:
        print_json({**facts, "output": str(path), "output_bytes": size})
    else:
        problems = f", {pluralize(len(facts['problems']), 'problem')}" if facts["problems"] else ""
        print(f"{pluralize(len(facts['datasets']), 'dataset')}{problems}, {format_bytes(size)} -> {path}")
    return 0


def _report(options: argparse.Namespace) -> int:
    if is_mixture(options.dataset):
        return _report_mixture(options)
    if options.sampler is not None and options.weights is not None:
        raise InvalidArgumentError("--sampler and --weights are given", hint="give one of them")
    sampler = options.sampler if options.weights is None else gear_data.Weighted(options.weights, by="step")
    dataset = open_dataset(options)
    other = None if options.compare is None else gear_data.open(options.compare)
    report = gear_data.report(dataset, frames=options.frames, sampler=sampler, compare=other)
    path = report.save(options.output or f"{report.facts['name']}-report.html")
    size = path.stat().st_size
    if options.json:
        print_json({**report.to_json(), "output": str(path), "output_bytes": size})
        return 0
    sample = report.facts["sample"]
    read = "" if sample["complete"] else f" ({pluralize(sample['episodes'], 'episode')} sampled)"
    print(f"{pluralize(dataset.num_episodes, 'episode')}{read}, {format_bytes(size)} -> {path}")
    return 0


def _add_verify(commands: Any) -> None:
    summary = "read a whole dataset and check every file against the manifest; exit status 1 if one is damaged"
    parser = add_command(commands, "verify", _verify, summary, "gear-data verify hopper/ --deep")
    parser.set_defaults(json_on_error={"ok": False, "shards": [], "differences": []})
    add_dataset(parser)
    help = "also compute statistics, returns, end flags, content hashes and the fingerprint again, and compare"
    parser.add_argument("--deep", action="store_true", help=help)
    parser.add_argument("--decode", action="store_true", help="also decode every frame of the video files")


def _verify(options: argparse.Namespace) -> int:
    from gear_data.dataset.open import dataset_place

    with dataset_place(options.dataset, options.convert) as place:
        report = gear_data.verify(place, deep=options.deep, decode=options.decode)
    if options.json:
        print_json(report.to_json())
    else:
        for check in report.shards:
            print(f"{'ok ' if check.ok else 'BAD'} {check.file}{'' if check.ok else f': {check.error}'}")
        for difference in report.differences:
            print(f"BAD {difference}")
        print("the dataset is sound" if report.ok else "the dataset is damaged")
    return 0 if report.ok else 1
