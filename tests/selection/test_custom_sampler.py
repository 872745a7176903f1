"""Samplers that a user writes: equal windows on any ranks, resuming, and wrong output."""

from __future__ import annotations

import pickle
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gear_data
from gear_data import Mixture, SequenceLoader
from gear_data.errors import InvalidArgumentError, StateMismatchError
from tests.support.feed.batches import same

OPTIONS: dict[str, Any] = {"batch_size": 10, "context": 4, "seed": 5, "columns": ["actions", "rewards"]}


@dataclass(frozen=True)
class Cyclic:
    """Goes through all windows in an order."""

    stride: int = 7
    name = "cyclic"

    def draw(self, counts: Any, seed: int, step: int, first: int, last: int) -> Any:
        ends = np.cumsum(counts)
        windows = np.arange(first, last) * self.stride % ends[-1]
        episodes = np.searchsorted(ends, windows, side="right")
        return episodes, windows - (ends - counts)[episodes]


@dataclass(frozen=True)
class ByWeight:
    """Draws episodes by weights, which are a field."""

    weights: Any
    name = "by-weight"

    def draw(self, counts: Any, seed: int, step: int, first: int, last: int) -> Any:
        rng = np.random.default_rng([seed, step])
        weights = self.weights * (counts > 0)
        episodes = rng.choice(len(counts), last - first, p=weights / weights.sum())
        return episodes.astype(np.int32), rng.integers(counts[episodes])


@pytest.fixture
def ds(rollouts_path: Path) -> gear_data.Dataset:
    return gear_data.open(rollouts_path)


def samplers(ds: gear_data.Dataset) -> list[Any]:
    return [Cyclic(), ByWeight(np.arange(1.0, len(ds) + 1))]


def expected_windows(sampler: Any, lengths: Any, seed: int, step: int, size: int) -> list[tuple[int, int, int]]:
    """Returns (position, start, length) by the sampler itself and a plain loop."""
    drawn = sampler.draw(lengths, seed, step, step * size, (step + 1) * size)
    return [(int(e), int(s), min(4, int(lengths[e]) - int(s))) for e, s in zip(*drawn, strict=True)]


def rows(table: dict[str, Any]) -> list[tuple[int, int, int]]:
    return list(zip(*(table[name].tolist() for name in ("episode_id", "start", "length")), strict=True))


def test_windows_are_those_of_the_sampler(ds: gear_data.Dataset, rollouts: list[Any]) -> None:
    for sampler in samplers(ds):
        loader = SequenceLoader(ds, **OPTIONS, sampler=sampler, steps=6)
        for step, batch in enumerate(loader):
            expected = expected_windows(sampler, ds.lengths, 5, step, 10)
            assert rows(loader.windows(step)) == expected
            for row, (episode, start, length) in enumerate(expected):
                values = rollouts[episode].columns["actions"][start : start + length]
                assert batch["actions"][row, :length].tolist() == values.tolist()


def test_views_number_their_own_episodes(ds: gear_data.Dataset) -> None:
    """Positions become ids, and filtered steps are not counted."""
    view = ds.filter("length > 5")
    assert view.episode_ids is not None
    for step in range(3):
        drawn = expected_windows(Cyclic(), view.lengths, 5, step, 10)
        found = SequenceLoader(view, **OPTIONS, sampler=Cyclic()).windows(step)
        assert rows(found) == [(int(view.episode_ids[e]), start, length) for e, start, length in drawn]
    filtered = ds.filter_steps("rewards > 0")
    allowed = [np.flatnonzero(episode["rewards"] > 0) for episode in ds]
    counts = np.array([len(each) for each in allowed])
    episodes, numbers = Cyclic().draw(counts, 5, 2, 20, 30)
    found = SequenceLoader(filtered, **OPTIONS, sampler=Cyclic()).windows(2)
    assert found["episode_id"].tolist() == episodes.tolist()
    assert found["start"].tolist() == [int(allowed[e][k]) for e, k in zip(episodes, numbers, strict=True)]


def test_ranks_share_the_batches_and_others_resume(ds: gear_data.Dataset) -> None:
    """One rank runs three steps; three ranks go on; the batches are those of one run."""
    for sampler in samplers(ds):
        whole = list(SequenceLoader(ds, **OPTIONS, sampler=sampler, steps=6, rank=0, world_size=1))
        first = SequenceLoader(ds, **OPTIONS, sampler=sampler, steps=6, rank=0, world_size=1)
        iterator = iter(first)
        for step in range(3):
            same([next(iterator)], [whole[step]])
        state = first.state_dict()
        for rank in range(3):
            loader = SequenceLoader(ds, **OPTIONS, sampler=sampler, steps=6, rank=rank, world_size=3)
            assert rows(loader.windows(1)) == rows(first.windows(1))
            loader.load_state_dict(state)
            own = slice(rank * 10 // 3, (rank + 1) * 10 // 3)
            batches = list(pickle.loads(pickle.dumps(loader)))
            assert len(batches) == 3
            same(batches, [{key: values[own] for key, values in batch.items()} for batch in whole[3:]])


def test_another_sampler_refuses_the_state(ds: gear_data.Dataset) -> None:
    weights = np.arange(1.0, len(ds) + 1)
    state = SequenceLoader(ds, **OPTIONS, sampler=ByWeight(weights)).state_dict()
    SequenceLoader(ds, **OPTIONS, sampler=ByWeight(weights.copy())).load_state_dict(state)
    weights[3] += 1
    for other, message in ((ByWeight(weights), "another selection"), (Cyclic(), "another sampler")):
        with pytest.raises(StateMismatchError, match=message):
            SequenceLoader(ds, **OPTIONS, sampler=other).load_state_dict(state)
    with pytest.raises(StateMismatchError, match=r"'stride': 7.*'stride': 3"):
        loader = SequenceLoader(ds, **OPTIONS, sampler=Cyclic(3))
        loader.load_state_dict(SequenceLoader(ds, **OPTIONS, sampler=Cyclic(7)).state_dict())


@pytest.mark.parametrize("join", [False, True])
def test_a_mixture_gives_each_dataset_its_own_slots(ds: gear_data.Dataset, join: bool) -> None:
    """Every dataset goes on where its last slot was."""
    parts = [ds[:20], ds[20:]]
    loader = SequenceLoader(Mixture(parts, join=join), **OPTIONS, sampler=Cyclic())
    found: list[list[Any]] = [[], []]
    for step in range(6):
        table = loader.windows(step)
        for source, row in zip(table["dataset"].tolist(), rows(table), strict=True):
            found[source].append(row)
    for number, part in enumerate(parts):
        drawn = Cyclic().draw(part.lengths, 0, 0, 0, 30)
        expected = [(int(e) + 20 * number, int(s)) for e, s in zip(*drawn, strict=True)]
        assert [row[:2] for row in found[number]] == expected


@dataclass(frozen=True)
class Wrong:
    """Returns a value for the slots of a batch."""

    value: Any = field(repr=False)
    name = "wrong"

    def draw(self, counts: Any, seed: int, step: int, first: int, last: int) -> Any:
        assert (first, last) == (20, 30)
        zeros = np.zeros(10, np.int64)
        outside = zeros.copy()
        outside[4] = -1
        return {
            "one array": zeros,
            "floats": (zeros, zeros + 0.5),
            "few": (zeros[:9], zeros),
            "episode": (zeros + len(counts) * (np.arange(10) == 3), zeros),
            "negative episode": (outside, zeros),
            "window": (zeros, zeros + counts[0] * (np.arange(10) == 9)),
            "negative window": (zeros, outside),
        }[self.value]


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("one array", "sampler 'wrong' returns array.* for step 2"),
        ("floats", "sampler 'wrong' returns window numbers of dtype float64 for step 2"),
        ("few", r"sampler 'wrong' returns episodes of shape \(9,\) for the 10 slots of step 2"),
        ("episode", "sampler 'wrong' returns episode 40 for slot 23 of step 2; positions are 0 to 39"),
        ("negative episode", "sampler 'wrong' returns episode -1 for slot 24 of step 2"),
        ("window", r"sampler 'wrong' returns window \d+ of episode 0 for slot 29 of step 2; the episode has \d+"),
        ("negative window", "sampler 'wrong' returns window -1 of episode 0 for slot 24 of step 2"),
    ],
)
def test_wrong_output_names_the_sampler_and_the_slot(ds: gear_data.Dataset, value: str, message: str) -> None:
    loader = SequenceLoader(ds, **OPTIONS, sampler=Wrong(value))
    with pytest.raises(InvalidArgumentError, match=message):
        loader.windows(2)


@dataclass(frozen=True)
class Impure:
    name = "impure"

    def draw(self, counts: Any, seed: int, step: int, first: int, last: int) -> Any:
        episodes = np.random.default_rng().integers(len(counts), size=last - first)
        return episodes, np.zeros(last - first, int)


@dataclass(frozen=True)
class Nameless:
    def draw(self, counts: Any, seed: int, step: int, first: int, last: int) -> Any:
        raise AssertionError


def test_what_is_no_sampler_is_refused(ds: gear_data.Dataset) -> None:
    with pytest.raises(InvalidArgumentError, match=r"'impure' returns two windows for slot .* pure function"):
        SequenceLoader(ds, **OPTIONS, sampler=Impure()).windows(0)
    loose = type("Loose", (), {"name": "loose", "draw": Cyclic.draw})()
    with pytest.raises(InvalidArgumentError, match="Loose is not a frozen dataclass"):
        SequenceLoader(ds, **OPTIONS, sampler=loose)
    with pytest.raises(InvalidArgumentError, match="must be a name or a sampler"):
        SequenceLoader(ds, **OPTIONS, sampler=Nameless())  # type: ignore[arg-type]
    with pytest.raises(InvalidArgumentError, match="field value of sampler 'wrong' is <object"):
        SequenceLoader(ds, **OPTIONS, sampler=Wrong(object()))
    with pytest.raises(InvalidArgumentError, match="must be a name or a sampler"):
        SequenceLoader(ds, **OPTIONS, sampler=Cyclic)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgumentError, match="'cyclic' does not say how often it draws"):
        ds.residency_plan(0, 0, sampler=Cyclic())
