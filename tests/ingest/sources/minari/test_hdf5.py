"""Tests of Minari HDF5: files that the library writes, and damaged files."""

from __future__ import annotations

import io
import json
import warnings
import zlib
from collections.abc import Callable, Iterator
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
from gear_data.errors import BadEpisodeError, CorruptSourceError, GearError, UnknownFormatError, UnsupportedColumnError
from gear_data.ingest.location import locate
from gear_data.ingest.source import SourceOptions
from gear_data.ingest.sources.hdf5 import grouped_source as hdf5_groups
from gear_data.ingest.sources.hdf5 import inventory as hdf5
from gear_data.ingest.sources.minari import hdf5 as minari_format
from gear_data.storage.block import BEGIN, END, EpisodeBlock

Write = Callable[..., Path]
MAIN = "data/main_data.hdf5"
METADATA = "data/metadata.json"


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    """Writes a dataset with the library, and returns its folder."""
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))

    def create(buffers: list[EpisodeBuffer], observation: Any, action: Any, **options: Any) -> Path:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # warnings about a missing author and code are expected
            minari.create_dataset_from_buffers(
                "test/rollouts-v0",
                buffer=buffers,
                observation_space=observation,
                action_space=action,
                data_format="hdf5",
                **options,
            )
        return tmp_path / "minari" / "test" / "rollouts-v0"

    return create


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


def episode(
    steps: int, observations: Any, *, actions: Any = None, rewards: Any = None, infos: Any = None, **facts: Any
) -> EpisodeBuffer:
    """An episode that terminates after `steps` steps."""
    return EpisodeBuffer(
        observations=observations,
        actions=list(range(steps)) if actions is None else actions,
        rewards=[0.5] * steps if rewards is None else rewards,
        terminations=[False] * (steps - 1) + [True],
        truncations=[False] * steps,
        infos=infos,
        **facts,
    )


def plain(write: Write, lengths: tuple[int, ...] = (3, 1, 4), **options: Any) -> Path:
    """A dataset of vectors, in which all numbers are different."""
    rng = np.random.default_rng(0)
    buffers = [episode(n, rng.normal(size=(n + 1, 2)), seed=i, **options) for i, n in enumerate(lengths)]
    return write(buffers, spaces.Box(-9, 9, (2,), np.float64), spaces.Discrete(99))


def blocks(source: Path, **options: Any) -> tuple[EpisodeBlock, dict[str, Any]]:
    """Reads a source that fits one block; returns it, and findings by code and column.

    The findings include those made when the source was opened.
    """
    opened = minari_format.open_(locate(str(source), None), SourceOptions(**options))
    (block,) = list(opened.blocks(BEGIN, END))
    return block, {f.code if f.column is None else f"{f.code} {f.column}": f for f in opened.findings}


@pytest.fixture
def edit(write: Write) -> Iterator[Callable[[], tuple[Path, h5py.File]]]:
    """A dataset of three episodes, and its file, open for editing."""
    files = []

    def opened() -> tuple[Path, h5py.File]:
        source = plain(write)
        files.append(h5py.File(source / MAIN, "r+"))
        return source, files[-1]

    yield opened
    for file in files:
        file.close()


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
        assert ours.num_steps == steps
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


# Files that the library writes.


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


def nested_dataset(write: Write) -> Path:
    space = spaces.Dict(
        {
            "grid": spaces.Box(0, 255, (2, 2, 3), np.uint8),
            "pair": spaces.Tuple((spaces.Discrete(5), spaces.Box(-9, 9, (3,), np.float32))),
            "mission": spaces.Text(50, charset="abcdefghijklmnopqrstuvwxyz éß"),
        }
    )
    rng = np.random.default_rng(1)
    buffers = []
    for i, steps in enumerate((2, 1, 3)):
        rows = steps + 1
        observations = {
            "grid": rng.integers(0, 256, (rows, 2, 2, 3), np.uint8),
            "pair": (rng.integers(0, 5, rows), rng.normal(size=(rows, 3)).astype(np.float32)),
            "mission": [f"go to é {i} {t}" for t in range(rows)],
        }
        actions = (list(range(steps)), rng.normal(size=(steps, 2)).astype(np.float32))
        infos = {"x": rng.normal(size=rows), "deep": {"y": rng.integers(0, 9, (rows, 2))}}
        options = {"level": i, "room": {"colour": "red"}}
        buffers.append(episode(steps, observations, actions=actions, infos=infos, options=options))
    return write(buffers, space, spaces.Tuple((spaces.Discrete(9), spaces.Box(-9, 9, (2,), np.float32))))


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
    decoded = [pixels(value.as_py()) for value in block.variable["observations"]]
    np.testing.assert_array_equal(np.array(decoded), np.concatenate([values[:-1] for values in theirs]))
    finals = [pixels(value.as_py()) for value in block.slice(1, 2).variable_finals["observations"]]
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
    monkeypatch.setattr(hdf5_groups, "UNIT_BYTES", 1)
    monkeypatch.setattr(hdf5_groups, "_BLOCK_BYTES", 200)
    with h5py.File(source / MAIN, "r+") as file:
        file.move("episode_2", "episode_12")
        del file["episode_1/actions/_index_0"]
    location, options = locate(str(source), None), SourceOptions(skip_bad=True)
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


# Wrong metadata.


def test_wrong_counts(edit: Any) -> None:
    source, file = edit()
    file["episode_1"].attrs["total_steps"] = 17
    file.close()
    path = source / METADATA
    path.write_text(json.dumps({**json.loads(path.read_text()), "total_episodes": 4, "total_steps": 9}))
    block, findings = blocks(source)
    assert block.lengths.tolist() == [3, 1, 4]
    assert findings["metadata-disagrees total_episodes"].message.startswith("total_episodes is 4, but there are 3")
    assert findings["metadata-disagrees total_steps"].message.startswith("total_steps is 9, but there are 8")
    assert findings["metadata-disagrees episode total_steps"].row == 1


def test_gapped_numbers(edit: Any) -> None:
    source, file = edit()
    file.move("episode_1", "episode_10")
    file.close()
    block, findings = blocks(source)
    assert block.rows.tolist() == [0, 2, 10]
    assert block.lengths.tolist() == [3, 4, 1]
    assert (findings["gapped-episodes"].count, findings["gapped-episodes"].row) == (8, 2)


def test_two_episodes_with_the_same_number(edit: Any) -> None:
    source, file = edit()
    file.copy("episode_1", "episode_01")
    file.close()
    with pytest.raises(CorruptSourceError, match="'episode_01' and 'episode_1' have the same number"):
        blocks(source)


@pytest.mark.parametrize(
    ("column", "rows", "message"),
    [
        ("observations", 4, "has 4 rows, where 5 are expected: 'rewards' has 4"),
        ("observations", 6, "has 6 rows"),
        ("actions", 5, "has 5 rows, where 4 are expected"),
        ("terminations", 3, "has 3 rows"),
        ("rewards", 0, "the episode has no steps"),
    ],
)
def test_rows_that_do_not_fit(column: str, rows: int, message: str, edit: Any, tmp_path: Path) -> None:
    source, file = edit()
    file[f"episode_2/{column}"].resize(rows, axis=0)
    file.close()
    with pytest.raises(BadEpisodeError) as error:
        gear_data.convert(source, tmp_path / "d")
    assert (error.value.file, error.value.column, error.value.row) == (MAIN, column, 2)
    assert message in error.value.message
    assert "--on-bad-episode skip" in str(error.value)
    block, findings = blocks(source, skip_bad=True)
    assert block.rows.tolist() == [0, 1]
    assert findings[f"bad-episode {column}"].row == 2


def test_infos_of_another_length(write: Write, tmp_path: Path) -> None:
    source = plain(write, (2, 2), infos={"x": [1.0, 2.0, 3.0, 4.0]})
    with pytest.raises(BadEpisodeError, match=r"infos/x.*has 4 rows"):
        gear_data.convert(source, tmp_path / "d")


def test_columns_that_come_and_go(edit: Any) -> None:
    source, file = edit()
    del file["episode_1/actions"]
    file["episode_2/infos/late"] = np.zeros(5)
    file["episode_0/infos/one"] = 3.0
    file.close()
    with pytest.raises(BadEpisodeError, match=r"actions.*is missing; data/main_data.hdf5 episode_0 has it"):
        blocks(source)
    block, findings = blocks(source, skip_bad=True)
    assert block.rows.tolist() == [0, 2]
    assert "'infos/late' is not in" in findings["column-left-out"].message
    assert findings["column-left-out infos/one"].count == 1


def test_dtype_that_does_not_fit(edit: Any) -> None:
    source, file = edit()
    del file["episode_1/actions"]
    file["episode_1/actions"] = [0.25]
    file.close()
    with pytest.raises(BadEpisodeError, match="is float64, and does not fit int64"):
        blocks(source)


def test_text_that_is_not_utf8(edit: Any) -> None:
    source, file = edit()
    for i, steps in enumerate((3, 1, 4)):
        values = [b"fine"] * steps + [b"\xff" if i == 2 else b"fine"]
        file.create_dataset(f"episode_{i}/infos/text", data=values, dtype=h5py.string_dtype())
    file.close()
    with pytest.raises(BadEpisodeError, match=r"infos/text.*row 2: step 4 is not UTF-8"):
        blocks(source)


def test_several_datasets_are_not_one(write: Write, tmp_path: Path) -> None:
    source = plain(write)
    folder = tmp_path / "both"
    for name in ("a", "b"):
        (folder / name / "data").mkdir(parents=True)
        (folder / name / MAIN).write_bytes((source / MAIN).read_bytes())
    with pytest.raises(UnknownFormatError, match="holds 2 Minari datasets"):
        gear_data.convert(folder, tmp_path / "d")


# Files that must be refused.


@pytest.mark.parametrize("text", ["{", "[]", '{"observation_space": "[]"}', "[" * 100_000, '{"action_space": 3}'])
def test_broken_metadata(text: str, write: Write, tmp_path: Path) -> None:
    source = plain(write)
    (source / METADATA).write_text(text)
    with pytest.raises(CorruptSourceError, match=r"metadata\.json"):
        gear_data.convert(source, tmp_path / "d")


@pytest.mark.parametrize("kind", ["external", "soft"])
@pytest.mark.parametrize("number", [0, 1])
def test_links_to_elsewhere(kind: str, number: int, edit: Any, tmp_path: Path) -> None:
    source, file = edit()
    with h5py.File(tmp_path / "secret.hdf5", "w") as secret:
        secret["x"] = np.arange([3, 1][number])
    del file[f"episode_{number}/actions"]
    link = h5py.ExternalLink(tmp_path / "secret.hdf5", "/x") if kind == "external" else h5py.SoftLink("/episode_2/x")
    file[f"episode_{number}/actions"] = link
    file.close()
    expected = UnsupportedColumnError if number == 0 else BadEpisodeError
    with pytest.raises(expected, match="not followed") as error:
        blocks(source)
    assert error.value.column == "actions"


def test_episode_that_is_a_link(edit: Any, tmp_path: Path) -> None:
    source, file = edit()
    with h5py.File(tmp_path / "other.hdf5", "w") as other:
        file.copy("episode_1", other, "x")
    del file["episode_1"]
    file["episode_1"] = h5py.ExternalLink(tmp_path / "other.hdf5", "/x")
    file.close()
    with pytest.raises(BadEpisodeError, match="'episode_1' is not a group of this file"):
        blocks(source)


@pytest.mark.parametrize("kind", ["external storage", "virtual"])
def test_data_in_other_files(kind: str, edit: Any, tmp_path: Path) -> None:
    source, file = edit()
    del file["episode_1/actions"]
    if kind == "virtual":
        layout = h5py.VirtualLayout((1,), np.int64)
        layout[:] = h5py.VirtualSource(tmp_path / "other.hdf5", "x", (1,))
        file.create_virtual_dataset("episode_1/actions", layout)
    else:
        (tmp_path / "secret").write_bytes(bytes(8))
        file["episode_1"].create_dataset("actions", (1,), np.int64, external=[(str(tmp_path / "secret"), 0, 8)])
    file.close()
    with pytest.raises(CorruptSourceError, match="keeps its data in other files") as error:
        blocks(source)
    assert error.value.column == "episode_1/actions" or error.value.column == "actions"


def objects(kind: str) -> tuple[Any, Any]:
    if kind == "reference":
        return [h5py.Reference()] * 3, h5py.ref_dtype
    if kind == "ragged":
        return None, h5py.vlen_dtype(np.float64)
    if kind == "compound":
        return np.zeros(3, [("a", "f8"), ("b", "i4")]), None
    if kind == "complex":
        return np.zeros(3, np.complex128), None
    return np.zeros(3, "V7"), None


@pytest.mark.parametrize("kind", ["reference", "ragged", "compound", "complex", "opaque"])
def test_objects_are_refused_by_name(kind: str, edit: Any) -> None:
    source, file = edit()
    data, dtype = objects(kind)
    file.create_dataset("episode_0/infos/thing", (3,), data=data, dtype=dtype)
    file.close()
    with pytest.raises(UnsupportedColumnError, match=r"infos/thing.*not a number") as error:
        blocks(source)
    assert "--columns" in str(error.value)


@pytest.mark.parametrize(
    "options",
    [
        {"shape": (1 << 40,)},
        {"shape": (1 << 40,), "chunks": (1 << 20,), "compression": "gzip"},
        {"shape": (3, 1 << 31)},
        {"shape": (3,), "maxshape": (None,), "chunks": (1 << 28,)},
    ],
    ids=["absurd", "bomb", "row", "chunk"],
)
def test_absurd_sizes_are_not_allocated(options: Any, edit: Any) -> None:
    source, file = edit()
    del file["episode_0/actions"]
    file["episode_0"].create_dataset("actions", dtype=np.float64, **options)
    file.close()
    with pytest.raises((CorruptSourceError, BadEpisodeError)) as error:
        blocks(source)
    assert error.value.column == "actions"


@pytest.mark.parametrize("place", ["element", "heap"])
def test_damaged_heap_references(place: str, edit: Any) -> None:
    """Both kinds of damage put libhdf5 into an endless loop."""
    source, file = edit()
    for i, steps in enumerate((3, 1, 4)):
        values = file.create_dataset(f"episode_{i}/infos/text", data=["fine"] * steps, dtype=h5py.string_dtype())
    at = values.id.get_offset() + 4
    file.close()
    content = bytearray((source / MAIN).read_bytes())
    if place == "heap":
        at = content.index(b"GCOL") + 16  # index, reference count and size of the first object
    content[at : at + 16] = b"\0" * 16 if place == "heap" else b"\xff" * 8 + content[at + 8 : at + 16]
    (source / MAIN).write_bytes(content)
    with pytest.raises(CorruptSourceError, match="is damaged" if place == "heap" else "points outside the file"):
        blocks(source)


def packed_text(file: h5py.File, filters: Any, damage: Callable[[Any], bytes] = bytes) -> list[str]:
    """Adds one compressed chunk of text per episode, with damaged references.

    Returns the texts of the first episode.
    """
    for i, steps in enumerate((3, 1, 4)):
        texts = [f"step {t} of {i}" for t in range(steps)]
        values = file.create_dataset(
            f"episode_{i}/infos/text", (steps,), h5py.string_dtype(), texts, chunks=(steps,), **filters
        )
        if filters["compression"] == "gzip":
            file.flush()
            mask, raw = values.id.read_direct_chunk((0,))
            values.id.write_direct_chunk((0,), zlib.compress(damage(bytearray(zlib.decompress(raw)))), mask)
    return [f"step {t} of 0" for t in range(3)]


@pytest.mark.parametrize("shuffle", [None, True])
def test_packed_text(shuffle: bool | None, edit: Any) -> None:
    source, file = edit()
    texts = packed_text(file, {"compression": "gzip", "shuffle": shuffle})
    file.close()
    block, _ = blocks(source)
    assert block.variable["infos.text"].to_pylist()[:3] == texts


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda data: data[:20], "has elements of an impossible size"),
        (lambda data: data + bytes(1 << 20), "has elements of an impossible size"),
        (lambda data: data[:4] + b"\xff" * 8 + data[12:], "points outside the file"),
    ],
)
def test_damaged_heap_references_in_chunks(damage: Any, message: str, edit: Any) -> None:
    source, file = edit()
    packed_text(file, {"compression": "gzip"}, damage)
    file.close()
    with pytest.raises(CorruptSourceError, match=message):
        blocks(source)


def test_text_behind_an_unknown_filter_is_refused(edit: Any) -> None:
    source, file = edit()
    packed_text(file, {"compression": "lzf"})
    file.close()
    with pytest.raises(CorruptSourceError, match="cannot be checked before it is read") as error:
        blocks(source)
    assert "h5repack" in str(error.value)


def test_endless_groups(edit: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hdf5, "_MAX_LINKS", 20)
    source, file = edit()
    for i in range(30):
        file.create_group(f"episode_1/infos/{i}")
    file.close()
    with pytest.raises(CorruptSourceError, match="more than 20 groups"):
        blocks(source)


def test_mutated_files_give_typed_errors(write: Write) -> None:
    source = nested_dataset(write)
    good = (source / MAIN).read_bytes()
    rng = np.random.default_rng(3)
    refused = 0
    for i in range(80):
        bad = bytearray(good)
        for at in rng.integers(0, len(bad) if i % 2 else 4096, 1 + i % 7):
            bad[at] = rng.integers(256)
        if i % 10 == 0:
            bad = bad[: rng.integers(1, len(bad))]
        (source / MAIN).write_bytes(bad)
        try:
            location = locate(str(source), None)
            minari_format.probe(location)
            for _ in minari_format.open_(location, SourceOptions(skip_bad=bool(i % 2))).blocks(BEGIN, END):
                pass
        except GearError:
            refused += 1
    assert refused > 15
