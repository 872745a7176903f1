"""Attributes and scalars of HDF5 files, as plain Python values."""

from __future__ import annotations

from typing import Any

import numpy as np

from gear_data.common.extras import h5py
from gear_data.common.paths import printable
from gear_data.ingest.sources.hdf5.datasets import HEAP_REFERENCE_BYTES, check_heaps

#: Longer texts, such as model files, are not kept.
_MAX_TEXT_BYTES = 10_000


def attribute_facts(group: h5py.Group) -> dict[str, Any]:
    """Reads the attributes of a group: name -> plain Python value.

    An attribute that is not one number, flag or short text is None. These come last.
    """
    facts: dict[str, Any] = {}
    for name in group.attrs:
        if not isinstance(name, str):  # h5py gives names that are not UTF-8 as bytes
            facts[name.decode("utf-8", "replace")] = None
            continue
        attribute = h5py.h5a.open(group.id, name.encode())
        value = None
        if attribute.shape in ((), (1,)) and attribute.dtype.kind in "biuf":
            number = np.empty(attribute.shape, attribute.dtype)
            attribute.read(number)
            value = plain_value(number.reshape(()))
        elif attribute.shape == () and _is_readable_text(attribute):
            check_heaps(group)
            value = plain_value(group.attrs[name])
        facts[name] = value
    return dict(sorted(facts.items(), key=lambda fact: fact[1] is None))


def _is_readable_text(attribute: h5py.h5a.AttrID) -> bool:
    """Returns whether an attribute is a text of bounded size.

    No other attribute of variable length is read: libhdf5 (1.14) crashes if its type is damaged.
    """
    size = attribute.get_storage_size()
    text = h5py.check_string_dtype(attribute.dtype)
    if text is None:
        return False
    return bool(size == HEAP_REFERENCE_BYTES if text.length is None else size <= _MAX_TEXT_BYTES)


def plain_value(value: Any) -> str | bool | int | float | None:
    """Converts an HDF5 scalar to plain Python.

    Returns None if it is not a number, a flag or a text of bounded size.
    """
    if isinstance(value, np.generic) or (isinstance(value, np.ndarray) and value.shape == ()):
        value = value.item()
    if isinstance(value, bytes):
        value = value.decode("utf-8", "replace")
    if isinstance(value, str):
        return printable(value) if len(value) <= _MAX_TEXT_BYTES else None
    if isinstance(value, int):
        return value if -(1 << 63) <= value < 1 << 63 else None
    return value if isinstance(value, float) else None
