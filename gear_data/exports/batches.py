"""Export of batches to files with a manifest.

An evaluation that reads the files is reproducible bit for bit.
"""

from __future__ import annotations

import json
import os
import re
import zipfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Never

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.lib import format as npy

from gear_data.collection.output import BFLOAT16
from gear_data.common.keywords import check_range, refuse_keywords_of
from gear_data.common.progress import progress_bar
from gear_data.errors import EmptySourceError, InvalidArgumentError, unknown_name
from gear_data.exports.destination import atomic_folder, export_target
from gear_data.exports.nested import nested_episodes, nested_rows
from gear_data.loaders.frameworks.values import in_numpy, map_arrays
from gear_data.storage.atomic import checksum
from gear_data.words import BatchFileFormat

if TYPE_CHECKING:
    from gear_data.loaders.builders.batch import Batch
    from gear_data.loaders.sequence_loader import SequenceLoader

BATCHES_MANIFEST = "batches.json"
_VERSION = 1


@dataclass(frozen=True)
class BatchExportReport:
    """Result of an export of batches.

    Attributes:
        files: file names in the destination's folder.
        bytes: size of the batch files together.
        batches: number of batches.
        windows: number of windows in all batches.
        seed: seed of the loader.
        first_step: step of the first batch.
    """

    files: tuple[str, ...]
    bytes: int
    batches: int
    windows: int
    seed: int
    first_step: int

    def to_json(self) -> dict[str, Any]:
        """Returns the report as JSON."""
        return {**asdict(self), "files": list(self.files)}


def export_batches(
    loader: SequenceLoader,
    destination: str | os.PathLike[str],
    *,
    batches: int,
    format: BatchFileFormat = "safetensors",
    overwrite: bool = False,
    progress: bool | None = None,
    **unknown: Never,
) -> BatchExportReport:
    """Writes a loader's batches, one file each, and the manifest `batches.json`.

    The manifest has the dataset's fingerprint, every argument of the loader, and for each file its step, keys, dtypes,
    shapes, size and checksum. The first batch is step 0, or the step of the state that was loaded last.

    Args:
        loader: loader of the batches. A new iteration starts; an earlier iteration is not continued.
        destination: a folder that does not exist or is empty.
        batches: number of batches. If the loader ends earlier, there are fewer.
        format: `safetensors`, `npz` or `parquet` (a row per window, with lists as nested as the array). In safetensors
            and npz, tensors of different lengths become `KEY.values` and `KEY.offsets`. Only Parquet stores text and
            bytes.
        overwrite: as in `export`.
        progress: show a bar; None shows one only on a terminal.

    Raises:
        UnknownArgumentError: there is no argument of a name.
        UnknownNameError: the format does not exist.
        InvalidArgumentError: `batches` is below 1; the destination has the name of a file; npz or parquet cannot store
            bfloat16 tensors; safetensors or npz cannot store text.
        EmptySourceError: the loader has no more batches.
        DestinationExistsError: the destination is not empty and, with `overwrite`, no export.
        StorageFullError: the disk is full.
        UnwritableError: the system refuses the write.
    """
    refuse_keywords_of(export_batches, unknown)
    if format not in BATCH_WRITERS:
        raise unknown_name("batch format", format, BATCH_WRITERS)
    check_range("batches", batches, 1)
    target = export_target(destination, format, ())
    entries: list[dict[str, Any]] = []
    with atomic_folder(target, overwrite) as folder, progress_bar(batches, "export", "batch", progress) as bar:
        for batch in islice(loader, batches):
            step = loader.state_dict()["step"] - 1
            name = f"batch-{len(entries):06d}.{format}"
            if "valid_count" not in batch:
                raise InvalidArgumentError(
                    f"the batch of step {step} has no 'valid_count', by which its windows are counted",
                    hint="let transform keep this key",
                )
            on_host = {key: _on_host(value) for key, value in batch.items()}
            BATCH_WRITERS[format](on_host, folder / name)
            entries.append(_entry(on_host, folder / name, step))
            bar.update(1)
        if not entries:
            raise EmptySourceError(
                "the loader has no batch left to export",
                file=str(target),
                hint="load an earlier state, or give more epochs",
            )
        manifest = {"format": "gear-batches", "version": _VERSION, **loader.spec(), "files": entries}
        (folder / BATCHES_MANIFEST).write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")
    return BatchExportReport(
        files=(*(entry["file"] for entry in entries), BATCHES_MANIFEST),
        bytes=sum(entry["bytes"] for entry in entries),
        batches=len(entries),
        windows=sum(entry["windows"] for entry in entries),
        seed=loader.seed,
        first_step=entries[0]["step"],
    )


def _entry(batch: Batch, path: Path, step: int) -> dict[str, Any]:
    return {
        "file": path.name,
        "step": step,
        "windows": len(batch["valid_count"]),
        "bytes": path.stat().st_size,
        "checksum": checksum(path),
        "tensors": {
            key: {"dtype": value.dtype.name, "shape": list(value.shape)}
            if isinstance(value, np.ndarray)
            else {"dtype": "list", "shape": [len(value)]}
            for key, value in batch.items()
        },
    }


def _on_host(value: Any) -> Any:
    """Returns a value of a batch with NumPy arrays in C order; a number is an array without axes."""
    value = np.asarray(value) if isinstance(value, int) else value
    return map_arrays(in_numpy(value), np.ndarray, partial(np.require, requirements="C"))


def _write_safetensors(batch: Batch, path: Path) -> None:
    from safetensors import SafetensorError
    from safetensors.numpy import save_file

    try:
        save_file(_flat(batch), path)
    except SafetensorError as error:
        number = re.search(r"os error (\d+)", str(error))
        if number is None:
            raise
        raise OSError(int(number[1]), os.strerror(int(number[1])), str(path)) from error


def _write_npz(batch: Batch, path: Path) -> None:
    # np.savez takes names as arguments, and has a few of its own, such as `file`.
    with zipfile.ZipFile(path, "w") as archive:
        for key, array in _flat(batch).items():
            with archive.open(f"{key}.npy", "w", force_zip64=True) as member:
                npy.write_array(member, _array(array, key), allow_pickle=False)


def _write_parquet(batch: Batch, path: Path) -> None:
    rows = {key: 0 if isinstance(value, np.ndarray) and not value.ndim else len(value) for key, value in batch.items()}
    other = next((key for key in batch if rows[key] != rows["valid_count"]), None)
    if other is not None:
        raise InvalidArgumentError(
            f"Parquet has a row per window, and this has {rows[other]} rows for {rows['valid_count']} windows",
            column=other,
            hint="use --format safetensors or npz",
        )
    pq.write_table(pa.table({key: _rows(value, key) for key, value in batch.items()}), path)


def _flat(batch: Batch) -> dict[str, npt.NDArray[Any]]:
    """Converts lists of arrays to single arrays.

    B arrays of different lengths become `KEY.values`, their concatenation, and `KEY.offsets`, int64 [B + 1].

    Raises:
        InvalidArgumentError: a value is text or bytes.
    """
    arrays = {}
    for key, value in batch.items():
        if isinstance(value, np.ndarray):
            arrays[key] = value
        elif _are_arrays(value):
            arrays[f"{key}.values"], arrays[f"{key}.offsets"] = np.concatenate(value), _offsets(value)
        else:
            raise InvalidArgumentError(
                "only Parquet stores text and bytes", column=key, hint="use --format parquet, or give a decoder"
            )
    return arrays


def _rows(value: Any, key: str) -> pa.Array:
    """Converts a value of a batch to one row per window."""
    if isinstance(value, np.ndarray):
        return nested_rows(_array(value, key), key)
    if _are_arrays(value):
        return nested_episodes(_array(np.concatenate(value), key), _offsets(value), key)
    array = pa.array(value)
    # If no window has a value, text and bytes cannot be distinguished. Text is assumed.
    return array.cast(pa.list_(pa.string())) if array.type == pa.list_(pa.null()) else array


def _are_arrays(value: list[Any]) -> bool:
    return len(value) > 0 and all(isinstance(each, np.ndarray) and each.ndim > 0 for each in value)


def _offsets(value: list[npt.NDArray[Any]]) -> npt.NDArray[np.int64]:
    return np.cumsum([0, *(len(each) for each in value)], dtype=np.int64)


def _array(array: npt.NDArray[Any], key: str) -> npt.NDArray[Any]:
    if array.dtype == BFLOAT16:
        raise InvalidArgumentError(
            "NumPy and Parquet cannot store bfloat16", column=key, hint="use --format safetensors, or another dtype"
        )
    return array


#: Name -> writer, as `format=` takes them.
BATCH_WRITERS: dict[BatchFileFormat, Callable[[Batch, Path], None]] = {
    "safetensors": _write_safetensors,
    "npz": _write_npz,
    "parquet": _write_parquet,
}
