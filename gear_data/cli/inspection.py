"""`gear-data inspect` and `verify`."""

from __future__ import annotations

import argparse
from typing import Any

import gear_data
from gear_data.cli.arguments import add_command, add_dataset, add_where, open_dataset, print_json


def add_commands(commands: Any) -> None:
    """Declares the commands of this group."""
    _add_inspect(commands)
    _add_verify(commands)


def _add_inspect(commands: Any) -> None:
    summary = "show the columns, statistics, returns and lengths of a dataset"
    parser = add_command(commands, "inspect", _inspect, summary, "gear-data inspect hopper/")
    add_dataset(parser)
    add_where(parser)


def _inspect(options: argparse.Namespace) -> int:
    from gear_data.cli.description import describe, summarize

    dataset = open_dataset(options)
    if options.json:
        print_json(summarize(dataset))
    else:
        print(describe(dataset))
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
    report = gear_data.verify(options.dataset, deep=options.deep, decode=options.decode)
    if options.json:
        print_json(report.to_json())
    else:
        for check in report.shards:
            print(f"{'ok ' if check.ok else 'BAD'} {check.file}{'' if check.ok else f': {check.error}'}")
        for difference in report.differences:
            print(f"BAD {difference}")
        print("the dataset is sound" if report.ok else "the dataset is damaged")
    return 0 if report.ok else 1
