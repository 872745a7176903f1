from __future__ import annotations

from typing import Any

import pytest

from gear_data.errors import InvalidArgumentError, UnknownNameError
from gear_data.video.decoding.options import DecodeOptions


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"threads": 0}, "threads is 0"),
        ({"cache_bytes": -1}, "cache_bytes is -1"),
        ({"size": (0, 224)}, r"\(0, 224\)"),
        ({"size": (224,)}, r"\(224,\)"),
    ],
)
def test_values_out_of_range_are_errors(arguments: dict[str, Any], problem: str) -> None:
    with pytest.raises(InvalidArgumentError, match=problem):
        DecodeOptions(**arguments)


def test_unknown_backend_is_an_error_that_lists_the_known() -> None:
    with pytest.raises(
        UnknownNameError, match=r"unknown video backend 'decord'\s+known: auto, nvdec, pyav, torchcodec"
    ):
        DecodeOptions(backend="decord")  # type: ignore[arg-type]
