"""An HDF5 file as a tree.

Sizes, layouts and heaps are validated before values are read. Links are listed, never followed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Set
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache, cached_property, partial
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from gear_data.common.extras import h5py
from gear_data.errors import BadEpisodeError, UnknownFormatError
from gear_data.ingest.location import Location, SourceFile
from gear_data.ingest.sources.hdf5.attributes import attribute_facts
from gear_data.ingest.sources.hdf5.chunk_reader import ReadRows, chunked_rows
from gear_data.ingest.sources.hdf5.datasets import check_dataset, check_heaps
from gear_data.ingest.sources.hdf5.open_file import HDF5_ERRORS, hdf5_files, open_hdf5, reading
from gear_data.ingest.sources.tree.view import (
    ARRAY,
    EXTERNAL_LINK,
    GROUP,
    MAX_NAMES,
    SOFT_LINK,
    Container,
    TreeArray,
    join,
    natural_order,
    too_many_names,
)
from gear_data.schema import VARIABLE_TYPES

#: Groups whose children are kept in memory.
_LISTED = 1000


def hdf5_trees(location: Location) -> tuple[Container, ...]:
    """Returns the HDF5 files of a source, in natural order.

    Raises:
        UnknownFormatError: there is no HDF5 file.
    """
    files = hdf5_files(location)
    if not files:
        raise UnknownFormatError("holds no HDF5 file", hint="leave --format out")
    return tuple(map(hdf5_tree, files))


def hdf5_tree(file: SourceFile) -> Container:
    """Returns an HDF5 file that can be opened as a tree."""
    return Container(file.name, file.size, partial(open_tree, file))


@contextmanager
def open_tree(file: SourceFile) -> Iterator[Hdf5Tree]:
    """Opens an HDF5 file as a tree."""
    with open_hdf5(file) as opened:
        yield Hdf5Tree(opened, file)


@dataclass(frozen=True)
class Hdf5Tree:
    """An open HDF5 file as a `Tree`.

    Attributes:
        file: the open file.
        source: the file, for sizes and messages.
        listed: path of a group -> its children, if they have been listed.
        opened: path and group of the array that was opened last, and of its parents.
        visited: the group whose names were read last: its path, the group, and path in the group -> type of the link.
    """

    file: h5py.File
    source: SourceFile
    listed: dict[str, Mapping[str, str]] = field(default_factory=dict)
    opened: list[tuple[str, h5py.Group]] = field(default_factory=list)
    visited: list[tuple[str, h5py.Group, Mapping[str, int]]] = field(default_factory=list)

    @property
    def name(self) -> str:
        return self.source.name

    def children(self, group: str) -> Mapping[str, str]:
        if group not in self.listed:
            if len(self.listed) >= _LISTED:
                self.listed.clear()
            self.listed[group] = self._list(group)
        return self.listed[group]

    def _list(self, group: str) -> Mapping[str, str]:
        links: list[tuple[bytes, int]] = []

        def visit(name: bytes, info: Any) -> None:
            links.append((name, info.type))  # h5py calls this from C, so it must not raise

        with reading(self.name, group or None):
            opened = self._group(group)
            if opened is None:
                return {}
            opened.id.links.iterate(visit, info=True)
            found = {}
            for name, link in links:
                if link != h5py.h5l.TYPE_HARD:
                    found[name.decode()] = EXTERNAL_LINK if link == h5py.h5l.TYPE_EXTERNAL else SOFT_LINK
                elif (kind := _kind(opened, name)) is not None:
                    found[name.decode()] = kind
        return dict(sorted(found.items(), key=lambda item: natural_order(item[0])))

    def names(self, group: str) -> Set[str]:
        links: list[tuple[bytes, int]] = []

        def visit(path: bytes, info: Any) -> bool | None:
            # h5py calls this from C, so it must not raise. True stops the walk.
            links.append((path, info.type))
            return True if len(links) > MAX_NAMES else None

        self.visited.clear()
        with reading(self.name, group or None):
            opened = self._group(group)
            if opened is None:
                return frozenset()
            opened.id.links.visit(visit, info=True)
            if len(links) > MAX_NAMES:
                raise too_many_names(self.name, group)
            types = {path.decode(): kind for path, kind in links}
        self.visited.append((group, opened, types))
        return types.keys()

    def array(self, path: str) -> TreeArray | None:
        with reading(self.name, path):
            item = self._item(path)
            if not isinstance(item, h5py.h5d.DatasetID):
                return None
            if item.shape is None:
                return TreeArray(path, (), "no value", lambda start, stop: np.zeros(0))
            shape = check_dataset(item, self.source.size)
            return _Dataset(item, self.source, path, shape, item.dtype.newbyteorder("=")).as_array()

    def attributes(self, group: str) -> Mapping[str, Any]:
        with reading(self.name, group or None):
            opened = self._group(group)
            return {} if opened is None else attribute_facts(opened)

    def _item(self, path: str) -> Any:
        """Opens an object; returns None if it does not exist, or a link to elsewhere is on the way."""
        for group, opened, types in self.visited:
            inside = path[len(group) :].lstrip("/")
            if path == join(group, inside):  # the types of all links on the way are known
                is_hard = all(types.get(each) == h5py.h5l.TYPE_HARD for each in (inside, *_parents(inside)))
                return h5py.h5o.open(opened.id, inside.encode()) if is_hard else None
        parent, _, name = path.rpartition("/")
        above = self._group(parent)
        return None if above is None else _open(above, name)

    def _group(self, path: str) -> h5py.Group | None:
        while self.opened and not f"{path}/".startswith(f"{self.opened[-1][0]}/"):
            self.opened.pop()
        at, group = self.opened[-1] if self.opened else ("", self.file)
        for name in path[len(at) :].strip("/").split("/") if path != at else ():
            item = _open(group, name)
            if not isinstance(item, h5py.h5g.GroupID):
                return None
            at, group = join(at, name), h5py.Group(item)
            self.opened.append((at, group))
        return group


@cache
def _parents(path: str) -> tuple[str, ...]:
    parts = path.split("/")
    return tuple("/".join(parts[:i]) for i in range(1, len(parts)))


@cache
def _dtype_name(dtype: np.dtype[Any]) -> str:
    return str(dtype)


def _kind(group: h5py.Group, name: bytes) -> str | None:
    """Returns the kind of an object; None if it is neither a group nor an array."""
    try:
        kinds = {h5py.h5o.TYPE_GROUP: GROUP, h5py.h5o.TYPE_DATASET: ARRAY}
        return kinds.get(h5py.h5o.get_info(group.id, name).type)
    except HDF5_ERRORS:
        return ARRAY  # opening it raises the error


def _open(group: h5py.Group, name: str) -> Any:
    """Opens an object by its name.

    Returns None if it does not exist, or is a link to elsewhere.
    """
    encoded = name.encode()
    links = group.id.links
    if not name or not links.exists(encoded) or links.get_info(encoded).type != h5py.h5l.TYPE_HARD:
        return None
    return h5py.h5o.open(group.id, encoded)


@dataclass(frozen=True)
class _Dataset:
    """A checked dataset; `dtype` is in native byte order."""

    id: h5py.h5d.DatasetID
    source: SourceFile
    path: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    def as_array(self) -> TreeArray:
        if self.dtype.kind in "biuf":
            return TreeArray(self.path, self.shape, _dtype_name(self.dtype), self._rows)
        if h5py.check_string_dtype(self.dtype) is not None:
            raw = self._read_raw if self.dtype.kind == "S" and len(self.shape) == 1 else None
            return TreeArray(self.path, self.shape, "string", self._read_variable, raw=raw)
        base = h5py.check_vlen_dtype(self.dtype)
        if base is not None and np.dtype(base) == np.uint8:
            return TreeArray(self.path, self.shape, "binary", self._read_variable)
        return TreeArray(self.path, self.shape, str(self.dtype), self._read)

    @cached_property
    def _rows(self) -> ReadRows:
        """Reads the rows [start, stop)."""
        return chunked_rows(self.id, self._read, self.source.name, self.path)

    def _read(self, start: int, stop: int) -> npt.NDArray[Any]:
        with reading(self.source.name, self.path):
            if not self.shape or (start, stop) == (0, self.shape[0]):
                values = np.empty(self.shape, self.dtype)
                if values.size:
                    self.id.read(h5py.h5s.ALL, h5py.h5s.ALL, values)
                return values.reshape(-1) if not self.shape else values
            return np.ascontiguousarray(h5py.Dataset(self.id)[start:stop].astype(self.dtype, copy=False))

    def _read_raw(self, start: int, stop: int) -> npt.NDArray[np.uint8]:
        values = self._rows(start, stop)
        return values.view(np.uint8).reshape(len(values), -1)

    def _read_variable(self, start: int, stop: int) -> pa.Array:
        with reading(self.source.name, self.path):
            values: Iterable[Any]
            if self.dtype.kind == "S":
                values = np.ravel(self._rows(start, stop))
            else:
                values = np.ravel(self._checked[start:stop]) if self.shape else [self._checked[()]]
            if self._is_text:
                return pa.array(self._texts(values, start), VARIABLE_TYPES["string"])
            return pa.array([bytes(value) for value in values], VARIABLE_TYPES["binary"])

    @cached_property
    def _checked(self) -> h5py.Dataset:
        """The dataset, after its heaps were checked."""
        dataset = h5py.Dataset(self.id)
        check_heaps(dataset)
        return dataset

    @property
    def _is_text(self) -> bool:
        return h5py.check_string_dtype(self.dtype) is not None

    def _texts(self, values: Iterable[Any], start: int) -> list[str]:
        texts = []
        for row, value in enumerate(values, start):
            try:
                texts.append(value if isinstance(value, str) else bytes(value).decode())
            except UnicodeDecodeError as error:
                raise BadEpisodeError(
                    f"step {row} is not UTF-8", file=self.source.name, column=self.path, row=row
                ) from error
        return texts
