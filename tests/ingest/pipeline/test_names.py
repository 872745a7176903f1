"""Tests the mapping of sources' column names to canonical names."""

from __future__ import annotations

import shlex

import pytest

from gear_data.errors import InvalidArgumentError, UnknownNameError
from gear_data.ingest.pipeline.names import canonical_name, name_map


@pytest.mark.parametrize(
    ("name", "canonical"),
    [
        ("observations", "observations"),
        ("observation", "observations"),
        ("observation.state", "observations"),
        ("observation.images.top", "observations.images.top"),
        ("obs/agentview", "observations.agentview"),
        ("continuous_observations", "observations"),
        ("discrete_observations", "observations.discrete"),
        ("image_observations", "observations.image"),
        ("next_observation", "next_observations"),
        ("action", "actions"),
        ("action.gripper", "actions.gripper"),
        ("discrete_actions", "actions"),
        ("reward", "rewards"),
        ("next.reward", "rewards"),
        ("done", "dones"),
        ("next.done", "dones"),
        ("terminals", "terminated"),
        ("terminations", "terminated"),
        ("timeouts", "truncated"),
        ("truncations", "truncated"),
        ("infos/qpos", "infos.qpos"),
        ("info.success", "infos.success"),
        ("timestamp", "timestamp"),
        ("observational", "observational"),
        ("Observations", "Observations"),
    ],
)
def test_canonical_name(name: str, canonical: str) -> None:
    assert canonical_name(name) == canonical
    assert canonical_name(canonical) == canonical


def test_rename_comes_first() -> None:
    assert name_map(["obs", "x", "timeouts"], {"x": "actions", "timeouts": "my_flag"}) == {
        "obs": "observations",
        "x": "actions",
        "timeouts": "my_flag",
    }


def test_rename_of_a_missing_column() -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'actions'\\? known: actions, obs") as error:
        name_map(["obs", "actions"], {"action": "x"})
    assert error.value.column == "action"


def test_two_columns_of_one_name() -> None:
    with pytest.raises(InvalidArgumentError, match="'discrete_actions' and 'action' would both become 'actions'"):
        name_map(["discrete_actions", "action"], None)
    assert name_map(["discrete_actions", "action"], {"action": "infos.action"})["action"] == "infos.action"


def test_the_advice_quotes_names() -> None:
    with pytest.raises(InvalidArgumentError) as error:
        name_map(["action", "my act"], {"my act": "actions"})
    assert shlex.split(str(error.value.hint))[-2:] == ["--rename", "my act=OTHER"]
