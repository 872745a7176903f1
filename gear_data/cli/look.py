"""`gear-data inspect` and `verify`."""

from __future__ import annotations

import argparse
from typing import Any

import gear_data
from gear_data.cli.parsing import add_command, add_where, open_dataset, print_json


def add_commands(commands: Any) -> None:
    _add_inspect(commands)
    _add_verify(commands)


def _add_inspect(commands: Any) -> None:
    parser = add_command(commands, "inspect", _inspect, "show what a dataset holds", "gear-data inspect hopper/")
    parser.add_argument("dataset", metavar="DST")
    add_where(parser)


def _inspect(options: argparse.Namespace) -> int:
    from gear_data.cli.inspect import describe, summarize

    dataset = open_dataset(options)
    if options.json:
        print_json(summarize(dataset))
    else:
        print(describe(dataset))
    return 0


def _add_verify(commands: Any) -> None:
    summary = "read a whole dataset and check it against its manifest"
    parser = add_command(commands, "verify", _verify, summary, "gear-data verify hopper/")
    parser.set_defaults(failed={"ok": False, "shards": []})
    parser.add_argument("dataset", metavar="DST")


def _verify(options: argparse.Namespace) -> int:
    report = gear_data.verify(options.dataset)
    if options.json:
        print_json(report.to_json())
    else:
        for check in report.shards:
            print(f"{'ok ' if check.ok else 'BAD'} {check.file}{'' if check.ok else f': {check.error}'}")
        print("the dataset is sound" if report.ok else "the dataset is damaged")
    return 0 if report.ok else 1
