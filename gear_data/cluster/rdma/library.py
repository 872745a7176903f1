"""pyverbs, which comes with the system's rdma-core and not from the package index."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from gear_data.errors import DeviceError, MissingExtraError

_ENUMS = ("pyverbs.enums", "pyverbs.libibverbs_enums")  # up to release 4x, and since


@dataclass(frozen=True)
class Pyverbs:
    """The modules of pyverbs that are used, and its constants."""

    addr: Any
    cq: Any
    device: Any
    enums: Any
    mr: Any
    pd: Any
    qp: Any


def load_library() -> Pyverbs:
    """Raises MissingExtraError where pyverbs cannot be imported."""
    try:
        modules = {
            name: importlib.import_module(f"pyverbs.{name}") for name in ("addr", "cq", "device", "mr", "pd", "qp")
        }
        return Pyverbs(enums=_enums(), **modules)
    except ImportError as error:
        raise MissingExtraError(
            f"pyverbs cannot be imported: {error}",
            hint="it comes with the system (Debian, Ubuntu: python3-pyverbs), for the system's own Python",
        ) from error


def _enums() -> Any:
    for name in _ENUMS:
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name != name:
                raise
    raise ImportError(f"none of {', '.join(_ENUMS)}")


@contextmanager
def verbs_errors(doing: str, hint: str | None = None) -> Iterator[None]:
    """Turns errors of pyverbs into DeviceError: `doing` could not be done."""
    from pyverbs.pyverbs_error import PyverbsError

    try:
        yield
    except PyverbsError as error:
        raise DeviceError(f"{doing} failed: {error}", hint=hint) from error
