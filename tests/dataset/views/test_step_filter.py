"""Filters of steps, against plain loops over the steps."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pytest

import gear_data
from gear_data.dataset.steps import expression as step_expressions
from gear_data.errors import EmptySourceError, GearError, InvalidArgumentError, UnknownNameError
from tests.support.views import flags_of, ids_of

STEP_FILTERS = [
    ("rewards > 0", lambda c: c["rewards"] > 0),
    ("terminated", lambda c: c["terminated"]),
    (pl.col("observations").arr.get(0) > pl.col("rewards"), lambda c: c["observations"][:, 0] > c["rewards"]),
    (pl.col("observations.image").arr.get(1).arr.get(2) > 100, lambda c: c["observations.image"][:, 1, 2] > 100),
    ('"observations.image" IS NOT NULL AND rewards BETWEEN -0.5 AND 0.5', lambda c: abs(c["rewards"]) <= 0.5),
]


@pytest.mark.parametrize("block_bytes", [64, 1 << 20])
@pytest.mark.parametrize(("expression", "holds"), STEP_FILTERS)
def test_filter_steps_is_a_loop_over_the_steps(
    expression: Any,
    holds: Callable[[Any], Any],
    block_bytes: int,
    ds: gear_data.Dataset,
    rollouts: list[Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(step_expressions, "BLOCK_BYTES", block_bytes)
    for base in (ds, ds.filter(pl.col("episode_id") % 3 != 1)):
        view = base.filter_steps(expression)
        expected = [
            bool(flag) and i in ids_of(base) for i, r in enumerate(rollouts) for flag in np.ravel(holds(r.columns))
        ]
        assert flags_of(view) == expected
        # A step filter does not change the episodes.
        assert (view.num_episodes, view.num_steps) == (base.num_episodes, base.num_steps)
        assert ids_of(view) == ids_of(base)
        assert view.statistics.keys() == base.statistics.keys()


def test_filter_steps_by_text(sources: Any, tmp_path: Path) -> None:
    texts = [["go left", "stop"], ["go", "let go", "é"], ["x"]]
    table = pa.table({"rewards": [[1.0, 2.0], [1.0, 2.0, 3.0], [0.5]], "texts": texts})
    gear_data.convert(sources.write_parquet(tmp_path / "source.parquet", table), tmp_path / "out")
    ds = gear_data.open(tmp_path / "out")
    view = ds.filter_steps(pl.col("texts").str.starts_with("go"))
    assert flags_of(view) == [text.startswith("go") for episode in texts for text in episode]
    view = ds.filter("length != 3").filter_steps("texts LIKE '%o%' AND rewards > 1")
    assert flags_of(view) == [False, True, False, False, False, False]
    with pytest.raises(EmptySourceError, match="texts"):
        ds.filter_steps("texts = 'no such text'")


def test_step_filters_compose(ds: gear_data.Dataset, rollouts: list[Any]) -> None:
    view = ds.filter_steps("rewards > 0").filter("length > 3").filter_steps(pl.col("actions").arr.get(1) < 0)
    assert view.step_mask_mode == "first"
    expected = [
        len(r) > 3 and reward > 0 and action < 0
        for r in rollouts
        for reward, action in zip(r.columns["rewards"], r.columns["actions"][:, 1], strict=True)
    ]
    assert flags_of(view) == expected
    assert min(view.lengths) > 3
    parts = view.split({"a": 0.5, "b": 0.5})
    assert flags_of(parts["a"]) == flags_of(parts["b"]) == expected
    with pytest.raises(InvalidArgumentError, match="'first', not 'all'"):
        view.filter_steps("rewards > 1", mode="all")
    with pytest.raises(EmptySourceError, match="earlier step filters"):
        view.filter_steps("rewards < 0")


def test_a_step_filter_changes_the_fingerprint(ds: gear_data.Dataset) -> None:
    positive = ds.filter_steps("rewards > 0")
    assert positive.fingerprint == ds.filter_steps(pl.col("rewards") > 0).fingerprint
    prints = {
        view.fingerprint
        for view in (ds, positive, ds.filter_steps("rewards > 0", mode="all"), ds.filter_steps("rewards > 0.1"))
    }
    assert len(prints) == 4
    assert positive.filter("length > 3").fingerprint != ds.filter("length > 3").fingerprint


@pytest.mark.parametrize(
    "expression",
    [
        pl.col("rewards") > pl.col("rewards").mean(),
        pl.col("rewards").shift(1) > 0,
        pl.col("rewards").cum_sum() > 0,
        pl.col("rewards").rank() > 20,
        pl.col("rewards").diff() > 0,
        pl.col("rewards").reverse() > 0,
        pl.col("rewards").mean().over("terminated") > 0,
        pl.col("rewards") == pl.col("rewards").max(),
        "rewards > AVG(rewards)",
        pl.col("rewards").sum() > 0,
    ],
)
def test_step_filters_over_several_steps_are_refused(expression: Any, ds: gear_data.Dataset) -> None:
    with pytest.raises(InvalidArgumentError, match=r"more than one step|a value for every row"):
        ds.filter_steps(expression)


@pytest.mark.parametrize(
    ("expression", "mode", "error", "words"),
    [
        ("reward > 0", "first", UnknownNameError, ["did you mean 'rewards'", "observations"]),
        ("return > 0", "first", UnknownNameError, ["rewards"]),
        ("rewards", "first", InvalidArgumentError, ["true or false"]),
        ("TRUE", "first", InvalidArgumentError, ["names no column"]),
        (pl.col("observations") > 0, "first", InvalidArgumentError, ["observations"]),
        ("rewards > 0", "last", UnknownNameError, ["known: all, first"]),
        ("rewards > 1000", "all", EmptySourceError, ["rewards is -", " to "]),
    ],
)
def test_invalid_step_filters(
    expression: Any, mode: str, error: type[GearError], words: list[str], ds: gear_data.Dataset
) -> None:
    with pytest.raises(error) as raised:
        ds.filter_steps(expression, mode=mode)
    for word in words:
        assert word in str(raised.value)
