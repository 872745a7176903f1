"""`gear-data filter`, `split` and `dedupe`."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterable, Sequence
from typing import Any

import gear_data
from gear_data.cli.arguments import (
    add_command,
    add_dataset,
    add_step_filters,
    add_where,
    filter_steps,
    left_out,
    names,
    once,
    open_dataset,
    pair,
    print_json,
)
from gear_data.common.paths import join
from gear_data.common.progress import format_bytes, pluralize
from gear_data.error_text import shown
from gear_data.errors import EmptySourceError, InvalidArgumentError

#: Ids of dropped episodes that are printed.
_SHOWN_IDS = 10
#: Longest name of a folder that is made of a value.
_NAME_CHARACTERS = 100


def add_commands(commands: Any) -> None:
    """Declares the commands of this group."""
    _add_filter(commands)
    _add_dedupe(commands)
    _add_split(commands)


def add_output(parser: argparse.ArgumentParser, help: str) -> None:
    """Declares OUT, and what happens to a dataset there."""
    parser.add_argument("output", metavar="OUT", help=help)
    parser.add_argument("--overwrite", action="store_true", help="replace the GEAR dataset at OUT")
    parser.add_argument("--resume", action="store_true", help="start an interrupted run again")


def _add_dry_run(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--dry-run", action="store_true", help="only print which episodes would stay")


def _add_filter(commands: Any) -> None:
    summary = "save the episodes that satisfy conditions as a dataset; shards whose episodes all stay are linked"
    example = "gear-data filter hopper/ good/ --where 'return > 1000'"
    example += "\n  gear-data filter hopper/ usual/ --drop-outliers return:3 --drop-outliers length:3"
    parser = add_command(commands, "filter", _filter, summary, example)
    add_dataset(parser)
    add_output(parser, "folder or URL to create for the episodes that stay")
    add_where(parser)
    help = "drop the episodes whose value of a numeric column of the episode table is more than LIMIT robust standard "
    help += "deviations (1.4826 times the median absolute deviation) from the median, after --where; may be repeated"
    parser.add_argument("--drop-outliers", type=_limit, action="append", default=[], metavar="COLUMN:LIMIT", help=help)
    add_step_filters(parser)
    _add_dry_run(parser)


def _limit(text: str) -> tuple[str, float]:
    """Parses 'return:3' to ('return', 3.0)."""
    name, _, limit = text.rpartition(":")
    try:
        return (name, float(limit)) if name else _fail(text)
    except ValueError:
        return _fail(text)


def _fail(text: str) -> tuple[str, float]:
    raise argparse.ArgumentTypeError(f"expected COLUMN:LIMIT, such as return:3, not {text!r}")


def _filter(options: argparse.Namespace) -> int:
    steps = options.where_steps or options.keep_ranges or options.drop_idle
    if not options.where and not options.drop_outliers and not steps:
        hint = "give --where, --drop-outliers, --where-steps, --keep-ranges or --drop-idle"
        raise InvalidArgumentError("nothing to filter by", hint=hint)
    view = gear_data.open(options.dataset, convert=options.convert)
    dropped = []
    for condition in options.where:
        before, view = view, view.filter(condition)
        dropped.append(_dropped(f"where not {condition}", before, view))
    if options.drop_outliers:
        limits = once(options.drop_outliers, "--drop-outliers")
        for name, limit in limits.items():
            dropped.append(_dropped(f"outliers of {name}, limit {limit:g}", view, view.drop_outliers({name: limit})))
        view = view.drop_outliers(limits)
    return save_view(options, filter_steps(options, view), dropped)


def _add_dedupe(commands: Any) -> None:
    summary = "save a dataset without the episodes that repeat an earlier one"
    example = "gear-data dedupe hopper/ unique/"
    example += "\n  gear-data dedupe hopper/ unique/ --near observations,actions --tolerance 1e-3"
    parser = add_command(commands, "dedupe", _dedupe, summary, example)
    add_dataset(parser)
    add_output(parser, "folder or URL to create for the episodes that stay")
    help = "drop an episode if its length is that of an earlier one that stays, and these columns differ by at most "
    help += "--tolerance at each step; default: all columns are equal; may be repeated"
    parser.add_argument("--near", type=names, action="extend", metavar="A,B", help=help)
    help = "largest difference of an element of the columns of --near, default 0"
    parser.add_argument("--tolerance", type=float, default=0.0, metavar="X", help=help)
    _add_dry_run(parser)


def _dedupe(options: argparse.Namespace) -> int:
    whole = gear_data.open(options.dataset, convert=options.convert)
    view = whole.drop_duplicates(options.near, options.tolerance)
    return save_view(options, view, [_dropped("repeat an earlier episode", whole, view)])


def _add_split(commands: Any) -> None:
    summary = "divide a dataset into several, at random or by a column of the episode table"
    example = "gear-data split hopper/ parts/ --fractions train=0.9,val=0.1"
    example += "\n  gear-data split robot/ tasks/ --by task"
    parser = add_command(commands, "split", _split, summary, example)
    add_dataset(parser)
    add_output(parser, "folder or URL to create, with a dataset for each part")
    add_where(parser)
    how = parser.add_mutually_exclusive_group(required=True)
    help = "names of the parts and their fractions, which add up to 1"
    how.add_argument("--fractions", type=_fractions, metavar="A=X,B=Y", help=help)
    help = "a part for each value of a column of text, integers, booleans or dates, such as task"
    how.add_argument("--by", metavar="COLUMN", help=help)
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="for --fractions, default 0")
    help = "for --fractions: divide the episodes of each value of COLUMN separately"
    parser.add_argument("--stratify", metavar="COLUMN", help=help)


def _fractions(text: str) -> list[tuple[str, float]]:
    """Parses 'train=0.9,val=0.1' to [('train', 0.9), ('val', 0.1)]."""
    try:
        return [(name, float(value)) for name, value in map(pair("NAME=FRACTION"), names(text))]
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"expected NAME=FRACTION,..., not {text!r}") from error


def _split(options: argparse.Namespace) -> int:
    dataset = open_dataset(options)
    if options.by is not None and (options.stratify is not None or options.seed):
        raise InvalidArgumentError("--seed and --stratify belong to --fractions", hint="leave them out")
    if options.by is None:
        views: dict[Any, gear_data.Dataset] = dict(
            dataset.split(once(options.fractions, "--fractions"), options.seed, stratify=options.stratify)
        )
        wrong = [name for name in views if name != _folder_name(name)]
        if wrong:
            raise InvalidArgumentError(
                f"the part {wrong[0]!r} cannot be the name of a folder", hint="use letters, digits, '_', '-' and '.'"
            )
    else:
        views = dataset.split_by(options.by)
    folders = _folder_names(views)
    empty = [
        folder
        for folder, view in zip(folders, views.values(), strict=True)
        if view.step_mask is not None and view.steps_left_out == view.num_steps
    ]
    if empty:  # before the first part is saved
        raise EmptySourceError(
            f"the filter of steps of {options.dataset} leaves out every step of {pluralize(len(empty), 'part')}: "
            f"{shown(empty)}",
            hint="leave such episodes out with --where, or split a dataset that was saved without the filter: "
            "gear_data.open(...).all_steps().save(...)",
        )
    parts = {}
    for folder, (value, view) in zip(folders, views.items(), strict=True):
        output = join(options.output, folder)
        report = view.save(output, overwrite=options.overwrite, resume=options.resume)
        parts[folder] = {"value": plain(value), **report.to_json()}
        if not options.json:
            print(summary_of(report, output))
    if options.json:
        print_json({"parts": parts})
    return 0


def plain(value: Any) -> Any:
    """Returns a value of the episode table as JSON has it. Dates become text."""
    return value if isinstance(value, bool | int | str | None) else str(value)


def _folder_names(values: Iterable[Any]) -> list[str]:
    """Returns a different folder name for each value."""
    found: dict[str, str] = {}
    for value in values:
        name, number = _folder_name(value), 1
        while name.casefold() in found:
            number += 1
            name = f"{_folder_name(value)}-{number}"
        found[name.casefold()] = name
    return list(found.values())


def _folder_name(value: Any) -> str:
    text = "null" if value is None else str(value)
    return re.sub(r"[^\w.+-]+", "-", text).strip("-.")[:_NAME_CHARACTERS] or "part"


def _dropped(reason: str, before: gear_data.Dataset, after: gear_data.Dataset) -> dict[str, Any]:
    """Returns how many episodes a condition drops, and the ids of the first ones."""
    import numpy as np  # `gear-data --help` needs no NumPy

    every, kept = (np.arange(len(each)) if each.episode_ids is None else each.episode_ids for each in (before, after))
    gone = np.setdiff1d(every, kept, assume_unique=True)
    return {"reason": reason, "episodes": len(gone), "of": len(before), "first_ids": gone[:_SHOWN_IDS].tolist()}


def save_view(options: argparse.Namespace, view: gear_data.Dataset, dropped: Sequence[dict[str, Any]]) -> int:
    """Saves a view, and prints what stays and what leaves."""
    kept = {
        "kept": len(view),
        "kept_steps": view.num_steps,
        "steps_left_out": view.steps_left_out,
        "dropped": dropped,
        "dry_run": options.dry_run,
    }
    if not options.json:
        for each in dropped:
            print(_describe(each))
        if view.step_mask is not None:
            print(left_out(view))
    if options.dry_run:
        if options.json:
            print_json(kept)
        else:
            print(f"{pluralize(len(view), 'episode')}, {pluralize(view.num_steps, 'step')} stay; nothing was written")
        return 0
    report = view.save(options.output, overwrite=options.overwrite, resume=options.resume)
    if options.json:
        print_json({**kept, **report.to_json()})
    else:
        print(summary_of(report, options.output))
    return 0


def _describe(dropped: dict[str, Any]) -> str:
    more = ", ..." if dropped["episodes"] > len(dropped["first_ids"]) else ""
    ids = f": ids {', '.join(map(str, dropped['first_ids']))}{more}" if dropped["episodes"] else ""
    return f"drops {dropped['episodes']:,} of {pluralize(dropped['of'], 'episode')} ({dropped['reason']}){ids}"


def summary_of(report: gear_data.SaveReport, output: str) -> str:
    """Returns one line about a saved dataset."""
    return (
        f"{pluralize(report.episodes, 'episode')}, {pluralize(report.steps, 'step')}, "
        f"{pluralize(report.shards, 'shard')} ({report.whole} whole, {report.linked} linked), "
        f"{format_bytes(report.bytes)} in {report.seconds:.1f} s -> {output}"
    )
