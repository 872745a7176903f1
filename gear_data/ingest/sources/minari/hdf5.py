"""Minari HDF5: `data/main_data.hdf5` with groups, and `data/metadata.json`.

Layout: https://minari.farama.org/content/dataset_standards (versions 0.4 and 0.5). For an episode of T steps:

- `observations` has T + 1 rows; the last row is the final observation.
- `infos` has T rows, or T + 1 rows of which the first is what `reset` returned. Here `infos.x[t]` is what step t
  returned.
- Dict spaces are groups; Tuple spaces are groups with the entries `_index_0`, `_index_1`, ...
- Text is UTF-8. Images are JPEG bytes if the space is an image space and the dataset encodes images.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import PurePosixPath

import h5py

from gear_data.errors import GearError, UnknownFormatError
from gear_data.ingest.findings.log import FindingLog
from gear_data.ingest.location import Location, SourceFile
from gear_data.ingest.pipeline.columns import choose_columns
from gear_data.ingest.source import Format, SourceOptions
from gear_data.ingest.sources.hdf5.attributes import attribute_facts
from gear_data.ingest.sources.hdf5.datasets import step_spec
from gear_data.ingest.sources.hdf5.episode_reader import GroupColumn, GroupContents
from gear_data.ingest.sources.hdf5.group_layout import GroupLayout
from gear_data.ingest.sources.hdf5.grouped_source import GroupedEpisodeSource, open_groups
from gear_data.ingest.sources.hdf5.inventory import links_of, refuse_links
from gear_data.ingest.sources.hdf5.open_file import hdf5_files, open_hdf5, reading
from gear_data.ingest.sources.minari.metadata import METADATA, MinariMetadata, parse_metadata, read_metadata

_MAIN = "main_data.hdf5"
_PREFIX = "episode_"
_TUPLE_ENTRY = re.compile(r"(?<=/)_index_([0-9]+)")
_REQUIRED = ("observations", "actions", "rewards", "terminations", "truncations")
#: Attributes of an episode that repeat its number or its length, or statistics of its rewards.
_IGNORED = frozenset({"id", "rewards_max", "rewards_mean", "rewards_min", "rewards_std", "rewards_sum", "total_steps"})


def probe(location: Location) -> str | None:
    """Returns the reason if the first main file is Minari HDF5; otherwise None."""
    files = _main_files(location)
    if not files:
        return None
    try:
        with open_hdf5(files[0]) as file, reading(files[0].name):
            name = next((key for key in file if re.fullmatch(_PREFIX + "[0-9]+", key)), None)
            group = None if name is None else file[name]
            if isinstance(group, h5py.Group) and all(key in group for key in _REQUIRED):
                return f"Minari HDF5: '{name}' in {files[0].name} is a group of {', '.join(_REQUIRED)}"
    except GearError:
        pass  # a damaged file is not recognised as Minari
    return None


def open_(location: Location, options: SourceOptions) -> GroupedEpisodeSource:
    """Opens a Minari dataset. Raises UnknownFormatError for none or several datasets."""
    files = _main_files(location)
    if len(files) != 1:
        message = "holds no Minari HDF5 file" if not files else f"holds {len(files)} Minari datasets"
        folders = ", ".join(str(PurePosixPath(file.name).parent) for file in files[:10])
        raise UnknownFormatError(
            message, file=location.name, hint=f"convert one of: {folders}" if files else "leave --format out"
        )
    return _open_file(files[0], _metadata_file(location, files[0]), options)


def _main_files(location: Location) -> tuple[SourceFile, ...]:
    files = hdf5_files(location)
    return tuple(file for file in files if PurePosixPath(file.name).name == _MAIN) if location.folder else files


def _open_file(file: SourceFile, metadata_file: SourceFile | None, options: SourceOptions) -> GroupedEpisodeSource:
    metadata = _root_attributes(file) if metadata_file is None else read_metadata(metadata_file)

    def check(opened: h5py.File, name: str, episodes: int, steps: int, findings: FindingLog) -> None:
        metadata.check_counts(episodes, steps, findings)

    def describe(datasets: Mapping[str, h5py.Dataset], non_columns: Mapping[str, str], name: str) -> GroupContents:
        paths = {_TUPLE_ENTRY.sub(r"\1", path): path for path in [*datasets, *links_of(non_columns)]}
        chosen = choose_columns(paths, options)
        refuse_links(non_columns, [paths[alias] for alias in chosen], name)
        columns = (_column(paths[alias], alias, column, datasets, metadata, name) for alias, column in chosen.items())
        return GroupContents(tuple(columns))

    layout = GroupLayout(
        parent="/",
        prefix=_PREFIX,
        steps="rewards",
        declared="total_steps",
        ignored=_IGNORED,
        facts=lambda opened, source: {},
        check=check,
    )
    return open_groups((file,), layout, describe, metadata=metadata.facts, skip_bad=options.skip_bad)


def _metadata_file(location: Location, main: SourceFile) -> SourceFile | None:
    return location.file(str(PurePosixPath(main.name).with_name(METADATA)))


def _root_attributes(file: SourceFile) -> MinariMetadata:
    """Reads the metadata from the file's attributes.

    Minari 0.4 stores metadata there. They are also used if `metadata.json` is missing.
    """
    with open_hdf5(file) as opened, reading(file.name):
        facts, _ = attribute_facts(opened, ())
    return parse_metadata(facts, file.name)


def _column(
    path: str,
    alias: str,
    name: str,
    datasets: Mapping[str, h5py.Dataset],
    metadata: MinariMetadata,
    file: str,
) -> GroupColumn:
    """Returns the column of a dataset.

    Args:
        path: the path of the dataset in the episode's group.
        alias: the path with the entries of Tuple spaces as plain numbers.
        name: the canonical name.
        datasets: path -> dataset.
        metadata: the metadata of the Minari dataset.
        file: the name of the file, for errors.
    """
    group = path.split("/", 1)[0]
    leaf = metadata.leaves.get(alias.replace("/", "."))
    encoded = leaf is not None and leaf.encoded
    with reading(file, path):
        spec = step_spec(datasets[path], path, name, file, encoded=encoded)
    spec = replace(spec, has_final=group == "observations")
    if name == "rewards" and spec.dtype.startswith(("int", "uint")):
        # Minari writes lists of Python numbers: an episode of whole rewards is int64, the next may be float64.
        spec = replace(spec, dtype="float64")
    final = path if group == "observations" else None
    return GroupColumn(spec, path, final, reset=group == "infos", encoded=encoded)


FORMAT = Format(
    name="minari",
    probe=probe,
    open=open_,
    priority=50,
    suffixes=(".hdf5", ".h5"),
)
