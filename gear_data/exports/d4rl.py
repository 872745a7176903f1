"""Export to one D4RL HDF5 file.

It has flat arrays of all steps; see `gear_data.exports.flat`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gear_data.common.extras import h5py
from gear_data.common.progress import progress_bar
from gear_data.dataset.dataset import Dataset
from gear_data.dataset.tables.metadata import metadata_names
from gear_data.exports.destination import FILE_SUFFIXES, MARK, atomic_file_or_folder
from gear_data.exports.exporter import ExportOptions, ExportReport, report_of
from gear_data.exports.flat import flat_blocks, flat_columns
from gear_data.exports.hdf5 import create_hdf5
from gear_data.exports.metadata import source_metadata


def export_d4rl(dataset: Dataset, destination: Path, options: ExportOptions) -> ExportReport:
    """Writes the destination if it ends in .hdf5 or .h5, otherwise `data.hdf5` in it.

    Text and numbers of the source's metadata become `metadata/NAME`.

    Raises:
        MissingColumnError: see `flat_columns`.
        UnsupportedColumnError: see `flat_columns`.
    """
    with atomic_file_or_folder(destination, FILE_SUFFIXES["d4rl"], "data.hdf5", options.overwrite) as path:
        columns = flat_columns(dataset, "D4RL")
        total = dataset.num_steps * len(columns)
        size = sum(column.bytes for column in columns)
        with progress_bar(total, "export", "row", options.progress) as bar, create_hdf5(path, size) as file:
            for column in columns:
                target = file.create_dataset(column.name, column.shape, column.dtype)
                for start, values in flat_blocks(dataset, column):
                    target[start : start + len(values)] = values
                    bar.update(len(values))
            file["rewards"].attrs[MARK] = True  # an attribute of the file would be metadata of the dataset
            left_out = _write_metadata(file, source_metadata(dataset))
    return report_of(dataset, destination, [*metadata_names(dataset), *left_out])


def _write_metadata(file: h5py.File, metadata: Mapping[str, Any]) -> list[str]:
    """Writes metadata, and returns the names of what is left out: nested values, and what HDF5 cannot store."""
    left_out = []
    for name, value in metadata.items():
        path = f"metadata/{name}"
        if not isinstance(value, str | int | float | None):
            left_out.append(path)
        elif value is not None:
            try:
                file[path] = value
            except (ValueError, TypeError, OverflowError):
                left_out.append(path)
    return left_out
