"""Samples of large datasets."""

from __future__ import annotations

import numpy as np
import pytest

from gear_data.reports.numbers import number, rounded
from gear_data.reports.step_sample import draw_sample, spread
from tests.reports.conftest import Make, random_episodes


def test_a_sample_has_whole_episodes_and_at_most_the_steps(make: Make) -> None:
    dataset = make(random_episodes([10] * 50))
    sample = draw_sample(dataset, 120)
    assert not sample.complete
    assert (len(sample.dataset), sample.dataset.num_steps) == (12, 120)
    assert sample.dataset.episode_ids is not None
    assert sample.dataset.episode_ids.tolist() == sample.positions.tolist() == sorted(sample.positions.tolist())
    assert draw_sample(dataset, 120).positions.tolist() == sample.positions.tolist()
    assert draw_sample(dataset, 500).complete
    assert len(draw_sample(dataset, 3).dataset) == 1


@pytest.mark.parametrize("block", [40, 1000])
def test_a_column_is_read_at_every_nth_step(make: Make, monkeypatch: pytest.MonkeyPatch, block: int) -> None:
    monkeypatch.setattr("gear_data.reports.step_sample.BLOCK_BYTES", block)
    episodes = random_episodes([7, 1, 12, 5])
    sample = draw_sample(make(episodes))
    values, stride = sample.column(sample.dataset.schema["observations"], budget=20)
    # 25 steps of 3 values, of which 20 may be read.
    assert stride == 4
    assert values.tolist() == np.concatenate([each["observations"] for each in episodes])[::4].tolist()


def test_spread_has_both_ends() -> None:
    assert spread(3, 10).tolist() == [0, 1, 2]
    assert spread(101, 3).tolist() == [0, 50, 100]
    assert len(spread(1000, 200)) == 200


def test_numbers_are_json() -> None:
    assert rounded([[1.23456, np.nan], [np.inf, -2e-9]]) == [[1.235, None], [None, -2e-9]]
    assert number(np.float32(0.1)) == 0.1
