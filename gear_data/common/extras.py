"""Imports of packages that may be missing: those of an optional extra, and `datasets`."""

from __future__ import annotations

import importlib
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
