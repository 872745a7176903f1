"""robomimic HDF5: one group per demonstration, filters under `mask/`.

A group `data/demo_{i}` has `actions`, `obs/*`, `next_obs/*`, `rewards`, `dones` and `states`. Isaac Lab, LIBERO and
MimicGen write this layout, too.

Layout: https://robomimic.github.io/docs/datasets/overview.html. The numbers of demonstrations may have gaps. The
attributes that count samples may be wrong, so the datasets are counted. `obs/x` becomes `observations.x`; the last row
of `next_obs/x` is its final observation. The other rows of `next_obs/x` repeat `obs/x` and are not stored.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import h5py

from gear_data.errors import BadEpisodeError, GearError, UnknownFormatError
from gear_data.ingest.findings.log import Finding, FindingLog
from gear_data.ingest.location import Location, SourceFile
from gear_data.ingest.source import Format, SourceOptions
from gear_data.ingest.sources.hdf5.attributes import attribute_facts
from gear_data.ingest.sources.hdf5.episode_reader import GroupContents
from gear_data.ingest.sources.hdf5.group_layout import GroupLayout
from gear_data.ingest.sources.hdf5.grouped_source import GroupedEpisodeSource, open_groups
from gear_data.ingest.sources.hdf5.open_file import hdf5_files, open_hdf5, reading
from gear_data.ingest.sources.robomimic.contents import SCENE_STATES, STEPS, describe
from gear_data.ingest.sources.robomimic.file_facts import DATA, DEMONSTRATIONS, TOTAL, read_file_facts, read_filters

_PREFIX = "demo_"


def probe(location: Location) -> str | None:
    """Returns the reason if the first HDF5 file is robomimic's; otherwise None."""
    files = hdf5_files(location)
    if not files:
        return None
    try:
        with open_hdf5(files[0]) as file, reading(files[0].name):
            data = file.get(DATA)
            if not isinstance(data, h5py.Group):
                return None
            names = (key for key in data if re.fullmatch(_PREFIX + "[0-9]+", key))
            # Isaac Lab writes a demonstration without steps if an environment is reset twice.
            name = next((name for name in names if isinstance(data.get(f"{name}/{STEPS}"), h5py.Dataset)), None)
            if name is not None:
                return f"robomimic HDF5: {DATA}/{name} in {files[0].name} has '{STEPS}'"
    except GearError:
        pass  # a damaged file is not recognised as robomimic
    return None


def open_(location: Location, options: SourceOptions) -> GroupedEpisodeSource:
    """Opens robomimic HDF5 files. Raises UnknownFormatError without HDF5 files."""
    files = hdf5_files(location)
    if not files:
        raise UnknownFormatError("holds no HDF5 file", file=location.name, hint="leave --format out")
    facts = read_file_facts(files)

    def episode_facts(file: h5py.File, source: SourceFile) -> Mapping[str, Mapping[str, Any]]:
        own, filters = facts.own[files.index(source)], read_filters(file, source)
        if not own:
            return {demo: {"mask": names} for demo, names in filters.items()}
        return {demo: {**own, "mask": filters.get(demo)} for demo in file[DATA]}

    layout = GroupLayout(
        parent=DATA,
        prefix=_PREFIX,
        steps=STEPS,
        declared="num_samples",
        ignored=frozenset(),
        facts=episode_facts,
        check=_check_counts,
    )
    left_out = None
    if facts.has_several_tasks and options.columns is None and SCENE_STATES not in (options.rename or {}):
        left_out = _differing_states(files, layout)

    def describe_group(
        datasets: Mapping[str, h5py.Dataset], non_columns: Mapping[str, str], name: str
    ) -> GroupContents:
        if left_out is not None:
            datasets = {path: dataset for path, dataset in datasets.items() if path != SCENE_STATES}
        return describe(datasets, non_columns, name, options)

    source = open_groups(files, layout, describe_group, metadata=facts.shared, skip_bad=options.skip_bad)
    for finding in (*facts.findings, *([] if left_out is None else [left_out])):
        source.findings.add(finding)
    return source


def _differing_states(files: Sequence[SourceFile], layout: GroupLayout) -> Finding | None:
    """Returns a finding if the states of the simulator differ in width between files.

    A scene of each task has its own objects, and `states` holds the state of all of them. A column has one shape.
    """
    shapes: dict[tuple[int, ...], str] = {}
    for file in files:
        with open_hdf5(file) as opened:
            for number, key in layout.episodes(opened, file.name)[:1]:
                with reading(file.name, SCENE_STATES, number), suppress(BadEpisodeError):
                    group = layout.group(opened[DATA], file.name, number, key)
                    if isinstance(group.get(SCENE_STATES, getlink=True), h5py.HardLink):
                        states = group[SCENE_STATES]
                        if isinstance(states, h5py.Dataset):
                            shapes.setdefault(states.shape[1:], file.name)
    if len(shapes) < 2:
        return None
    (shape, first), (other_shape, other) = list(shapes.items())[:2]
    message = (
        f"has rows of shape {shape} in {first} and {other_shape} in {other}: each task has its own scene; left out"
    )
    return Finding("column-left-out", message, 1, other, column=SCENE_STATES)


def _check_counts(file: h5py.File, name: str, episodes: int, steps: int, findings: FindingLog) -> None:
    with reading(name):
        declared = attribute_facts(file[DATA], ())[0]
    for attribute, unit, counted in ((TOTAL, "steps", steps), (DEMONSTRATIONS, "demonstrations", episodes)):
        if attribute in declared and declared[attribute] != counted:
            message = f"'{attribute}' is {declared[attribute]}, but there are {counted} {unit}; all are read"
            findings.add(Finding("metadata-disagrees", message, file=name, column=attribute))


FORMAT = Format(
    name="robomimic",
    probe=probe,
    open=open_,
    priority=45,
    suffixes=(".hdf5", ".h5"),
)
