"""Filters of episodes, and weights, against plain loops over the episodes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import polars as pl
import pytest

import gear_data
from gear_data.dataset import filters
from gear_data.errors import EmptySourceError, GearError, InvalidArgumentError, UnknownNameError
from tests.support.views import TASKS, check_view, ids_of, total


@pytest.mark.parametrize(
    ("expression", "holds"),
    [
        (pl.col("length") > 5, lambda i, r: len(r) > 5),
        ("length > 5 AND NOT terminated", lambda i, r: len(r) > 5 and i % 2 == 1),
        ('"return" < 0 OR return > 2', lambda i, r: total(r) < 0 or total(r) > 2),
        ("terminated", lambda i, r: i % 2 == 0),
        (pl.col("level") >= 3, lambda i, r: i % 5 != 0 and i % 7 >= 3),
        ("task LIKE '%cup'", lambda i, r: (TASKS[i % 4] or "").endswith("cup")),
        (pl.col("task").str.len_chars() == 4, lambda i, r: TASKS[i % 4] == "open"),
        ("task = 'open' AND episode_id < 20", lambda i, r: TASKS[i % 4] == "open" and i < 20),
    ],
)
def test_filter_is_a_loop_over_the_episodes(
    expression: Any, holds: Callable[[int, Any], bool], ds: gear_data.Dataset, rollouts: list[Any]
) -> None:
    check_view(ds.filter(expression), rollouts, [i for i, r in enumerate(rollouts) if holds(i, r)])


def test_aggregates_are_over_the_view(ds: gear_data.Dataset, rollouts: list[Any]) -> None:
    """A filter of a filter and of a split aggregates over its own episodes."""
    best = pl.col("return") >= pl.col("return").quantile(0.5, "lower")
    for view in (ds, ds.filter("terminated"), ds.split({"a": 0.6, "b": 0.4}, seed=3)["a"]):
        ids = ids_of(view)
        median = sorted(total(rollouts[i]) for i in ids)[(len(ids) - 1) // 2]
        check_view(view.filter(best), rollouts, [i for i in ids if total(rollouts[i]) >= median - 1e-9])


@pytest.mark.parametrize("p", [0, 0.05, 0.1, 0.2, 0.25, 0.3, 0.5, 0.7, 0.9, 0.99, 1])
def test_quantiles_are_those_of_numpy(p: float) -> None:
    rng = np.random.default_rng(0)
    for n in [*range(1, 40), 1001, 4097]:
        for values in (rng.normal(size=n), rng.integers(0, 9, n), rng.integers(0, 10**6, n)):
            frame = pl.DataFrame({"return": values})
            for text in (f"return > quantile(return, {p})", f"return > Quantile (return, {p})"):
                found = filters.true_rows(frame, filters.parse(text, ["return"]))
                np.testing.assert_array_equal(found, values > np.quantile(values, p))


def test_quantiles_are_over_the_view(ds: gear_data.Dataset, rollouts: list[Any]) -> None:
    for view in (ds, ds.filter("terminated")):
        ids = ids_of(view)
        lengths = np.array([len(rollouts[i]) for i in ids])
        kept = [i for i, length in zip(ids, lengths, strict=True) if length > np.quantile(lengths, 0.2)]
        check_view(view.filter("length > quantile(length, 0.2)"), rollouts, kept)


def test_null_and_nan_in_quantiles() -> None:
    """Null is left out, and NaN is the largest value."""
    frame = pl.DataFrame({"return": [None, float("nan"), 1.0, 2.0, 3.0, 4.0]})
    found = filters.true_rows(frame, filters.parse("return > quantile(return, 0.5)", ["return"]))
    assert found.tolist() == [False, True, False, False, False, True]  # of 1, 2, 3, 4, NaN


def test_quantile_in_quotes_is_no_function() -> None:
    names = ["task", "quantile(x)", "quantile"]
    frame = pl.DataFrame({"task": ["quantile(a)", "it's quantile(a)"], "quantile(x)": [1, 3], "quantile": [0, 1]})
    for text in ("task = 'quantile(a)'", '"quantile(x)" < 2', "quantile < 1", "task <> 'it''s quantile(a)'"):
        assert filters.true_rows(frame, filters.parse(text, names)).tolist() == [True, False]


@pytest.mark.parametrize(
    ("expression", "error", "words"),
    [
        ("lengt > 5", UnknownNameError, ["did you mean 'length'", "episode_id"]),
        (pl.col("rewards") > 5, UnknownNameError, ["column of the steps", "filter_steps", "a weight for each step"]),
        ("length", InvalidArgumentError, ["true or false", "Int64"]),
        ("length >", InvalidArgumentError, ["not a valid SQL expression", "double quotes"]),
        (pl.col("length").sum() > 3, InvalidArgumentError, ["1 for 30"]),
        (pl.lit(True), InvalidArgumentError, ["1 for 30"]),
        (pl.col("length", "start") > 3, InvalidArgumentError, ["gives 2"]),
        (pl.col("task").str.to_integer() > 3, InvalidArgumentError, ["Polars cannot evaluate", "pick the cup"]),
        (pl.col("length").head(3) > 3, InvalidArgumentError, ["3 for 30"]),
        (3, InvalidArgumentError, ["3"]),
        ("length > quantile(length, 20)", InvalidArgumentError, ["quantile value must be between 0 and 1", "(return,"]),
        ("length > quantile(length)", InvalidArgumentError, ["quantile expects 2", "such as quantile(return, 0.2)"]),
        ("length > 1000", EmptySourceError, ["length", "1 to 12", "1000"]),
        ("task = 'sing' AND level > 2", EmptySourceError, ["'open' to 'place the cup'", "0 to 6"]),
    ],
)
def test_invalid_filters(expression: Any, error: type[GearError], words: list[str], ds: gear_data.Dataset) -> None:
    with pytest.raises(error) as raised:
        ds.filter(expression)
    for word in words:
        assert word in str(raised.value)


def test_an_expression_may_select_columns_by_pattern_beside_a_name(ds: gear_data.Dataset) -> None:
    smaller = pl.min_horizontal(pl.col("length"), pl.col("^retur.$"))
    table = ds.episodes
    assert ds.evaluate(smaller, "weight").tolist() == np.minimum(table["length"], table["return"]).to_list()
    assert ds.evaluate(pl.len(), "weight").tolist() == [30.0] * 30


def test_evaluate(ds: gear_data.Dataset, rollouts: list[Any]) -> None:
    view = ds.filter("terminated")
    kept = [(i, r) for i, r in enumerate(rollouts) if i % 2 == 0]
    returns = view.evaluate("return", "weights")
    assert returns.dtype == np.float64
    np.testing.assert_allclose(returns, [total(r) for _, r in kept], rtol=1e-12, atol=1e-12)
    assert view.evaluate("length * 2", "weights").tolist() == [2 * len(r) for _, r in kept]
    assert ds.evaluate(pl.col("truncated"), "weights").tolist() == [float(i % 2) for i in range(30)]
    assert ds.evaluate(pl.lit(2), "weights").tolist() == [2.0] * 30
    assert view.evaluate(pl.col("length").max(), "weights").tolist() == [max(len(r) for _, r in kept)] * len(kept)
    levels = [i % 7 if i % 5 else np.nan for i, _ in kept]
    np.testing.assert_array_equal(view.evaluate("level", "weights"), levels)
    for expression, words in (("task", "weights must be numbers"), (pl.col("length").head(2), "2 for 15")):
        with pytest.raises(InvalidArgumentError, match=words):
            view.evaluate(expression, "weights")
    with pytest.raises(UnknownNameError, match="length"):
        view.evaluate("lengths", "weights")
