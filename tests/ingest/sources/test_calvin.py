"""Tests of CALVIN against a plain loop of `np.load`, as in its `DiskDataset`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import gear_data
from gear_data.errors import (
    BadEpisodeError,
    CorruptSourceError,
    EmptySourceError,
    GearError,
    HostMemoryError,
    InvalidArgumentError,
    UnknownFormatError,
)
from tests.support.checks import warning_codes

RANGES = ((358482, 358490), (358495, 358495), (358491, 358493))
_ALL = range(358480, 358499)
_SHAPES: dict[str, tuple[tuple[int, ...], Any]] = {
    "actions": ((7,), np.float64),
    "rel_actions": ((7,), np.float64),
    "robot_obs": ((15,), np.float64),
    "scene_obs": ((24,), np.float64),
    "rgb_static": ((6, 6, 3), np.uint8),
    "depth_gripper": ((4, 4), np.float32),
}


def write_split(folder: Path, ranges: Any = RANGES, seed: int = 0, steps: Any = _ALL) -> Path:
    rng = np.random.default_rng(seed)
    (folder / "lang_annotations").mkdir(parents=True)
    for number in steps:
        step = {name: (rng.random(shape) * 255).astype(dtype) for name, (shape, dtype) in _SHAPES.items()}
        np.savez_compressed(folder / f"episode_{number:07d}.npz", **step)
    np.save(folder / "ep_start_end_ids.npy", np.array(ranges))
    np.save(folder / "ep_lens.npy", np.array([b - a + 1 for a, b in ranges]))
    annotations: Any = np.array({"language": {"ann": ["push the block"]}, "info": {"indx": [(358482, 358488)]}})
    np.save(folder / "lang_annotations" / "auto_lang_ann.npy", annotations)
    (folder / "statistics.yaml").write_text("robot_obs: []\n")
    return folder


def plain(folder: Path, first: int, last: int) -> dict[str, npt.NDArray[Any]]:
    """Returns the steps of a recording as `DiskDataset._load_episode` does."""
    steps = [np.load(folder / f"episode_{number:07d}.npz") for number in range(first, last + 1)]
    return {name: np.stack([step[name] for step in steps]) for name in _SHAPES}


@pytest.mark.parametrize("limit", [None, 4])
def test_episodes_are_the_recordings(limit: int | None, tmp_path: Path) -> None:
    source = write_split(tmp_path / "training")
    report = gear_data.convert(
        source, tmp_path / "d", episodes=gear_data.EpisodeBoundaries(max_episode_steps=limit), progress=False
    )
    assert report.format == "calvin"
    dataset = gear_data.open(tmp_path / "d")
    pieces = [
        (start, min(b, start + (limit or b) - 1)) for a, b in RANGES for start in range(a, b + 1, limit or b - a + 1)
    ]
    assert dataset.num_episodes == len(pieces)
    for i, (first, last) in enumerate(pieces):
        episode, expected = dataset.episode(i), plain(source, first, last)
        for name, values in expected.items():
            column = name if name.endswith("actions") else f"observations.{name}"
            assert episode[column].dtype == values.dtype
            np.testing.assert_array_equal(episode[column], values, f"{i} {name}")
        assert np.asarray(episode["truncated"]).tolist() == [False] * (last - first) + [True]
    assert dataset.episode_table.column("first_file").to_pylist() == [first for first, _ in pieces]
    assert ("ends-by-length" in warning_codes(report)) == (limit is not None)


def test_what_is_left_out_is_reported(tmp_path: Path) -> None:
    source = write_split(tmp_path / "training")
    np.save(source / "ep_lens.npy", np.array([9, 1, 2]))
    np.save(source / "ep_start_end_ids.npy", np.array([*RANGES, (358488, 358489)]))
    gear_data.convert(source, tmp_path / "d", progress=False)
    found = {finding["code"]: finding for finding in gear_data.open(tmp_path / "d").manifest.findings}
    assert found["pickle-left-out"]["file"] == "lang_annotations/auto_lang_ann.npy"
    assert found["rows-left-out"]["count"] == len(_ALL) - 13
    assert found["metadata-disagrees"]["file"] == "ep_lens.npy"
    assert found["recordings-overlap"]["count"] == 1


def test_a_folder_of_two_splits_needs_a_choice(tmp_path: Path) -> None:
    for seed, split in enumerate(("training", "validation")):
        write_split(tmp_path / "s" / "task_D_D" / split, seed=seed)
    with pytest.raises(InvalidArgumentError, match="several splits: training, validation"):
        gear_data.convert(tmp_path / "s" / "task_D_D", tmp_path / "d", progress=False)
    with pytest.raises(InvalidArgumentError, match="no split 'test'"):
        gear_data.convert(tmp_path / "s" / "task_D_D", tmp_path / "d", split="test", progress=False)
    gear_data.convert(tmp_path / "s" / "task_D_D", tmp_path / "d", split="validation", progress=False)
    gear_data.convert(tmp_path / "s" / "task_D_D", tmp_path / "all", split="all", progress=False)
    assert {name: len(view) for name, view in gear_data.open(tmp_path / "all").split_by("split").items()} == {
        name: len(RANGES) for name in ("training", "validation")
    }
    expected = plain(tmp_path / "s/task_D_D/validation", *RANGES[0])
    np.testing.assert_array_equal(gear_data.open(tmp_path / "d").episode(0)["rel_actions"], expected["rel_actions"])
    write_split(tmp_path / "s" / "task_ABC_D" / "validation")
    with pytest.raises(UnknownFormatError, match="several datasets"):
        gear_data.convert(tmp_path / "s", tmp_path / "e", progress=False)


def test_jobs_columns_and_batches(tmp_path: Path) -> None:
    source = write_split(tmp_path / "training")
    columns = ["rel_actions", "rgb_static"]
    options: dict[str, Any] = {"columns": columns, "rename": {"rel_actions": "actions", "actions": "absolute"}}
    one = gear_data.convert(source, tmp_path / "d", jobs=1, shard_bytes=1024, progress=False, **options)
    two = gear_data.convert(source, tmp_path / "e", jobs=2, shard_bytes=1024, progress=False, **options)
    assert one.fingerprint == two.fingerprint
    dataset = gear_data.open(tmp_path / "d")
    assert set(dataset.schema.names) == {"actions", "observations.rgb_static", "terminated", "truncated"}
    loader = gear_data.SequenceLoader(
        dataset, batch_size=4, context=3, columns=["observations.rgb_static", "actions"], steps=1
    )
    assert next(iter(loader))["observations.rgb_static"].shape == (4, 3, 6, 6, 3)


def test_a_recording_that_lacks_a_step(tmp_path: Path) -> None:
    source = write_split(tmp_path / "training", steps=[number for number in _ALL if number != 358485])
    with pytest.raises(BadEpisodeError, match="lacks the file of step 358485"):
        gear_data.convert(source, tmp_path / "d", progress=False)
    gear_data.convert(source, tmp_path / "d", on_bad_episode="skip", progress=False)
    assert gear_data.open(tmp_path / "d").episode_table.column("length").to_pylist() == [1, 3]


def test_an_episode_larger_than_the_memory_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = write_split(tmp_path / "training")
    monkeypatch.setattr("gear_data.ingest.sources.arrays.calvin._MEMORY_PART", 1 << 40)
    with pytest.raises(HostMemoryError, match="longest recording has 9 steps") as error:
        gear_data.convert(source, tmp_path / "d", progress=False)
    assert "--max-episode-steps" in str(error.value)


def test_steps_without_a_list_are_not_read_as_episodes(tmp_path: Path) -> None:
    source = write_split(tmp_path / "training")
    (source / "ep_start_end_ids.npy").unlink()
    with pytest.raises(UnknownFormatError, match="lacks ep_start_end_ids"):
        gear_data.convert(source, tmp_path / "d", progress=False)


@pytest.mark.parametrize(
    ("ranges", "error"),
    [
        (np.array([5, 6]), CorruptSourceError),
        (np.array([[0.5, 1.0]]), CorruptSourceError),
        (np.array([[358490, 358482]]), BadEpisodeError),
        (np.array([[0, 1 << 62]]), BadEpisodeError),
        (np.zeros((0, 2), np.int64), CorruptSourceError),
    ],
)
def test_a_bad_list_is_a_typed_error(ranges: Any, error: type[GearError], tmp_path: Path) -> None:
    source = write_split(tmp_path / "training")
    np.save(source / "ep_start_end_ids.npy", ranges)
    with pytest.raises(error):
        gear_data.convert(source, tmp_path / "d", progress=False)
    if error is BadEpisodeError:
        with pytest.raises(EmptySourceError):
            gear_data.convert(source, tmp_path / "d", on_bad_episode="skip", progress=False)


@pytest.mark.parametrize("values", [None, np.zeros(6), np.zeros(7, np.float32)])
def test_a_step_unlike_the_first_is_an_error(values: Any, tmp_path: Path) -> None:
    source = write_split(tmp_path / "training")
    path = source / "episode_0358487.npz"
    with np.load(path) as file:
        step = dict(file)
    del step["actions"]
    np.savez(path, **step, **({} if values is None else {"actions": values}))
    with pytest.raises(CorruptSourceError, match="in the first step it is float64") as error:
        gear_data.convert(source, tmp_path / "d", progress=False)
    assert "episode_0358487.npz" in str(error.value)
    assert "'actions'" in str(error.value)
