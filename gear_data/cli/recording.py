"""`gear-data record` and `gear-data journal`: episodes of an environment, and what became of them."""

from __future__ import annotations

import argparse
import importlib
import os
import shutil
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import gear_data
from gear_data.cli.arguments import add_command, print_json
from gear_data.common.paths import absolute_path, is_remote, plain_path
from gear_data.common.private_folder import scratch_folder
from gear_data.errors import CorruptSourceError, InvalidArgumentError, unknown_name
from gear_data.storage.journal.quarantine import DAMAGED, Entry, entries


def add_commands(commands: Any) -> None:
    """Declares the commands of this group."""
    summary = "record episodes of a Gymnasium environment; a killed recording continues"
    parser = add_command(commands, "record", _record, summary, "gear-data record CartPole-v1 cartpole/ --episodes 20")
    parser.add_argument("env_id", metavar="ENV", help="id of the environment, for gymnasium.make")
    help = "folder or s3:// URL of the dataset, which may exist; or gear://HOST:PORT of a server"
    parser.add_argument("destination", metavar="DATASET", help=help)
    parser.add_argument("--episodes", type=int, default=100, metavar="N", help="number of episodes, default 100")
    help = "function that takes an observation and returns an action, such as agents.ppo:act; default: random actions"
    parser.add_argument("--policy", metavar="MODULE:FUNCTION", help=help)
    help = "the episode with id i is reset with the seed N + i, default 0"
    parser.add_argument("--seed", type=int, default=0, metavar="N", help=help)
    help = "also record what the environment renders, as the camera observations.images.render"
    parser.add_argument("--camera", action="store_true", help=help)
    _add_journal(commands)


def _add_journal(commands: Any) -> None:
    summary = "show, rescue or drop recorded episodes that could not be published"
    example = "gear-data journal list live/\n"
    example += "  gear-data journal show live/ 000-000003-5f0c2e9d8a71b346\n"
    example += "  gear-data journal rescue live/ 000-000003-5f0c2e9d8a71b346 rescued/\n"
    example += "  gear-data journal drop live/ 000-000003-5f0c2e9d8a71b346"
    parser = add_command(commands, "journal", _journal, summary, example)
    help = "list or show what is kept beside the dataset; rescue: make a dataset of it; drop: remove it"
    parser.add_argument("action", choices=("list", "show", "rescue", "drop"), help=help)
    parser.add_argument("dataset", metavar="DATASET", help="folder or s3:// URL of the dataset")
    parser.add_argument("name", metavar="NAME", nargs="?", help="as list prints it")
    parser.add_argument("output", metavar="OUT", nargs="?", help="folder to create, of rescue")


def _journal(options: argparse.Namespace) -> int:
    if is_remote(location := plain_path(options.dataset)):
        from gear_data.growing.object_store.quarantine import refused_journals
        from gear_data.recording.object_store.local_journals import journal_base

        found = [*refused_journals(location), *entries(journal_base(location))]
    else:
        found = entries(Path(absolute_path(location)))
    if options.action == "list":
        if options.name is not None:
            raise InvalidArgumentError(f"unexpected argument '{options.name}'", hint="list has no NAME")
        print_json({"entries": [asdict(each) for each in found]}) if options.json else _print_entries(found)
        return 0
    if options.name is None or (options.output is None) == (options.action == "rescue"):
        wanted = "DATASET NAME OUT" if options.action == "rescue" else "DATASET NAME"
        raise InvalidArgumentError(f"{options.action} takes {wanted}", hint="gear-data journal list prints the names")
    entry = next((each for each in found if each.name == options.name), None)
    if entry is None:
        raise unknown_name("entry", options.name, [each.name for each in found])
    described = asdict(entry)
    if options.action == "drop":
        _drop(entry)
    elif options.action == "rescue":
        described["rescued"] = _rescue(entry, options.output)
    if options.json:
        print_json(described)
    elif options.action == "show":
        print("\n".join(f"{name}: {value}" for name, value in described.items()))
    else:
        done = "removed" if options.action == "drop" else f"{described['rescued']} episodes in {options.output}"
        print(f"{entry.name}: {done}")
    return 0


def _print_entries(found: Sequence[Entry]) -> None:
    for entry in found:
        print(f"{entry.name}  {entry.since}  {entry.holds}: {entry.reason}")
    if not found:
        print("all recorded episodes are in the dataset, or in journals")


def _drop(entry: Entry) -> None:
    if is_remote(entry.folder):
        from gear_data.growing.object_store.quarantine import drop

        drop(entry)
    else:
        shutil.rmtree(entry.folder)
        with suppress(OSError):  # it has other entries
            Path(entry.folder).parent.rmdir()


def _rescue(entry: Entry, output: str) -> int:
    """Makes a dataset of the episodes, and returns their number."""
    if is_remote(entry.folder):
        from gear_data.growing.object_store.quarantine import download

        with scratch_folder() as scratch:
            download(entry, scratch / entry.name)
            return gear_data.open(scratch / entry.name).save(output, progress=False).episodes
    if entry.holds == DAMAGED:
        raise CorruptSourceError(
            f"cannot be read: {entry.reason}", file=entry.folder, hint="restore the bytes from a backup, or drop them"
        )
    return gear_data.convert(entry.episodes, output, format="journal", progress=False).episodes


def _record(options: argparse.Namespace) -> int:
    from gear_data.recording.record import record_episodes

    policy = None if options.policy is None else _policy(options.policy)
    publication = record_episodes(
        options.env_id, options.destination, options.episodes, policy=policy, seed=options.seed, camera=options.camera,
    )  # fmt: skip
    if publication is None:
        print_json({"episodes": options.episodes}) if options.json else print(f"{options.episodes} episodes recorded")
        return 0
    if options.json:
        print_json(asdict(publication))
        return 0
    print(f"{publication.episodes} episodes, {publication.steps} steps recorded")
    total = f"{publication.total_episodes} episodes, {publication.total_steps} steps"
    print(f"{total} in {options.destination}, generation {publication.generation}")
    return 0


def _policy(text: str) -> Callable[[Any], Any]:
    """Imports a function. The current folder is searched first, as `python -m` does."""
    module, separator, name = text.partition(":")
    if not (separator and module and name) or module.startswith("."):
        raise InvalidArgumentError(f"--policy must be MODULE:FUNCTION, not {text!r}")
    sys.path.insert(0, os.getcwd())
    try:
        function = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise InvalidArgumentError(
            f"--policy {text} cannot be imported: {error}", hint="run the command in the folder of the module"
        ) from error
    if not callable(function):
        raise InvalidArgumentError(f"--policy {text} is {type(function).__name__}, not a function")
    return function  # type: ignore[no-any-return]
