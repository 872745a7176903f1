"""Drift between two datasets, against SciPy."""

from __future__ import annotations

import numpy as np
import pytest

from gear_data.reports.comparison import compare, kolmogorov_smirnov
from gear_data.reports.step_sample import draw_sample
from tests.reports.conftest import Make, random_episodes
from tests.support.running.imported_when_used import ImportedWhenUsed

stats = ImportedWhenUsed("scipy.stats")


@pytest.mark.parametrize("seed", range(4))
def test_the_statistic_agrees_with_scipy(seed: int) -> None:
    rng = np.random.default_rng(seed)
    first, second = np.sort(rng.normal(size=300)), np.sort(rng.normal(0.3, 2, size=170))
    assert kolmogorov_smirnov(first, second) == pytest.approx(stats.ks_2samp(first, second).statistic)
    # With ties.
    first, second = np.sort(rng.integers(0, 5, 300)), np.sort(rng.integers(1, 6, 170))
    assert kolmogorov_smirnov(first, second) == pytest.approx(stats.ks_2samp(first, second).statistic)


def test_a_shifted_dimension_drifts_and_others_do_not(make: Make) -> None:
    lengths = [40] * 30
    one, two = random_episodes(lengths, seed=1), random_episodes(lengths, seed=1)
    for episode in two:
        episode["actions"][:, 1] += 2
        episode["added"] = np.ones(len(episode["rewards"]), np.float32)
    found = compare(draw_sample(make(one)), make(two))
    rows = {row["name"]: row for row in found["rows"]}
    assert [name for name, row in rows.items() if row["drifted"]] == ["actions[1]"]
    values = [np.concatenate([each["actions"][:, 1] for each in episodes]) for episodes in (one, two)]
    assert rows["actions[1]"]["statistic"] == pytest.approx(stats.ks_2samp(*values).statistic, abs=1e-6)
    assert rows["actions[1]"]["shift"] == pytest.approx(2 / values[0].std(), rel=1e-3)
    assert rows["actions[0]"]["statistic"] == 0
    assert (found["only_here"], found["only_there"], found["other_shape"]) == ([], ["added"], [])
    assert not found["sampled"]


def test_columns_of_other_shapes_are_named(make: Make) -> None:
    first, second = make(random_episodes([5, 6])), make(random_episodes([5, 6], states=4))
    found = compare(draw_sample(first), second)
    assert found["other_shape"] == ["observations"]
    assert not any(row["name"].startswith("observations") for row in found["rows"])
