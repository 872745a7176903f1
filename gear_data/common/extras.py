"""Packages that come with an optional extra."""

from __future__ import annotations

import importlib
from typing import Any

from gear_data.errors import MissingExtraError


def import_extra(module: str, extra: str = "train") -> Any:
    """The module, which comes with an extra of gear-data.

    Raises:
        MissingExtraError: it is not installed.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        package = module.partition(".")[0]
        raise MissingExtraError(
            f"{package} cannot be imported: {error}", hint=f"pip install 'gear-data[{extra}]'"
        ) from error
