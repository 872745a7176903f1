"""Tests of V-D4RL against plain loops over time steps, as its loaders read them."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import numpy.typing as npt
import pytest

import gear_data
from gear_data.errors import BadEpisodeError, GearError, UnknownFormatError
from tests.support.checks import warning_codes

Arrays = dict[str, npt.NDArray[Any]]
LENGTHS = (6, 3, 9, 1)


def time_steps(lengths: tuple[int, ...] = LENGTHS, seed: int = 0) -> Arrays:
    """Returns the rows of episodes of `dm_env`: T + 1 rows for T steps.

    Every second episode terminates.
    """
    rng = np.random.default_rng(seed)
    rows = sum(lengths) + len(lengths)
    first = np.concatenate([[0], np.cumsum(np.array(lengths) + 1)])
    arrays: Arrays = {
        "observation": rng.integers(0, 255, (rows, 3, 8, 8), np.uint8),
        "action": rng.random((rows, 2)).astype(np.float32),
        "reward": rng.random(rows).astype(np.float32),
        "discount": np.ones(rows, np.float32),
        "step_type": np.ones(rows),
    }
    for i, row in enumerate(first[:-1]):
        arrays["step_type"][row], arrays["step_type"][first[i + 1] - 1] = 0, 2
        arrays["action"][row], arrays["reward"][row] = 0, 0
        arrays["discount"][first[i + 1] - 1] = i % 2
    return arrays


def write(path: Path, arrays: Arrays) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with h5py.File(path, "w") as file:
        for name, values in arrays.items():
            file.create_dataset(name, data=values, compression="gzip")
    return path


def transitions(arrays: Arrays) -> Arrays:
    """Returns the steps: a row's action, and the observation before it.

    The first row of an episode is no step.
    """
    rows = np.flatnonzero(arrays["step_type"] != 0)
    rows = rows[rows > 0]
    return {
        "observations": arrays["observation"][rows - 1],
        "next": arrays["observation"][rows],
        "actions": arrays["action"][rows],
        "rewards": arrays["reward"][rows],
        "discount": arrays["discount"][rows],
        "terminated": (arrays["step_type"][rows] == 2) & (arrays["discount"][rows] == 0),
        "truncated": (arrays["step_type"][rows] == 2) & (arrays["discount"][rows] != 0),
    }


def check(dataset: gear_data.Dataset, expected: Arrays) -> None:
    episodes = [dataset.episode(i) for i in range(dataset.num_episodes)]
    for name, values in expected.items():
        if name != "next":
            found = np.concatenate([np.asarray(episode[name]) for episode in episodes])
            np.testing.assert_array_equal(found, values, name)
    after = [
        np.concatenate([np.asarray(episode["observations"])[1:], (dataset.final(i) or {})["observations"][None]])
        for i, episode in enumerate(episodes)
    ]
    np.testing.assert_array_equal(np.concatenate(after), expected["next"])


@pytest.mark.parametrize("block_bytes", [1, 500, 1 << 20])
def test_steps_are_the_transitions(block_bytes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gear_data.ingest.sources.tree.source._BLOCK_BYTES", block_bytes)
    arrays = time_steps()
    report = gear_data.convert(write(tmp_path / "84px" / "0.hdf5", arrays), tmp_path / "d", progress=False)
    assert report.format == "vd4rl"
    assert not warning_codes(report)
    dataset = gear_data.open(tmp_path / "d")
    assert dataset.episode_table.column("length").to_pylist() == list(LENGTHS)
    check(dataset, transitions(arrays))


def test_shards_that_cut_an_episode(tmp_path: Path) -> None:
    arrays = time_steps()
    at = 9  # inside the second episode: `split_hdf5_shards.py` splits rows, not episodes
    for i, part in enumerate((slice(0, at), slice(at, None))):
        write(tmp_path / "s" / f"{i}.hdf5", {name: values[part] for name, values in arrays.items()})
    report = gear_data.convert(tmp_path / "s", tmp_path / "d", progress=False)
    assert {"episode-cut", "unfinished-episode"} <= set(warning_codes(report))
    expected = transitions({name: values[:at] for name, values in arrays.items()})
    rest = transitions({name: values[at:] for name, values in arrays.items()})
    whole = {name: np.concatenate([values, rest[name]]) for name, values in expected.items()}
    whole["truncated"][len(expected["rewards"]) - 1] = True
    check(gear_data.open(tmp_path / "d"), whole)


def test_jobs_and_batches(tmp_path: Path) -> None:
    for seed in range(3):
        write(tmp_path / "s" / f"{seed}.hdf5", time_steps(seed=seed))
    one = gear_data.convert(tmp_path / "s", tmp_path / "d", jobs=1, shard_bytes=1024, progress=False)
    two = gear_data.convert(tmp_path / "s", tmp_path / "e", jobs=2, shard_bytes=1024, progress=False)
    assert one.fingerprint == two.fingerprint
    loader = gear_data.SequenceLoader(gear_data.open(tmp_path / "d"), batch_size=4, context=2, steps=1)
    assert next(iter(loader))["observations"].shape == (4, 2, 3, 8, 8)


def test_a_reward_at_a_reset_is_reported(tmp_path: Path) -> None:
    arrays = time_steps()
    arrays["reward"][0] = 3
    report = gear_data.convert(write(tmp_path / "0.hdf5", arrays), tmp_path / "d", progress=False)
    assert warning_codes(report) == ["reset-info-left-out"]


@pytest.mark.parametrize(
    ("name", "change", "error", "message"),
    [
        ("step_type", lambda v: v * 2, BadEpisodeError, "no type of a time step"),
        ("step_type", lambda v: np.stack([v, v], 1), BadEpisodeError, "not one number a row"),
        ("step_type", lambda v: v * 0, BadEpisodeError, "no step"),
        ("reward", lambda v: v[:-1], BadEpisodeError, "has 22 rows"),
    ],
)
def test_bad_shards(name: str, change: Any, error: type[GearError], message: str, tmp_path: Path) -> None:
    arrays = time_steps()
    arrays[name] = change(arrays[name])
    with pytest.raises(error, match=message):
        gear_data.convert(write(tmp_path / "0.hdf5", arrays), tmp_path / "d", progress=False)


def test_a_dataset_that_only_a_later_file_has(tmp_path: Path) -> None:
    arrays = time_steps()
    write(tmp_path / "s" / "0.hdf5", arrays)
    write(tmp_path / "s" / "1.hdf5", {**time_steps(seed=1), "state": np.zeros((len(arrays["reward"]), 2))})
    report = gear_data.convert(tmp_path / "s", tmp_path / "d", progress=False)
    (found,) = [each for each in gear_data.open(tmp_path / "d").manifest.findings if each["code"] == "column-left-out"]
    assert (found["count"], found["file"]) == (1, "1.hdf5")
    assert report.episodes == 2 * len(LENGTHS)
    columns = ["observations", "actions"]
    report = gear_data.convert(tmp_path / "s", tmp_path / "e", columns=columns, progress=False)
    assert "column-left-out" not in warning_codes(report)


def test_a_missing_dataset(tmp_path: Path) -> None:
    arrays = time_steps()
    write(tmp_path / "s" / "0.hdf5", arrays)
    del arrays["discount"]
    write(tmp_path / "s" / "1.hdf5", arrays)
    with pytest.raises(UnknownFormatError, match="no dataset 'discount'"):
        gear_data.convert(tmp_path / "s", tmp_path / "d", progress=False)


@pytest.mark.parametrize("flags", [True, False])
def test_archives_of_64_pixels(flags: bool, tmp_path: Path) -> None:
    """Reads archives as `hdf5_to_npz.py` writes them, and earlier ones without flags."""
    arrays = time_steps()
    (tmp_path / "64px").mkdir()
    first = np.concatenate([[0], np.cumsum(np.array(LENGTHS) + 1)])
    for i, (a, b) in enumerate(itertools.pairwise(first)):
        episode = {name: arrays[name][a:b] for name in ("action", "reward", "discount")}
        episode["image"] = arrays["observation"][a:b].transpose(0, 2, 3, 1).copy()
        if flags:
            rows = np.arange(b - a)
            episode |= {"is_first": rows == 0, "is_last": rows == b - a - 1, "is_terminal": episode["discount"] == 0}
        np.savez_compressed(tmp_path / "64px" / f"2022-{i}-{b - a}.npz", **episode)
    for columns in (None, ["actions", "rewards", "observations.image"]):
        name = "d" if columns is None else "e"
        report = gear_data.convert(tmp_path / "64px", tmp_path / name, columns=columns, progress=False)
        assert report.format == "npz"
        dataset, expected = gear_data.open(tmp_path / name), transitions(arrays)
        for column in ("actions", "rewards", "terminated"):
            found = np.concatenate([np.asarray(dataset.episode(i)[column]) for i in range(dataset.num_episodes)])
            np.testing.assert_array_equal(found, expected[column], column)
        images = [dataset.episode(i)["observations.image"] for i in range(dataset.num_episodes)]
        np.testing.assert_array_equal(np.concatenate(images), expected["observations"].transpose(0, 2, 3, 1))
        final = (dataset.final(2) or {})["observations.image"]
        np.testing.assert_array_equal(final, arrays["observation"][first[3] - 1].transpose(1, 2, 0))
