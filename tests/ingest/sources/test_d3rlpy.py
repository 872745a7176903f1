"""Tests of d3rlpy's HDF5 files, against d3rlpy's own `dump` and `load`."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image

import gear_data
from gear_data.errors import BadEpisodeError, CorruptSourceError, UnsupportedColumnError
from tests.support.checks import warning_codes
from tests.support.running.imported_when_used import ImportedWhenUsed

d3rlpy = ImportedWhenUsed("d3rlpy.dataset")

_LENGTHS = (4, 2, 7, 3)
_TERMINATED = (True, False, False, True)


def episodes(kind: str = "vector") -> list[Any]:
    """Returns d3rlpy's episodes; `kind` is about their observations."""
    rng = np.random.default_rng(3)
    result = []
    for length, terminated in zip(_LENGTHS, _TERMINATED, strict=True):
        states = rng.normal(size=(length, 3)).astype(np.float32)
        images = rng.integers(0, 255, (length, 2, 4, 4), np.uint8)
        observations = {"vector": states, "image": images, "tuple": (images, states)}[kind]
        actions = rng.integers(0, 5, (length, 1)) if kind == "image" else rng.normal(size=(length, 2))
        rewards = rng.normal(size=(length, 1)).astype(np.float32)
        result.append(d3rlpy.Episode(observations, actions.astype(np.float32), rewards, terminated))
    return result


def write(path: Path, made: list[Any]) -> Path:
    buffer = d3rlpy.ReplayBuffer(d3rlpy.InfiniteBuffer(), episodes=made)
    with path.open("w+b") as file:
        buffer.dump(file)
    return path


def load(path: Path) -> list[Any]:
    with path.open("rb") as file:
        return list(d3rlpy.ReplayBuffer.load(file, d3rlpy.InfiniteBuffer()).episodes)


def check_episode(dataset: gear_data.Dataset, i: int, expected: Any) -> None:
    found = dataset.episode(i)
    parts = expected.observations
    named = {"observations": parts}
    if isinstance(parts, list | tuple):
        named = {f"observations.{j}": part for j, part in enumerate(parts)}
    flags = np.zeros(len(expected.actions), np.bool_)
    flags[-1] = True
    named |= {
        "actions": expected.actions,
        "rewards": expected.rewards[:, 0],
        "terminated": flags & expected.terminated,
        "truncated": flags & (not expected.terminated),
    }
    for name, values in named.items():
        assert found[name].dtype == values.dtype
        np.testing.assert_array_equal(found[name], values, name)
    assert dataset.final(i) is None


@pytest.mark.parametrize("kind", ["vector", "image", "tuple"])
def test_episodes_are_those_that_d3rlpy_loads(kind: str, tmp_path: Path) -> None:
    source = write(tmp_path / "buffer.h5", episodes(kind))
    report = gear_data.convert(source, tmp_path / "d")
    assert report.format == "d3rlpy"
    assert not warning_codes(report)
    dataset = gear_data.open(tmp_path / "d")
    for i, expected in enumerate(load(source)):
        check_episode(dataset, i, expected)
    assert dataset.episodes["terminated"].to_list() == list(_TERMINATED)
    assert dataset.manifest.provenance["metadata"]["d3rlpy_version"] == "2.1"


def test_batches_of_the_preset(tmp_path: Path) -> None:
    made = episodes()
    gear_data.convert(write(tmp_path / "buffer.h5", made), tmp_path / "d")
    rows = {tuple(row) for episode in made for row in episode.observations.tolist()}
    loader = gear_data.SequenceLoader(gear_data.open(tmp_path / "d"), batch_size=8, context=3, preset="d3rlpy", steps=3)
    for batch in loader:
        valid = np.asarray(batch["masks"]) > 0
        assert {tuple(row) for row in np.asarray(batch["observations"])[valid].tolist()} <= rows


@pytest.mark.parametrize("kind", ["vector", "tuple"])
def test_version_2_0_stacks_episodes(kind: str, tmp_path: Path) -> None:
    made = [d3rlpy.Episode(e.observations, e.actions, e.rewards, e.terminated) for e in episodes(kind)[2:3] * 3]
    with h5py.File(tmp_path / "a.h5", "w") as file:  # `dump` of d3rlpy 2.0.3
        file["columns"], file["total_size"], file["version"] = list(made[0].serialize()), len(made), "2.0"
        for key, value in made[0].serialize().items():
            parts = {f"{key}_{j}": part for j, part in enumerate(value)} if isinstance(value, tuple) else {key: value}
            for name, part in parts.items():
                file[name] = [part] * len(made)
    report = gear_data.convert(tmp_path / "a.h5", tmp_path / "d")
    assert (report.format, report.episodes) == ("d3rlpy", 3)
    for i, expected in enumerate(made):
        check_episode(gear_data.open(tmp_path / "d"), i, expected)


@pytest.mark.parametrize("with_ends", [True, False])
def test_version_1_has_flat_arrays(with_ends: bool, tmp_path: Path) -> None:
    made = episodes()
    ends = np.concatenate([np.arange(n) == n - 1 for n in _LENGTHS])
    terminals = np.concatenate([(np.arange(n) == n - 1) & t for n, t in zip(_LENGTHS, _TERMINATED, strict=True)])
    with h5py.File(tmp_path / "a.h5", "w") as file:
        for name in ("observations", "actions"):
            file[name] = np.concatenate([getattr(episode, name) for episode in made])
        file["rewards"] = np.concatenate([episode.rewards[:, 0] for episode in made])
        file["terminals"] = terminals.astype(np.float32)
        if with_ends:
            file["episode_terminals"] = ends.astype(np.float32)
        file["discrete_action"], file["version"] = False, "1.0"
    if not with_ends:
        with pytest.raises(gear_data.errors.UnknownFormatError, match="--max-episode-steps"):
            gear_data.convert(tmp_path / "a.h5", tmp_path / "d")
        return
    report = gear_data.convert(tmp_path / "a.h5", tmp_path / "d")
    assert report.format == "d4rl"
    assert not warning_codes(report)
    dataset = gear_data.open(tmp_path / "d")
    with (tmp_path / "a.h5").open("rb") as handle:
        loaded = d3rlpy.io.load_v1(handle)
    assert dataset.num_episodes == len(loaded)
    for i, expected in enumerate(loaded):
        check_episode(dataset, i, expected)
    assert dataset.manifest.provenance["metadata"] == {"discrete_action": False, "version": "1.0"}


def test_several_files_are_one_dataset(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    made = episodes()
    write(tmp_path / "in/a.h5", made[:3])
    write(tmp_path / "in/b.h5", made[3:])
    gear_data.convert(tmp_path / "in", tmp_path / "d")
    dataset = gear_data.open(tmp_path / "d")
    for i, expected in enumerate(made):
        check_episode(dataset, i, expected)


def test_datasets_of_no_episode_are_reported(tmp_path: Path) -> None:
    source = write(tmp_path / "buffer.h5", episodes())
    with h5py.File(source, "a") as file:
        file["actions_9"], file["notes"] = np.zeros((2, 2), np.float32), "by hand"
    report = gear_data.convert(source, tmp_path / "d")
    assert report.episodes == len(_LENGTHS)
    findings = gear_data.open(tmp_path / "d").manifest.findings
    assert [(f["column"], f["count"]) for f in findings if f["code"] == "column-left-out"] == [("actions_9", 2)]


def _without(name: str) -> Any:
    def change(file: h5py.File) -> None:
        del file[name]

    return change


def _with(name: str, values: npt.ArrayLike) -> Any:
    def change(file: h5py.File) -> None:
        del file[name]
        file[name] = values

    return change


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (_without("rewards_2"), BadEpisodeError, r"'rewards', row 2: there is no dataset 'rewards_2'"),
        (
            _with("terminated_1", [True, False]),
            BadEpisodeError,
            r"'terminated', row 1: holds bool \(2,\), not one flag",
        ),
        (_with("terminated_1", 7), BadEpisodeError, r"'terminated', row 1: .*not one flag"),
        (_with("actions_3", np.zeros((2, 2), np.float32)), BadEpisodeError, r"'actions', row 3: "),
        (_with("num_episodes", 1 << 40), CorruptSourceError, r"'num_episodes': is 1099511627776, but the file has"),
        (_with("num_episodes", -1), CorruptSourceError, r"'num_episodes': is -1"),
        (_with("columns", 3), CorruptSourceError, r"'columns': holds int64 \(\), not a list of different names"),
        (_with("actions_0", np.zeros((4, 2), "S3")), UnsupportedColumnError, "'actions': holds string"),
        (_with("columns", ["actions", "actions"]), CorruptSourceError, "not a list of different names"),
    ],
)
def test_files_that_do_not_fit(change: Any, error: type[Exception], message: str, tmp_path: Path) -> None:
    source = write(tmp_path / "buffer.h5", episodes())
    with h5py.File(source, "a") as file:
        change(file)
    with pytest.raises(error, match=message):
        gear_data.convert(source, tmp_path / "d")


def test_a_bad_episode_is_skipped_on_request(tmp_path: Path) -> None:
    source = write(tmp_path / "buffer.h5", episodes())
    with h5py.File(source, "a") as file:
        del file["rewards_1"]
    report = gear_data.convert(source, tmp_path / "d", on_bad_episode="skip")
    assert "bad-episode" in warning_codes(report)
    dataset = gear_data.open(tmp_path / "d")
    for i, expected in enumerate(e for j, e in enumerate(episodes()) if j != 1):
        check_episode(dataset, i, expected)


def test_encoded_images(tmp_path: Path) -> None:
    source, expected = write(tmp_path / "buffer.h5", episodes("vector")), []
    with h5py.File(source, "a") as file:
        for i, length in enumerate(_LENGTHS):
            images = [np.full((6, 5, 3), 9 * i + step, np.uint8) for step in range(length)]
            del file[f"observations_{i}"]
            file[f"observations_{i}"] = [np.frombuffer(png(image).ljust(200, b"\0"), np.uint8) for image in images]
            expected.append(np.stack(images))
    gear_data.convert(source, tmp_path / "d")
    dataset = gear_data.open(tmp_path / "d")
    for i, images in enumerate(expected):
        np.testing.assert_array_equal(dataset.episode(i)["observations"], images)


def png(image: Any) -> bytes:
    file = io.BytesIO()
    Image.fromarray(image).save(file, "PNG")
    return file.getvalue()
