"""Folders of `.npy` files with one file per column, such as `observations.npy`.

The file `infos/qpos.npy` is the column `infos.qpos`.

Several such folders are read as well; then each folder ends an episode.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import PurePosixPath

from gear_data.errors import GearError, UnknownFormatError
from gear_data.ingest.findings.log import FindingLog
from gear_data.ingest.location import Location, SourceFile
from gear_data.ingest.pipeline.columns import SCALAR_COLUMNS
from gear_data.ingest.pipeline.names import usual_name
from gear_data.ingest.source import Format, SourceOptions
from gear_data.ingest.sources.arrays.axes import refuse_unclear_axes
from gear_data.ingest.sources.arrays.layouts import build_step_arrays
from gear_data.ingest.sources.arrays.numpy_files import open_npy
from gear_data.ingest.sources.arrays.source import ArraySource
from gear_data.ingest.sources.arrays.step_arrays import StepArrays

_SUFFIX = ".npy"


def probe(location: Location) -> str | None:
    """Returns the reason if a folder of `.npy` files holds steps; otherwise None.

    Raises UnknownFormatError if their first axis may be something else than the steps.
    """
    folders = _folders(location)
    for folder, files in folders.items():
        names = {usual_name(name, location.rename) for name in files}
        if "actions" in names or names & SCALAR_COLUMNS:
            shapes = {location.rename.get(name, name): shape for name, shape in _shapes(files).items()}
            refuse_unclear_axes(folder, shapes, "numpy")
            return f"NumPy files: {folder or 'the folder'} holds {', '.join(files)}"
        break
    return None


def open_(location: Location, options: SourceOptions) -> ArraySource:
    """Opens folders of `.npy` files. Raises UnknownFormatError if there are none."""
    folders = list(_folders(location).items())
    if not folders:
        raise UnknownFormatError("holds no .npy file", hint="leave --format out")
    sizes = [sum(file.size for file in files.values()) for _, files in folders]

    def open_arrays(i: int) -> StepArrays:
        folder, files = folders[i]
        arrays = {name: open_npy(file) for name, file in files.items()}
        found = build_step_arrays(folder, arrays, options, whole_source=len(folders) == 1, is_first=i == 0)
        return replace(found, seekable=True)

    names = [folder for folder, _ in folders]
    return ArraySource(names, sizes, open_arrays, FindingLog(), dtypes=options.tables.dtype)


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


FORMAT = Format(
    "numpy",
    probe,
    open_,
    uses=frozenset({"episode_column", "step_column", "end_column", "max_episode_steps", "dtype"}),
    suffixes=(".npy",),
)
