"""Export to a Minari dataset: `data/main_data.hdf5` and `data/metadata.json`.

The HDF5 file has one group per episode. Layout: https://minari.farama.org/content/dataset_standards, and
`minari.dataset` of Minari 0.5.4. Images are stored without JPEG (`jpeg_encoding` false), which would change them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from gear_data.common.extras import h5py
from gear_data.common.progress import progress_bar
from gear_data.dataset.dataset import Dataset
from gear_data.dataset.tables.metadata import episode_metadata
from gear_data.errors import InvalidArgumentError, UnsupportedColumnError
from gear_data.exports.destination import atomic_folder
from gear_data.exports.exporter import (
    REQUIRED,
    ExportOptions,
    ExportReport,
    episode_blocks,
    rename_hint,
    report_of,
    require_columns,
)
from gear_data.exports.hdf5 import create_hdf5
from gear_data.exports.metadata import episode_id, final_observations, source_metadata
from gear_data.exports.spaces import space
from gear_data.schema import ColumnSpec, mask_column

#: Version of the layout. Minari refuses unknown versions.
_VERSION = "0.5.4"
_DATASET_ID = re.compile(r"[-_\w]+-v\d+")
_FLAGS = {"terminated": "terminations", "truncated": "truncations"}
#: Metadata of a dataset that Minari stores.
_TEXTS = ("env_spec", "eval_env_spec", "algorithm_name", "code_permalink", "description")
_LISTS = ("author", "author_email")
#: Attributes of an episode that this exporter writes itself.
_OWN_ATTRIBUTES = ("id", "total_steps")
#: Limit of the attributes of one HDF5 object, whose header has 64 KiB.
_MAX_ATTRIBUTES = 60_000
#: Overhead of HDF5 per dataset and per group with a few datasets, measured and rounded up.
_DATASET_BYTES = 512
_GROUP_BYTES = 4096
_ZERO_BYTE = "the text has a zero byte, which HDF5 cannot store"


def export_minari(dataset: Dataset, destination: Path, options: ExportOptions) -> ExportReport:
    """Writes a folder that `minari.load_dataset(NAME)` reads.

    $MINARI_DATASETS_PATH must be its parent folder.

    Observations have T + 1 rows; the last one is the final observation. `infos` have one row per step and none for the
    reset, like the dataset. Episode metadata becomes attributes of the episode's group.

    Raises:
        InvalidArgumentError: the destination's name is not NAME-vN, as Minari requires.
        MissingColumnError: observations, actions or rewards are missing.
        UnsupportedColumnError: Minari cannot store a column, or two columns exclude each other by their names;
            observations are text or bytes; an episode has no final observation; metadata is too long for attributes.
    """
    if not _DATASET_ID.fullmatch(destination.name):
        raise InvalidArgumentError(
            f"Minari needs a name like NAME-vN, but the destination is called '{destination.name}'",
            hint=f"use a name such as {destination.name or 'hopper'}-v0",
        )
    paths = _paths(dataset)
    with (
        atomic_folder(destination, options.overwrite) as folder,
        progress_bar(dataset.num_steps, "export", "step", options.progress) as bar,
    ):
        (folder / "data").mkdir()
        with create_hdf5(folder / "data" / "main_data.hdf5", _size(dataset, len(paths))) as file:
            for first, last in episode_blocks(dataset):
                _write_episodes(dataset, file, paths, first, last)
                bar.update(int(dataset.offsets[last] - dataset.offsets[first]))
        size = (folder / "data" / "main_data.hdf5").stat().st_size
        metadata = {**_metadata(dataset, destination.name), "dataset_size": round(size / 1e6, 1)}
        (folder / "data" / "metadata.json").write_text(json.dumps(metadata), encoding="utf-8")
    names = episode_metadata(dataset, 0, 0)
    return report_of(dataset, destination, [name for name in names if name not in _attribute_names(names)])


def _size(dataset: Dataset, columns: int) -> int:
    """Estimates the size of the HDF5 file in bytes, rounded up."""
    steps = int(dataset.sizes(0, dataset.num_episodes).sum())
    finals = sum(spec.row_bytes for spec in dataset.schema.final_columns)
    return steps + dataset.num_episodes * (finals + columns * _DATASET_BYTES + _GROUP_BYTES)


def _paths(dataset: Dataset) -> dict[str, str]:
    """Returns column -> path of its HDF5 dataset in an episode's group.

    Columns are in the order of their names.
    """
    specs = {spec.name: spec for spec in dataset.schema.source_columns}
    require_columns(dataset, {name.split(".", 1)[0] for name in specs}, "Minari")
    paths = {}
    for name, spec in sorted(specs.items()):
        group = name.split(".", 1)[0]
        if (name not in (*REQUIRED, *_FLAGS) and group not in ("observations", "actions", "infos")) or name == "infos":
            is_mask = name.startswith(mask_column("").name)  # it has the name of its column
            hint = "export to Parquet" if is_mask else rename_hint(name, f"infos.{name}")
            raise UnsupportedColumnError("Minari cannot store this column", column=name, hint=hint)
        parent = next((other for other in specs if name.startswith(f"{other}.")), None)
        if parent is not None:
            raise UnsupportedColumnError(
                f"there is also a column '{parent}', but a name in Minari is either an array or a Dict of arrays",
                column=name,
                # Minari stores final values only of observations.
                hint=rename_hint(parent, f"{parent}.value") if spec.has_final else rename_hint(name, f"infos.{name}"),
            )
        if spec.dtype == "binary":
            raise UnsupportedColumnError(
                "Minari stores only text and numbers, but the column has bytes", column=name, hint="export to Parquet"
            )
        if group == "observations" and not spec.has_final:
            reason = f"{spec.dtype} columns cannot have one" if spec.variable_length else "the column has none"
            raise UnsupportedColumnError(
                f"Minari's observations include the final observation, but {reason}",
                column=name,
                hint="export to Parquet, which needs none",
            )
        if spec.has_final and group != "observations":
            raise UnsupportedColumnError(
                "Minari stores final values only of observations", column=name, hint="export to Parquet"
            )
        paths[name] = _FLAGS.get(name, name.replace(".", "/"))
    return paths


def _write_episodes(dataset: Dataset, file: h5py.File, paths: Mapping[str, str], first: int, last: int) -> None:
    columns = {name: dataset.steps(name, first, last) for name in paths}
    finals = final_observations(dataset, first, last)
    metadata = episode_metadata(dataset, first, last)
    attributes = {name: metadata[name].to_pylist() for name in _attribute_names(metadata)}
    start = 0
    for position, length in enumerate(dataset.lengths[first:last].tolist()):
        group = file.create_group(f"episode_{first + position}")
        final = finals[position]
        for name, path in paths.items():
            values = columns[name][start : start + length]
            if dataset.schema[name].has_final:
                if final is None:
                    raise UnsupportedColumnError(
                        f"Minari's observations include the final observation, but episode "
                        f"{episode_id(dataset, first + position)} has none",
                        column=name,
                        hint="export to Parquet, which needs none",
                    )
                values = np.concatenate([values, final[name][None]])
            _write_values(group, path, values, dataset.schema[name])
        _write_attributes(group, {name: values[position] for name, values in attributes.items()})
        group.attrs["id"], group.attrs["total_steps"] = first + position, length
        start += length


def _write_values(group: h5py.Group, path: str, values: npt.NDArray[Any], spec: ColumnSpec) -> None:
    if not spec.variable_length:
        group.create_dataset(path, data=values)
        return
    if any("\0" in value for value in values):
        raise UnsupportedColumnError(_ZERO_BYTE, column=spec.name, hint="export to Parquet")
    group.create_dataset(path, data=values, dtype=h5py.string_dtype())


def _attribute_names(metadata: Mapping[str, pa.Array]) -> list[str]:
    """Returns the metadata that attributes can store: text, numbers and booleans."""
    kinds = (
        pa.types.is_string,
        pa.types.is_large_string,
        pa.types.is_integer,
        pa.types.is_floating,
        pa.types.is_boolean,
    )
    types = {name: values.type for name, values in metadata.items() if name not in _OWN_ATTRIBUTES}
    return [name for name, type_ in types.items() if any(is_kind(type_) for is_kind in kinds)]


def _write_attributes(group: h5py.Group, values: Mapping[str, Any]) -> None:
    present = {name: value for name, value in values.items() if value is not None}
    for name, value in present.items():
        if isinstance(value, str) and "\0" in value:
            raise UnsupportedColumnError(_ZERO_BYTE, column=name, hint="export to Parquet")
    sizes = {name: len(value.encode()) if isinstance(value, str) else 8 for name, value in present.items()}
    if sum(sizes.values()) > _MAX_ATTRIBUTES:
        raise UnsupportedColumnError(
            f"one episode has {sum(sizes.values()):,} bytes of metadata, but HDF5 attributes hold {_MAX_ATTRIBUTES:,}",
            column=max(sizes, key=lambda name: sizes[name]),
            hint="export to Parquet",
        )
    for name, value in present.items():
        group.attrs[name] = value


def _metadata(dataset: Dataset, dataset_id: str) -> dict[str, Any]:
    source = source_metadata(dataset)
    return {
        "total_episodes": dataset.num_episodes,
        "total_steps": dataset.num_steps,
        "data_format": "hdf5",
        "jpeg_encoding": False,
        "observation_space": json.dumps(space(dataset, "observations")),
        "action_space": json.dumps(space(dataset, "actions")),
        "dataset_id": dataset_id,
        "minari_version": _VERSION,
        **{name: source[name] for name in _TEXTS if isinstance(source.get(name), str)},
        **{name: source[name] for name in _LISTS if isinstance(source.get(name), list)},
    }
