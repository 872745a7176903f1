"""HDF5 files of strangers: opened, looked through and read without trusting what they say of themselves.

Nothing outside the file is touched (no links to other files, no external or virtual storage), no Python object is made
but text and bytes, and a size is believed only as far as the file has bytes for it.
"""

from __future__ import annotations

import math
from collections.abc import Container, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import h5py
import numpy as np
import numpy.typing as npt
import pyarrow as pa
from h5py import h5a, h5d, h5l, h5s

from gear_data.errors import CorruptSourceError, GearError, UnsupportedColumnError
from gear_data.ingest.location import Location, SourceFile
from gear_data.ingest.pipeline.columns import SCALAR_COLUMNS
from gear_data.ingest.sources.hdf5.chunk_checks import check_chunk_sizes
from gear_data.ingest.sources.hdf5.heap_checks import ELEMENT_BYTES, check_heaps, is_variable
from gear_data.ingest.sources.tables.to_numpy import IrregularRowsError
from gear_data.schema import DTYPES, VARIABLE_TYPES, ColumnSpec

_SUFFIXES = (".hdf5", ".h5")
_MAX_LINKS = 100_000
#: One row of a column, and one chunk: HDF5 reads and decompresses chunks whole.
_MAX_PIECE_BYTES = 1 << 30
#: Up to here a dataset may claim what it likes: rows that were never written read as the fill value.
_FREE_BYTES = 64 << 20
#: Of bytes claimed to bytes in the file, beyond `_FREE_BYTES`. Deflate stops at 1,032, real data far below this.
_MAX_RATIO = 200
#: Episode facts and attributes that are longer are not kept: model files and the like.
_MAX_FACT_BYTES = 10_000
_SOFT, _EXTERNAL = "a soft link", "an external link"
SCALAR = "a scalar"
LEAVE_OUT = "name the columns to keep with --columns (columns=[...]), leaving this one out"


def hdf5_files(location: Location) -> tuple[SourceFile, ...]:
    """The HDF5 files of a location, in natural order."""
    return location.with_suffix(*_SUFFIXES)


def open_hdf5(file: SourceFile) -> h5py.File:
    """Raises CorruptSourceError: empty, cut short, a Git-LFS pointer, not HDF5."""
    file.check_readable()
    with reading(file.name):
        return h5py.File(file.path if file.filesystem is None else file.open(), "r")


#: SystemError: from h5py's walk over the links of a damaged group.
_RAISED = (OSError, RuntimeError, LookupError, ValueError, TypeError, ArithmeticError, MemoryError, SystemError)


@contextmanager
def reading(file: str, column: str | None = None, row: int | None = None) -> Iterator[None]:
    """Turns what h5py raises for a damaged file into CorruptSourceError.

    h5py raises nearly every builtin kind there: the error of the C library is mapped to one by its class, and damaged
    types and texts fail in NumPy and in Python's codecs.
    """
    try:
        yield
    except GearError:
        raise
    except _RAISED as error:
        raise CorruptSourceError(
            f"not a whole HDF5 file: {error}",
            file=file,
            column=column,
            row=row,
            hint="it may have been cut short: download it again",
        ) from error


def links_below(group: h5py.Group, file: str) -> dict[str, int]:
    """Path -> type (`h5py.h5l.TYPE_*`) of every link below a group, by name. Soft and external links are not followed.

    Raises:
        CorruptSourceError: more links than any dataset has.
    """
    found: list[tuple[bytes, int]] = []

    def visit(path: bytes, info: Any) -> bool | None:  # must not raise: it is called from C
        found.append((path, info.type))
        return True if len(found) > _MAX_LINKS else None

    with reading(file):
        group.id.links.visit(visit, info=True)
        if len(found) > _MAX_LINKS:
            raise CorruptSourceError(f"has more than {_MAX_LINKS} groups and datasets in '{group.name}'", file=file)
        return {path.decode(): kind for path, kind in found}


def inventory(group: h5py.Group, file: str) -> tuple[dict[str, h5py.Dataset], dict[str, str]]:
    """What is below a group: datasets that have rows by path, in order of names; and what cannot be a column (scalars,
    links to elsewhere), with what it is.

    Raises:
        CorruptSourceError: more links than any dataset has, or a damaged file.
    """
    datasets: dict[str, h5py.Dataset] = {}
    others: dict[str, str] = {}
    for path, kind in links_below(group, file).items():
        if kind != h5l.TYPE_HARD:
            others[path] = _EXTERNAL if kind == h5l.TYPE_EXTERNAL else _SOFT
            continue
        with reading(file, path):
            found = group[path]
        if isinstance(found, h5py.Dataset):
            if found.shape:
                datasets[path] = found
            else:
                others[path] = SCALAR
    return datasets, others


def links_of(others: Mapping[str, str]) -> list[str]:
    """Of what `inventory` says is no dataset, the links: they may be meant as columns, which `refuse_links` answers."""
    return [path for path, what in others.items() if what in (_SOFT, _EXTERNAL)]


def refuse_links(others: Mapping[str, str], chosen: Iterable[str], file: str) -> None:
    """Raises UnsupportedColumnError where one of the chosen columns is a link."""
    for path in chosen:
        if path in others:
            raise UnsupportedColumnError(
                f"is {others[path]}, which is not followed",
                file=file,
                column=path,
                hint=f"copy what it points to into the file, or {LEAVE_OUT}",
            )


def check_dataset(dataset: h5d.DatasetID, file: SourceFile, column: str) -> tuple[int, ...]:
    """That reading a dataset reads this file alone, and allocates no more than the file has data for; its shape.

    Raises:
        CorruptSourceError: its data is in other files, of an absurd size, or in chunks too short for it.
    """
    plist, shape = dataset.get_create_plist(), dataset.shape
    layout = plist.get_layout()
    if layout == h5d.VIRTUAL or plist.get_external_count():
        raise CorruptSourceError(
            "keeps its data in other files, which are not followed",
            file=file.name,
            column=column,
            hint="write it into one file: h5py.File(new, 'w')[column] = old[column][...]",
        )
    if shape is None:
        raise CorruptSourceError("is a dataset without a shape", file=file.name, column=column)
    dtype = dataset.dtype
    item = dtype.itemsize
    claimed, row = math.prod(shape) * item, math.prod(shape[1:]) * item
    chunk = math.prod(plist.get_chunk()) * item if layout == h5d.CHUNKED else 0
    if max(row, chunk) > _MAX_PIECE_BYTES:
        what = "a row" if row > _MAX_PIECE_BYTES else "a chunk"
        raise CorruptSourceError(f"{what} takes {max(row, chunk)} bytes; refused", file=file.name, column=column)
    if claimed > _FREE_BYTES:
        stored = dataset.get_storage_size()
        if stored > file.size or claimed > stored * _MAX_RATIO:
            raise CorruptSourceError(
                f"claims {claimed} bytes, of which the file of {file.size} bytes stores {stored}; refused",
                file=file.name,
                column=column,
                hint="if it is what it should be, decompress it first: h5repack -f NONE OLD NEW",
            )
    if layout == h5d.CHUNKED and dtype.kind in "biuf":
        check_chunk_sizes(dataset, dataset.get_type().get_size(), file.name, column)
    elif layout == h5d.CHUNKED and is_variable(dtype):
        check_chunk_sizes(dataset, ELEMENT_BYTES, file.name, column)
    return tuple(shape)


def step_spec(
    dataset: h5py.Dataset, source: str, name: str, file: str, *, has_final: bool = False, encoded: bool = False
) -> ColumnSpec:
    """The column that a dataset of [steps, ...] becomes.

    Numbers and booleans keep dtype and shape; text becomes `string`, variable-length bytes `binary`. Rewards and end
    flags of [steps, 1] become scalars.

    Args:
        dataset: with at least one axis.
        source, name: its own name and the canonical one.
        file: for errors.
        has_final: as in `ColumnSpec`, for columns of a fixed size.
        encoded: rows of uint8 are encoded images that happen to have one length.

    Raises:
        UnsupportedColumnError: objects, references, compounds, and anything else that no column holds.
    """
    own_name = None if source == name else source
    dtype = _variable_dtype(dataset)
    if encoded and dtype is None and dataset.dtype == np.uint8 and dataset.ndim == 2:
        dtype = "binary"
    shape = tuple(int(n) for n in dataset.shape[1:])
    if dtype is not None and (shape == () or encoded) and name not in SCALAR_COLUMNS:
        return ColumnSpec(name, dtype, source=own_name)
    kind = dataset.dtype
    dtype = str(kind.newbyteorder("=")) if kind.kind in "biuf" else str(kind)
    if dtype not in DTYPES:
        raise UnsupportedColumnError(
            f"holds {dtype}, which is not a number or a boolean", file=file, column=source, hint=LEAVE_OUT
        )
    if name in SCALAR_COLUMNS and shape == (1,):
        shape = ()
    if 0 in shape:
        raise UnsupportedColumnError(
            f"has steps of shape {shape}, without values", file=file, column=source, hint=LEAVE_OUT
        )
    return ColumnSpec(name, dtype, shape, False, own_name, has_final)


def _variable_dtype(dataset: h5py.Dataset) -> str | None:
    if h5py.check_string_dtype(dataset.dtype) is not None:
        return "string"
    base = h5py.check_vlen_dtype(dataset.dtype)
    return "binary" if base is not None and np.dtype(base) == np.uint8 else None


def read_fixed(dataset: h5d.DatasetID, shape: tuple[int, ...], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """All of a dataset of numbers or booleans, C-contiguous, in its own dtype or that of the other byte order."""
    values = np.empty(shape, dtype)
    if values.size:
        dataset.read(h5s.ALL, h5s.ALL, values)
    return values


def read_variable(dataset: h5py.Dataset, spec: ColumnSpec) -> pa.Array:
    """Texts or bytes of all rows, as `EpisodeBlock.variable` holds them.

    Raises:
        IrregularRowsError: a row that is not UTF-8.
    """
    check_heaps(dataset)
    values: list[str | bytes] = []
    for row, value in enumerate(dataset[...]):
        try:
            values.append(bytes(value).decode() if spec.dtype == "string" else bytes(value))
        except UnicodeDecodeError as error:
            raise IrregularRowsError(np.array([row]), "is not UTF-8") from error
    return pa.array(values, VARIABLE_TYPES[spec.dtype])


def attribute_facts(group: h5py.Group, ignored: Container[str]) -> tuple[dict[str, Any], list[str]]:
    """A group's attributes that are one number, flag or text, as plain Python; and the names of the other ones.

    Args:
        ignored: names not to read.
    """
    facts: dict[str, Any] = {}
    others: list[str] = []
    for name in group.attrs:
        if name in ignored:
            continue
        if not isinstance(name, str):  # h5py's way with names that are not UTF-8
            others.append(name.decode("utf-8", "replace"))
            continue
        attribute = h5a.open(group.id, name.encode())
        value = None
        if attribute.shape == () and attribute.dtype.kind in "biuf":
            number = np.empty((), attribute.dtype)
            attribute.read(number)
            value = plain(number)
        elif attribute.shape == () and _is_readable_text(attribute):
            check_heaps(group)
            value = plain(group.attrs[name])
        if value is None:
            others.append(name)
        else:
            facts[name] = value
    return facts, others


def _is_readable_text(attribute: h5a.AttrID) -> bool:
    """Whether an attribute is a text of a bounded size. Of values of variable length no others are read: libhdf5 (1.14)
    crashes on those whose type was damaged."""
    size = attribute.get_storage_size()
    text = h5py.check_string_dtype(attribute.dtype)
    if text is None:
        return False
    return bool(size == ELEMENT_BYTES if text.length is None else size <= _MAX_FACT_BYTES)


def plain(value: Any) -> str | bool | int | float | None:
    """A scalar of HDF5 as plain Python; None for what is no number, flag or text of a bounded size."""
    if isinstance(value, np.generic) or (isinstance(value, np.ndarray) and value.shape == ()):
        value = value.item()
    if isinstance(value, bytes):
        value = value.decode("utf-8", "replace")
    if isinstance(value, str):
        return value if len(value) <= _MAX_FACT_BYTES else None
    if isinstance(value, int):
        return value if -(1 << 63) <= value < 1 << 63 else None
    return value if isinstance(value, float) else None
