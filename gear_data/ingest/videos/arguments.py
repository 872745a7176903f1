"""Checks of the arguments about cameras."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gear_data.errors import InvalidArgumentError
from gear_data.ingest.pipeline.names import canonical_name, is_column_name


def check_video_columns(columns: Any) -> dict[str, str]:
    """Checks the argument `video_columns` and returns it.

    Raises:
        InvalidArgumentError: It is no mapping of canonical names to patterns.
    """
    if columns is None:
        return {}
    if not isinstance(columns, Mapping) or not all(isinstance(item, str) for pair in columns.items() for item in pair):
        raise InvalidArgumentError(
            f"video_columns must map a camera to a pattern of files, not be {columns!r}",
            hint="such as video_columns={'observations.images.top': 'videos/top/*.mp4'}",
        )
    for name, pattern in columns.items():
        if canonical_name(name) != name or not is_column_name(name):
            hint = f"use the name '{canonical_name(name)}'" if is_column_name(canonical_name(name)) else "give a name"
            raise InvalidArgumentError(f"a camera cannot have the name {name!r}", hint=hint)
        if not pattern:
            raise InvalidArgumentError("the pattern of the camera's files is empty", column=name, hint="give NAME=GLOB")
    return dict(columns)
