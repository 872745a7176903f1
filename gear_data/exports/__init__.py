"""From a dataset, or batches of it, to files that other tools read."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from gear_data.dataset import Dataset
from gear_data.errors import InvalidArgumentError, unknown_name
from gear_data.exports.parquet import export_parquet


@dataclass(frozen=True)
class ExportReport:
    """What was written: paths relative to the destination's folder, and their bytes together."""

    files: tuple[str, ...]
    bytes: int
    episodes: int
    steps: int

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "files": list(self.files)}


Exporter = Callable[[Dataset, Path, bool | None], tuple[list[str], int]]

#: Name -> exporter, as `format=` takes them.
EXPORTERS: dict[str, Exporter] = {"parquet": export_parquet}


def export(
    dataset: Dataset, destination: str | os.PathLike[str], format: str = "parquet", *, progress: bool | None = None
) -> ExportReport:
    """Writes a dataset's or view's episodes in another format. Derived columns (return-to-go) are left out; converting
    the result again gives a dataset of equal fingerprint.

    Args:
        dataset: what to write, whole episodes.
        destination: a folder that does not exist or is empty; `parquet` also takes the name of one .parquet file.
        format: `parquet`: a row an episode, as `datasets.load_dataset("parquet", ...)` reads it.
        progress: show a bar; None shows one on a terminal.

    Raises:
        UnknownNameError: no such format.
        InvalidArgumentError: the view filters steps, and episodes have no windows to choose.
        DestinationExistsError: there is something at the destination.
        StorageFullError: the disk is full.
    """
    if format not in EXPORTERS:
        raise unknown_name("export format", format, EXPORTERS)
    if dataset.step_mask is not None:
        raise InvalidArgumentError(
            "a step filter chooses windows, and whole episodes are exported",
            hint="export the dataset without filter_steps, or batches of it (export_batches, --batches)",
        )
    files, size = EXPORTERS[format](dataset, Path(destination), progress)
    return ExportReport(tuple(files), size, dataset.num_episodes, dataset.num_steps)
