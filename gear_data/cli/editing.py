"""`gear-data edit`."""

from __future__ import annotations

import argparse
import re
from typing import Any

import gear_data
from gear_data.cli.arguments import add_command, add_dataset, names, numbers, once, renaming
from gear_data.cli.curation import add_output, save_view
from gear_data.common.paths import is_remote
from gear_data.errors import InvalidArgumentError

#: The end of a column's values that is the name of a file.
_ARRAY = ".npy"


def add_commands(commands: Any) -> None:
    """Declares the commands of this group."""
    summary = "save a dataset with other columns, tasks or episodes; shards and videos are linked, not written again"
    example = "gear-data edit hopper/ labelled/ --add-column 'success=rewards > 0' --drop infos.qvel"
    example += "\n  gear-data edit robot/ cleaned/ --delete-episodes 3,17-20 --set-task 3-5='fold the towel'"
    parser = add_command(commands, "edit", _edit, summary, example)
    add_dataset(parser)
    add_output(parser, "folder or URL to create for the edited dataset")
    help = "rename a column or camera; may be repeated. Names are changed first, then columns added and dropped"
    parser.add_argument("--rename", type=renaming, action="append", default=[], metavar="OLD=NEW", help=help)
    help = "add a column: SQL over the step columns, evaluated for each episode, such as 'cost=-rewards', or the "
    help += f"values of all steps in a file of NumPy, NAME=FILE{_ARRAY}; may be repeated"
    parser.add_argument("--add-column", type=renaming, action="append", default=[], metavar="NAME=SQL", help=help)
    help = "drop columns or cameras; may be repeated"
    parser.add_argument("--drop", type=names, action="extend", default=[], metavar="A,B", help=help)
    help = "set the task of all episodes, or of those with some ids, such as 3,7-9='fold the towel'; may be repeated"
    parser.add_argument("--set-task", type=_task, action="append", default=[], metavar="[IDS=]TEXT", help=help)
    help = "leave out the episodes with these ids, such as 3,17-20; may be repeated"
    parser.add_argument("--delete-episodes", type=_ids, action="extend", default=[], metavar="IDS", help=help)
    parser.set_defaults(dry_run=False)


#: Parses '3,7-9' to [3, 7, 8, 9].
_ids = numbers("ids of episodes", "3,17-20")


def _task(text: str) -> tuple[list[int] | None, str]:
    """Parses '3,7-9=fold the towel' to ([3, 7, 8, 9], 'fold the towel')."""
    found = re.fullmatch(r"([\d,\s-]+)=(.*)", text, re.DOTALL)
    return (None, text) if found is None else (_ids(found[1]), found[2])


def _edit(options: argparse.Namespace) -> int:
    edits = (options.rename, options.add_column, options.drop, options.set_task, options.delete_episodes)
    if not any(edits):
        hint = "give --rename, --add-column, --drop, --set-task or --delete-episodes"
        raise InvalidArgumentError("nothing to edit", hint=hint)
    dataset = gear_data.open(options.dataset, convert=options.convert)
    if options.rename:
        dataset = dataset.rename(once(options.rename, "--rename"))
    for name, values in options.add_column:
        dataset = dataset.with_column(name, _array(values) if values.endswith(_ARRAY) else values)
    if options.drop:
        dataset = dataset.drop(options.drop)
    for ids, task in options.set_task:
        ids = range(len(dataset)) if ids is None else ids
        dataset = dataset.with_facts({"episode_id": list(ids), "task": [task] * len(ids)})
    if options.delete_episodes:
        for episode in options.delete_episodes:
            dataset.episode(episode)  # refuses unknown ids
        known, gone = dataset.episode_ids, set(options.delete_episodes)
        ids = range(len(dataset)) if known is None else known.tolist()
        dataset = dataset.select([position for position, episode in enumerate(ids) if episode not in gone])
    return save_view(options, dataset, [])


def _array(file: str) -> Any:
    """Returns the array in a file of NumPy."""
    import numpy as np  # `gear-data --help` needs no NumPy

    try:
        if is_remote(file):
            raise ValueError("it is a URL")
        return np.load(file, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError) as error:
        raise InvalidArgumentError(
            f"cannot be read: {error}", file=file, hint=f"name a {_ARRAY} file of this machine, written by numpy.save"
        ) from error
