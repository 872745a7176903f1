"""Statistics: their values, and that blocks and resuming change no bit."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import numpy as np
import pytest

from gear_data.schema import ColumnSpec, Schema
from gear_data.storage.statistics import ColumnStatistics, RunningStatistics, StatisticsRecord, StatisticsState

LENGTHS = np.array([1, 5, 2, 30, 1, 17, 8])
STEPS = int(LENGTHS.sum())


def _columns() -> dict[str, np.ndarray[Any, Any]]:
    rng = np.random.default_rng(0)
    vectors = rng.normal(1e6, 1.0, size=(STEPS, 3)).astype(np.float32)
    vectors[4, 1] = np.nan
    vectors[6:8, 2] = np.inf  # the whole third episode
    return {
        "vector": vectors,
        "scalar": rng.normal(-3.0, 1e-3, size=STEPS),
        "image": rng.integers(0, 256, size=(STEPS, 2, 2, 3)).astype(np.uint8),
        "flag": rng.integers(0, 2, size=STEPS).astype(np.bool_),
        "large": rng.integers(-(1 << 40), 1 << 40, size=(STEPS, 1)),
    }


def _schema(columns: dict[str, np.ndarray[Any, Any]]) -> Schema:
    return Schema(tuple(ColumnSpec(name, str(v.dtype), v.shape[1:]) for name, v in columns.items()))


def _feed(cuts: list[int], *, restart: bool = False) -> dict[str, ColumnStatistics]:
    """Returns the statistics of all episodes, updated in runs that end at `cuts`."""
    columns = _columns()
    running = RunningStatistics(_schema(columns))
    offsets = np.concatenate([[0], np.cumsum(LENGTHS)])
    for first, last in zip([0, *cuts], [*cuts, len(LENGTHS)], strict=True):
        if restart:
            saved = json.loads(json.dumps(msgspec.to_builtins(running.state())))
            running = RunningStatistics(_schema(columns))
            running.restore(msgspec.convert(saved, StatisticsState))
        part = {name: values[offsets[first] : offsets[last]] for name, values in columns.items()}
        running.update(part, LENGTHS[first:last])
    return running.result()


def test_against_numpy() -> None:
    found = _feed([])
    for name, values in _columns().items():
        flat = values.astype(np.float64)
        flat = flat if flat.ndim == 2 else flat.reshape(-1, 1)
        for i, column in enumerate(flat.T):
            finite = column[np.isfinite(column)]
            item = found[name]
            assert item.count[i] == len(finite)
            assert item.mean[i] == pytest.approx(finite.mean(), rel=1e-13)
            assert item.std[i] == pytest.approx(finite.std(), rel=1e-8)
            assert (item.min[i], item.max[i]) == (finite.min(), finite.max())
        assert found[name].mean.shape == (flat.shape[1],)


@pytest.mark.parametrize("restart", [False, True])
@pytest.mark.parametrize("cuts", [[], [1, 2, 3, 4, 5, 6], [3], [2, 2, 5]])
def test_blocks_and_resuming_change_no_bit(cuts: list[int], restart: bool) -> None:
    expected, found = _feed([3, 4]), _feed(cuts, restart=restart)
    for name, item in expected.items():
        assert found[name].to_json() == item.to_json()


def test_columns_are_not_modified() -> None:
    columns = _columns()
    before = {name: values.copy() for name, values in columns.items()}
    RunningStatistics(_schema(columns)).update(columns, LENGTHS)
    for name, values in columns.items():
        np.testing.assert_array_equal(values, before[name])


def test_a_column_without_finite_values() -> None:
    schema = Schema((ColumnSpec("x", "float32"),))
    running = RunningStatistics(schema)
    running.update({"x": np.array([np.nan, np.inf], np.float32)}, np.array([2]))
    item = running.result()["x"]
    assert item.to_json() == {"count": [0], "mean": [None], "std": [None], "min": [None], "max": [None]}
    assert np.isnan(ColumnStatistics.from_record(msgspec.convert(item.to_json(), StatisticsRecord)).mean).all()
    running.update({"x": np.array([2.0, 4.0], np.float32)}, np.array([2]))
    assert running.result()["x"].to_json() == {"count": [2], "mean": [3.0], "std": [1.0], "min": [2.0], "max": [4.0]}
