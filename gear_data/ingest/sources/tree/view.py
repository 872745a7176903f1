"""A lazy, read-only view of a file of named arrays: HDF5, NumPy or Zarr.

Paths have the form `group/subgroup/array`; "" is the root. Listing a group reads no values. Links are never followed.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Set
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from gear_data.common.images import byte_strings, looks_like_image
from gear_data.errors import CorruptSourceError, UnsupportedColumnError
from gear_data.ingest.findings.log import Finding
from gear_data.ingest.location import placed
from gear_data.ingest.pipeline.columns import LEAVE_OUT
from gear_data.schema import DTYPES

#: Kinds of a group's children.
GROUP, ARRAY, SOFT_LINK, EXTERNAL_LINK = "a group", "an array", "a soft link", "an external link"
LINKS = (SOFT_LINK, EXTERNAL_LINK)
#: Limits of `walk`, `contents` and `Tree.names`, which hard links in a circle would otherwise make endless.
_MAX_ARRAYS, MAX_NAMES, _MAX_DEPTH = 10_000, 100_000, 32


@dataclass(frozen=True)
class TreeArray:
    """An array whose size and layout have been checked. Its values are read later.

    Attributes:
        path: the path in the file.
        shape: the shape; () for a scalar.
        dtype: the name of the NumPy dtype in native byte order, `string`, or `binary`. Columns can have no other dtype.
        read: reads the rows [start, stop), as [rows, ...] or as an Arrow array of text or bytes. A scalar has one row.
        finding: about the array as a whole, to report when it is read; None for most.
        raw: reads rows of text of one size as uint8 [rows, bytes]; None for other values.
    """

    path: str
    shape: tuple[int, ...]
    dtype: str
    read: Callable[[int, int], npt.NDArray[Any] | pa.Array]
    finding: Finding | None = None
    raw: Callable[[int, int], npt.NDArray[np.uint8]] | None = None

    @property
    def rows(self) -> int:
        """The size of the first axis; 1 for a scalar."""
        return self.shape[0] if self.shape else 1

    @property
    def row_bytes(self) -> int:
        """The bytes of a row of numbers; 0 for other values."""
        return math.prod(self.shape[1:]) * np.dtype(self.dtype).itemsize if self.dtype in DTYPES else 0

    @property
    def kind(self) -> str:
        """The kind of the NumPy dtype: one of `biuf`; "" if the values are not numbers."""
        return np.dtype(self.dtype).kind if self.dtype in DTYPES else ""

    @property
    def holds_bytes(self) -> bool:
        """Whether a row is a byte string of one size, padded with zeros: text, or a row of uint8."""
        return self.raw is not None or (self.dtype == "uint8" and len(self.shape) == 2)

    def byte_strings(self, start: int, stop: int) -> list[bytes]:
        """Reads byte strings. Those that are images lose the zeros after their ends."""
        return byte_strings(np.asarray((self.raw or self.read)(start, stop)))

    def holds_images(self) -> bool:
        """Returns whether byte strings are encoded images, by three of them."""
        if not self.holds_bytes or not self.rows:
            return False
        return any(looks_like_image(self.byte_strings(row, row + 1)[0]) for row in (0, self.rows // 2, self.rows - 1))


class Tree(Protocol):
    """An open file of named arrays."""

    @property
    def name(self) -> str:
        """The name of the file, for messages."""

    def children(self, group: str) -> Mapping[str, str]:
        """Returns name -> `GROUP`, `ARRAY` or one of `LINKS`, in natural order."""

    def array(self, path: str) -> TreeArray | None:
        """Opens an array; returns None if no array is at the path.

        Raises:
            CorruptSourceError: the array is damaged.
        """

    def names(self, group: str) -> Set[str]:
        """Returns the paths in a group of everything below it.

        Raises:
            CorruptSourceError: the group holds more than 100,000 names, or is damaged.
        """

    def attributes(self, group: str) -> Mapping[str, Any]:
        """Returns the attributes of a group.

        An attribute that is not one number, flag or short text is None.
        """


@dataclass(frozen=True)
class NamedArrays:
    """Arrays with paths as names, as a `Tree`.

    Attributes:
        name: the name of the file or folder.
        arrays: path -> function that opens the array.
        root_attributes: the attributes of the root.
        groups: path of a group -> its children. It follows from `arrays`.
    """

    name: str
    arrays: Mapping[str, Callable[[], TreeArray]]
    root_attributes: Mapping[str, Any] = field(default_factory=dict)
    groups: dict[str, dict[str, str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.groups[""] = {}
        for path in sorted(self.arrays, key=natural_order):
            group = ""
            *parents, name = path.split("/")
            for parent in parents:
                self._add(group, parent, GROUP)
                group = join(group, parent)
                self.groups.setdefault(group, {})
            self._add(group, name, ARRAY)

    def _add(self, group: str, name: str, kind: str) -> None:
        if self.groups[group].setdefault(name, kind) != kind:
            raise CorruptSourceError(
                "is the name of an array, and the start of the names of others",
                column=join(group, name),
                hint="rename one of them",
            )

    def children(self, group: str) -> Mapping[str, str]:
        return self.groups.get(group, {})

    def array(self, path: str) -> TreeArray | None:
        opener = self.arrays.get(path)
        return None if opener is None else opener()

    def names(self, group: str) -> Set[str]:
        return contents(self, group).keys()

    def attributes(self, group: str) -> Mapping[str, Any]:
        return {} if group else self.root_attributes


@dataclass(frozen=True)
class Container:
    """A file, or a folder, that can be opened as a `Tree`.

    Attributes:
        name: the name of the file or folder.
        size: its size in bytes.
        open: opens it.
    """

    name: str
    size: int
    opener: Callable[[], AbstractContextManager[Tree]]

    @contextmanager
    def open(self) -> Iterator[Tree]:
        """Opens the tree. Errors of the block say its name, if they name no file."""
        with placed(self.name), self.opener() as tree:
            yield tree


def natural_order(text: str) -> list[tuple[int, int, str]]:
    """Returns a sort key that orders `demo_2` before `demo_10`."""
    parts = re.split(r"([0-9]+)", text)
    return [(0, int(part), part) if part.isdecimal() else (1, 0, part) for part in parts]


def walk(tree: Tree, group: str = "") -> Iterator[TreeArray]:
    """Yields all arrays below a group.

    Raises:
        CorruptSourceError: the group has more than 10,000 arrays, or is more than 32 levels deep.
    """
    for count, path in enumerate(paths_below(tree, group)):
        if count >= _MAX_ARRAYS:
            raise _too_large(group)
        array = tree.array(path)
        if array is not None:
            yield array


def paths_below(tree: Tree, group: str = "", depth: int = 0) -> Iterator[str]:
    """Yields the paths of all arrays below a group.

    The group is `depth` levels below the first one.

    Raises:
        CorruptSourceError: the group is more than 32 levels deep.
    """
    if depth > _MAX_DEPTH:
        raise _too_large(group)
    for name, kind in tree.children(group).items():
        path = join(group, name)
        if kind == ARRAY:
            yield path
        elif kind == GROUP:
            yield from paths_below(tree, path, depth + 1)


def contents(tree: Tree, group: str) -> dict[str, str]:
    """Returns everything below a group, in order of names: path in the group -> kind.

    Raises:
        CorruptSourceError: the group holds more than 100,000 names, or is more than 32 levels deep.
    """
    found: dict[str, str] = {}

    def add(path: str, depth: int) -> None:
        for name, kind in sorted(tree.children(join(group, path)).items()):
            found[join(path, name)] = kind
            if len(found) > MAX_NAMES or depth > _MAX_DEPTH:
                raise too_many_names(tree.name, group)
            if kind == GROUP:
                add(join(path, name), depth + 1)

    add("", 0)
    return found


def too_many_names(file: str, group: str) -> CorruptSourceError:
    """Returns the error about a group that holds too many names."""
    return CorruptSourceError(
        f"has more than {MAX_NAMES} groups and arrays in '{group or '/'}', or is over {_MAX_DEPTH} levels deep",
        file=file,
        hint="copy the arrays of steps to a new file",
    )


def not_followed(path: str, kind: str) -> UnsupportedColumnError:
    """Returns the error about a column that is a link."""
    return UnsupportedColumnError(
        f"is {kind}, which is not followed",
        column=path,
        hint=f"copy the data behind the link into the file, or {LEAVE_OUT}",
    )


def _too_large(group: str) -> CorruptSourceError:
    return CorruptSourceError(
        f"'{group or '/'}' holds over {_MAX_ARRAYS} arrays, or is over {_MAX_DEPTH} levels deep",
        hint="say where the episodes are with --map: see 'gear-data lint SRC --suggest-map'",
    )


def matching(tree: Tree, pattern: str, kind: str) -> list[str]:
    """Returns the paths of all groups, or arrays, that match a glob.

    They are in natural order. `*` is part of one name, and `**` is any number of groups.
    """
    return list(_matching(tree, "", pattern.split("/"), kind, 0))


def _matching(tree: Tree, group: str, parts: list[str], kind: str, depth: int) -> Iterator[str]:
    if depth > _MAX_DEPTH:
        raise _too_large(group)
    children = tree.children(group)
    if parts[0] == "**" and len(parts) > 1:
        yield from _matching(tree, group, parts[1:], kind, depth + 1)
        for name, found in children.items():
            if found == GROUP:
                yield from _matching(tree, join(group, name), parts, kind, depth + 1)
        return
    for name, found in children.items():
        if not fnmatchcase(name, parts[0]):
            continue
        if len(parts) == 1 and found == kind:
            yield join(group, name)
        elif len(parts) > 1 and found == GROUP:
            yield from _matching(tree, join(group, name), parts[1:], kind, depth + 1)


def join(group: str, name: str) -> str:
    """Returns the path of a name in a group."""
    return f"{group}/{name}" if group and name else group or name
