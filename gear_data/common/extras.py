"""Imports of packages that may be missing: those of an optional extra, `datasets`, and pandas."""

from __future__ import annotations

import importlib
import sys
from typing import Any

from gear_data.errors import MissingExtraError


def import_extra(module: str, extra: str = "train") -> Any:
    """Imports a module of an optional extra of gear-data.

    Raises:
        MissingExtraError: the import failed.
    """
    return _import(module, f"pip install 'gear-data[{extra}]'")


def import_datasets() -> Any:
    """Imports HuggingFace `datasets`, which few sources and exports need.

    Raises:
        MissingExtraError: the import failed.
    """
    return _import("datasets", "pip install datasets")


def _import(module: str, hint: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        package = module.partition(".")[0]
        raise MissingExtraError(f"{package} cannot be imported: {error}", hint=hint) from error


class _NoPandas:
    """A finder of modules that finds no pandas."""

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> None:
        if name == "pandas":
            raise ModuleNotFoundError(name, name=name)


def leave_out_pandas() -> None:
    """Makes pyarrow do without pandas in this process, whose import takes half as long as all others.

    pyarrow looks for it once: when it first converts Python objects. This is for processes without objects of pandas. A
    module that needs pandas can still import it.
    """
    import pyarrow as pa

    sys.meta_path.insert(0, _NoPandas)
    try:
        pa.array([0])
    finally:
        sys.meta_path.remove(_NoPandas)
