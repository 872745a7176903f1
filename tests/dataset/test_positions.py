"""A dataset as a sequence of episodes, against a plain Python list of rollouts."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gear_data
from gear_data.errors import EmptySourceError, EpisodeIndexError, InvalidArgumentError, UnsupportedColumnError


@pytest.fixture
def ds(rollouts_path: Path) -> gear_data.Dataset:
    return gear_data.open(rollouts_path)


def check(dataset: gear_data.Dataset, expected: list[Any]) -> None:
    """Compares a dataset with a list of rollouts.

    Compares the length, each episode by position, the iteration and the table.
    """
    assert len(dataset) == dataset.num_episodes == len(expected)
    assert [len(rollout) for rollout in expected] == [episode.length for episode in dataset]
    for position, (episode, rollout) in enumerate(zip(dataset, expected, strict=True)):
        for name in ("observations", "actions", "rewards"):
            np.testing.assert_array_equal(episode[name], rollout.columns[name])
            np.testing.assert_array_equal(dataset[position][name], rollout.columns[name])
            np.testing.assert_array_equal(dataset[position - len(dataset)][name], rollout.columns[name])
    assert dataset.lengths.tolist() == [len(rollout) for rollout in expected]
    assert dataset.num_steps == sum(len(rollout) for rollout in expected)


def test_the_whole_dataset(ds: gear_data.Dataset, rollouts: list[Any]) -> None:
    check(ds, rollouts)
    assert isinstance(ds[0], gear_data.Episode)
    assert isinstance(ds[np.int64(3)], gear_data.Episode)
    assert bool(ds)


@pytest.mark.parametrize(
    "key", [slice(None), slice(2, 7), slice(None, None, 3), slice(-4, None), slice(5, 10**9), slice(0, 1)], ids=str
)
def test_a_slice_is_a_view(key: slice, ds: gear_data.Dataset, rollouts: list[Any]) -> None:
    view = ds[key]
    assert isinstance(view, gear_data.Dataset)
    check(view, rollouts[key])
    ids = list(range(len(rollouts)))[key]
    assert view.episodes["episode_id"].to_list() == ids
    assert view.fingerprint == ds.filter(f"episode_id IN ({', '.join(map(str, ids))})").fingerprint


@pytest.mark.parametrize("kind", [list, tuple, np.array, lambda ids: np.array(ids, np.uint16)])
def test_a_list_of_positions_is_a_view(kind: Any, ds: gear_data.Dataset, rollouts: list[Any]) -> None:
    positions = [0, 3, 4, len(rollouts) - 1]
    expected = [rollouts[position] for position in positions]
    check(ds[kind(positions)], expected)
    check(ds.select(kind(positions)), expected)
    check(ds.select(range(1, 6, 2)), rollouts[1:6:2])
    check(ds[[1, -1]], [rollouts[1], rollouts[-1]])


def test_positions_count_within_a_view_and_ids_stay(ds: gear_data.Dataset, rollouts: list[Any]) -> None:
    long = [index for index, rollout in enumerate(rollouts) if len(rollout) > 5]
    view = ds.filter("length > 5").filter_steps("rewards > -1000")
    check(view, [rollouts[index] for index in long])
    chosen = view[1:4].select([0, 2])
    check(chosen, [rollouts[long[1]], rollouts[long[3]]])
    assert chosen.episode_ids is not None
    assert chosen.episode_ids.tolist() == [long[1], long[3]]
    assert chosen.step_mask is view.step_mask
    np.testing.assert_array_equal(chosen.episode(long[3])["rewards"], chosen[1]["rewards"])
    assert pickle.loads(pickle.dumps(chosen)).fingerprint == chosen.fingerprint


def test_all_positions_are_the_dataset_itself(ds: gear_data.Dataset) -> None:
    assert ds[:] is ds
    assert ds.select(range(len(ds))) is ds


@pytest.mark.parametrize("outside", [-1000, 1000, 10**30])
def test_positions_outside_are_index_errors(outside: int, ds: gear_data.Dataset) -> None:
    last = len(ds) - 1
    with pytest.raises(EpisodeIndexError, match=f"no episode at position {outside}: positions are 0 to {last}"):
        ds[outside]
    assert issubclass(EpisodeIndexError, IndexError)
    assert issubclass(EpisodeIndexError, InvalidArgumentError)


@pytest.mark.parametrize("outside", [-1000, 1000])
def test_a_list_with_a_position_outside(outside: int, ds: gear_data.Dataset) -> None:
    with pytest.raises(EpisodeIndexError, match=f"no episode at position {outside}"):
        ds.select([0, outside])


@pytest.mark.parametrize("read", ["steps", "values", "sizes"])
@pytest.mark.parametrize("viewed", [False, True], ids=["dataset", "view"])
@pytest.mark.parametrize(("first", "after_end"), [(0, 1), (-1, 0), (1, 1), (10**30, 10**30)])
def test_ranges_outside(first: int, after_end: int, viewed: bool, read: str, ds: gear_data.Dataset) -> None:
    """Beyond the end, a slice of a view's ids would be shorter than asked for."""
    dataset = ds.select([0, 2, 3]) if viewed else ds
    names = () if read == "sizes" else ("rewards",)
    last = len(dataset) + after_end
    with pytest.raises(
        EpisodeIndexError, match=f"positions {first} to {last} are not .*: positions are 0 to {len(dataset)}"
    ):
        getattr(dataset, read)(*names, first, last)


@pytest.mark.parametrize("viewed", [False, True], ids=["dataset", "view"])
def test_a_range_of_no_episodes(viewed: bool, ds: gear_data.Dataset) -> None:
    """It raised an IndexError of NumPy."""
    dataset = ds.select([0, 2, 3]) if viewed else ds
    for position in (0, 2, len(dataset)):
        steps = dataset.steps("observations", position, position)
        assert (steps.shape, steps.dtype) == ((0, 3), np.dtype("float32"))
        assert dataset.sizes(position, position).tolist() == []


def test_values_are_of_columns_of_variable_length(ds: gear_data.Dataset) -> None:
    """It raised KeyError: 'rewards'."""
    with pytest.raises(UnsupportedColumnError, match="fixed size") as error:
        ds.values("rewards", 0, 1)
    assert error.value.column == "rewards"


@pytest.mark.parametrize("positions", [[3, 2], [2, 2], [0, 5, 4, 6], np.array([1, 0]), [-1, 0]], ids=str)
def test_positions_must_ascend(positions: Any, ds: gear_data.Dataset) -> None:
    with pytest.raises(InvalidArgumentError, match="positions must ascend without repeats, but"):
        ds.select(positions)


def test_a_slice_backwards_is_refused(ds: gear_data.Dataset) -> None:
    with pytest.raises(InvalidArgumentError, match="positions must ascend"):
        ds[::-1]


@pytest.mark.parametrize(
    "key", [True, 1.0, "0", None, [0.5], [True, False], [[0, 1]], [0, [1]], ["a"], {1: 2}, np.array([1.0])], ids=repr
)
def test_other_keys_are_refused(key: Any, ds: gear_data.Dataset) -> None:
    with pytest.raises(InvalidArgumentError, match="integer") as error:
        ds[key]
    assert not isinstance(error.value, EpisodeIndexError)


@pytest.mark.parametrize("viewed", [False, True], ids=["dataset", "view"])
@pytest.mark.parametrize("index", [1.5, 1.0, "1", None, [1]], ids=repr)
def test_other_ids_are_refused(index: Any, viewed: bool, ds: gear_data.Dataset) -> None:
    """1.5 was episode 1."""
    dataset = ds[1:4] if viewed else ds
    with pytest.raises(InvalidArgumentError, match="id is an integer") as error:
        dataset.episode(index)
    assert not isinstance(error.value, EpisodeIndexError)
    for same in (np.uint8(2), np.array(2)):
        assert dataset.episode(same).id == dataset.episode(2).id == 2  # type: ignore[arg-type]


@pytest.mark.parametrize("empty", [[], (), np.array([], np.int64), range(0)], ids=repr)
def test_no_positions(empty: Any, ds: gear_data.Dataset) -> None:
    with pytest.raises(EmptySourceError, match="no episode was selected"):
        ds.select(empty)
    with pytest.raises(EmptySourceError):
        ds[5:5]


def test_a_dataset_is_no_source_of_a_conversion(ds: gear_data.Dataset, tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match="the source is a GEAR dataset"):
        gear_data.convert(ds, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_view_trains(ds: gear_data.Dataset, rollouts: list[Any]) -> None:
    view = ds[[1, 4]]
    loader = gear_data.SequenceLoader(view, batch_size=8, context=4, sampler="shuffle", steps=2, prefetch=0)
    assert {int(index) for step in range(2) for index in loader.windows(step)["episode_id"]} <= {1, 4}
    assert len(view) == 2
