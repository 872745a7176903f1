"""Writers whose columns are declared before the first step."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gear_data
from gear_data.errors import InvalidArgumentError, UnsupportedColumnError
from gear_data.schema import Schema

SCHEMA = {
    "observations.position": (np.float32, (3,)),
    "observations.words": (str, ()),
    "actions": ("int32", [2]),
    "rewards": (np.dtype("float32"), ()),
    "infos.raw": ("binary", ()),
}


def step(**change: Any) -> dict[str, Any]:
    return {
        "observations": {"position": [1.0, 2, 3], "words": "left"},
        "actions": [1, 2],
        "rewards": 1,
        "infos": {"raw": b"\0"},
        **change,
    }


def record(path: Path, schema: Any) -> gear_data.Dataset:
    with gear_data.Writer(path, schema=schema) as writer:
        for _ in range(3):
            writer.append(**step())
        writer.end_episode(terminated=True)
    return gear_data.open(path)


def test_the_schema_decides_instead_of_the_first_step(tmp_path: Path) -> None:
    """Python's numbers would be float64 and int64."""
    ds = record(tmp_path / "recorded", SCHEMA)
    found = {name: (ds.schema[name].dtype, ds.schema[name].shape) for name in SCHEMA}
    assert found == {
        "observations.position": ("float32", (3,)),
        "observations.words": ("string", ()),
        "actions": ("int32", (2,)),
        "rewards": ("float32", ()),
        "infos.raw": ("binary", ()),
    }
    assert ds[0]["observations.position"].tolist() == [[1, 2, 3]] * 3


def test_the_schema_of_a_dataset(tmp_path: Path) -> None:
    first = record(tmp_path / "first", SCHEMA)
    second = record(tmp_path / "second", first.schema)
    assert second.schema == first.schema
    assert second.fingerprint == first.fingerprint


def test_names_of_elements_are_kept_in_their_order(tmp_path: Path) -> None:
    plain = record(tmp_path / "plain", SCHEMA).schema
    named = ("x", "y", "z")

    def with_names(names: tuple[str, ...]) -> Schema:
        columns = (replace(c, element_names=names if c.shape == (3,) else ()) for c in plain.columns)
        return Schema(tuple(columns))

    for _ in range(2):
        ds = record(tmp_path / "named", with_names(named))
    assert len(ds) == 2
    assert ds.schema["observations.position"].element_names == named
    with pytest.raises(UnsupportedColumnError, match="has the elements z, y, x, and the dataset has them in another"):
        record(tmp_path / "named", with_names(named[::-1]))
    assert len(record(tmp_path / "named", SCHEMA)) == 3


@pytest.mark.parametrize(
    "change, message",
    [
        ({"actions": [1.5, 2]}, r"step {} .* has float64 \[2\], and the column has int32 \[2\]"),
        ({"actions": [1, 2, 3]}, r"step {} .* has int32 \[3\], and the column has int32 \[2\]"),
        ({"rewards": np.float64(1)}, r"step {} .* has float64 \[\], and the column has float32 \[\]"),
        ({"infos": {"raw": "text"}}, r"step {} .* has a str, and the column has binary"),
        ({"infos": {}}, r"step {} .* lacks infos\.raw"),
        ({"more": 1}, r"step {} .* has another column: more"),
    ],
)
def test_wrong_steps_are_named(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    """The first step is checked like the others. Nothing stays on disk of a Writer without episodes."""
    with gear_data.Writer(tmp_path / "recorded", schema=SCHEMA) as writer:
        with pytest.raises(InvalidArgumentError, match=message.format(0)):
            writer.append(**step(**change))
        writer.append(**step())
        with pytest.raises(InvalidArgumentError, match=message.format(1)):
            writer.append(**step(**change))
        writer.discard()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "schema, error, message",
    [
        ({}, InvalidArgumentError, "no columns"),
        ({"actions": "float32"}, InvalidArgumentError, "schema describes it as 'float32'"),
        ({"actions": ("float32", 3)}, InvalidArgumentError, "give .dtype, shape."),
        ({"actions": ("float128x", ())}, UnsupportedColumnError, "dtype 'float128x'"),
        ({"actions": ("complex64", ())}, UnsupportedColumnError, "dtype complex64"),
        ({"actions": ("float32", (0,))}, UnsupportedColumnError, r"shape \(0,\)"),
        ({"actions": (str, (2,))}, UnsupportedColumnError, "text or bytes of shape"),
    ],
)
def test_schemas_that_no_dataset_has(tmp_path: Path, schema: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        gear_data.Writer(tmp_path / "recorded", schema=schema)
    assert list(tmp_path.iterdir()) == []
