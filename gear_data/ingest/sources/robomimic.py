"""robomimic HDF5: `data/demo_{i}/{actions, obs/*, next_obs/*, rewards, dones, states}`, filters under `mask/`.

Layout: https://robomimic.github.io/docs/datasets/overview.html. Numbers of demonstrations may have gaps, and the
attributes that count samples need not be true: the datasets are. `obs/x` becomes `observations.x`; the last row of
`next_obs/x` is its final observation, the others repeat `obs/x` and are not stored.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import h5py

from gear_data.errors import GearError, UnknownFormatError
from gear_data.ingest.findings.log import Finding, FindingLog
from gear_data.ingest.location import Location, SourceFile
from gear_data.ingest.pipeline.columns import choose_columns
from gear_data.ingest.source import Format, SourceOptions
from gear_data.ingest.sources.hdf5.episode_reader import GroupColumn
from gear_data.ingest.sources.hdf5.file import (
    attribute_facts,
    check_dataset,
    hdf5_files,
    inventory,
    links_of,
    open_hdf5,
    plain,
    reading,
    refuse_links,
    step_spec,
)
from gear_data.ingest.sources.hdf5.grouped_source import GroupedEpisodeSource, GroupLayout, open_groups
from gear_data.ingest.sources.hdf5.heap_checks import check_heaps

_PARENT = "data"
_PREFIX = "demo_"
_STEPS = "actions"
_TOTAL = "total"
_MASKS = "mask"
_OBSERVATIONS, _FOLLOWING = "obs/", "next_obs/"


def probe(location: Location) -> str | None:
    files = hdf5_files(location)
    if not files:
        return None
    try:
        with open_hdf5(files[0]) as file, reading(files[0].name):
            data = file.get(_PARENT)
            if not isinstance(data, h5py.Group):
                return None
            name = next((key for key in data if re.fullmatch(_PREFIX + "[0-9]+", key)), None)
            if name is not None and isinstance(data.get(f"{name}/{_STEPS}"), h5py.Dataset):
                return f"robomimic HDF5: {_PARENT}/{name} in {files[0].name} has '{_STEPS}'"
    except GearError:
        pass  # whatever it is, it is not known to be robomimic
    return None


def open_(location: Location, options: SourceOptions) -> GroupedEpisodeSource:
    files = hdf5_files(location)
    if not files:
        raise UnknownFormatError("holds no HDF5 file", file=location.name)
    with open_hdf5(files[0]) as first, reading(files[0].name):
        if not isinstance(first.get(_PARENT), h5py.Group):
            raise UnknownFormatError(f"has no group '{_PARENT}'", file=files[0].name)
        metadata, _ = attribute_facts(first[_PARENT], {_TOTAL})

    def describe(datasets: Mapping[str, h5py.Dataset], others: Mapping[str, str], name: str) -> list[GroupColumn]:
        paths = [path for path in [*datasets, *links_of(others)] if not path.startswith(_FOLLOWING)]
        chosen = choose_columns(paths, options)
        refuse_links(others, chosen, name)
        return [_column(path, column, datasets, name) for path, column in chosen.items()]

    layout = GroupLayout(_PARENT, _PREFIX, _STEPS, "num_samples", frozenset(), _filters, _check)
    return open_groups(files, layout, describe, metadata=metadata, skip_bad=options.skip_bad)


def _column(path: str, name: str, datasets: Mapping[str, h5py.Dataset], file: str) -> GroupColumn:
    following = _FOLLOWING + path.removeprefix(_OBSERVATIONS) if path.startswith(_OBSERVATIONS) else None
    final = following if following in datasets else None
    with reading(file, path):
        spec = step_spec(datasets[path], path, name, file, has_final=final is not None)
    return GroupColumn(spec, path, final if spec.has_final else None)


def _filters(file: h5py.File, source: SourceFile) -> Mapping[str, Mapping[str, str | None]]:
    """Of every demonstration that a filter lists, `mask`: the names of its filters, joined by commas."""
    masks: dict[str, list[str]] = {}
    if isinstance(file.get(_MASKS), h5py.Group):
        for mask, listed in inventory(file[_MASKS], source.name)[0].items():
            check_heaps(listed)
            check_dataset(listed.id, source, f"{_MASKS}/{mask}")
            for demo in map(plain, listed[...].reshape(-1).tolist()):
                masks.setdefault(str(demo), []).append(mask)
    return {demo: {"mask": ",".join(names)} for demo, names in masks.items()}


def _check(file: h5py.File, name: str, episodes: int, steps: int, findings: FindingLog) -> None:
    with reading(name):
        declared = attribute_facts(file[_PARENT], ())[0].get(_TOTAL)
    if declared is not None and declared != steps:
        message = f"'{_TOTAL}' is {declared}, there are {steps} steps; those there are read"
        findings.add(Finding("metadata-disagrees", message, file=name, column=_TOTAL))


FORMAT = Format(
    name="robomimic",
    probe=probe,
    open=open_,
    priority=45,
    suffixes=(".hdf5", ".h5"),
)
