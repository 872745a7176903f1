"""Export to one npz file with flat arrays of all steps (`gear_data.exports.flat`)."""

from __future__ import annotations

import zipfile
from collections.abc import Sequence
from pathlib import Path

from numpy.lib import format as npy

from gear_data.common.progress import progress_bar
from gear_data.dataset.dataset import Dataset
from gear_data.dataset.tables.metadata import metadata_names
from gear_data.errors import UnsupportedColumnError
from gear_data.exports.destination import FILE_SUFFIXES, MARK, atomic_file_or_folder
from gear_data.exports.exporter import ExportOptions, ExportReport, rename_hint, report_of
from gear_data.exports.flat import FlatColumn, flat_blocks, flat_columns
from gear_data.ingest.sources.arrays.classify import is_boundary


def export_npz(dataset: Dataset, destination: Path, options: ExportOptions) -> ExportReport:
    """Writes the destination if it ends in .npz, otherwise `data.npz` in it.

    The file is uncompressed, as from `numpy.savez`. No array is in memory as a whole.

    Raises:
        MissingColumnError: see `flat_columns`.
        UnsupportedColumnError: see `flat_columns`; or readers would take a column for the places of episodes.
    """
    with atomic_file_or_folder(destination, FILE_SUFFIXES["npz"], "data.npz", options.overwrite) as path:
        columns = flat_columns(dataset, "npz")
        _check_names(columns)
        total = dataset.num_steps * len(columns)
        with progress_bar(total, "export", "row", options.progress) as bar, zipfile.ZipFile(path, "w") as archive:
            for column in columns:
                header = {"descr": npy.dtype_to_descr(column.dtype), "fortran_order": False, "shape": column.shape}
                # zipfile must know in advance if a member may exceed 2 GiB.
                with archive.open(zipfile.ZipInfo(f"{column.name}.npy"), "w", force_zip64=True) as member:
                    npy.write_array_header_1_0(member, header)
                    for _, values in flat_blocks(dataset, column):
                        member.write(values.reshape(-1).view("u1").data)
                        bar.update(len(values))
            archive.comment = MARK.encode()
    return report_of(dataset, destination, metadata_names(dataset))


def _check_names(columns: Sequence[FlatColumn]) -> None:
    """Refuses columns that readers of npz files would take for the places of episodes, and not store."""
    for column in columns:
        if is_boundary(column.name, column.dtype, column.shape[1:]):
            raise UnsupportedColumnError(
                f"an array of {column.dtype} with the name '{column.name}' says where episodes are in npz",
                column=column.name,
                hint=rename_hint(column.name, f"infos.{column.name}"),
            )
