"""Exports to D4RL, npz, Minari and LeRobot: their own libraries read them, and they convert to an equal dataset."""

from __future__ import annotations

import io
import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import datasets
import h5py
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

import gear_data
from gear_data.errors import (
    CorruptSourceError,
    DestinationExistsError,
    InvalidArgumentError,
    MissingColumnError,
    StorageFullError,
    UnsupportedColumnError,
)

#: Format -> name of a destination that it takes, and further arguments.
FORMATS: dict[str, tuple[str, dict[str, Any]]] = {
    "parquet": ("out", {}),
    "d4rl": ("out.hdf5", {}),
    "npz": ("out.npz", {}),
    "minari": ("out-v0", {}),
    "lerobot": ("out", {"fps": 50}),
}


def flat(rollouts: Sequence[Any], name: str) -> np.ndarray[Any, Any]:
    return np.concatenate([rollout.columns[name] for rollout in rollouts])


def converted(tmp_path: Path, sources: Any, rollouts: Sequence[Any], *, final: bool = True, **facts: Any) -> Any:
    """A dataset of several shards, from Parquet with a row an episode."""
    if final:
        facts["final_observations"] = pa.array([r.final.tolist() for r in rollouts], pa.list_(pa.float32()))
    source = sources.write_episodes(tmp_path / "source.parquet", rollouts, **facts)
    gear_data.convert(source, tmp_path / "dataset", shard_bytes=2048, keep_encoded=True, progress=False)
    return gear_data.open(tmp_path / "dataset")


def wide(sources: Any, count: int = 12, **more: Any) -> list[Any]:
    """Rollouts with a column of every odd kind."""
    rng = np.random.default_rng(11)
    return [
        r.with_columns(
            **{
                "actions": rng.normal(size=(len(r), 1)),
                "infos.flag": rng.random((len(r), 2)) < 0.5,
                "infos.half": rng.normal(size=len(r)).astype(np.float16),
                "infos.count": rng.integers(-(2**62), 2**62, len(r)),
                "infos.picture": rng.integers(0, 256, (len(r), 2, 3, 1), dtype=np.uint8),
                **{name: make(rng, len(r)) for name, make in more.items()},
            }
        )
        for r in sources.make_rollouts(count, seed=3)
    ]


def exported(ds: Any, tmp_path: Path, format: str) -> Path:
    name, arguments = FORMATS[format]
    gear_data.export(ds, tmp_path / name, format, progress=False, **arguments)
    return tmp_path / name


def again(path: Path, tmp_path: Path) -> Any:
    gear_data.convert(path, tmp_path / "again", keep_encoded=True, progress=False)
    return gear_data.open(tmp_path / "again")


@pytest.mark.parametrize("format", FORMATS)
def test_export_converts_to_an_equal_dataset(format: str, sources: Any, tmp_path: Path) -> None:
    ds = converted(tmp_path, sources, wide(sources))
    assert len(ds.manifest.shards) > 1
    back = again(exported(ds, tmp_path, format), tmp_path)
    assert back.schema.source_columns and back.fingerprint == ds.fingerprint
    for i in range(ds.num_episodes):
        assert (back.final(i) or {})["observations"].tolist() == (ds.final(i) or {})["observations"].tolist()


@pytest.mark.parametrize("format", FORMATS)
def test_export_of_a_view(format: str, rollouts_path: Path, tmp_path: Path) -> None:
    view = gear_data.open(rollouts_path).filter("length > 4 AND terminated")
    assert 2 < view.num_episodes < 40
    assert again(exported(view, tmp_path, format), tmp_path).fingerprint == view.fingerprint


@pytest.mark.parametrize("format", FORMATS)
def test_small_blocks_write_the_same(
    format: str, sources: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Blocks of one episode, and in LeRobot several row groups an episode and a file for every few of them."""
    ds = converted(tmp_path, sources, wide(sources))
    monkeypatch.setattr("gear_data.exports.exporter.BLOCK_BYTES", 100)
    monkeypatch.setattr("gear_data.exports.lerobot.data_files.BLOCK_BYTES", 10)
    monkeypatch.setattr("gear_data.exports.lerobot.data_files.DATA_MB", 0)
    path = exported(ds, tmp_path, format)
    assert again(path, tmp_path).fingerprint == ds.fingerprint
    if format == "lerobot":
        files = sorted((path / "data").rglob("*.parquet"))
        assert len(files) > 2
        assert pq.read_metadata(files[0]).num_row_groups > 1
        table = pq.read_table(path / "meta/episodes/chunk-000/file-000.parquet").to_pylist()
        for row in table:
            name = f"chunk-{row['data/chunk_index']:03d}/file-{row['data/file_index']:03d}.parquet"
            indices = pq.read_table(path / "data" / name, columns=["episode_index", "index"]).to_pydict()
            mine = [i for e, i in zip(*indices.values(), strict=True) if e == row["episode_index"]]
            assert mine == list(range(row["dataset_from_index"], row["dataset_to_index"]))


@pytest.mark.parametrize("format", ["d4rl", "npz"])
def test_flat_arrays(format: str, rollouts: list[Any], rollouts_path: Path, tmp_path: Path) -> None:
    path = exported(gear_data.open(rollouts_path), tmp_path, format)
    with h5py.File(path) if format == "d4rl" else np.load(path, allow_pickle=False) as file:
        found = {name: file[name][()] for name in file}
    own = {name: flat(rollouts, name) for name in ("observations", "actions", "rewards")}
    own |= {"terminals": flat(rollouts, "terminated"), "timeouts": flat(rollouts, "truncated")}
    own["next_observations"] = np.concatenate([rollout.next_observations for rollout in rollouts])
    assert found.keys() == own.keys()
    for name, values in own.items():
        assert found[name].dtype == values.dtype
        np.testing.assert_array_equal(found[name], values)


@pytest.mark.parametrize("format", ["d4rl", "npz"])
def test_flat_arrays_in_a_folder(format: str, rollouts_path: Path, tmp_path: Path) -> None:
    ds = gear_data.open(rollouts_path)
    report = gear_data.export(ds, tmp_path / "folder", format)
    (file,) = (tmp_path / "folder").iterdir()
    assert report.files == (file.name,)
    assert report.bytes == file.stat().st_size
    assert again(tmp_path / "folder", tmp_path).fingerprint == ds.fingerprint


def test_d4rl_metadata(rollouts: list[Any], sources: Any, tmp_path: Path) -> None:
    facts = {"metadata/algorithm": "ppo", "metadata/iteration": 7, "metadata/array": np.arange(3)}
    source = sources.write_d4rl(tmp_path / "source.hdf5", rollouts, extra=facts)
    gear_data.convert(source, tmp_path / "dataset")
    path = exported(gear_data.open(tmp_path / "dataset"), tmp_path, "d4rl")
    with h5py.File(path) as file:
        assert file["metadata/algorithm"][()] == b"ppo"
        assert file["metadata/iteration"][()] == 7
    assert again(path, tmp_path).manifest.provenance["metadata"] == {"algorithm": "ppo", "iteration": 7}


def test_flat_arrays_without_final_observations(sources: Any, tmp_path: Path) -> None:
    ds = converted(tmp_path, sources, sources.make_rollouts(6), final=False, level=list(range(6)))
    report = gear_data.export(ds, tmp_path / "out.hdf5", "d4rl")
    assert report.left_out == ("level",)
    with h5py.File(tmp_path / "out.hdf5") as file:
        assert "next_observations" not in file
    assert again(tmp_path / "out.hdf5", tmp_path).fingerprint == ds.fingerprint


@pytest.mark.parametrize("format", ["d4rl", "npz"])
def test_flags_that_would_cut_elsewhere_are_refused(format: str, sources: Any, tmp_path: Path) -> None:
    both, inside = (sources.make_rollouts(5, short=False, seed=8) for _ in range(2))
    both[3].columns["terminated"][-1] = both[3].columns["truncated"][-1] = True
    episode = next(i for i, rollout in enumerate(inside) if len(rollout) > 2)
    inside[episode].columns["terminated"][1] = True
    for rollouts, place in ((both, f"step {len(both[3]) - 1} of episode 3"), (inside, f"step 1 of episode {episode}")):
        folder = tmp_path / place
        folder.mkdir()
        ds = converted(folder, sources, rollouts)
        with pytest.raises(UnsupportedColumnError, match=place):
            exported(ds, folder, format)
        assert not (folder / FORMATS[format][0]).exists()


@pytest.mark.parametrize("format", ["minari", "lerobot", "parquet"])
def test_odd_flags_are_kept(format: str, sources: Any, tmp_path: Path) -> None:
    rollouts = sources.make_rollouts(5, short=False, seed=8)
    rollouts[3].columns["terminated"][-1] = rollouts[3].columns["truncated"][-1] = True
    next(rollout for rollout in rollouts if len(rollout) > 2).columns["terminated"][1] = True
    ds = converted(tmp_path, sources, rollouts)
    back = again(exported(ds, tmp_path, format), tmp_path)
    for name in ("terminated", "truncated"):
        found = np.concatenate([back.episode(i)[name] for i in range(5)])
        assert found.tolist() == flat(rollouts, name).tolist()
    assert back.fingerprint == ds.fingerprint


def test_facts_that_minari_cannot_hold(sources: Any, tmp_path: Path) -> None:
    rollouts = sources.make_rollouts(3)
    day = pa.array([1, 2, None], pa.date32())
    ds = converted(tmp_path, sources, rollouts, day=day, level=[1, 2, 3], name=["a", "b", "c" * 70_000])
    with pytest.raises(UnsupportedColumnError, match="attributes hold") as error:
        exported(ds, tmp_path, "minari")
    assert error.value.column == "name"
    report = gear_data.export(ds.filter("level < 3"), tmp_path / "out-v0", "minari")
    assert report.left_out == ("day",)
    assert again(tmp_path / "out-v0", tmp_path).episodes["level"].to_list() == [1, 2]


@pytest.mark.parametrize("format", ["d4rl", "npz", "minari"])
def test_missing_final_observations_are_refused(format: str, sources: Any, tmp_path: Path) -> None:
    rollouts = sources.make_rollouts(5)
    finals = [None if i == 3 else rollout.final.tolist() for i, rollout in enumerate(rollouts)]
    facts = {"final_observations": pa.array(finals, pa.list_(pa.float32()))}
    ds = converted(tmp_path, sources, rollouts, final=False, **facts)
    with pytest.raises(UnsupportedColumnError, match="episode 3 has n") as error:
        exported(ds, tmp_path, format)
    assert error.value.column == "observations"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["dataset", "source.parquet"]
    back = again(exported(ds, tmp_path, "lerobot"), tmp_path)
    assert back.fingerprint == ds.fingerprint
    assert [back.final(i) is None for i in range(5)] == [False, False, False, True, False]


def test_columns_that_a_format_cannot_hold(sources: Any, tmp_path: Path) -> None:
    def numbers(rng: Any, count: int) -> Any:
        return rng.integers(0, 5, count)

    cases = {
        "next_observations": ("d4rl", "npz", "minari"),
        "metadata": ("d4rl", "npz", "minari"),
        "observations.image": ("minari",),
        "level": ("minari",),
        "step_index": ("minari", "lerobot"),
        "task_index": ("minari",),
    }
    for number, (name, formats) in enumerate(cases.items()):
        folder = tmp_path / str(number)
        folder.mkdir()
        ds = converted(folder, sources, wide(sources, **{name: numbers}))
        for format in FORMATS:
            if format not in formats:
                gear_data.export(ds, folder / format / FORMATS[format][0], format, **FORMATS[format][1])
                continue
            with pytest.raises(UnsupportedColumnError) as error:
                exported(ds, folder, format)
            assert error.value.column == name
            assert error.value.hint


@pytest.mark.parametrize("format", ["d4rl", "npz", "minari"])
def test_columns_that_a_format_needs(format: str, sources: Any, tmp_path: Path) -> None:
    table = pa.table({"observations": [[[1.0]], [[2.0], [3.0]]], "rewards": [[0.0], [1.0, 2.0]]})
    gear_data.convert(sources.write_parquet(tmp_path / "s.parquet", table), tmp_path / "d", format="episode-rows")
    with pytest.raises(MissingColumnError, match="actions") as error:
        exported(gear_data.open(tmp_path / "d"), tmp_path, format)
    assert error.value.column == "actions"


def test_text(sources: Any, tmp_path: Path) -> None:
    """LeRobot and Minari's infos hold it; flat arrays do not."""
    rollouts = sources.make_rollouts(4, short=False)
    texts = [[f"ä{i}" * j for j in range(len(rollout))] for i, rollout in enumerate(rollouts)]
    ds = converted(tmp_path, sources, rollouts, **{"infos.text": texts})
    assert ds.schema["infos.text"].dtype == "string"
    for format in ("d4rl", "npz"):
        with pytest.raises(UnsupportedColumnError) as error:
            exported(ds, tmp_path, format)
        assert error.value.column == "infos.text"
    for format in ("lerobot", "minari"):
        gear_data.convert(exported(ds, tmp_path, format), tmp_path / f"again-{format}")
        assert gear_data.open(tmp_path / f"again-{format}").fingerprint == ds.fingerprint


def test_refused_arguments(rollouts_path: Path, tmp_path: Path) -> None:
    ds = gear_data.open(rollouts_path)
    with pytest.raises(InvalidArgumentError, match="fps=30"):
        gear_data.export(ds, tmp_path / "out", "lerobot")
    for format, fps in (("d4rl", 30), ("lerobot", 0), ("lerobot", float("nan"))):
        with pytest.raises(InvalidArgumentError, match="fps="):
            gear_data.export(ds, tmp_path / "out", format, fps=fps)
    with pytest.raises(InvalidArgumentError, match="out-v0"):
        gear_data.export(ds, tmp_path / "out", "minari")
    assert list(tmp_path.iterdir()) == []
    for format, (name, arguments) in FORMATS.items():
        (tmp_path / format / name).mkdir(parents=True)
        (tmp_path / format / name / "mine.txt").write_text("mine")
        with pytest.raises(DestinationExistsError):
            gear_data.export(ds, tmp_path / format / name, format, **arguments)
        assert [path.name for path in (tmp_path / format).iterdir()] == [name]


@pytest.mark.parametrize("format", FORMATS)
def test_nothing_is_left_of_an_export_that_fails(
    format: str, rollouts_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gear_data.exports.exporter.BLOCK_BYTES", 100)
    ds = gear_data.open(rollouts_path)
    steps = type(ds).steps

    def fails(self: Any, name: str, first: int, last: int) -> Any:
        if name == "observations" and first > 20:
            raise OSError(28, "No space left on device")
        return steps(self, name, first, last)

    monkeypatch.setattr(type(ds), "steps", fails)
    with pytest.raises(StorageFullError):
        exported(ds, tmp_path, format)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("format", ["d4rl", "minari"])
def test_hdf5_is_not_begun_without_room(
    format: str, rollouts_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """HDF5 crashes when the disk runs full. The room asked for is at least what is used, and not ten times as much."""
    ds = gear_data.open(rollouts_path)
    size = sum(path.stat().st_size for path in exported(ds, tmp_path / "first", format).rglob("*.hdf5"))
    size = size or (tmp_path / "first" / FORMATS[format][0]).stat().st_size
    usage = shutil.disk_usage(tmp_path)
    for free, fits in ((size, format == "d4rl"), (10 * size, True), (size // 2, False)):
        monkeypatch.setattr("shutil.disk_usage", lambda path, free=free: usage._replace(free=free))
        folder = tmp_path / str(free)
        folder.mkdir()
        if fits:
            exported(ds, folder, format)
        else:
            with pytest.raises(StorageFullError, match="are needed"):
                exported(ds, folder, format)
            assert list(folder.iterdir()) == []


# Minari


def minari_dataset(path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    minari = pytest.importorskip("minari")
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(path.parent))
    return minari.load_dataset(path.name)


def test_minari_reads_it(sources: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rollouts = wide(sources)
    facts = {"seed": list(range(100, 112)), "policy": ["a", None] * 6, "score": np.arange(12) / 4}
    ds = converted(tmp_path, sources, rollouts, **facts)
    path = exported(ds, tmp_path, "minari")
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
    back = again(path, tmp_path)
    for name, values in facts.items():
        assert back.episodes[name].to_list() == list(values)


@pytest.mark.filterwarnings("ignore::UserWarning:minari")
def test_minari_dict_and_discrete_spaces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Observations of a Dict in a Dict come from Minari itself, with an image large enough for Minari to encode."""
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
    path = exported(ds, tmp_path, "minari")
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
            exported(ds, tmp_path, format)
    for format in ("minari", "parquet", "lerobot"):
        path = path if format == "minari" else tmp_path / format
        if format != "minari":
            gear_data.export(ds, path, format, **FORMATS[format][1])
        gear_data.convert(path, tmp_path / f"again-{format}")
        back = gear_data.open(tmp_path / f"again-{format}")
        assert back.fingerprint == ds.fingerprint
        for i, buffer in enumerate(buffers):
            assert (back.final(i) or {})["observations.direction"] == buffer.observations["direction"][-1]


# LeRobot


def lerobot_features(info: dict[str, Any]) -> datasets.Features:
    """By the published rule (`lerobot.datasets.utils.get_hf_features_from_features`)."""
    features: dict[str, Any] = {}
    for name, feature in info["features"].items():
        dtype, shape = feature["dtype"], tuple(feature["shape"])
        if dtype == "image":
            features[name] = datasets.Image()
        elif shape == (1,):
            features[name] = datasets.Value(dtype)
        elif len(shape) == 1:
            features[name] = datasets.Sequence(datasets.Value(dtype), length=shape[0])
        else:
            features[name] = {2: datasets.Array2D, 3: datasets.Array3D}[len(shape)](shape=shape, dtype=dtype)
    return datasets.Features(features)


def lerobot_rows(path: Path, cache: Path) -> tuple[dict[str, Any], datasets.Dataset]:
    """`meta/info.json` and all rows, read as LeRobot reads them."""
    info = json.loads((path / "meta/info.json").read_text())
    files = [str(file) for file in sorted((path / "data").glob("*/*.parquet"))]
    return info, datasets.Dataset.from_parquet(files, features=lerobot_features(info), cache_dir=str(cache))


def test_lerobot_layout(sources: Any, tmp_path: Path) -> None:
    rollouts = wide(sources, **{"observations.image": lambda rng, count: rng.integers(0, 9, (count, 3), np.int32)})
    tasks = ["pick", "place", None, "pick"] * 3
    ds = converted(tmp_path, sources, rollouts, task=tasks, level=list(range(12)))
    path = exported(ds, tmp_path, "lerobot")
    info, rows = lerobot_rows(path, tmp_path / "cache")
    assert (info["codebase_version"], info["fps"]) == ("v3.0", 50)
    lengths = [len(rollout) for rollout in rollouts]
    counts = (info["total_episodes"], info["total_frames"], info["total_tasks"], info["splits"])
    assert counts == (12, sum(lengths), 3, {"train": "0:12"})
    assert info["features"].keys() == set(rows.column_names)
    names = {
        "observations": "observation.state",
        "observations.image": "observation.image",
        "actions": "action",
        "rewards": "next.reward",
        "terminated": "next.terminated",
        "truncated": "next.truncated",
    }
    table = rows.with_format("arrow")[:]
    values = {name: np.array(table[name].to_pylist(), info["features"][name]["dtype"]) for name in table.column_names}
    for ours in rollouts[0].columns:
        theirs = values[names.get(ours, ours)]
        expected = flat(rollouts, ours)
        assert theirs.dtype == expected.dtype
        np.testing.assert_array_equal(theirs.reshape(expected.shape), expected)
    assert values["next.done"].tolist() == [t == n - 1 for n in lengths for t in range(n)]
    assert values["episode_index"].tolist() == [i for i, n in enumerate(lengths) for _ in range(n)]
    assert values["frame_index"].tolist() == [t for n in lengths for t in range(n)]
    assert values["index"].tolist() == list(range(sum(lengths)))
    assert values["timestamp"].tolist() == [np.float32(t / 50) for n in lengths for t in range(n)]
    texts = pd.read_parquet(path / "meta/tasks.parquet")
    assert texts.columns.tolist() == ["task_index"]
    for frame in (0, sum(lengths[:2]), sum(lengths) - 1):
        text = tasks[int(values["episode_index"][frame])] or ""
        assert texts.iloc[int(values["task_index"][frame])].name == text
        assert texts.loc[text].task_index == values["task_index"][frame]
    listed = datasets.Dataset.from_parquet(
        str(path / "meta/episodes/chunk-000/file-000.parquet"), cache_dir=str(tmp_path / "cache")
    )
    for i, row in enumerate(listed):
        assert (row["episode_index"], row["length"], row["tasks"]) == (i, lengths[i], [tasks[i] or ""])
        assert (row["dataset_from_index"], row["dataset_to_index"]) == (sum(lengths[:i]), sum(lengths[: i + 1]))
        assert (row["data/chunk_index"], row["data/file_index"], row["level"]) == (0, 0, i)
    stats = json.loads((path / "meta/stats.json").read_text())
    assert stats.keys() == info["features"].keys()
    state = flat(rollouts, "observations").astype(np.float64)
    np.testing.assert_allclose(stats["observation.state"]["mean"], state.mean(axis=0))
    np.testing.assert_allclose(stats["observation.state"]["std"], state.std(axis=0))
    assert stats["observation.state"]["count"] == [len(state)]
    assert stats["frame_index"]["max"] == [max(lengths) - 1]
    back = again(path, tmp_path)
    assert back.fingerprint == ds.fingerprint
    assert back.episodes["level"].to_list() == list(range(12))
    assert [task or None for task in back.episodes["task"].to_list()] == tasks


def test_lerobot_keeps_a_source_s_own_clock_and_tasks(sources: Any, tmp_path: Path) -> None:
    rollouts = sources.make_rollouts(6, seed=4)
    sources.write_lerobot(tmp_path / "source", rollouts)
    gear_data.convert(tmp_path / "source", tmp_path / "dataset")
    ds = gear_data.open(tmp_path / "dataset")
    report = gear_data.export(ds, tmp_path / "out", "lerobot")
    assert report.left_out == ("episode_index",)
    info, rows = lerobot_rows(tmp_path / "out", tmp_path / "cache")
    assert (info["fps"], info["robot_type"]) == (30, "arm")
    texts = pd.read_parquet(tmp_path / "out/meta/tasks.parquet")
    assert texts.index.tolist() == ["pick", "place"]
    assert [row["task_index"] for row in rows] == [i % 2 for i, r in enumerate(rollouts) for _ in range(len(r))]
    back = again(tmp_path / "out", tmp_path)
    assert back.fingerprint == ds.fingerprint
    assert {"timestamp", "task_index"} <= set(back.schema.names)
    assert back.episodes["task"].to_list() == ["pick", "place"] * 3


def test_lerobot_images(sources: Any, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)

    def png() -> bytes:
        stream = io.BytesIO()
        Image.fromarray(rng.integers(0, 256, (5, 7, 3), dtype=np.uint8)).save(stream, "PNG")
        return stream.getvalue()

    rollouts = sources.make_rollouts(4)
    images = [[png() for _ in range(len(rollout))] for rollout in rollouts]
    column = pa.array(images, pa.list_(pa.binary()))
    ds = converted(tmp_path, sources, rollouts, **{"observations.image": column})
    path = exported(ds, tmp_path, "lerobot")
    info, rows = lerobot_rows(path, tmp_path / "cache")
    assert info["features"]["observation.image"]["shape"] == [5, 7, 3]
    assert rows[0]["observation.image"].size == (7, 5)
    column = rows.cast_column("observation.image", datasets.Image(decode=False))["observation.image"]
    assert [each["bytes"] for each in column] == [each for episode in images for each in episode]
    assert again(path, tmp_path).fingerprint == ds.fingerprint
    other = [[b"no image"] * len(rollout) for rollout in rollouts]
    (tmp_path / "other").mkdir()
    ds = converted(tmp_path / "other", sources, rollouts, **{"infos.bytes": other})
    with pytest.raises(UnsupportedColumnError, match="images") as error:
        exported(ds, tmp_path / "other", "lerobot")
    assert error.value.column == "infos.bytes"


def test_damaged_notes_of_an_export(rollouts_path: Path, tmp_path: Path) -> None:
    """What stands beside LeRobot's own files is looked at like any other."""
    path = exported(gear_data.open(rollouts_path), tmp_path, "lerobot")
    notes, finals = path / "meta/gear_data.json", path / "meta/final_observations.parquet"
    good, table = notes.read_text(), pq.read_table(finals)
    values = table["observation.state"].to_pylist()
    damaged: list[tuple[Path, Any]] = [
        (notes, "[1]"),
        (notes, '{"finals": "observation.state"}'),
        (finals, None),
        (finals, table.slice(0, 30)),
        (finals, table.slice(1)),
        (finals, table.drop_columns(["observation.state"])),
        (finals, table.drop_columns(["episode_index"])),
        (finals, table.set_column(1, "observation.state", pa.array([[1.0]] * 40, pa.list_(pa.float32())))),
        (finals, table.set_column(1, "observation.state", pa.array(values, pa.list_(pa.float64())))),
        (finals, table.set_column(1, "observation.state", pa.array(["text"] * 40))),
        (finals, table.set_column(0, "episode_index", pa.array(["text"] * 40))),
    ]
    for number, (file, content) in enumerate(damaged):
        notes.write_text(good)
        pq.write_table(table, finals)
        if isinstance(content, str):
            file.write_text(content)
        elif content is None:
            file.unlink()
        else:
            pq.write_table(content, file)
        with pytest.raises(CorruptSourceError) as error:
            gear_data.convert(path, tmp_path / f"again-{number}", progress=False)
        assert error.value.file == f"meta/{file.name}", number


def test_real_minari_environments_survive(shared_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gear_data.convert(shared_data / "minari/cartpole/mixture-v0", tmp_path / "dataset", progress=False)
    ds = gear_data.open(tmp_path / "dataset").filter("length < 60")
    found = minari_dataset(exported(ds, tmp_path, "minari"), monkeypatch)
    assert found.env_spec.id == "CartPole-v1"
    assert found.action_space.n == 2
    assert again(tmp_path / "out-v0", tmp_path).fingerprint == ds.fingerprint
