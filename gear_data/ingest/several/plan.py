"""Finds the splits that a conversion reads."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from gear_data.errors import SplitNeededError
from gear_data.ingest.engine.spec import ConversionSpec
from gear_data.ingest.several.parts import ALL_SPLITS, source_parts


def with_parts(spec: ConversionSpec) -> ConversionSpec:
    """Returns the specification with the parts of its source.

    One source with one split has no parts.

    Raises:
        GearError: the errors of `ConversionSpec.open_part`, if `split` is "all".
    """
    sources = spec.source if isinstance(spec.source, tuple) else (spec.source,)
    splits_of = [_splits(spec, source) for source in sources]
    if len(sources) == 1 and splits_of[0] == [spec.split]:
        return spec
    if len(sources) == 1 and splits_of[0] == [None]:
        return replace(spec, split=None)
    return replace(spec, parts=source_parts(spec.source, splits_of))


def _splits(spec: ConversionSpec, source: Any) -> list[str | None]:
    if isinstance(spec.split, tuple):
        return list(spec.split)
    if spec.split != ALL_SPLITS:
        return [spec.split]
    try:
        replace(spec, source=source, split=None).open_part()
    except SplitNeededError as error:
        return list(error.splits)
    return [None]
