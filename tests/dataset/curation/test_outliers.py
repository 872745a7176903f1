"""`Dataset.drop_outliers` against SciPy's median absolute deviation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gear_data
from gear_data.dataset.curation.outliers import deviations
from gear_data.errors import EmptySourceError, InvalidArgumentError, UnknownNameError
from tests.support.running.imported_when_used import ImportedWhenUsed

stats = ImportedWhenUsed("scipy.stats")


def _dataset(folder: Path, scores: list[Any]) -> gear_data.Dataset:
    episodes = [{"actions": np.zeros((2 + i % 3, 1)), "rewards": np.ones(2 + i % 3), "score": s, "task": "a"}
                for i, s in enumerate(scores)]  # fmt: skip
    gear_data.convert(episodes, folder, progress=False)
    return gear_data.open(folder)


def test_the_scale_is_the_median_absolute_deviation(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    scores = np.concatenate([rng.normal(5, 2, 60), [40.0, -31.0, 11.5]])
    scale = stats.median_abs_deviation(scores, scale="normal")
    for limit in (1.0, 2.5, 3.5):
        kept = _dataset(tmp_path / str(limit), scores.tolist()).drop_outliers({"score": limit})
        expected = np.flatnonzero(np.abs(scores - np.median(scores)) / scale <= limit)
        assert kept.episodes["episode_id"].to_list() == expected.tolist()
    assert 60 < len(expected) < 63


def test_values_that_are_mostly_equal() -> None:
    """The median deviation is 0, and the mean deviation is 0.2 + 10 / 20."""
    values = np.array([3.0] * 16 + [4.0, 2.0, 5.0, 13.0])
    found = deviations(values)
    np.testing.assert_allclose(found, np.abs(values - 3) / (np.sqrt(np.pi / 2) * 14 / 20), rtol=1e-12)
    assert deviations(np.full(5, 2.5)).tolist() == [0.0] * 5
    np.testing.assert_array_equal(deviations(np.array([np.nan, np.nan])), [np.nan, np.nan])
    np.testing.assert_array_equal(deviations(np.array([1.0, 1.0, np.inf])), [0.0, 0.0, np.inf])


def test_missing_values_stay_and_infinities_leave(tmp_path: Path) -> None:
    scores = [1.0, 2.0, None, 3.0, float("nan"), float("-inf"), 2.5, 1.5, 90.0]
    kept = _dataset(tmp_path / "a", scores).drop_outliers({"score": 4})
    assert kept.episodes["episode_id"].to_list() == [0, 1, 2, 3, 4, 6, 7]
    assert _dataset(tmp_path / "b", [None, None, None, 1.0]).drop_outliers({"score": 1}).num_episodes == 4


def test_integers_above_2_to_the_53(tmp_path: Path) -> None:
    """Such as times in nanoseconds, of which floats have not all."""
    stamps = [1_700_000_000_000_000_001 + number * 10**9 for number in range(9)]
    kept = _dataset(tmp_path / "a", [*stamps, stamps[0] + 10**12]).drop_outliers({"score": 10})
    assert kept.episodes["score"].to_list() == stamps


def test_several_limits_are_compared_with_all_episodes(tmp_path: Path) -> None:
    dataset = _dataset(tmp_path / "a", [float(i) for i in range(9)])
    both = dataset.drop_outliers({"score": 1.0, "length": 0.5})
    alone = [set(dataset.drop_outliers(each).episodes["episode_id"]) for each in ({"score": 1.0}, {"length": 0.5})]
    assert set(both.episodes["episode_id"]) == alone[0] & alone[1]
    assert both.drop_outliers({"score": 99}) is both


@pytest.mark.parametrize(("limits", "message"), [
    ({}, "mapping"), ([("score", 3)], "mapping"), ({"score": 0}, "above 0"), ({"score": float("nan")}, "above 0"),
    ({"score": True}, "above 0"), ({"task": 3}, "type dictionary"),
])  # fmt: skip
def test_wrong_limits(limits: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        _dataset(tmp_path / "a", [1.0, 2.0]).drop_outliers(limits)


def test_limits_that_no_episode_keeps(tmp_path: Path) -> None:
    with pytest.raises(EmptySourceError, match="every episode"):
        _dataset(tmp_path / "a", [0.0, 10.0]).drop_outliers({"score": 0.5})


def test_an_unknown_column(tmp_path: Path) -> None:
    with pytest.raises(UnknownNameError, match="score"):
        _dataset(tmp_path / "a", [1.0, 2.0]).drop_outliers({"reward": 3})
