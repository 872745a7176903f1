"""Principal components and points of the state visitation."""

from __future__ import annotations

import numpy as np
import pytest

from gear_data.reports.episodes import EpisodeFacts
from gear_data.reports.step_sample import draw_sample
from gear_data.reports.visitation import principal_components, visitation
from tests.reports.conftest import Make, random_episodes


def test_components_agree_with_a_singular_value_decomposition() -> None:
    rng = np.random.default_rng(0)
    values = rng.normal(size=(500, 5)) @ rng.normal(size=(5, 5)) + 3
    values[:, 4] = 1
    points, shares = principal_components(values)
    standard = (values - values.mean(axis=0)) / np.where(values.std(axis=0) > 0, values.std(axis=0), 1)
    u, sizes, _ = np.linalg.svd(standard, full_matrices=False)
    assert np.abs(points) == pytest.approx(np.abs(u[:, :2] * sizes[:2]), abs=1e-8)
    assert shares == pytest.approx(sizes[:2] ** 2 / (sizes**2).sum())


def test_points_are_steps_with_the_return_of_their_episode(make: Make) -> None:
    episodes = random_episodes([3, 8, 5])
    dataset = make(episodes)
    found = visitation(EpisodeFacts(dataset, draw_sample(dataset)), draw_sample(dataset))
    assert found is not None
    assert found["episode"] == [0] * 3 + [1] * 8 + [2] * 5
    sums = [episode["rewards"].astype(np.float64).sum() for episode in episodes]
    assert found["return"] == pytest.approx(np.repeat(sums, [3, 8, 5]), rel=1e-3)
    first = np.array(found["points"][2]) / found["grid"] * (found["max"][2] - found["min"][2]) + found["min"][2]
    assert first == pytest.approx(np.concatenate([each["observations"][:, 0] for each in episodes]), abs=0.01)


def test_without_observations_there_is_nothing_to_show(make: Make) -> None:
    episodes = [{**each, "observations": np.arange(len(each["rewards"]))} for each in random_episodes([4, 4])]
    dataset = make(episodes)
    assert visitation(EpisodeFacts(dataset, draw_sample(dataset)), draw_sample(dataset)) is None
