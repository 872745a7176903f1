"""Imports of packages that come with an optional extra."""

from __future__ import annotations

import importlib
from typing import Any

from gear_data.errors import MissingExtraError


def import_extra(module: str, extra: str = "train") -> Any:
    """Imports a module of an optional extra of gear-data.

    Raises:
        MissingExtraError: the import failed.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        package = module.partition(".")[0]
        raise MissingExtraError(
            f"{package} cannot be imported: {error}", hint=f"pip install 'gear-data[{extra}]'"
        ) from error
