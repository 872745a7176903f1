"""Minari HDF5: `data/main_data.hdf5` with a group an episode, and `data/metadata.json`.

Layout: https://minari.farama.org/content/dataset_standards (versions 0.4 and 0.5). `observations` has a row more than
there are steps: the last is the final observation. `infos`, if it has one more too, begins with what `reset` returned;
`infos.x[t]` is here what step t returned. Dict spaces are groups, Tuple spaces groups of `_index_0`, `_index_1`, ...;
text is UTF-8; images are JPEG bytes where their space is an image's and the dataset encodes them.
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
from gear_data.ingest.sources.hdf5.episode_reader import GroupColumn
from gear_data.ingest.sources.hdf5.file import (
    attribute_facts,
    hdf5_files,
    links_of,
    open_hdf5,
    reading,
    refuse_links,
    step_spec,
)
from gear_data.ingest.sources.hdf5.grouped_source import GroupedEpisodeSource, GroupLayout, open_groups
from gear_data.ingest.sources.minari.metadata import METADATA, MinariMetadata, parse_metadata, read_metadata

_MAIN = "main_data.hdf5"
_PREFIX = "episode_"
_INDEX = re.compile(r"(?<=/)_index_([0-9]+)")
_REQUIRED = ("observations", "actions", "rewards", "terminations", "truncations")
#: Of an episode: its number and length, which the file shows, and sums that follow from its rewards.
_IGNORED = frozenset({"id", "rewards_max", "rewards_mean", "rewards_min", "rewards_std", "rewards_sum"})


def probe(location: Location) -> str | None:
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
        pass  # whatever it is, it is not known to be Minari
    return None


def open_(location: Location, options: SourceOptions) -> GroupedEpisodeSource:
    files = _main_files(location)
    if len(files) != 1:
        found = "holds no Minari HDF5 file" if not files else f"holds {len(files)} Minari datasets"
        names = ", ".join(str(PurePosixPath(file.name).parent) for file in files[:10])
        raise UnknownFormatError(found, file=location.name, hint=f"convert one of: {names}" if files else None)
    return _open_file(files[0], _metadata_file(location, files[0]), options)


def _main_files(location: Location) -> tuple[SourceFile, ...]:
    files = hdf5_files(location)
    return tuple(file for file in files if PurePosixPath(file.name).name == _MAIN) if location.folder else files


def _open_file(file: SourceFile, beside: SourceFile | None, options: SourceOptions) -> GroupedEpisodeSource:
    metadata = _root_attributes(file) if beside is None else read_metadata(beside)

    def check(opened: h5py.File, name: str, episodes: int, steps: int, findings: FindingLog) -> None:
        metadata.note_counts(episodes, steps, findings)

    def describe(datasets: Mapping[str, h5py.Dataset], others: Mapping[str, str], name: str) -> list[GroupColumn]:
        paths = {_INDEX.sub(r"\1", path): path for path in [*datasets, *links_of(others)]}
        chosen = choose_columns(paths, options)
        refuse_links(others, [paths[alias] for alias in chosen], name)
        return [_column(paths[alias], alias, column, datasets, metadata, name) for alias, column in chosen.items()]

    layout = GroupLayout("/", _PREFIX, "rewards", "total_steps", _IGNORED, lambda opened, source: {}, check)
    return open_groups((file,), layout, describe, metadata=metadata.facts, skip_bad=options.skip_bad)


def _metadata_file(location: Location, main: SourceFile) -> SourceFile | None:
    return location.file(str(PurePosixPath(main.name).with_name(METADATA)))


def _root_attributes(file: SourceFile) -> MinariMetadata:
    """What files of Minari 0.4, and files without the one beside them, say of themselves."""
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
    group = path.split("/", 1)[0]
    leaf = metadata.leaves.get(alias.replace("/", "."))
    encoded = leaf is not None and leaf.encoded
    with reading(file, path):
        spec = step_spec(datasets[path], path, name, file, encoded=encoded)
    spec = replace(spec, has_final=group == "observations")
    if name == "rewards" and spec.dtype.startswith(("int", "uint")):
        # Minari writes lists of Python numbers: whole rewards in one episode make int64, in the next float64.
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
