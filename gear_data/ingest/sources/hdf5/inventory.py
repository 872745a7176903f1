"""Inventory of an HDF5 group: datasets, and entries that cannot be columns.

Soft and external links are listed, never followed: nothing outside the file is read.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import h5py
from h5py import h5l

from gear_data.errors import CorruptSourceError, UnsupportedColumnError
from gear_data.ingest.sources.hdf5.open_file import reading

_MAX_LINKS = 100_000
_SOFT, _EXTERNAL = "a soft link", "an external link"
SCALAR = "a scalar"
LEAVE_OUT = "name the columns to keep with --columns (columns=[...]), without this one"


def links_below(group: h5py.Group, file: str) -> dict[str, int]:
    """Lists every link below a group, by name: path -> type (`h5py.h5l.TYPE_*`).

    Raises:
        CorruptSourceError: the group has more than 100,000 links, or is damaged.
    """
    links: list[tuple[bytes, int]] = []

    def visit(path: bytes, info: Any) -> bool | None:
        # h5py calls this from C, so it must not raise. True stops the walk.
        links.append((path, info.type))
        return True if len(links) > _MAX_LINKS else None

    with reading(file):
        group.id.links.visit(visit, info=True)
        if len(links) > _MAX_LINKS:
            raise CorruptSourceError(
                f"has more than {_MAX_LINKS} groups and datasets in '{group.name}'",
                file=file,
                hint="copy the datasets of steps to a new file: h5copy -i OLD -o NEW -s NAME -d NAME",
            )
        return {path.decode(): kind for path, kind in links}


def inventory(group: h5py.Group, file: str) -> tuple[dict[str, h5py.Dataset], dict[str, str]]:
    """Sorts the contents of a group into datasets with rows and other entries.

    Returns:
        Path -> dataset, in order of names; and path -> kind ("a scalar", "a soft link", "an external link") of the
        entries that cannot be columns.

    Raises:
        CorruptSourceError: the group has too many links, or the file is damaged.
    """
    datasets: dict[str, h5py.Dataset] = {}
    non_columns: dict[str, str] = {}
    for path, kind in links_below(group, file).items():
        if kind != h5l.TYPE_HARD:
            non_columns[path] = _EXTERNAL if kind == h5l.TYPE_EXTERNAL else _SOFT
            continue
        with reading(file, path):
            item = group[path]
        if isinstance(item, h5py.Dataset):
            if item.shape:
                datasets[path] = item
            else:
                non_columns[path] = SCALAR
    return datasets, non_columns


def links_of(non_columns: Mapping[str, str]) -> list[str]:
    """Returns the links among the entries of `inventory` that cannot be columns.

    A link may be meant as a column. So offer links together with the datasets, and call `refuse_links` on the chosen
    columns.
    """
    return [path for path, kind in non_columns.items() if kind in (_SOFT, _EXTERNAL)]


def refuse_links(non_columns: Mapping[str, str], chosen: Iterable[str], file: str) -> None:
    """Raises UnsupportedColumnError if one of the chosen columns is a link."""
    for path in chosen:
        if path in non_columns:
            raise UnsupportedColumnError(
                f"is {non_columns[path]}, which is not followed",
                file=file,
                column=path,
                hint=f"copy the data behind the link into the file, or {LEAVE_OUT}",
            )
