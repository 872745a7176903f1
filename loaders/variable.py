"""Columns of text and encoded bytes in a batch: lists, or what a decoder makes of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gear_data.loaders.draws import Draw
from gear_data.loaders.parts import Part

#: Called with the texts (str) or bytes of all valid steps of a batch, one after the other.
Decoder = Callable[[list[Any]], Any]


def variable_columns(
    parts: Sequence[Part], draw: Draw, context: int, decoders: Mapping[str, Decoder]
) -> dict[str, Any]:
    """Key -> list of B lists, one item a valid step."""
    raise NotImplementedError
