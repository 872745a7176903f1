"""Shares of a sampler and the effective sample size."""

from __future__ import annotations

import numpy as np
import pytest

from gear_data import Weighted
from gear_data.reports.episodes import EpisodeFacts
from gear_data.reports.sampler_shares import sampler_shares
from gear_data.reports.step_sample import draw_sample
from tests.reports.conftest import Make, random_episodes


def test_shares_of_a_weighted_sampler_agree_with_a_loop(make: Make) -> None:
    lengths = [2, 8, 5, 5]
    dataset = make(random_episodes(lengths), task=["a", "a", "b", "b"])
    facts = EpisodeFacts(dataset, draw_sample(dataset))
    found = sampler_shares(facts, Weighted("length", by="step"))
    # Each step of an episode has the weight `length`.
    steps = np.concatenate([np.full(length, float(length)) for length in lengths])
    steps /= steps.sum()
    episodes = np.array([length**2 for length in lengths], float)
    episodes /= episodes.sum()
    assert found["effective_steps"] == pytest.approx(1 / (steps**2).sum(), rel=1e-5)
    assert found["effective_episodes"] == pytest.approx(1 / (episodes**2).sum(), rel=1e-5)
    assert found["groups"]["task"]["share"] == pytest.approx([episodes[:2].sum(), episodes[2:].sum()], rel=1e-3)
    assert found["groups"]["task"]["steps"] == pytest.approx([0.5, 0.5])
    assert found["mean_return"] == pytest.approx((episodes * facts.returns).sum(), rel=1e-5)
    assert sum(part["share"] for part in found["by_return"]) == pytest.approx(1, abs=1e-5)
    assert found["most_drawn"]["episode"] == 1


def test_uniform_draws_are_worth_all_steps(make: Make) -> None:
    dataset = make(random_episodes([2, 8, 5, 5]))[1:]
    found = sampler_shares(EpisodeFacts(dataset, draw_sample(dataset)), "uniform")
    assert found["effective_steps"] == pytest.approx(18)
    assert found["effective_episodes"] == pytest.approx(18**2 / (64 + 25 + 25), rel=1e-5)
    assert found["never_drawn"] == 0
