"""Import of pyverbs, which is part of the system's rdma-core.

The package index does not have it.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from gear_data.errors import DeviceError, MissingExtraError

#: Module of the constants: the name up to release 4x, and the name since.
_ENUMS = ("pyverbs.enums", "pyverbs.libibverbs_enums")


@dataclass(frozen=True)
class Pyverbs:
    """The modules of pyverbs that this package uses, and its constants (`enums`)."""

    addr: Any
    cq: Any
    device: Any
    enums: Any
    mr: Any
    pd: Any
    qp: Any


def load_library() -> Pyverbs:
    """Imports pyverbs.

    Raises:
        MissingExtraError: it cannot be imported.
    """
    try:
        modules = {
            name: importlib.import_module(f"pyverbs.{name}") for name in ("addr", "cq", "device", "mr", "pd", "qp")
        }
        return Pyverbs(enums=_enums(), **modules)
    except ImportError as error:
        raise MissingExtraError(
            f"pyverbs cannot be imported: {error}",
            hint="install it with the system's packages (Debian, Ubuntu: python3-pyverbs), for the system's own Python",
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
def verbs_errors(action: str, hint: str | None = None) -> Iterator[None]:
    """Converts errors of pyverbs to DeviceError.

    Args:
        action: what failed, for the message.
        hint: what to do about it.
    """
    from pyverbs.pyverbs_error import PyverbsError

    try:
        yield
    except PyverbsError as error:
        raise DeviceError(f"{action} failed: {error}", hint=hint) from error
