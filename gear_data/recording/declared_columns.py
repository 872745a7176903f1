"""Columns that the user declares before the first step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from gear_data.errors import InvalidArgumentError, UnsupportedColumnError
from gear_data.ingest.pipeline.names import is_observation
from gear_data.recording.step_columns import END_FLAGS
from gear_data.schema import DTYPES, ColumnSpec, Schema

_TEXTS = {str: "string", bytes: "binary", "string": "string", "binary": "binary"}


def declared_columns(schema: Schema | Mapping[str, Any]) -> tuple[ColumnSpec, ...]:
    """Returns the columns that every step must have.

    Args:
        schema: the schema of a dataset, or column -> (dtype, shape). Names are dotted: `observations.position`. The
            dtype of text is `str`, and the dtype of bytes is `bytes`; their shape is (). The columns that a conversion
            adds to a schema are ignored: end flags and returns-to-go.

    Returns:
        The columns. Cameras of a dataset have a `video`.

    Raises:
        UnsupportedColumnError: no column can have this dtype and shape.
        InvalidArgumentError: the description of a column is no pair of dtype and shape, or there is no column.
    """
    if isinstance(schema, Schema):
        found = {spec.name: (spec.dtype, spec.shape) for spec in (*schema.columns, *schema.videos) if not spec.derived}
    else:
        found = dict(schema)
    videos = {spec.name: spec for spec in schema.videos} if isinstance(schema, Schema) else {}
    columns = tuple(videos.get(name) or _column(name, each) for name, each in found.items() if name not in END_FLAGS)
    if isinstance(schema, Schema):
        names = {spec.name: spec.element_names for spec in (*schema.columns, *schema.videos)}
        columns = tuple(replace(spec, element_names=names[spec.name]) for spec in columns)
    if not columns:
        raise InvalidArgumentError("schema has no columns", hint="give observations, actions, rewards, ...")
    return columns


def _column(name: str, described: Any) -> ColumnSpec:
    try:
        dtype, shape = described
        shape = tuple(int(size) for size in shape)
    except (TypeError, ValueError):
        raise InvalidArgumentError(
            f"schema describes it as {described!r:.80}", column=name, hint="give (dtype, shape): ('float32', (3,))"
        ) from None
    if isinstance(dtype, str | type) and dtype in _TEXTS:
        if shape:
            raise UnsupportedColumnError(f"schema has text or bytes of shape {shape}", column=name, hint="use shape ()")
        return ColumnSpec(name, _TEXTS[dtype])
    try:
        found = np.dtype(dtype).name
    except TypeError:
        found = repr(dtype)
    if found not in DTYPES or min(shape, default=1) < 1:
        raise UnsupportedColumnError(
            f"schema has dtype {found} and shape {shape}", column=name, hint=f"use str, bytes or {', '.join(DTYPES)}"
        )
    return ColumnSpec(name, found, shape, has_final=is_observation(name))
