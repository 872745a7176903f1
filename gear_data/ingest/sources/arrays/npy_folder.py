"""Folders of `.npy` files with one file per column, such as `observations.npy`.

The file `infos/qpos.npy` is the column `infos.qpos`.

Several such folders are read as well; then each folder ends an episode.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from pathlib import PurePosixPath

from gear_data.errors import GearError, UnknownFormatError
from gear_data.ingest.location import Location, SourceFile
from gear_data.ingest.source import Format, SourceOptions
from gear_data.ingest.sources.arrays.layouts import USES, holds_steps, open_flat
from gear_data.ingest.sources.arrays.numpy_files import StoredArray, open_npy
from gear_data.ingest.sources.arrays.source import ArraySource

_SUFFIX = ".npy"


def probe(location: Location) -> str | None:
    """Returns the reason if a folder of `.npy` files holds steps; otherwise None.

    Raises UnknownFormatError if their first axis may be something else than the steps.
    """
    for folder, files in list(_folders(location).items())[:1]:
        if holds_steps(folder, files, _shapes(files), location, FORMAT.name):
            return f"NumPy files: {folder or 'the folder'} holds {', '.join(files)}"
    return None


def open_(location: Location, options: SourceOptions) -> ArraySource:
    """Opens folders of `.npy` files. Raises UnknownFormatError if there are none."""
    folders = _folders(location)
    if not folders:
        raise UnknownFormatError("holds no .npy file", hint="leave --format out")
    places = [
        (folder, sum(file.size for file in files.values()), partial(_arrays, files))
        for folder, files in folders.items()
    ]
    return open_flat(places, options, seekable=True)


def _arrays(files: Mapping[str, SourceFile]) -> dict[str, StoredArray]:
    return {name: open_npy(file) for name, file in files.items()}


def _shapes(files: Mapping[str, SourceFile]) -> dict[str, tuple[int, ...]]:
    """Returns column -> shape.

    Damaged files are left out, because opening them raises the error.
    """
    shapes = {}
    for name, file in files.items():
        with suppress(GearError):
            shapes[name] = open_npy(file).shape
    return shapes


def _folders(location: Location) -> dict[str, dict[str, SourceFile]]:
    """Returns folder -> column -> file.

    If a folder holds arrays, the names of its subfolders are parts of the columns' names.
    """
    files = [(PurePosixPath(file.name), file) for file in location.with_suffix(_SUFFIX)]
    if any(path.parent == PurePosixPath() for path, _ in files):
        depth = 0
    else:
        depth = min((len(path.parts) - 1 for path, _ in files), default=0)
    folders: dict[str, dict[str, SourceFile]] = {}
    for path, file in files:
        column = ".".join(path.with_suffix("").parts[depth:])
        folders.setdefault("/".join(path.parts[:depth]), {})[column] = file
    return {folder or location.name: found for folder, found in folders.items()}


FORMAT = Format("numpy", probe, open_, uses=USES, suffixes=(_SUFFIX,), in_time_order=True)
