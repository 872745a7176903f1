"""From a dataset, or batches of it, to files that other tools read."""

from __future__ import annotations

import math
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from gear_data.dataset.dataset import Dataset
from gear_data.errors import InvalidArgumentError, unknown_name
from gear_data.exports.d4rl import export_d4rl
from gear_data.exports.exporter import Exporter, ExportOptions
from gear_data.exports.lerobot.dataset import export_lerobot
from gear_data.exports.minari import export_minari
from gear_data.exports.npz import export_npz
from gear_data.exports.parquet import export_parquet
from gear_data.storage.remote.files import plain_path


@dataclass(frozen=True)
class ExportReport:
    """What was written: paths relative to the destination's folder, and their bytes together; and the facts about
    episodes that the format has no place for."""

    files: tuple[str, ...]
    bytes: int
    episodes: int
    steps: int
    left_out: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "files": list(self.files), "left_out": list(self.left_out)}


#: Name -> exporter, as `format=` takes them.
EXPORTERS: dict[str, Exporter] = {
    "parquet": export_parquet,
    "d4rl": export_d4rl,
    "minari": export_minari,
    "lerobot": export_lerobot,
    "npz": export_npz,
}


def export(
    dataset: Dataset,
    destination: str | os.PathLike[str],
    format: str = "parquet",
    *,
    fps: float | None = None,
    progress: bool | None = None,
) -> ExportReport:
    """Writes a dataset's or view's episodes in another format. Derived columns (return-to-go) are left out; converting
    the result again gives a dataset of equal fingerprint. What a format cannot hold is refused, and nothing is left.

    Args:
        dataset: what to write, whole episodes.
        destination: a folder that does not exist or is empty; `parquet`, `d4rl` and `npz` also take the name of one
            file that ends in .parquet, .hdf5 or .npz. For `minari` its name must be NAME-vN.
        format: `parquet`: a row an episode, as `datasets.load_dataset("parquet", ...)` reads it; `d4rl`: HDF5; `npz`;
            `minari`: as `minari.load_dataset` reads it; `lerobot`: v3.0.
        fps: steps a second, for `lerobot`; None takes what the dataset's source said.
        progress: show a bar; None shows one on a terminal.

    Raises:
        UnknownNameError: no such format.
        InvalidArgumentError: no dataset, or no path; the view filters steps, and episodes have no windows to choose;
            `fps` for a format without a clock, or none for `lerobot`; a destination that the format cannot have.
        MissingColumnError: the format needs a column that the dataset does not have.
        UnsupportedColumnError: the format cannot hold a column, final observations or the end flags as they are.
        DestinationExistsError: there is something at the destination.
        StorageFullError: the disk is full.
        UnwritableError: the system does not let it be written.
    """
    if not isinstance(dataset, Dataset):
        raise InvalidArgumentError(f"export takes a Dataset, not {dataset!r}", hint="gear_data.open(path)")
    target = Path(plain_path(destination))
    if format not in EXPORTERS:
        raise unknown_name("export format", format, EXPORTERS)
    if dataset.step_mask is not None:
        raise InvalidArgumentError(
            "a step filter chooses windows, and whole episodes are exported",
            hint="export the dataset without filter_steps, or batches of it (export_batches, --batches)",
        )
    if fps is not None and (format != "lerobot" or not 0 < fps < math.inf):
        raise InvalidArgumentError(f"fps={fps!r}: a positive number, for the format lerobot alone")
    written = EXPORTERS[format](dataset, target, ExportOptions(progress, fps))
    return ExportReport(written.files, written.bytes, dataset.num_episodes, dataset.num_steps, written.left_out)
