"""The steps per second of datasets, as sources and timestamps say them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

import gear_data
from gear_data import Mixture, Seconds, SequenceLoader
from gear_data.dataset.step_rate import measured_rate, stated_rate
from gear_data.errors import InvalidArgumentError
from tests.support.feed import data as feed_data
from tests.support.rollouts import make_rollouts, write_lerobot
from tests.support.source_makers import robomimic


def steps_of(dataset: gear_data.Dataset | Mixture, times: list[float], **options: Any) -> Any:
    """The steps of actions, as the loader's spec has them."""
    spec = SequenceLoader(dataset, columns=["actions"], offsets={"actions": Seconds(times, **options)}).spec()
    return spec["offsets"]["actions"]


def with_stamps(folder: Path, gaps: list[list[float]], dtype: Any = np.float32, name: str = "timestamp") -> Any:
    """A dataset whose episodes have these gaps between their steps, in seconds."""
    episodes = feed_data.locomotion([len(each) + 1 for each in gaps], seed=1)
    for number, (episode, each) in enumerate(zip(episodes, gaps, strict=True)):
        episode[name] = (10 * number + np.cumsum([0.0, *each])).astype(dtype)
    return feed_data.convert_episodes(episodes, folder, shard_bytes=1024)


@pytest.mark.parametrize("fps, rate", [(30, 30.0), (12.5, 12.5), (None, None)])
def test_lerobot_states_it(tmp_path: Path, fps: Any, rate: Any) -> None:
    write_lerobot(tmp_path / "source", make_rollouts(3), info={"fps": fps})
    gear_data.convert(tmp_path / "source", tmp_path / "gear", progress=False)
    ds = gear_data.open(tmp_path / "gear")
    assert stated_rate(ds) == rate
    # Without it, the timestamps say 30 steps per second.
    assert steps_of(ds, [0.0, 0.4], fill="hold") == {"steps": [0, int(0.4 * (rate or 30))]}
    assert stated_rate(ds.filter("episode_id > 0")) == rate


@pytest.mark.parametrize(
    "arguments, rate", [({"control_freq": 20}, 20.0), ({"control_freq": "20"}, None), (None, None)]
)
def test_robomimic_states_it(tmp_path: Path, arguments: Any, rate: float | None) -> None:
    robomimic(tmp_path / "source", make_rollouts(3))
    with h5py.File(tmp_path / "source" / "demo.hdf5", "a") as file:
        file["data"].attrs["env_args"] = json.dumps({"env_name": "Lift", "type": 1, "env_kwargs": arguments})
    gear_data.convert(tmp_path / "source", tmp_path / "gear", progress=False)
    assert stated_rate(gear_data.open(tmp_path / "gear")) == rate


def test_sources_of_several_rates(tmp_path: Path) -> None:
    parts = []
    for fps in (30, 30, 10):
        parts.append(tmp_path / f"source{len(parts)}")
        write_lerobot(parts[-1], make_rollouts(2), info={"fps": fps})
    gear_data.convert(parts[:2], tmp_path / "alike", progress=False)
    assert stated_rate(gear_data.open(tmp_path / "alike")) == 30
    gear_data.convert(parts, tmp_path / "unlike", progress=False)
    with pytest.raises(InvalidArgumentError, match="converted from sources of 10 and 30 steps per second") as caught:
        stated_rate(gear_data.open(tmp_path / "unlike"))
    assert caught.value.file == str(tmp_path / "unlike")


def test_merged_datasets_of_several_rates(tmp_path: Path) -> None:
    parts = {}
    for name, fps in (("a", 30), ("b", 30), ("c", 10)):
        write_lerobot(tmp_path / f"source-{name}", make_rollouts(2), info={"fps": fps})
        gear_data.convert(tmp_path / f"source-{name}", tmp_path / name, progress=False)
        parts[name] = tmp_path / name
    gear_data.merge([parts["a"], parts["b"]], tmp_path / "alike", progress=False)
    assert stated_rate(gear_data.open(tmp_path / "alike")) == 30
    gear_data.merge([tmp_path / "alike", parts["c"]], tmp_path / "unlike", progress=False)
    with pytest.raises(InvalidArgumentError, match="sources of 10 and 30 steps per second"):
        gear_data.open(tmp_path / "unlike").drop_idle("actions", threshold=0.1, seconds=0.5)


def test_saved_views_have_the_rates_of_their_sources(tmp_path: Path) -> None:
    for name, fps in (("a", 30), ("b", 30), ("c", 10)):
        write_lerobot(tmp_path / f"source-{name}", make_rollouts(2), info={"fps": fps})
        gear_data.convert(tmp_path / f"source-{name}", tmp_path / name, progress=False)
    a, b, c = (tmp_path / name for name in "abc")
    sources = [tmp_path / f"source-{name}" for name in "abc"]
    gear_data.convert(sources[:2], tmp_path / "parts", progress=False)
    gear_data.merge([a, b], tmp_path / "merged", progress=False)
    for name in ("a", "parts", "merged"):
        gear_data.open(tmp_path / name)[1:].save(tmp_path / f"{name}-1", progress=False)
        gear_data.open(tmp_path / f"{name}-1").rename({"actions": "controls"}).save(
            tmp_path / f"{name}-2", progress=False
        )
        assert [stated_rate(gear_data.open(tmp_path / f"{name}-{number}")) for number in (1, 2)] == [30, 30]
    # Datasets of unlike columns are written again, as sources.
    gear_data.merge([a, c], tmp_path / "unlike", progress=False)
    gear_data.merge([tmp_path / "merged", tmp_path / "merged-2"], tmp_path / "wide", progress=False)
    assert stated_rate(gear_data.open(tmp_path / "wide")) == 30
    gear_data.merge([tmp_path / "unlike", tmp_path / "merged-2"], tmp_path / "wider", progress=False)
    gear_data.open(tmp_path / "unlike")[1:].save(tmp_path / "saved", progress=False)
    for name in ("wider", "saved"):
        ds = gear_data.open(tmp_path / name)
        with pytest.raises(InvalidArgumentError, match="sources of 10 and 30 steps per second"):
            stated_rate(ds)
        # What the hint says works.
        ds.drop_idle("observations", threshold=1e-9, seconds=0.1, fps=30)
        assert steps_of(Mixture([(ds, 1, {"fps": 10})]), [0, 0.1]) == [0, 2]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_timestamps_say_it(tmp_path: Path, dtype: Any) -> None:
    ds = with_stamps(tmp_path / "stamps", [[0.02] * 400, [], [0.02] * 7], dtype)
    assert measured_rate(ds, "timestamp", "") == pytest.approx(50, rel=1e-6)
    assert steps_of(ds, [0, 0.1, 1.0]) == {"steps": [0, 5, 50]}
    with pytest.raises(InvalidArgumentError, match="no step is within"):
        steps_of(ds, [0.03])
    # What the source states is not looked for in the timestamps.
    assert steps_of(ds, [0, 1.0], fps=10) == {"steps": [0, 10]}


def test_timestamps_of_another_name(tmp_path: Path) -> None:
    ds = with_stamps(tmp_path / "stamps", [[0.1] * 9], name="observations.clock")
    with pytest.raises(InvalidArgumentError, match="no column of this name"):
        steps_of(ds, [0.2])
    assert steps_of(Mixture([(ds, 1, {"rename": {"observations.clock": "timestamp"}})]), [0.2]) == {"steps": [2]}


#: The gaps of two episodes, and the pair of steps that the error names.
IRREGULAR: list[tuple[list[list[float]], str]] = [
    ([[0.1] * 20, [0.1] * 9 + [0.3] + [0.1] * 5], "step 10 of episode 1 is 0.3 s after step 9"),
    ([[0.1] * 20, [0.1] * 4 + [np.nan, 0.1]], "step 5 of episode 1 is nan s after step 4"),
    ([[0.1] * 3 + [0.101] + [0.1] * 20], "step 4 of episode 0 is 0.101 s after step 3"),
]


@pytest.mark.parametrize("gaps, named", IRREGULAR)
def test_irregular_timestamps_are_refused_by_place(tmp_path: Path, gaps: Any, named: str) -> None:
    ds = with_stamps(tmp_path / "stamps", gaps, np.float64)
    with pytest.raises(InvalidArgumentError, match=named) as caught:
        steps_of(ds, [0, 0.1, 0.2])
    assert caught.value.file == str(ds.path) and caught.value.column == "timestamp"
    # What the hint says works.
    assert steps_of(ds, [0, 0.1, 0.2], fps=10) == [0, 3]
    assert steps_of(Mixture([(ds, 1, {"fps": 10})]), [0, 0.1, 0.2]) == [0, 3]
    if "nan" not in named:
        assert steps_of(ds, [0, 0.1], tolerance=0.25) == [0, 2]


def test_only_the_steps_that_times_need_are_checked(tmp_path: Path) -> None:
    # Every second gap is longer: two steps are always as far apart.
    ds = with_stamps(tmp_path / "stamps", [[0.09, 0.11] * 20], np.float64)
    assert steps_of(ds, [-0.2, 0, 0.2]) == {"steps": [-2, 0, 2]}
    with pytest.raises(InvalidArgumentError, match=r"step 1 of episode 0 is 0\.09 s after step 0"):
        steps_of(ds, [0.1])
    with pytest.raises(InvalidArgumentError, match=r"step 1 of episode 0 is 0\.09 s after step 0"):
        steps_of(ds, [0.05], fill="interpolate")
    # The tolerance is between a step and its time, not between both and the rate.
    late = with_stamps(tmp_path / "late", [[0.1] * 40, [0.1, 0.1008, 0.1]], np.float64)
    assert steps_of(late, [0.1], tolerance=0.001) == {"steps": [1]}
    with pytest.raises(InvalidArgumentError, match=r"step 2 of episode 1 is 0\.1008 s after step 1, and not 0\.0995 s"):
        steps_of(late, [0.0995], tolerance=0.001)
    # A view has its own steps.
    both = with_stamps(tmp_path / "both", [[0.1, 0.1], [0.1, 0.5]])
    assert steps_of(both.filter("episode_id == 0"), [0.1]) == {"steps": [1]}
    with pytest.raises(InvalidArgumentError, match="step 2 of episode 1"):
        steps_of(both.filter("episode_id == 1"), [0.1], tolerance=0.01)


@pytest.mark.parametrize(
    "gaps, dtype, message",
    [
        ([[0.1, 0.1]], np.int64, r"the timestamps are int64 \[\] a step"),
        ([[-0.1, -0.1]], np.float32, "the median of 2 gaps is -0.1 s"),
        ([[], []], np.float32, "the median of 0 gaps is 0 s"),
        ([[np.nan, np.nan]], np.float32, "the median of 0 gaps is 0 s"),
    ],
)
def test_timestamps_that_say_nothing(tmp_path: Path, gaps: Any, dtype: Any, message: str) -> None:
    if dtype is np.int64:
        gaps = [[1, 1]]
    ds = with_stamps(tmp_path / "stamps", gaps, dtype)
    with pytest.raises(InvalidArgumentError, match=message) as caught:
        steps_of(ds, [0.1])
    assert "fps" in str(caught.value.hint) and caught.value.file == str(ds.path)
