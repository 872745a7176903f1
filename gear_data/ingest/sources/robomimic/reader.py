"""robomimic HDF5: one group per demonstration, filters under `mask/`.

A group `data/demo_{i}` has `actions`, `obs/*`, `next_obs/*`, `rewards`, `dones` and `states`.

Layout: https://robomimic.github.io/docs/datasets/overview.html. The numbers of demonstrations may have gaps. The
attributes that count samples may be wrong, so the datasets are counted. `obs/x` becomes `observations.x`; the last row
of `next_obs/x` is its final observation. The other rows of `next_obs/x` repeat `obs/x` and are not stored.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import h5py

from gear_data.errors import GearError, UnknownFormatError
from gear_data.ingest.findings.log import Finding, FindingLog
from gear_data.ingest.location import Location, SourceFile
from gear_data.ingest.source import Format, SourceOptions
from gear_data.ingest.sources.hdf5.attributes import attribute_facts, plain_value
from gear_data.ingest.sources.hdf5.datasets import check_dataset
from gear_data.ingest.sources.hdf5.episode_reader import GroupContents
from gear_data.ingest.sources.hdf5.group_layout import GroupLayout
from gear_data.ingest.sources.hdf5.grouped_source import GroupedEpisodeSource, open_groups
from gear_data.ingest.sources.hdf5.heap_checks import check_heaps
from gear_data.ingest.sources.hdf5.inventory import inventory
from gear_data.ingest.sources.hdf5.open_file import hdf5_files, open_hdf5, reading
from gear_data.ingest.sources.robomimic.contents import STEPS, describe

_PARENT = "data"
_PREFIX = "demo_"
_TOTAL = "total"
_MASKS = "mask"


def probe(location: Location) -> str | None:
    """Returns the reason if the first HDF5 file is robomimic's; otherwise None."""
    files = hdf5_files(location)
    if not files:
        return None
    try:
        with open_hdf5(files[0]) as file, reading(files[0].name):
            data = file.get(_PARENT)
            if not isinstance(data, h5py.Group):
                return None
            name = next((key for key in data if re.fullmatch(_PREFIX + "[0-9]+", key)), None)
            if name is not None and isinstance(data.get(f"{name}/{STEPS}"), h5py.Dataset):
                return f"robomimic HDF5: {_PARENT}/{name} in {files[0].name} has '{STEPS}'"
    except GearError:
        pass  # a damaged file is not recognised as robomimic
    return None


def open_(location: Location, options: SourceOptions) -> GroupedEpisodeSource:
    """Opens robomimic HDF5 files. Raises UnknownFormatError if there are none."""
    files = hdf5_files(location)
    if not files:
        raise UnknownFormatError("holds no HDF5 file", file=location.name, hint="leave --format out")
    with open_hdf5(files[0]) as first, reading(files[0].name):
        if not isinstance(first.get(_PARENT), h5py.Group):
            raise UnknownFormatError(f"has no group '{_PARENT}'", file=files[0].name, hint="leave --format out")
        metadata, _ = attribute_facts(first[_PARENT], {_TOTAL})

    def describe_group(
        datasets: Mapping[str, h5py.Dataset], non_columns: Mapping[str, str], name: str
    ) -> GroupContents:
        return describe(datasets, non_columns, name, options)

    layout = GroupLayout(
        parent=_PARENT,
        prefix=_PREFIX,
        steps=STEPS,
        declared="num_samples",
        ignored=frozenset(),
        facts=_filters,
        check=_check_total,
    )
    return open_groups(files, layout, describe_group, metadata=metadata, skip_bad=options.skip_bad)


def _filters(file: h5py.File, source: SourceFile) -> Mapping[str, Mapping[str, str | None]]:
    """Returns the fact `mask` of each filtered demonstration.

    It is the names of the demonstration's filters, joined by commas.
    """
    masks: dict[str, list[str]] = {}
    if isinstance(file.get(_MASKS), h5py.Group):
        for mask, listed in inventory(file[_MASKS], source.name)[0].items():
            check_heaps(listed)
            check_dataset(listed.id, source, f"{_MASKS}/{mask}")
            for demo in map(plain_value, listed[...].reshape(-1).tolist()):
                masks.setdefault(str(demo), []).append(mask)
    return {demo: {"mask": ",".join(names)} for demo, names in masks.items()}


def _check_total(file: h5py.File, name: str, episodes: int, steps: int, findings: FindingLog) -> None:
    with reading(name):
        declared = attribute_facts(file[_PARENT], ())[0].get(_TOTAL)
    if declared is not None and declared != steps:
        message = f"'{_TOTAL}' is {declared}, but there are {steps} steps; all are read"
        findings.add(Finding("metadata-disagrees", message, file=name, column=_TOTAL))


FORMAT = Format(
    name="robomimic",
    probe=probe,
    open=open_,
    priority=45,
    suffixes=(".hdf5", ".h5"),
)
