"""Splits, against a shuffle in plain Python."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gear_data
from gear_data.dataset.split import split_positions, split_sizes
from gear_data.errors import InvalidArgumentError, UnknownNameError
from tests.support.views import check_view, ids_of


def shuffled_by_hand(seed: int, count: int, domain: int = 64) -> list[int]:
    """Returns Fisher and Yates' shuffle in plain Python integers.

    Words come from Philox4x32-10 (Salmon et al.), bounded draws from Lemire's method.
    """

    def word(slot: int, attempt: int) -> int:
        c, k = [slot, 0, 0, domain << 24 | attempt], [seed & 0xFFFFFFFF, seed >> 32]
        for _ in range(10):
            p, q = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
            c = [(q >> 32) ^ c[1] ^ k[0], q & 0xFFFFFFFF, (p >> 32) ^ c[3] ^ k[1], p & 0xFFFFFFFF]
            k = [(k[0] + 0x9E3779B9) & 0xFFFFFFFF, (k[1] + 0xBB67AE85) & 0xFFFFFFFF]
        return c[1] << 32 | c[0]

    def below(slot: int, bound: int) -> int:
        attempt = 0
        while (product := word(slot, attempt) * bound) & (2**64 - 1) < 2**64 % bound:
            attempt += 1
        return product >> 64

    order = list(range(count))
    for i in range(count - 1, 0, -1):
        j = below(i, i + 1)
        order[i], order[j] = order[j], order[i]
    return order


def test_split_divides_the_episodes(ds: gear_data.Dataset, rollouts: list[Any]) -> None:
    for seed in (0, 1, 2**63 + 5):
        parts = ds.split({"train": 0.8, "val": 0.15, "test": 0.05}, seed=seed)
        order = shuffled_by_hand(seed, 30)
        check_view(parts["train"], rollouts, sorted(order[:24]))
        # 4.5 and 1.5 episodes have equal remainders: the first part is rounded up.
        check_view(parts["val"], rollouts, sorted(order[24:29]))
        check_view(parts["test"], rollouts, sorted(order[29:]))
        values = np.concatenate([rollouts[i].columns["rewards"] for i in sorted(order[:24])]).astype(np.float64)
        assert parts["train"].statistics["rewards"].mean[0] == pytest.approx(values.mean(), rel=1e-12)


def test_split_of_a_view_divides_the_view(ds: gear_data.Dataset) -> None:
    view = ds.filter("length > 4")
    ids = ids_of(view)
    parts = view.split({"a": 0.5, "b": 0.5}, seed=4)
    order = shuffled_by_hand(4, len(ids))
    half = -(-len(ids) // 2)
    assert ids_of(parts["a"]) == sorted(ids[position] for position in order[:half])
    assert sorted(ids_of(parts["a"]) + ids_of(parts["b"])) == ids


def test_hundreds_of_parts_divide_thousands_of_positions() -> None:
    order = shuffled_by_hand(7, 3000)
    parts = split_positions({str(number): 1 / 300 for number in range(300)}, 3000, None, 7)
    for number, positions in enumerate(parts.values()):
        assert positions.tolist() == sorted(order[10 * number : 10 * number + 10])


@pytest.mark.parametrize(
    ("fractions", "count", "sizes"),
    [
        ({"a": 0.9, "b": 0.1}, 10, [9, 1]),
        ({"a": 0.7, "b": 0.3}, 10, [7, 3]),
        ({"a": 0.1, "b": 0.2, "c": 0.7}, 10, [1, 2, 7]),
        ({"a": 1 / 3, "b": 1 / 3, "c": 1 / 3}, 10, [4, 3, 3]),
        ({"a": 0.5, "b": 0.25, "c": 0.25}, 10**9 + 2, [500_000_001, 250_000_001, 250_000_000]),
        ({"all": 1}, 3, [3]),
    ],
)
def test_split_sizes(fractions: dict[str, float], count: int, sizes: list[int]) -> None:
    assert list(split_sizes(fractions, count).values()) == sizes


@settings(deadline=None, derandomize=True)
@given(st.lists(st.integers(1, 1000), min_size=1, max_size=6), st.integers(5000, 10**12))
def test_split_sizes_are_within_one_of_the_share(weights: list[int], count: int) -> None:
    fractions = {str(i): weight / sum(weights) for i, weight in enumerate(weights)}
    sizes = split_sizes(fractions, count)
    assert sum(sizes.values()) == count
    for name, size in sizes.items():
        assert abs(size - fractions[name] * count) <= 1 + 1e-9 * count


@pytest.mark.parametrize(
    ("fractions", "seed", "words"),
    [
        ({"a": 0.9, "b": 0.2}, 0, "1.1"),
        ({"a": 0.5, "b": 0.4999999}, 0, "0.9999999"),
        ({"a": 1.5, "b": -0.5}, 0, "'b'"),
        ({"a": 1, "b": 0}, 0, "'b'"),
        ({"a": float("nan"), "b": 0.5}, 0, "'a'"),
        ({"a": "0.5", "b": 0.5}, 0, "'a'"),
        ({"a": 0.99, "b": 0.01}, 0, "'b' gets none of the 30"),
        ({}, 0, "at least one part"),
        ({"a": 0.5, "b": 0.5}, -1, "seed"),
        ({"a": 0.5, "b": 0.5}, 1 << 64, "seed"),
        ({"a": 0.5, "b": 0.5}, 0.5, "seed"),
    ],
)
def test_invalid_splits(fractions: Any, seed: Any, words: str, ds: gear_data.Dataset) -> None:
    with pytest.raises(InvalidArgumentError) as raised:
        ds.split(fractions, seed=seed)
    assert words in str(raised.value)


def test_stratified_parts_have_their_fraction_of_each_value(tmp_path: Path) -> None:
    tasks = [("a", "b", "b", "c", "b", "c")[i % 6] for i in range(60)]
    step = {"observations": np.zeros((1, 1)), "actions": np.zeros((1, 1)), "rewards": np.zeros(1)}
    gear_data.convert([{**step, "task": task} for task in tasks], tmp_path / "d", progress=False)
    dataset = gear_data.open(tmp_path / "d")
    parts = dataset.split({"train": 0.7, "val": 0.3}, seed=5, stratify="task")
    ids = {name: part.episodes["episode_id"].to_list() for name, part in parts.items()}
    assert sorted(ids["train"] + ids["val"]) == list(range(60))
    assert ids["val"] == sorted(ids["val"])
    # The shuffled episodes of a value, in their order: the first seven tenths are of the first part.
    order = shuffled_by_hand(5, 60)
    shuffled = {task: [i for i in order if tasks[i] == task] for task in "abc"}
    assert ids["train"] == sorted(i for mine in shuffled.values() for i in mine[: 7 * len(mine) // 10])
    counts = {name: {task: sum(tasks[i] == task for i in mine) for task in "abc"} for name, mine in ids.items()}
    assert counts == {"train": {"a": 7, "b": 21, "c": 14}, "val": {"a": 3, "b": 9, "c": 6}}
    again = dataset.split({"train": 0.7, "val": 0.3}, seed=5, stratify="task")["val"]
    assert again.episodes["episode_id"].to_list() == ids["val"]
    other = dataset.split({"train": 0.7, "val": 0.3}, seed=6, stratify="task")["val"]
    assert other.episodes["episode_id"].to_list() != ids["val"]
    with pytest.raises(InvalidArgumentError, match="none of the 60 episodes"):
        dataset.split({"train": 0.99, "val": 0.01}, stratify="task")
    with pytest.raises(UnknownNameError, match="tasks"):
        dataset.split({"train": 0.5, "val": 0.5}, stratify="tasks")
