"""Values in error messages: at most 200 characters each."""

from __future__ import annotations

import numpy as np
import pytest

from gear_data.error_text import MAX_SHOWN, shorten_values, shown
from gear_data.errors import GearError


@pytest.mark.parametrize(
    "value",
    ["a" * 5000, list(range(1000)), {"key": ["x" * 900]}, np.zeros((40, 40)).tolist(), b"\xff" * 2000],
    ids=["text", "list", "nested", "rows", "bytes"],
)
def test_a_value_has_at_most_200_characters(value: object) -> None:
    text = shorten_values(f"columns must be names, not {value!r}, in the file's header")
    assert text.startswith("columns must be names, not ")
    assert text.endswith(", in the file's header")
    assert len(text) < len("columns must be names, not , in the file's header") + MAX_SHOWN + 2
    assert "..." in text


def test_other_messages_do_not_change() -> None:
    apostrophes = "the dataset's files are whole; " + "it is long " * 60 + "and the file's end is here"
    assert shorten_values(apostrophes) == apostrophes
    short = f"has {[1, 2, 3]!r} and {'x'!r}"
    assert shorten_values(short) == short


def test_errors_shorten_their_values() -> None:
    error = GearError(f"not {np.arange(900)!r}", column="c" * 3000, file="a.npz")
    assert len(str(error)) < 3 * MAX_SHOWN
    assert len(shown("x" * 900)) == MAX_SHOWN
    assert len(str(GearError("[" * 100_000))) <= MAX_SHOWN  # in linear time
