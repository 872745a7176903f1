"""Everything that gear-data writes, as small jobs for tests/chaos."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import gear_data
from gear_data.errors import DatasetNotFoundError, ResumeError
from tests.support.rollouts import make_rollouts, write_d4rl

#: Small shards, so that a small source gives several.
OPTIONS: dict[str, Any] = {"shard_bytes": 1024, "progress": False}


@dataclass(frozen=True)
class WritePath:
    """A job that writes files below a folder.

    Each function gets the folder, and runs in a separate process.

    Attributes:
        name: Name of the job.
        prepare: Writes the inputs of the job.
        run: Does the job.
        again: Does the job after it was killed or failed, as the documentation says.
        check: Looks at the folder after a kill or failure, and raises if it holds something half-done that looks
            finished. It writes nothing.
    """

    name: str
    prepare: Callable[[Path], object]
    run: Callable[[Path], object]
    again: Callable[[Path], object]
    check: Callable[[Path], object]


def warm_up() -> None:
    """Imports the modules that the jobs need, so that a fork has them.

    Nothing here may start a thread.
    """
    for module in (
        "h5py",
        "pandas",
        "pyarrow.pandas_compat",
        "pyarrow.parquet",
        "gear_data.ingest.convert",
        "gear_data.dataset.open",
    ):
        importlib.import_module(module)
    from gear_data.ingest.sources.registry import known_formats

    known_formats()


def _source(folder: Path) -> None:
    write_d4rl(folder / "source.hdf5", make_rollouts(9, seed=3))


def _convert(folder: Path, **options: Any) -> None:
    gear_data.convert(folder / "source.hdf5", folder / "data", **OPTIONS, **options)


def _resume(folder: Path, **options: Any) -> None:
    try:
        _convert(folder, resume=True, **options)
    except ResumeError as error:  # killed before it wrote its options
        if "--overwrite" not in str(error) or list((folder / "data").rglob("*.arrow")):
            raise
        _convert(folder, overwrite=True, **options)


def _whole_or_refused(folder: Path) -> None:
    """Checks that the dataset is whole, or that its error says what to do."""
    try:
        gear_data.open(folder / "data")
    except DatasetNotFoundError as error:
        if not error.hint:
            raise RuntimeError(f"the error has no hint: {error}") from error
        if (folder / "data" / "manifest.json").exists():
            raise RuntimeError("there is a manifest") from error
        return
    if not gear_data.verify(folder / "data", progress=False).ok:
        raise RuntimeError("the dataset opens and does not verify")


WRITE_PATHS = (
    WritePath("convert", _source, _convert, _resume, _whole_or_refused),
    WritePath(
        "convert with 2 workers", _source, partial(_convert, jobs=2), partial(_resume, jobs=2), _whole_or_refused
    ),
)
