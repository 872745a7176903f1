"""`Dataset.drop_duplicates` against a comparison of all pairs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gear_data
from gear_data.dataset.curation import duplicates
from gear_data.errors import InvalidArgumentError, UnknownNameError, UnsupportedColumnError

Arrays = dict[str, Any]


def _dataset(folder: Path, episodes: list[Arrays]) -> gear_data.Dataset:
    gear_data.convert(episodes, folder, shard_bytes=2048, progress=False)
    return gear_data.open(folder)


def _kept(dataset: gear_data.Dataset) -> list[int]:
    ids: list[int] = dataset.episodes["episode_id"].to_list()
    return ids


def _all_pairs(episodes: list[Arrays], columns: list[str], tolerance: float) -> list[int]:
    """Each episode is compared with every earlier one that stays."""
    kept: list[int] = []
    for i, episode in enumerate(episodes):

        def near(j: int, episode: Arrays = episode) -> bool:
            pairs = [(np.asarray(episode[c], object), np.asarray(episodes[j][c], object)) for c in columns]
            return all(
                a.shape == b.shape
                and all(x == y or abs(x - y) <= tolerance or (x != x and y != y)
                        for x, y in zip(a.ravel().tolist(), b.ravel().tolist(), strict=True))
                for a, b in pairs
            )  # fmt: skip

        if not any(map(near, kept)):
            kept.append(i)
    return kept


def _episode(rng: np.random.Generator, steps: int) -> Arrays:
    return {
        "observations": rng.normal(size=(steps, 20)).astype(np.float32),
        "actions": rng.integers(0, 3, steps),
        "rewards": rng.normal(size=steps),
        "prompt": [str(i) for i in range(steps)],
    }


@pytest.fixture
def episodes() -> list[Arrays]:
    """Families of episodes that differ by noise of several sizes, in mixed order."""
    rng = np.random.default_rng(2)
    found = []
    for family in range(12):
        first = _episode(rng, 3 + family % 4)
        found.append(first)
        for noise in (0.0, 1e-4, 5e-3, 9e-3, 0.02, 0.5):
            moved = rng.uniform(-noise, noise, first["observations"].shape)
            found.append({**first, "observations": (first["observations"] + moved).astype(np.float32)})
    return [found[i] for i in rng.permutation(len(found))]


@pytest.mark.parametrize("tolerance", [0.0, 1e-4, 0.01, 0.03, 2.0, 100.0])
@pytest.mark.parametrize("columns", [["observations"], ["observations", "actions"], ["actions"]])
def test_near_duplicates(columns: list[str], tolerance: float, episodes: list[Arrays], tmp_path: Path) -> None:
    expected = _all_pairs(episodes, columns, tolerance)
    dataset = _dataset(tmp_path / "a", episodes)
    assert _kept(dataset.drop_duplicates(columns, tolerance)) == expected
    assert 4 <= len(expected) < len(episodes)
    half = dataset.select(range(0, 84, 2))
    assert _kept(half.drop_duplicates(columns, tolerance)) == [
        2 * i for i in _all_pairs(episodes[::2], columns, tolerance)
    ]


def test_exact_duplicates(episodes: list[Arrays], tmp_path: Path) -> None:
    dataset = _dataset(tmp_path / "a", episodes)
    expected: dict[bytes, int] = {}
    for i, episode in enumerate(episodes):
        expected.setdefault(b"".join(np.asarray(value).tobytes() for value in episode.values()), i)
    assert _kept(dataset.drop_duplicates()) == sorted(expected.values())
    unique = dataset.drop_duplicates()
    assert unique.drop_duplicates() is unique


def test_values_that_are_no_numbers_equal_themselves(tmp_path: Path) -> None:
    rows = [[0.0, np.nan], [0.0, np.nan], [0.0, 1.0], [0.0, np.inf], [0.0, np.inf], [0.0, -np.inf], [np.nan, 0.0]]
    episodes = [{"observations": np.array([row, row]), "actions": np.zeros((2, 1)), "rewards": np.zeros(2)}
                for row in rows]  # fmt: skip
    assert _kept(_dataset(tmp_path / "a", episodes).drop_duplicates(["observations"], 0.1)) == [0, 2, 3, 5, 6]


def test_integers_of_64_bits(tmp_path: Path) -> None:
    """As float64, the numbers would be equal."""
    numbers = [2**62, 2**62 + 1, -(2**63), 2**63 - 1, 2**62]
    episodes = [{"actions": np.array([n, n]), "rewards": np.zeros(2), "observations": np.zeros((2, 1))}
                for n in numbers]  # fmt: skip
    dataset = _dataset(tmp_path / "a", episodes)
    assert _kept(dataset.drop_duplicates(["actions"])) == [0, 1, 2, 3]
    assert _kept(dataset.drop_duplicates(["actions"], 1)) == [0, 2, 3]


def test_many_copies_are_not_compared_with_each_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    first, second = _episode(rng, 4), _episode(rng, 4)
    dataset = _dataset(tmp_path / "a", [first, second] * 200)
    compared = []
    compare = duplicates._nearly_equal
    monkeypatch.setattr(duplicates, "_nearly_equal", lambda *pair: compared.append(1) or compare(*pair))
    assert len(dataset.drop_duplicates(["observations"], 1e-3)) == 2
    assert len(compared) == 398


def test_wrong_arguments(episodes: list[Arrays], tmp_path: Path) -> None:
    dataset = _dataset(tmp_path / "a", episodes)
    with pytest.raises(UnknownNameError, match="observations"):
        dataset.drop_duplicates(["observation"])
    with pytest.raises(UnsupportedColumnError, match="prompt"):
        dataset.drop_duplicates(["prompt"])
    for tolerance in (-1.0, float("nan"), float("inf"), True):
        with pytest.raises(InvalidArgumentError, match="tolerance"):
            dataset.drop_duplicates(["actions"], tolerance)
    with pytest.raises(InvalidArgumentError, match="needs columns"):
        dataset.drop_duplicates(tolerance=0.1)
    with pytest.raises(InvalidArgumentError, match="no columns"):
        dataset.drop_duplicates([])


def test_missing_values_do_not_repeat_each_other(tmp_path: Path) -> None:
    """A merge has zeros where a dataset lacks a column: all its episodes of one length were duplicates."""
    zeros, rng = np.zeros(3), np.random.default_rng(4)
    without = [{"actions": rng.normal(size=(3, 2)), "rewards": rewards} for rewards in (zeros, zeros, zeros + 1)]
    with_zeros = [{**each, "infos.force": np.zeros((3, 2))} for each in without[:2]]
    _dataset(tmp_path / "a", without)
    _dataset(tmp_path / "b", with_zeros)
    gear_data.merge([tmp_path / "a", tmp_path / "b"], tmp_path / "both", progress=False)
    both = gear_data.open(tmp_path / "both")
    assert _kept(both.drop_duplicates(["infos.force"], 0.1)) == [0, 1, 2, 3]
    assert _kept(both.drop_duplicates(["infos.force", "rewards"], 0.1)) == [0, 2, 3]
