"""Checks of views, and facts about rollouts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import gear_data
from gear_data.errors import InvalidArgumentError

#: Tasks of the episodes, in turn.
TASKS = ("pick the cup", "place the cup", None, "open")


def total(rollout: Any) -> float:
    """Returns the return of a rollout, in float64."""
    return sum(rollout.columns["rewards"].astype(float).tolist())


def ids_of(view: gear_data.Dataset) -> list[int]:
    """Returns the ids of a view's episodes."""
    ids: list[int] = view.episodes["episode_id"].to_list()
    return ids


def flags_of(view: gear_data.Dataset) -> list[bool]:
    """Returns for each step of the whole dataset whether the view's filters of steps keep it."""
    assert view.step_mask is not None
    flags: list[bool] = view.step_mask.flags(0, int(view.store.offsets[-1])).tolist()
    return flags


def check_view(view: gear_data.Dataset, rollouts: list[Any], ids: list[int]) -> None:
    """Checks that a view has these episodes, with their ids in the dataset."""
    assert 0 < len(ids) < len(rollouts)
    lengths = [len(rollouts[i]) for i in ids]
    assert ids_of(view) == ids
    assert view.episode_ids is not None and view.episode_ids.tolist() == ids
    assert view.num_episodes == len(ids)
    assert view.num_steps == sum(lengths)
    assert view.lengths.tolist() == lengths
    assert view.offsets.tolist() == [sum(lengths[:i]) for i in range(len(ids) + 1)]
    assert view.store.offsets[ids].tolist() == [sum(len(r) for r in rollouts[:i]) for i in ids]
    assert f"{len(ids)} episodes" in repr(view)
    for i, rollout in enumerate(rollouts):
        if i in ids:
            np.testing.assert_array_equal(view.episode(i)["actions"], rollout.columns["actions"])
            final = view.final(ids.index(i))
            assert (final is None) == (i % 2 == 0)
            assert final is None or final["observations"].tolist() == rollout.final.tolist()
        else:
            with pytest.raises(InvalidArgumentError, match=f"episode {i} is not among the {len(ids)}"):
                view.episode(i)
    with pytest.raises(IndexError, match=f"positions are 0 to {len(ids) - 1}"):
        view.final(len(ids))
    with pytest.raises(InvalidArgumentError, match="no episode has id 10000"):
        view.episode(10000)
    expected = np.concatenate([rollouts[i].columns["observations"] for i in ids])
    np.testing.assert_array_equal(view.steps("observations", 0, len(ids)), expected)
