"""The datasets that a merge reads."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from gear_data.common.paths import is_remote, plain_path
from gear_data.errors import InvalidArgumentError
from gear_data.ingest.several.embodiments import embodiment_names
from gear_data.storage.dataset_files import DatasetFiles, open_files
from gear_data.storage.episode_tables import read_episodes, read_finals
from gear_data.storage.manifest import STEP_MASK, Manifest


@dataclass(frozen=True)
class MergeInput:
    """A dataset to merge.

    Attributes:
        name: its path or URL.
        embodiment: the name of its episodes in the merged dataset.
        files: its files.
        manifest: its manifest.
    """

    name: str
    embodiment: str
    files: DatasetFiles
    manifest: Manifest


def open_inputs(datasets: Any) -> list[MergeInput]:
    """Opens the datasets of a merge.

    Args:
        datasets: paths or URLs of at least two datasets.

    Raises:
        InvalidArgumentError: there are fewer than two, or one is given twice.
        GearError: a dataset cannot be opened.
    """
    if isinstance(datasets, str | bytes | os.PathLike) or not isinstance(datasets, Iterable):
        raise InvalidArgumentError(f"datasets must be a list of paths or URLs, not {datasets!r}")
    names = [plain_path(path) for path in datasets]
    if len(names) < 2:
        raise InvalidArgumentError(f"a merge needs at least two datasets, not {len(names)}")
    places = [name if is_remote(name) else os.path.realpath(name) for name in names]
    inputs = []
    for name, embodiment in zip(names, embodiment_names(places), strict=True):
        files = open_files(name)
        manifest = files.manifest()
        if STEP_MASK in manifest.tables:
            raise InvalidArgumentError(
                "was saved with a filter of steps, and a merged dataset has all steps",
                file=name,
                hint="save it without the filter, gear_data.open(...).all_steps().save(...), and merge that",
            )
        inputs.append(MergeInput(name, embodiment, files, manifest))
    return inputs


def read_episode_table(files: DatasetFiles, manifest: Manifest) -> pa.Table:
    """Maps the episode table of a dataset, and raises the errors of `read_episodes`."""
    with files.local(manifest.tables["episodes"]) as path:
        return read_episodes(path, manifest)


def read_finals_table(files: DatasetFiles, manifest: Manifest) -> pa.Table | None:
    """Maps the final observations of a dataset; None without any. Raises the errors of `read_finals`."""
    if "finals" not in manifest.tables:
        return None
    with files.local(manifest.tables["finals"]) as path:
        return read_finals(path, manifest)


def check_apart(names: Iterable[str], destination: str) -> None:
    """Checks that the destination and datasets do not contain each other.

    Args:
        names: paths or URLs of the datasets.
        destination: a path or URL.

    Raises:
        InvalidArgumentError: one contains the other.
    """
    if is_remote(destination):
        if destination.rstrip("/") in {name.rstrip("/") for name in names}:
            raise _inside(destination)
        return
    target = Path(os.path.realpath(destination))
    for name in names:
        place = Path(os.path.realpath(name))
        if not is_remote(name) and (place == target or place in target.parents or target in place.parents):
            raise _inside(name)


def _inside(name: str) -> InvalidArgumentError:
    return InvalidArgumentError(
        "the destination and a dataset contain each other", file=name, hint="choose another destination"
    )
