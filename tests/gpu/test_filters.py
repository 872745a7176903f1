"""Filters on Polars' GPU engine select the same rows as on the CPU."""

from __future__ import annotations

import logging

import numpy as np
import pytest

pl = pytest.importorskip("polars", reason="Polars is not installed")
pytest.importorskip("cudf_polars", reason="cudf-polars is not installed, or does not go with this Polars")

from gear_data.dataset.filters import column_names, true_rows  # noqa: E402
from gear_data.kernels.cuda import cudf  # noqa: E402

ROWS = 200_000

EXPRESSIONS = [
    pl.col("length") >= 500,
    pl.col("return") > 0.25,
    (pl.col("return") > pl.col("level")) | pl.col("done"),
    (pl.col("return").is_null() | ~pl.col("done")) & (pl.col("length") != 7),
    pl.col("length").is_between(5, 700, closed="left"),
    pl.col("level").eq_missing(3) ^ pl.col("done"),
    pl.col("task").str.starts_with("pick") & (pl.col("task") < "pick the c"),
    (pl.col("task") == "pläce") | pl.col("task").str.ends_with("") & pl.col("task").is_not_null(),
    pl.any_horizontal(pl.col("done"), pl.col("length") < 9, pl.col("return").is_infinite()),
]


@pytest.fixture(scope="module")
def frame() -> pl.DataFrame:
    rng = np.random.default_rng(5)
    missing = rng.random(ROWS) < 0.1
    numbers = rng.normal(0, 1, ROWS).astype(np.float32)
    numbers[:6] = [np.inf, -np.inf, 0.0, -0.0, 0.25, np.nextafter(np.float32(0.25), np.float32(1))]
    tasks = rng.choice(["pick the cup", "pick", "pläce", "place", ""], ROWS)
    return pl.DataFrame(
        {
            "length": rng.integers(1, 1001, ROWS),
            "return": numbers,
            "level": pl.Series(rng.integers(-2, 5, ROWS).astype(np.int8)).set(pl.Series(missing), None),
            "done": pl.Series(rng.random(ROWS) < 0.5).set(pl.Series(missing[::-1]), None),
            "task": pl.Series(tasks).set(pl.Series(np.roll(missing, 3)), None),
        }
    )


@pytest.mark.usefixtures("_device")
@pytest.mark.parametrize("expression", EXPRESSIONS, ids=str)
def test_the_same_rows(
    expression: pl.Expr, frame: pl.DataFrame, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    expected = true_rows(frame, expression)
    assert 0 < expected.sum() < ROWS
    monkeypatch.setattr(cudf, "MIN_ROWS", 1)
    with caplog.at_level(logging.INFO):
        found = cudf.true_values(frame, expression, column_names(expression))
    assert found is not None, caplog.text
    assert found.fill_null(False).to_list() == expected.tolist()
    assert true_rows(frame, expression).tolist() == expected.tolist()
