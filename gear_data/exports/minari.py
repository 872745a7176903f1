"""Dataset -> a Minari dataset: `data/main_data.hdf5`, a group an episode, and `data/metadata.json`.

Layout: https://minari.farama.org/content/dataset_standards, and `minari.dataset` of Minari 0.5.4. Images are stored as
they are (`jpeg_encoding` false), since JPEG would change them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from gear_data.common.progress import progress_bar
from gear_data.dataset.dataset import Dataset
from gear_data.errors import InvalidArgumentError, UnsupportedColumnError
from gear_data.exports.destination import atomic_folder
from gear_data.exports.exporter import (
    REQUIRED,
    ExportedFiles,
    ExportOptions,
    episode_blocks,
    exported_files,
    require_columns,
)
from gear_data.exports.hdf5 import create_hdf5
from gear_data.exports.metadata import episode_id, episode_metadata, final_observations, source_metadata
from gear_data.exports.spaces import space
from gear_data.schema import ColumnSpec

#: The version whose layout this is; Minari refuses those it does not know.
_VERSION = "0.5.4"
_DATASET_ID = re.compile(r"[-_\w]+-v\d+")
_FLAGS = {"terminated": "terminations", "truncated": "truncations"}
#: Facts of a dataset that Minari has a place for.
_TEXTS = ("env_spec", "eval_env_spec", "algorithm_name", "code_permalink", "description")
_LISTS = ("author", "author_email")
#: Attributes of an episode that say what the file says anyway.
_OWN_ATTRIBUTES = ("id", "total_steps")
#: An HDF5 object header has 64 KiB for all of an object's attributes.
_MAX_ATTRIBUTES = 60_000
#: What HDF5 adds for each dataset and each group of a few, measured and rounded up.
_DATASET_BYTES = 512
_GROUP_BYTES = 4096
_ZERO_BYTE = "HDF5 holds no text with a zero byte in it"


def export_minari(dataset: Dataset, destination: Path, options: ExportOptions) -> ExportedFiles:
    """Writes a folder that `minari.load_dataset(NAME)` reads where $MINARI_DATASETS_PATH is the folder it is in.

    Observations have T + 1 rows, the final observation the last of them; `infos` have a row a step, as the dataset has
    them: nothing is invented for the reset. Episode facts become attributes of the episode's group.

    Raises:
        InvalidArgumentError: the destination's name is not NAME-vN, which Minari's names are.
        MissingColumnError: no observations, actions or rewards.
        UnsupportedColumnError: a column that Minari has no place for, or whose name and another's exclude each other;
            observations of text or bytes; an episode without a final observation; facts too long for attributes.
    """
    if not _DATASET_ID.fullmatch(destination.name):
        raise InvalidArgumentError(
            f"Minari's datasets are called NAME-vN, and the destination '{destination.name}'",
            hint=f"such as {destination.name or 'hopper'}-v0",
        )
    paths = _paths(dataset)
    with (
        atomic_folder(destination) as folder,
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
    facts = episode_metadata(dataset, 0, 0)
    return exported_files(destination, [name for name in facts if name not in _attribute_names(facts)])


def _size(dataset: Dataset, columns: int) -> int:
    """About how many bytes the HDF5 file will have, rather too many."""
    steps = int(dataset.sizes(0, dataset.num_episodes).sum())
    finals = sum(spec.row_bytes for spec in dataset.schema.final_columns)
    return steps + dataset.num_episodes * (finals + columns * _DATASET_BYTES + _GROUP_BYTES)


def _paths(dataset: Dataset) -> dict[str, str]:
    """Column -> the path of its HDF5 dataset in an episode's group; the columns in order of their names."""
    specs = {spec.name: spec for spec in dataset.schema.source_columns}
    require_columns(dataset, {name.split(".", 1)[0] for name in specs}, "Minari")
    paths = {}
    for name, spec in sorted(specs.items()):
        group = name.split(".", 1)[0]
        if (name not in (*REQUIRED, *_FLAGS) and group not in ("observations", "actions", "infos")) or name == "infos":
            raise UnsupportedColumnError(
                "Minari has no place for it", column=name, hint=f"call it infos.{name} at conversion: --rename"
            )
        above = next((other for other in specs if name.startswith(f"{other}.")), None)
        if above is not None:
            raise UnsupportedColumnError(
                f"there is '{above}' too, and what Minari holds is either an array or a Dict of arrays",
                column=name,
                hint=f"call it infos.{name} at conversion: --rename",
            )
        if spec.dtype == "binary":
            raise UnsupportedColumnError(
                "Minari holds text and numbers, and these are bytes", column=name, hint="export to Parquet"
            )
        if group == "observations" and not spec.has_final:
            what = f"{spec.dtype} values have none here" if spec.variable_length else "it has none"
            raise UnsupportedColumnError(
                f"Minari's observations end with the one after the last step, and {what}",
                column=name,
                hint="export to Parquet, which needs none",
            )
        if spec.has_final and group != "observations":
            raise UnsupportedColumnError(
                "only observations have a final value in Minari", column=name, hint="export to Parquet"
            )
        paths[name] = _FLAGS.get(name, name.replace(".", "/"))
    return paths


def _write_episodes(dataset: Dataset, file: h5py.File, paths: Mapping[str, str], first: int, last: int) -> None:
    columns = {name: dataset.steps(name, first, last) for name in paths}
    finals = final_observations(dataset, first, last)
    facts = episode_metadata(dataset, first, last)
    attributes = {name: facts[name].to_pylist() for name in _attribute_names(facts)}
    start = 0
    for place, length in enumerate(dataset.lengths[first:last].tolist()):
        group = file.create_group(f"episode_{first + place}")
        final = finals[place]
        for name, path in paths.items():
            values = columns[name][start : start + length]
            if dataset.schema[name].has_final:
                if final is None:
                    raise UnsupportedColumnError(
                        f"Minari's observations end with the one after the last step, and episode "
                        f"{episode_id(dataset, first + place)} has none",
                        column=name,
                        hint="export to Parquet, which needs none",
                    )
                values = np.concatenate([values, final[name][None]])
            _write_values(group, path, values, dataset.schema[name])
        _write_attributes(group, {name: values[place] for name, values in attributes.items()})
        group.attrs["id"], group.attrs["total_steps"] = first + place, length
        start += length


def _write_values(group: h5py.Group, path: str, values: npt.NDArray[Any], spec: ColumnSpec) -> None:
    if not spec.variable_length:
        group.create_dataset(path, data=values)
        return
    if any("\0" in value for value in values):
        raise UnsupportedColumnError(_ZERO_BYTE, column=spec.name, hint="export to Parquet")
    group.create_dataset(path, data=values, dtype=h5py.string_dtype())


def _attribute_names(facts: Mapping[str, pa.Array]) -> list[str]:
    """The facts that can be attributes: texts, numbers and booleans."""
    kinds = (
        pa.types.is_string,
        pa.types.is_large_string,
        pa.types.is_integer,
        pa.types.is_floating,
        pa.types.is_boolean,
    )
    others = {name: values.type for name, values in facts.items() if name not in _OWN_ATTRIBUTES}
    return [name for name, type_ in others.items() if any(is_kind(type_) for is_kind in kinds)]


def _write_attributes(group: h5py.Group, values: Mapping[str, Any]) -> None:
    known = {name: value for name, value in values.items() if value is not None}
    for name, value in known.items():
        if isinstance(value, str) and "\0" in value:
            raise UnsupportedColumnError(_ZERO_BYTE, column=name, hint="export to Parquet")
    sizes = {name: len(value.encode()) if isinstance(value, str) else 8 for name, value in known.items()}
    if sum(sizes.values()) > _MAX_ATTRIBUTES:
        raise UnsupportedColumnError(
            f"{sum(sizes.values()):,} bytes of facts about one episode, more than HDF5 attributes hold",
            column=max(sizes, key=lambda name: sizes[name]),
            hint="export to Parquet",
        )
    for name, value in known.items():
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
