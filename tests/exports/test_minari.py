"""Minari exports: Minari reads them, and they convert to an equal dataset."""

from __future__ import annotations

import ast
import re
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import gear_data
from gear_data.errors import (
    MissingColumnError,
    UnsupportedColumnError,
)
from tests.support.exports import FORMATS, convert_again, convert_rollouts, export_to, minari_dataset, wide_rollouts


def test_metadata_that_minari_cannot_store(sources: Any, tmp_path: Path) -> None:
    rollouts = sources.make_rollouts(3)
    day = pa.array([1, 2, None], pa.date32())
    ds = convert_rollouts(tmp_path, sources, rollouts, day=day, level=[1, 2, 3], name=["a", "b", "c" * 70_000])
    with pytest.raises(UnsupportedColumnError, match="attributes hold") as error:
        export_to(ds, tmp_path, "minari")
    assert error.value.column == "name"
    report = gear_data.export(ds.filter("level < 3"), tmp_path / "out-v0", "minari")
    assert report.left_out == ("day",)
    assert convert_again(tmp_path / "out-v0", tmp_path).episodes["level"].to_list() == [1, 2]


def test_columns_are_renamed_as_the_errors_say(rollouts_path: Path, tmp_path: Path) -> None:
    """Columns that were added are in no source."""
    ds = gear_data.open(rollouts_path)
    values = np.zeros(ds.num_steps)
    episode = {
        "observations": {"a": np.ones((4, 2), np.float32), "b": np.ones((4, 3), np.float32)},
        "actions": np.ones((3, 1), np.float32),
        "rewards": np.ones(3),
    }
    gear_data.convert([episode], tmp_path / "nested", progress=False)
    cases = {
        "level": ds.with_column("level", values),
        "actions.b": ds.with_column("actions.b", values),
        "observations.b": gear_data.open(tmp_path / "nested").rename({"observations.a": "observations"}),
    }
    for number, (name, wide) in enumerate(cases.items()):
        with pytest.raises(UnsupportedColumnError) as error:
            gear_data.export(wide, tmp_path / f"{number}-v0", "minari", progress=False)
        assert error.value.column == name
        advice = re.search(r"ds\.rename\((\{.*?\})\)", error.value.hint or "")
        assert advice is not None
        renamed = wide.rename(ast.literal_eval(advice[1]))
        gear_data.export(renamed, tmp_path / f"{number}-v0", "minari", progress=False)

    ds.with_column("infos.x", values).save(tmp_path / "more", progress=False)
    gear_data.merge([rollouts_path, tmp_path / "more"], tmp_path / "merged", progress=False)
    with pytest.raises(UnsupportedColumnError) as error:
        gear_data.export(gear_data.open(tmp_path / "merged"), tmp_path / "merged-v0", "minari", progress=False)
    assert (error.value.column, error.value.hint) == ("masks.infos.x", "export to Parquet")


def test_the_advice_quotes_names(rollouts_path: Path, tmp_path: Path) -> None:
    ds = gear_data.open(rollouts_path)
    wide = ds.with_column("Joint 1 (deg)", np.zeros(ds.num_steps))
    with pytest.raises(UnsupportedColumnError) as error:
        gear_data.export(wide, tmp_path / "out-v0", "minari", progress=False)
    advice = re.search(r"\((gear-data edit .*)\)$", str(error.value.hint))
    assert advice is not None
    assert shlex.split(advice[1])[-2:] == ["--rename", "Joint 1 (deg)=infos.Joint 1 (deg)"]


def test_minari_reads_an_export(sources: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rollouts = wide_rollouts(sources)
    metadata = {"seed": list(range(100, 112)), "policy": ["a", None] * 6, "score": np.arange(12) / 4}
    ds = convert_rollouts(tmp_path, sources, rollouts, **metadata)
    path = export_to(ds, tmp_path, "minari")
    found = minari_dataset(path, monkeypatch)
    assert (found.total_episodes, found.total_steps) == (12, sum(len(rollout) for rollout in rollouts))
    for episode, rollout in zip(found.iterate_episodes(), rollouts, strict=True):
        np.testing.assert_array_equal(episode.observations, [*rollout.columns["observations"], rollout.final])
        assert episode.observations.dtype == np.float32
        assert found.observation_space.contains(episode.observations[0])
        assert found.action_space.contains(episode.actions[0])
        for ours, theirs in (("terminated", "terminations"), ("truncated", "truncations")):
            np.testing.assert_array_equal(getattr(episode, theirs), rollout.columns[ours])
        for name in ("actions", "rewards"):
            np.testing.assert_array_equal(getattr(episode, name), rollout.columns[name])
        for name, values in episode.infos.items():
            assert values.dtype == rollout.columns[f"infos.{name}"].dtype
            np.testing.assert_array_equal(values, rollout.columns[f"infos.{name}"])
    attributes = list(found.storage.get_episode_metadata(range(12)))
    for i, item in enumerate(attributes):
        assert (item["id"], item["seed"], item["score"], item.get("policy")) == (i, 100 + i, i / 4, ["a", None][i % 2])
        assert item["total_steps"] == len(rollouts[i])
    back = convert_again(path, tmp_path)
    for name, values in metadata.items():
        assert back.episodes[name].to_list() == list(values)


@pytest.mark.filterwarnings("ignore::UserWarning:minari")
def test_minari_dict_and_discrete_spaces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Minari writes the source: a Dict in a Dict, with an image that it would encode."""
    import gymnasium as gym

    minari = pytest.importorskip("minari")
    EpisodeBuffer = pytest.importorskip("minari.data_collector").EpisodeBuffer
    rng = np.random.default_rng(0)
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    lengths = (3, 1, 5)
    buffers = []
    for i, length in enumerate(lengths):
        observations = {
            "direction": rng.integers(0, 4, length + 1),
            "deep": {"image": rng.integers(0, 256, (length + 1, 32, 40, 3), dtype=np.uint8)},
        }
        last = np.arange(length) == length - 1
        buffer = EpisodeBuffer(
            id=i,
            seed=i + 5,
            observations=observations,
            actions=rng.integers(0, 3, length),
            rewards=rng.normal(size=length),
            terminations=last,
            truncations=np.zeros(length, bool),
        )
        buffers.append(buffer)
    image = gym.spaces.Box(0, 255, (32, 40, 3), np.uint8)
    space = gym.spaces.Dict({"direction": gym.spaces.Discrete(4), "deep": gym.spaces.Dict({"image": image})})
    minari.create_dataset_from_buffers(
        "source-v0",
        buffer=buffers,
        observation_space=space,
        action_space=gym.spaces.Discrete(3),
        jpeg_encoding=False,
        data_format="hdf5",
    )
    gear_data.convert(tmp_path / "source-v0", tmp_path / "dataset")
    ds = gear_data.open(tmp_path / "dataset")
    assert {c.name for c in ds.schema.final_columns} == {"observations.direction", "observations.deep.image"}
    path = export_to(ds, tmp_path, "minari")
    found = minari_dataset(path, monkeypatch)
    assert isinstance(found.action_space, gym.spaces.Discrete)
    assert found.observation_space["deep"]["image"] == image
    for episode, buffer in zip(found.iterate_episodes(), buffers, strict=True):
        np.testing.assert_array_equal(episode.observations["direction"], buffer.observations["direction"])
        np.testing.assert_array_equal(episode.observations["deep"]["image"], buffer.observations["deep"]["image"])
        np.testing.assert_array_equal(episode.actions, buffer.actions)
        assert found.action_space.contains(episode.actions[0])
    for format in ("d4rl", "npz"):
        with pytest.raises(MissingColumnError, match="observations"):
            export_to(ds, tmp_path, format)
    for format in ("minari", "parquet", "lerobot"):
        path = path if format == "minari" else tmp_path / format
        if format != "minari":
            gear_data.export(ds, path, format, **FORMATS[format][1])
        gear_data.convert(path, tmp_path / f"again-{format}")
        back = gear_data.open(tmp_path / f"again-{format}")
        assert back.fingerprint == ds.fingerprint
        for i, buffer in enumerate(buffers):
            assert (back.final(i) or {})["observations.direction"] == buffer.observations["direction"][-1]


def test_real_minari_environments_survive(shared_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gear_data.convert(shared_data / "minari/cartpole/mixture-v0", tmp_path / "dataset", progress=False)
    ds = gear_data.open(tmp_path / "dataset").filter("length < 60")
    found = minari_dataset(export_to(ds, tmp_path, "minari"), monkeypatch)
    assert found.env_spec.id == "CartPole-v1"
    assert found.action_space.n == 2
    assert convert_again(tmp_path / "out-v0", tmp_path).fingerprint == ds.fingerprint
