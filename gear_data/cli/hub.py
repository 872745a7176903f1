"""`gear-data push`, `pull` and `card`."""

from __future__ import annotations

import argparse
from typing import Any

import gear_data
from gear_data.cli.arguments import add_command, print_json
from gear_data.common.progress import format_bytes, pluralize


def add_commands(commands: Any) -> None:
    """Declares the commands of this group."""
    _add_push(commands)
    _add_pull(commands)
    _add_card(commands)


def _add_push(commands: Any) -> None:
    summary = "push a dataset to the HuggingFace hub in one commit; continues an interrupted push"
    parser = add_command(commands, "push", _push, summary, "gear-data push hopper/ me/hopper --private")
    parser.add_argument("dataset", metavar="DATASET", help="folder of a GEAR dataset, or a source")
    parser.add_argument("name", metavar="USER/NAME", help="dataset on the hub, created if it does not exist")
    parser.add_argument("--private", action="store_true", help="create a private repository")
    parser.add_argument("--revision", metavar="BRANCH", help="branch, created if it does not exist")
    parser.add_argument("--message", metavar="TEXT", help="message of the commit")


def _push(options: argparse.Namespace) -> int:
    from gear_data.dataset.open import dataset_place

    with dataset_place(options.dataset) as place:
        report = gear_data.push(
            place, options.name, private=options.private, revision=options.revision, message=options.message
        )
    if options.json:
        print_json(report.to_json())
    else:
        removed = f", {pluralize(report.removed, 'old file')} removed" if report.removed else ""
        print(f"{pluralize(report.files, 'file')}, {format_bytes(report.bytes)}{removed} in {report.seconds:.1f} s")
        print(report.url)
    return 0


def _add_pull(commands: Any) -> None:
    summary = "pull a dataset from the HuggingFace hub, and verify it; continues an interrupted pull"
    parser = add_command(commands, "pull", _pull, summary, "gear-data pull me/hopper hopper/")
    parser.add_argument("name", metavar="USER/NAME", help="dataset on the hub")
    parser.add_argument("output", metavar="DST", help="folder to create")
    parser.add_argument("--revision", metavar="REV", help="branch, tag or commit; default: the default branch")
    parser.add_argument("--overwrite", action="store_true", help="replace the GEAR dataset at DST")


def _pull(options: argparse.Namespace) -> int:
    report = gear_data.pull(options.name, options.output, revision=options.revision, overwrite=options.overwrite)
    if options.json:
        print_json(report.to_json())
    else:
        print(
            f"{pluralize(report.episodes, 'episode')}, {pluralize(report.steps, 'step')}, "
            f"{format_bytes(report.bytes)} in {report.seconds:.1f} s, commit {report.commit} -> {options.output}"
        )
    return 0


def _add_card(commands: Any) -> None:
    summary = "write the card of a dataset, README.md, which the HuggingFace hub shows"
    parser = add_command(commands, "card", _card, summary, "gear-data card hopper/")
    parser.add_argument("dataset", metavar="DATASET", help="folder of a GEAR dataset")
    parser.add_argument("--overwrite", action="store_true", help="replace a card that was edited")


def _card(options: argparse.Namespace) -> int:
    from gear_data.ingest.card import write_card

    path = write_card(options.dataset, overwrite=options.overwrite)
    if options.json:
        print_json({"file": str(path)})
    else:
        print(path)
    return 0
