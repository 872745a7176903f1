"""Histograms, quantiles and marks of dimensions."""

from __future__ import annotations

import numpy as np
import pytest

from gear_data.reports.distributions import PROBABILITIES, column_distributions, describe
from gear_data.reports.step_sample import draw_sample
from gear_data.schema import ColumnSpec
from tests.reports.conftest import Make, random_episodes

ACTIONS = ColumnSpec("actions", "float32", (1,))
STATES = ColumnSpec("observations", "float32", (1,))


@pytest.mark.parametrize("dtype", ["float32", "int64", "uint8", "bool"])
def test_numbers_agree_with_numpy(dtype: str) -> None:
    values = (np.random.default_rng(1).normal(size=1001) * 20).astype(dtype)
    found = describe(values, STATES)
    wide = values.astype(np.float64)
    assert found.quantiles == pytest.approx(np.quantile(wide, PROBABILITIES), rel=1e-5, abs=1e-9)
    assert (found.min, found.max) == pytest.approx((wide.min(), wide.max()), rel=1e-5)
    assert (found.mean, found.std) == pytest.approx((wide.mean(), wide.std()), rel=1e-5)


def test_every_value_is_in_one_bin_or_outside() -> None:
    values = np.concatenate([np.random.default_rng(2).normal(size=5000), [900.0, -700.0]]).astype(np.float32)
    found = describe(values, STATES)
    inside = sum(found.edges[0] <= value <= found.edges[-1] for value in values.tolist())
    assert found.outside == len(values) - sum(found.counts)
    # Edges are rounded to six digits, so a value at an edge may be on its other side.
    assert abs(inside - sum(found.counts)) <= 2
    assert 2 <= found.outside < 20
    assert found.edges[-1] < 100


def test_integers_have_a_bin_each() -> None:
    found = describe(np.array([3, 3, 5, 9]), STATES)
    assert dict(zip([edge + 0.5 for edge in found.edges], found.counts, strict=False)) == {
        3: 2, 4: 0, 5: 1, 6: 0, 7: 0, 8: 0, 9: 1,
    }  # fmt: skip


def test_missing_and_constant_values_are_marked() -> None:
    found = describe(np.array([np.nan, 2, 2, np.inf, -np.inf, np.nan], np.float32), STATES)
    assert (found.count, found.nan, found.infinite, found.constant, found.clipped) == (2, 2, 2, True, False)
    nothing = describe(np.array([np.nan, np.nan], np.float32), STATES)
    assert (nothing.count, nothing.nan, nothing.mean, nothing.counts) == (0, 2, None, [])


def test_values_at_the_ends_are_clipped_and_saturated() -> None:
    raw = np.random.default_rng(3).normal(size=10_000).astype(np.float32)
    found = describe(np.clip(raw, -1, 2), ACTIONS)
    assert found.clipped
    assert found.at_min == pytest.approx((raw <= -1).mean())
    assert found.at_max == pytest.approx((raw >= 2).mean())
    near = ((raw <= -1 + 3e-3) | (raw >= 2 - 3e-3)).mean()
    assert found.saturated == pytest.approx(near, abs=2e-4)
    assert not describe(raw, ACTIONS).clipped
    assert describe(np.clip(raw, -1, 2), STATES).saturated is None


def test_a_discrete_action_is_not_clipped() -> None:
    found = describe(np.repeat(np.array([0, 1, 2], np.float32), 50), ACTIONS)
    assert not found.clipped
    assert found.saturated == 0


def test_wide_vectors_and_images_are_bounded(make: Make) -> None:
    episodes = random_episodes([4, 7], states=70)
    for episode in episodes:
        episode["frames"] = np.full((len(episode["rewards"]), 8, 9), 7, np.uint8)
        episode["frames"][0] = 3
    columns = {column["name"]: column for column in column_distributions(draw_sample(make(episodes)))}
    assert len(columns["observations"]["dimensions"]) == 64
    (frames,) = columns["frames"]["dimensions"]
    assert (frames["count"], frames["counts"]) == (11 * 72, [144, 0, 0, 0, 9 * 72])
