"""Exact quantiles against numpy.quantile."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gear_data.storage.quantiles.exact import exact_quantiles
from gear_data.storage.quantiles.files import load_quantiles, save_quantiles

PROBABILITIES = (0.0, 0.01, 0.25, 0.5, 0.99, 1.0)


def plain(values, width):
    columns = values.reshape(len(values), width, -1).transpose(1, 0, 2).reshape(width, -1).astype(np.float64)
    result = np.full((len(PROBABILITIES), width), np.nan)
    for element, column in enumerate(columns):
        finite = column[np.isfinite(column)]
        if len(finite):
            result[:, element] = np.quantile(finite, PROBABILITIES)
    return result


def check(values, width):
    cuts = [0, len(values) // 3, len(values)]
    blocks = [values[first:last] for first, last in pairwise(cuts)]
    found = exact_quantiles(lambda: iter(blocks), values.dtype, width, PROBABILITIES)
    np.testing.assert_array_equal(found, plain(values, width))


@pytest.mark.parametrize(
    "dtype", ["float16", "float32", "float64", "int8", "int16", "int32", "int64", "uint8", "uint32"]
)
def test_quantiles_equal_numpys(dtype):
    rng = np.random.default_rng(3)
    limits = np.iinfo(dtype) if np.dtype(dtype).kind in "iu" else None
    for size in (1, 2, 101, 5000):
        if limits is None:
            values = (rng.standard_normal((size, 4)) * [1, 1e-3, 100, 1e4]).astype(dtype)
            values[:, 1] = np.round(values[:, 1] * 300)
        else:
            low, high = max(limits.min, -(1 << 52)), min(limits.max, 1 << 52)
            values = rng.integers(low, high, (size, 4), endpoint=True).astype(dtype)
            values[: size // 2, 1] = 7
        check(values, 4)
        check(values, 1)


def test_values_that_are_not_finite_are_skipped():
    values = np.random.default_rng(5).standard_normal((500, 3)).astype(np.float32)
    values[::7, 0] = np.nan
    values[::5, 0] = np.inf
    values[::3, 0] = -np.inf
    values[:, 1] = np.nan
    values[:, 2] = [0.0, -0.0] * 250
    check(values, 3)


@given(st.lists(st.floats(width=64, allow_nan=True), min_size=1, max_size=40))
@settings(max_examples=60, deadline=None)
def test_any_floats(values):
    values = np.array(values)
    # Differences that overflow give infinities, as they do in NumPy.
    values[np.abs(values) > 1e300] = np.inf
    check(values[:, None], 1)


def test_quantile_files_are_checked(tmp_path):
    path = tmp_path / "new" / "quantiles.json"
    quantiles = np.array([[0.1, np.nan], [1 / 3, -5.0]])
    save_quantiles(path, quantiles)
    np.testing.assert_array_equal(load_quantiles(path, (2, 2)), quantiles)
    assert load_quantiles(path, (2, 3)) is None
    path.write_text(path.read_text().replace("-5.0", "-6.0"))
    assert load_quantiles(path, (2, 2)) is None
    assert load_quantiles(tmp_path / "none.json", (2, 2)) is None
    save_quantiles(tmp_path / "new" / "quantiles.json" / "below", quantiles)  # a file is in the way: not stored
