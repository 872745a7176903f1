"""JSON documents checked against records."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from gear_data.common.typed_json import Count, parse_json
from gear_data.errors import ManifestError, ResumeError


class Entry(msgspec.Struct):
    name: str
    sizes: list[Count] = []
    anything: Any = None


def test_a_valid_document() -> None:
    entry = parse_json(
        '{"name": "x", "sizes": [0, 9223372036854775807], "unknown": 1}', Entry, error=ManifestError, file="f"
    )
    assert entry == Entry("x", [0, (1 << 63) - 1])


@pytest.mark.parametrize("text", ['"\\ud800"', "NaN", "123456789012345678901234567890", "-Infinity", "[1.5, null]"])
def test_untyped_fields_hold_all_that_the_standard_library_parses(text: str) -> None:
    entry = parse_json(f'{{"name": "x", "anything": {text}}}', Entry, error=ManifestError, file="f")
    assert repr(entry.anything) == repr(json.loads(text))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "not a JSON document"),
        ("[" * 100_000, "not a JSON document"),
        (b"\xff", "not a JSON document"),
        ("[]", "Expected `object`, got `array`"),
        ("{}", "missing required field `name`"),
        ('{"name": null}', r"got `null` - at `\$\.name`"),
        ('{"name": "x", "sizes": [1, -1]}', r">= 0 - at `\$\.sizes\[1\]`"),
        ('{"name": "x", "sizes": [true]}', r"got `bool` - at `\$\.sizes\[0\]`"),
        ('{"name": "x", "sizes": [1.0]}', r"got `float` - at `\$\.sizes\[0\]`"),
        ('{"name": "x", "sizes": [9223372036854775808]}', r"at `\$\.sizes\[0\]`"),
    ],
)
def test_an_error_names_the_file_and_the_field(text: str | bytes, message: str) -> None:
    with pytest.raises(ResumeError, match=message) as error:
        parse_json(text, Entry, error=ResumeError, file="folder/f.json", hint="start again")
    assert (error.value.file, error.value.hint) == ("folder/f.json", "start again")
