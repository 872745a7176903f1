"""D4RL's normalised scores."""

from __future__ import annotations

import pytest

from gear_data.errors import UnknownNameError
from gear_data.evaluation.reference_scores import normalized_scores, reference_returns


@pytest.mark.parametrize("name", ["hopper-medium-v2", "Hopper-v5", "mujoco/hopper/expert-v0"])
def test_a_score_of_hopper(name):
    # 66.6 is the score that the Decision Transformer paper names for hopper-medium; 2,148 is its return.
    assert normalized_scores([-20.272305, 3234.3, 2147.3], name) == pytest.approx([0, 100, 66.6], abs=0.01)


@pytest.mark.parametrize(
    ("name", "random"),
    [
        ("Walker2d-v4", 1.629008),
        ("AdroitHandPen-v1", 96.262799),
        ("maze2d-open-v0", 0.01),
        ("maze2d-large-v1", 6.7),
        ("maze2d-large-dense-v1", 30.569041),
        ("bullet-hopper-medium-v0", 20.058972),
        ("bullet-maze2d-large-v0", 1.82),
        ("antmaze-umaze-v2", 0.0),
    ],
)
def test_names(name, random):
    assert reference_returns(name)[0] == random


@pytest.mark.parametrize(
    "name", ["CartPole-v1", "AntMaze_UMaze-v4", "FrankaKitchen-v1", "dm_control/hopper-hop-v0", ""]
)
def test_environments_without_reference_returns(name):
    assert reference_returns(name) is None
    with pytest.raises(UnknownNameError, match="known: ant"):
        normalized_scores([1.0], name)
