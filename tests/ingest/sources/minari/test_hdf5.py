"""Tests of Minari HDF5 files that the library writes."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium
import h5py
import minari
import numpy as np
import pytest
from gymnasium import spaces
from minari.data_collector import EpisodeBuffer
from PIL import Image

import gear_data
from gear_data.ingest.location import locate
from gear_data.ingest.source import SourceOptions
from gear_data.ingest.sources.minari import hdf5 as minari_format
from gear_data.ingest.sources.tree import source as tree_source
from tests.support.makers.minari_files import MAIN, METADATA, Write, blocks, episode, nested_dataset, plain


def cartpole(count: int) -> list[EpisodeBuffer]:
    """CartPole under random actions, stopped after 12 steps."""
    env = gymnasium.make("CartPole-v1", max_episode_steps=12)
    buffers = []
    for seed in range(count):
        env.action_space.seed(seed)
        observations, actions, rewards, terminated, truncated = [env.reset(seed=seed)[0]], [], [], [], []
        while not (terminated and (terminated[-1] or truncated[-1])):
            actions.append(env.action_space.sample())
            observation, reward, terminal, cut, _ = env.step(actions[-1])
            observations.append(observation)
            rewards.append(reward)
            terminated.append(terminal)
            truncated.append(cut)
        buffers.append(
            EpisodeBuffer(
                seed=seed,
                observations=observations,
                actions=actions,
                rewards=rewards,
                terminations=terminated,
                truncations=truncated,
            )
        )
    return buffers


def flatten(value: Any, name: str) -> Iterator[tuple[str, Any]]:
    """Flattens the library's dicts and tuples to dotted names."""
    if isinstance(value, dict | tuple):
        items = value.items() if isinstance(value, dict) else enumerate(value)
        for key, item in items:
            yield from flatten(item, f"{name}.{key}")
    else:
        yield name, value


def check_against_library(folder: Path, destination: Path) -> int:
    """Compares a converted dataset with the library's view of the source.

    Returns the number of steps.
    """
    ds, dataset = gear_data.open(destination), minari.MinariDataset(folder / "data")
    assert ds.num_episodes == dataset.total_episodes
    for i, theirs in enumerate(dataset.iterate_episodes()):
        ours, steps = ds.episode(i), len(theirs)
        assert ours.length == steps
        np.testing.assert_array_equal(ours["rewards"], theirs.rewards)
        np.testing.assert_array_equal(ours["terminated"], theirs.terminations)
        np.testing.assert_array_equal(ours["truncated"], theirs.truncations)
        for name, values in flatten(theirs.actions, "actions"):
            np.testing.assert_array_equal(ours[name], values)
            assert isinstance(values, list) or ours[name].dtype == values.dtype
        for name, values in flatten(theirs.infos or {}, "infos"):
            np.testing.assert_array_equal(ours[name], values[1:])
        final = ds.final(i) or {}
        for name, values in flatten(theirs.observations, "observations"):
            if ds.schema[name].dtype == "binary":
                continue  # encoded images are compared in tests that decode them
            assert len(values) == steps + 1
            np.testing.assert_array_equal(ours[name], values[:steps])
            assert isinstance(values, list) or ours[name].dtype == values.dtype
            if name in final:
                np.testing.assert_array_equal(final[name], values[steps])
    return int(ds.num_steps)


def test_cartpole_step_for_step(write: Write, tmp_path: Path) -> None:
    buffers = cartpole(23)  # more than ten, so that the order of names (episode_10 before episode_2) would be wrong
    source = write(buffers, spaces.Box(-5, 5, (4,), np.float32), spaces.Discrete(2))
    report = gear_data.convert(source, tmp_path / "d")
    assert report.format == "minari"
    assert check_against_library(source, tmp_path / "d") == sum(len(buffer) for buffer in buffers)
    ds = gear_data.open(tmp_path / "d")
    assert ds.episodes["seed"].to_list() == list(range(23))
    assert set(ds.episodes["terminated"]) == set(ds.episodes["truncated"]) == {True, False}
    for i, buffer in enumerate(buffers):
        np.testing.assert_array_equal(ds.episode(i)["observations"], np.array(buffer.observations[:-1]))
        np.testing.assert_array_equal((ds.final(i) or {})["observations"], buffer.observations[-1])
    assert ds.schema["actions"].dtype == "int64"
    assert ds.schema["actions"].shape == ()


@pytest.mark.parametrize("place", ["", "data", MAIN])
def test_found_by_namespace_folder_or_file(place: str, write: Write, tmp_path: Path) -> None:
    source = plain(write)
    report = gear_data.convert(source / place, tmp_path / "d")
    assert (report.format, report.episodes, report.steps) == ("minari", 3, 8)


def test_nested_spaces_and_text_step_for_step(write: Write, tmp_path: Path) -> None:
    source = nested_dataset(write)
    report = gear_data.convert(source, tmp_path / "d")
    assert check_against_library(source, tmp_path / "d") == 6
    ds = gear_data.open(tmp_path / "d")
    assert set(ds.schema.names) == {
        "observations.grid", "observations.pair.0", "observations.pair.1", "observations.mission",
        "actions.0", "actions.1", "rewards", "terminated", "truncated", "returns_to_go", "infos.x", "infos.deep.y",
    }  # fmt: skip
    assert ds.schema["observations.mission"].dtype == "string"
    assert list(ds.episode(2)["observations.mission"]) == ["go to é 2 0", "go to é 2 1", "go to é 2 2"]
    assert ds.episodes["options.level"].to_list() == [0, 1, 2]
    assert ds.episodes["options.room.colour"].to_list() == ["red"] * 3
    found = "\n".join(report.warnings)
    assert "final-left-out: column 'observations/mission'" in found
    assert "reset-info-left-out: column 'infos/x'" in found
    assert "reset-info-left-out: column 'infos/deep/y'" in found


def test_metadata_without_bounds_is_kept(write: Write, tmp_path: Path) -> None:
    source = nested_dataset(write)
    gear_data.convert(source, tmp_path / "d")
    kept = gear_data.open(tmp_path / "d").manifest.provenance["metadata"]
    assert kept["dataset_id"] == "test/rollouts-v0"
    assert kept["observation_space"]["subspaces"]["grid"] == {"type": "Box", "dtype": "uint8", "shape": [2, 2, 3]}
    assert kept["action_space"]["subspaces"][0]["n"] == 9


def test_infos_without_a_reset_row(write: Write) -> None:
    source = plain(write, (2, 2), infos={"x": [4.0, 5.0]})
    block, findings = blocks(source)
    assert block.columns["infos.x"].tolist() == [4.0, 5.0, 4.0, 5.0]
    assert not findings


def test_whole_rewards_become_floats(write: Write) -> None:
    rng = np.random.default_rng(0)
    rewards = ([1, 0], [0.5, 1], [2, 3])  # h5py writes int64, float64, int64
    buffers = [episode(2, rng.normal(size=(3, 2)), rewards=r) for r in rewards]
    block, findings = blocks(write(buffers, spaces.Box(-9, 9, (2,), np.float64), spaces.Discrete(9)))
    assert block.columns["rewards"].dtype == np.float64
    assert block.columns["rewards"].tolist() == [1, 0, 0.5, 1, 2, 3]
    assert findings["dtype-differs rewards"].count == 2


def frames(count: int, *, noisy: bool) -> Any:
    """Returns frames whose JPEG files have equal lengths (grey) or not (noise)."""
    rng = np.random.default_rng(2)
    grey = np.full((count, 40, 48, 3), 90, np.uint8)
    return rng.integers(0, 256, grey.shape, np.uint8) if noisy else grey


def pixels(encoded: bytes) -> Any:
    return np.array(Image.open(io.BytesIO(encoded)))


@pytest.mark.parametrize("noisy", [True, False])
def test_jpeg_frames_are_bytes_also_of_equal_length(noisy: bool, write: Write, tmp_path: Path) -> None:
    space = spaces.Box(0, 255, (40, 48, 3), np.uint8)
    source = write([episode(n, frames(n + 1, noisy=noisy)) for n in (2, 3)], space, spaces.Discrete(9))
    with h5py.File(source / MAIN, "r") as file:  # the library writes a dataset of [T + 1, bytes]
        assert (file["episode_0/observations"].ndim == 2) == (not noisy)
    block, findings = blocks(source)
    theirs = [e.observations for e in minari.MinariDataset(source / "data").iterate_episodes()]
    decoded = [pixels(value.as_py()) for value in block.columns["observations"]]
    np.testing.assert_array_equal(np.array(decoded), np.concatenate([values[:-1] for values in theirs]))
    finals = [pixels(value.as_py()) for value in block.slice(1, 2).finals["observations"]]
    np.testing.assert_array_equal(np.array(finals), theirs[1][-1:])
    assert not findings
    assert gear_data.convert(source, tmp_path / "d").warnings == ()
    assert check_against_library(source, tmp_path / "d") == 5
    ds = gear_data.open(tmp_path / "d")
    for i, values in enumerate(theirs):
        np.testing.assert_array_equal((ds.final(i) or {})["observations"], values[-1])


def test_finals_of_images_that_stay_encoded_are_left_out(write: Write, tmp_path: Path) -> None:
    space = spaces.Box(0, 255, (40, 48, 3), np.uint8)
    source = write([episode(n, frames(n + 1, noisy=True)) for n in (2, 3)], space, spaces.Discrete(9))
    (warning,) = gear_data.convert(source, tmp_path / "d", keep_encoded=True).warnings
    assert warning.startswith("final-left-out: column 'observations'")
    assert "(2x, first: data/main_data.hdf5, row 0)" in warning
    ds = gear_data.open(tmp_path / "d")
    assert (ds.schema["observations"].dtype, ds.schema["observations"].has_final) == ("binary", False)
    assert ds.final(0) is None
    assert "finals" not in ds.manifest.tables


@pytest.mark.parametrize("keep_encoded", [False, True])
def test_finals_of_images_text_and_vectors(keep_encoded: bool, write: Write, tmp_path: Path) -> None:
    parts = {
        "camera": spaces.Box(0, 255, (40, 48, 3), np.uint8),
        "joints": spaces.Box(-9, 9, (2,), np.float64),
        "mission": spaces.Text(9, charset="go 0123456789"),
    }
    rng = np.random.default_rng(4)
    buffers = [
        episode(
            n,
            {
                "camera": frames(n + 1, noisy=True),
                "joints": rng.normal(size=(n + 1, 2)),
                "mission": [f"go {t}" for t in range(n + 1)],
            },
        )
        for n in (2, 1)
    ]
    source = write(buffers, spaces.Dict(parts), spaces.Discrete(9))
    theirs = [e.observations for e in minari.MinariDataset(source / "data").iterate_episodes()]
    report = gear_data.convert(source, tmp_path / "d", keep_encoded=keep_encoded)
    left_out = [warning.split("'")[1] for warning in report.warnings if warning.startswith("final-left-out")]
    assert left_out == ["observations/camera"] * keep_encoded + ["observations/mission"]
    ds = gear_data.open(tmp_path / "d")
    for i, values in enumerate(theirs):
        final = ds.final(i) or {}
        assert set(final) == {f"observations.{name}" for name in ("joints", "camera")[: 1 if keep_encoded else 2]}
        for name in final:
            np.testing.assert_array_equal(final[name], values[name.removeprefix("observations.")][-1])


def test_episodes_whose_only_finals_are_texts_have_none(write: Write, tmp_path: Path) -> None:
    source = nested_dataset(write)
    report = gear_data.convert(source, tmp_path / "d", columns=["observations.mission", "actions.0"])
    assert sum(warning.startswith("final-left-out") for warning in report.warnings) == 1
    ds = gear_data.open(tmp_path / "d")
    assert [ds.final(i) for i in range(3)] == [None] * 3
    assert not any(spec.has_final for spec in ds.schema)


def test_frames_that_are_not_encoded(write: Write, tmp_path: Path) -> None:
    space = spaces.Box(0, 255, (40, 48, 3), np.uint8)
    source = write([episode(2, frames(3, noisy=True))], space, spaces.Discrete(9), jpeg_encoding=False)
    gear_data.convert(source, tmp_path / "d")
    assert gear_data.open(tmp_path / "d").schema["observations"].shape == (40, 48, 3)
    assert check_against_library(source, tmp_path / "d") == 2


def test_columns_and_rename(write: Write, tmp_path: Path) -> None:
    source = nested_dataset(write)
    gear_data.convert(
        source, tmp_path / "d", columns=["observations.pair.1", "actions/1"], rename={"actions/1": "actions"}
    )
    names = gear_data.open(tmp_path / "d").schema.names
    assert set(names) == {"observations.pair.1", "actions", "terminated", "truncated"}


def test_units_are_the_whole(write: Write, sources: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    source = nested_dataset(write)
    monkeypatch.setattr(tree_source, "UNIT_BYTES", 1)
    monkeypatch.setattr(tree_source, "_BLOCK_BYTES", 200)
    with h5py.File(source / MAIN, "r+") as file:
        file.move("episode_2", "episode_12")
        del file["episode_1/actions/_index_0"]
    location, options = locate(str(source), None), SourceOptions(on_bad_episode="skip")
    assert sources.check_units(lambda: minari_format.open_(location, options)) == 3


@pytest.mark.parametrize(
    "name",
    ["hopper/mixture-v0", "cartpole/mixture-v0", "babyai/gotolocal-bot-v0"],
)
def test_shared_data_step_for_step(name: str, shared_data: Path, tmp_path: Path) -> None:
    source = shared_data / "minari" / name
    report = gear_data.convert(source, tmp_path / "d")
    assert report.format == "minari"
    assert check_against_library(source, tmp_path / "d") == report.steps
    ds = gear_data.open(tmp_path / "d")
    assert json.loads((source / METADATA).read_text())["total_steps"] == ds.num_steps


def test_pong_keeps_its_final_frames_and_becomes_minari_again(shared_data: Path, tmp_path: Path) -> None:
    source = shared_data / "minari" / "atari/pong-mixture-v0"
    report = gear_data.convert(source, tmp_path / "d")
    assert (report.format, report.warnings) == ("minari", ())
    ds = gear_data.open(tmp_path / "d")
    assert json.loads((source / METADATA).read_text())["total_steps"] == ds.num_steps
    with h5py.File(source / MAIN, "r") as file:
        for i in range(ds.num_episodes):
            group = file[f"episode_{i}"]
            last = pixels(bytes(group["observations"][-1]))
            np.testing.assert_array_equal((ds.final(i) or {})["observations"], last[:, :, None])
            np.testing.assert_array_equal(ds.episode(i)["actions"], group["actions"])
            np.testing.assert_array_equal(ds.episode(i)["rewards"], group["rewards"])
    gear_data.export(ds, tmp_path / "pong-v0", format="minari")
    assert gear_data.convert(tmp_path / "pong-v0", tmp_path / "again").fingerprint == report.fingerprint
