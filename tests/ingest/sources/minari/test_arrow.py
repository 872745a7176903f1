"""Tests of Minari's Arrow layout, written by the minari library."""

from __future__ import annotations

import io
import json
import os
import shutil
import struct
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium as gym
import minari
import numpy as np
import pyarrow as pa
import pyarrow.dataset as pads
import pytest
from minari.data_collector import EpisodeBuffer
from PIL import Image

import gear_data
from gear_data.errors import BadEpisodeError, CorruptSourceError, UnknownFormatError, UnsupportedColumnError
from gear_data.ingest.location import locate
from gear_data.ingest.source import SourceOptions
from gear_data.ingest.sources.minari import arrow as minari_arrow
from gear_data.ingest.sources.registry import open_source
from gear_data.storage.episode_block import BEGIN, END

# The library recommends more metadata.
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning:minari")

Rollouts = Sequence[Any]
LINT = ("one-step-episode", "observation-jump", "duplicate-episode")
FORCE = pa.field("force", pa.float64())
IMAGE = gym.spaces.Box(0, 255, (40, 36, 3), np.uint8)
NESTED = gym.spaces.Dict(
    {
        "grid": gym.spaces.Box(-9, 9, (2, 3), np.float64),
        "mission": gym.spaces.Text(20),
        "camera": IMAGE,
        "parts": gym.spaces.Tuple((gym.spaces.Discrete(5), gym.spaces.MultiDiscrete([3, 4, 5]))),
    }
)


def vectors(rollouts: Rollouts) -> tuple[gym.Space, gym.Space]:
    columns = rollouts[0].columns
    return tuple(
        gym.spaces.Box(-np.inf, np.inf, columns[name].shape[1:], np.float32) for name in ("observations", "actions")
    )


def buffers(rollouts: Rollouts) -> list[EpisodeBuffer]:
    return [
        EpisodeBuffer(
            id=i,
            seed=100 + i,
            options={"level": i} if i % 2 else None,
            observations=np.concatenate([r.columns["observations"], r.final[None]]),
            actions=r.columns["actions"],
            rewards=r.columns["rewards"].tolist(),
            terminations=r.columns["terminated"].tolist(),
            truncations=r.columns["truncated"].tolist(),
        )
        for i, r in enumerate(rollouts)
    ]


def write(
    folder: Path, episodes: Sequence[EpisodeBuffer], spaces: tuple[gym.Space, gym.Space], data_format: str = "arrow"
) -> Path:
    """Writes a dataset with the library, and returns its folder."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MINARI_DATASETS_PATH", str(folder))
        minari.create_dataset_from_buffers(
            "tests/some-v0",
            list(episodes),
            observation_space=spaces[0],
            action_space=spaces[1],
            data_format=data_format,
            algorithm_name="none",
            author="nobody",
            code_permalink="https://example.invalid",
            requirements=[],
        )
    return folder / "tests/some-v0"


@pytest.fixture(scope="module")
def written(rollouts: Rollouts, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("minari"), buffers(rollouts), vectors(rollouts))


@pytest.fixture
def source(written: Path, tmp_path: Path) -> Path:
    """A dataset that a test may damage."""
    return Path(shutil.copytree(written, tmp_path / "s/tests/some-v0"))


def load(folder: Path) -> list[Any]:
    """Reads the episodes with the library."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MINARI_DATASETS_PATH", str(folder.parents[1]))
        dataset = minari.load_dataset("tests/some-v0")
        return list(dataset.iterate_episodes())


def converted(source: Path, destination: Path, **options: Any) -> tuple[Any, dict[tuple[str, str | None], Any]]:
    """Converts a source; returns the dataset, and findings by code and column.

    Findings that episodes of any format may have are left out.
    """
    gear_data.convert(source, destination, **options)
    ds = gear_data.open(destination)
    return ds, {(f["code"], f["column"]): f for f in ds.manifest.findings if f["code"] not in LINT}


def table_of(source: Path, episode: int) -> Path:
    return source / f"data/{episode}/part-0.arrow"


def rewrite(path: Path, change: Callable[[pa.Table], pa.Table], **options: Any) -> None:
    table = change(pa.ipc.open_file(pa.BufferReader(path.read_bytes())).read_all())
    with pa.ipc.new_file(path, table.schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:
        writer.write_table(table)


def as_written(rollouts: Rollouts) -> list[Any]:
    """Returns the rollout with float64 rewards, as Minari stores them."""
    return [r.with_columns(rewards=r.columns["rewards"].astype(np.float64)) for r in rollouts]


@pytest.mark.parametrize(("data_format", "inside"), [("arrow", "data"), ("parquet", "")])
def test_comes_out_as_it_went_in(
    data_format: str, inside: str, sources: Any, rollouts: Rollouts, tmp_path: Path
) -> None:
    source = write(tmp_path / "s", buffers(rollouts), vectors(rollouts), data_format)
    ds, findings = converted(source / inside, tmp_path / "d")
    assert ds.manifest.provenance["format"] == "minari-arrow"
    assert findings == {}
    # More than ten episodes, so that the order of names (10 before 2) would be wrong.
    sources.check_dataset(tmp_path / "d", as_written(rollouts), final=True)
    assert ds.episodes["seed"].to_list() == [100 + i for i in range(len(rollouts))]
    assert ds.episodes["options"].to_list()[:4] == [None, '{"level": 1}', None, '{"level": 3}']
    assert ds.manifest.provenance["metadata"]["algorithm_name"] == "none"


def test_it_agrees_with_the_library(source: Path, tmp_path: Path) -> None:
    gear_data.convert(source, tmp_path / "d")
    ds = gear_data.open(tmp_path / "d")
    for i, episode in enumerate(load(source)):
        ours, final = ds.episode(i), ds.final(i)
        np.testing.assert_array_equal(np.vstack([ours["observations"], final["observations"]]), episode.observations)
        for name, theirs in (("terminated", "terminations"), ("truncated", "truncations"), ("rewards", "rewards")):
            np.testing.assert_array_equal(ours[name], getattr(episode, theirs))


def nested_episodes(count: int = 3) -> list[EpisodeBuffer]:
    rng = np.random.default_rng(1)
    episodes = []
    for i in range(count):
        steps = i + 1
        observations = {
            "grid": rng.normal(size=(steps + 1, 2, 3)),
            "mission": [f"go to {j} €" for j in range(steps + 1)],
            "camera": rng.integers(0, 255, (steps + 1, 40, 36, 3)).astype(np.uint8),
            "parts": (rng.integers(0, 5, steps + 1), rng.integers(0, 3, (steps + 1, 3))),
        }
        infos = {
            "position": rng.normal(size=(steps + 1, 2, 2)),
            "lives": np.arange(steps + 1) + 10,
            "inner": {"ok": [j % 2 == 0 for j in range(steps + 1)], "note": [f"n{j}" for j in range(steps + 1)]},
        }
        episodes.append(
            EpisodeBuffer(
                id=i,
                observations=observations,
                actions=(rng.integers(0, 5, steps), [f"say {j}" for j in range(steps)]),
                rewards=[1.0] * steps,
                terminations=[False] * steps,
                truncations=[False] * (steps - 1) + [True],
                infos=infos,
            )
        )
    return episodes


@pytest.mark.parametrize("data_format", ["arrow", "parquet"])
def test_nested_spaces_text_images_and_infos(data_format: str, tmp_path: Path) -> None:
    episodes = nested_episodes()
    actions = gym.spaces.Tuple((gym.spaces.Discrete(5), gym.spaces.Text(20)))
    source = write(tmp_path / "s", episodes, (NESTED, actions), data_format)
    ds, findings = converted(source, tmp_path / "d", keep_encoded=True)
    shapes = {spec.name: (spec.dtype, spec.shape) for spec in ds.schema.source_columns}
    assert shapes == {
        "observations.grid": ("float64", (2, 3)),
        "observations.mission": ("string", ()),
        "observations.camera": ("binary", ()),
        "observations.parts.0": ("int64", ()),
        "observations.parts.1": ("int64", (3,)),
        "actions.0": ("int64", ()),
        "actions.1": ("string", ()),
        "rewards": ("float64", ()),
        "infos.position": ("float64", (2, 2)),
        "infos.lives": ("int64", ()),
        "infos.inner.ok": ("bool", ()),
        "infos.inner.note": ("string", ()),
        "terminated": ("bool", ()),
        "truncated": ("bool", ()),
    }
    for i, episode in enumerate(episodes):
        ours, final = ds.episode(i), ds.final(i)
        assert episode.observations is not None
        assert episode.infos is not None
        grid = np.concatenate([ours["observations.grid"], final["observations.grid"][None]])
        np.testing.assert_array_equal(grid, episode.observations["grid"])
        np.testing.assert_array_equal(ours["observations.parts.1"], episode.observations["parts"][1][:-1])
        assert list(ours["observations.mission"]) == episode.observations["mission"][:-1]
        np.testing.assert_array_equal(ours["actions.0"], episode.actions[0])
        assert list(ours["actions.1"]) == episode.actions[1]
        # The info of a step is the step's own; the info of the reset comes before.
        np.testing.assert_array_equal(ours["infos.position"], episode.infos["position"][1:])
        np.testing.assert_array_equal(ours["infos.lives"], episode.infos["lives"][1:])
        assert ours["infos.inner.ok"].tolist() == episode.infos["inner"]["ok"][1:]
        assert list(ours["infos.inner.note"]) == episode.infos["inner"]["note"][1:]
        assert all(frame.startswith(b"\xff\xd8") for frame in ours["observations.camera"])
    assert findings["reset-info-left-out", "infos.inner.note"]["count"] == 3
    left_out = {column: f["count"] for (code, column), f in findings.items() if code == "final-left-out"}
    assert left_out == {"observations.mission": 3, "observations.camera": 3}
    ds, findings = converted(source, tmp_path / "pixels")
    assert [column for code, column in findings if code == "final-left-out"] == ["observations.mission"]
    for i in range(len(episodes)):
        table = pads.dataset(source / f"data/{i}/part-0.{data_format}", format=data_format).to_table()
        camera = [row["camera"] for row in table.column("observations").to_pylist()]
        both = [*ds.episode(i)["observations.camera"], ds.final(i)["observations.camera"]]
        np.testing.assert_array_equal(both, [np.asarray(Image.open(io.BytesIO(image))) for image in camera])


def test_only_texts_are_observed(tmp_path: Path) -> None:
    actions = gym.spaces.Tuple((gym.spaces.Discrete(5), gym.spaces.Text(20)))
    source = write(tmp_path / "s", nested_episodes(), (NESTED, actions))
    ds, findings = converted(source, tmp_path / "d", columns=["observations.mission", "rewards"])
    assert findings["final-left-out", "observations.mission"]["count"] == 3
    assert [ds.final(i) for i in range(3)] == [None] * 3


def test_columns_and_names(tmp_path: Path) -> None:
    actions = gym.spaces.Tuple((gym.spaces.Discrete(5), gym.spaces.Text(20)))
    source = write(tmp_path / "s", nested_episodes(), (NESTED, actions))
    wanted = ["observations.grid", "move"]
    ds, _ = converted(source, tmp_path / "d", columns=wanted, rename={"actions.0": "move"})
    assert set(ds.schema.names) == {*wanted, "terminated", "truncated"}
    assert ds.schema["move"].source == "actions.0"


def test_units_and_blocks_are_the_whole(source: Path, rollouts: Rollouts, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(minari_arrow, "UNIT_BYTES", 20_000)
    monkeypatch.setattr(minari_arrow, "_BLOCK_BYTES", 5_000)
    opened, _, _ = open_source(locate(str(source), None), "auto", SourceOptions())

    def read(start: Any, stop: Any) -> list[Any]:
        found = []
        for block in opened.blocks(start, stop):
            offsets = block.offsets
            for i, name in enumerate(block.sources):
                steps = block.columns["observations"][offsets[i] : offsets[i + 1]]
                found.append((name, steps.tobytes(), block.finals["observations"][i].tobytes(), block.position))
        return found

    units = [unit.position for unit in opened.units()]
    assert len(units) > 2
    assert units[0] == BEGIN
    whole = read(BEGIN, END)
    assert [name for name, *_ in whole] == [f"data/{i}/part-0.arrow" for i in range(len(rollouts))]
    assert len({position for *_, position in whole}) > len(units)
    parts = [row for pair in zip(units, [*units[1:], END], strict=True) for row in read(*pair)]
    assert [row[:3] for row in parts] == [row[:3] for row in whole]
    # Reading from a block's position gives the same episodes.
    place = whole[20][3]
    again = read(place, END)
    assert [row[:3] for row in again] == [row[:3] for row in whole if row[3] >= place]


def test_several_parts_of_an_episode(source: Path, sources: Any, rollouts: Rollouts, tmp_path: Path) -> None:
    path = table_of(source, 5)
    table = pa.ipc.open_file(pa.BufferReader(path.read_bytes())).read_all()
    rewrite(path, lambda table: table.slice(0, 1))
    shutil.copy(path, path.with_name("part-1.arrow"))
    rewrite(path.with_name("part-1.arrow"), lambda _: table.slice(1))
    gear_data.convert(source, tmp_path / "d")
    sources.check_dataset(tmp_path / "d", as_written(rollouts), final=True)


def test_number_types_differ_between_episodes(tmp_path: Path) -> None:
    """Minari stores Python numbers as they are: whole rewards and infos as int64."""
    rewards = ([1, 2], [0.5, 1.5], [3, 4])
    levels = ([0.5, 1.0, 2.0], [1, 2, 3], [7, 8, 9])
    episodes = [
        EpisodeBuffer(
            id=i,
            observations=np.zeros((3, 1), np.float32),
            actions=np.array([0, 1]),
            rewards=rewards[i],  # type: ignore[arg-type]
            terminations=[False, True],
            truncations=[False, False],
            infos={"level": levels[i]},
        )
        for i in range(3)
    ]
    spaces = (gym.spaces.Box(-1, 1, (1,), np.float32), gym.spaces.Discrete(2))
    ds, findings = converted(write(tmp_path / "s", episodes, spaces), tmp_path / "d")
    assert [ds.episode(i)["rewards"].tolist() for i in range(3)] == [[1.0, 2.0], [0.5, 1.5], [3.0, 4.0]]
    assert [ds.episode(i)["infos.level"].tolist() for i in range(3)] == [[1.0, 2.0], [2.0, 3.0], [8.0, 9.0]]
    assert findings["dtype-differs", "infos"]["count"] == 2
    assert findings["dtype-differs", "rewards"]["count"] == 2
    hdf5, found = converted(write(tmp_path / "h", episodes, spaces, "hdf5"), tmp_path / "hd")
    assert hdf5.fingerprint == ds.fingerprint
    assert found["dtype-differs", "rewards"]["count"] == 2
    episodes[1] = replace(episodes[1], infos={"level": [1, (1 << 53) + 1, 3]})
    source = write(tmp_path / "t", episodes, spaces)
    with pytest.raises(BadEpisodeError, match="does not fit"):
        gear_data.convert(source, tmp_path / "e")


def test_other_columns_are_reported(source: Path, tmp_path: Path) -> None:
    path = next(source.rglob("0/*.arrow"))
    table = pa.ipc.open_file(path).read_all()
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, schema := table.schema.append(FORCE)) as writer:
        writer.write_table(pa.table([*table.columns, pa.array([0.5] * len(table))], schema))
    gear_data.convert(source, tmp_path / "gear", progress=False)
    left_out = [each for each in gear_data.open(tmp_path / "gear").manifest.findings if each["column"] == "force"]
    assert [(each["code"], each["count"]) for each in left_out] == [("column-left-out", 1)]


def test_missing_episodes(source: Path, sources: Any, rollouts: Rollouts, tmp_path: Path) -> None:
    shutil.rmtree(source / "data/0")
    shutil.rmtree(source / "data/7")
    _, findings = converted(source, tmp_path / "d")
    left = [r for i, r in enumerate(rollouts) if i not in (0, 7)]
    sources.check_dataset(tmp_path / "d", as_written(left), final=True)
    gaps = findings["gapped-episodes", None]
    assert (gaps["count"], gaps["file"]) == (2, "data/1/part-0.arrow")
    assert f"there are {len(left)}" in findings["metadata-disagrees", "total_episodes"]["message"]


def test_metadata_that_disagrees(source: Path, rollouts: Rollouts, tmp_path: Path) -> None:
    for i in (3, 4):
        facts = {"id": i, "total_steps": 999} if i == 3 else {"id": 40, "note": "kept", "list": [1, 2]}
        (source / f"data/{i}/metadata.json").write_text(json.dumps(facts))
    ds, findings = converted(source, tmp_path / "d")
    assert ds.lengths.tolist() == [len(r) for r in rollouts]
    for key, i in (("total_steps", 3), ("id", 4)):
        found = findings["metadata-disagrees", key]
        assert (found["count"], found["file"]) == (1, f"data/{i}/part-0.arrow")
    assert ds.episodes["note"].to_list()[3:6] == [None, "kept", None]
    assert ds.episodes["list"][4] == "[1, 2]"


def test_values_in_the_padding(source: Path, rollouts: Rollouts, tmp_path: Path) -> None:
    """Values in the last row are left out, with a finding.

    If the metadata counts the row as a step, the episode is bad.
    """

    def pad_with_ones(table: pa.Table) -> pa.Table:
        rewards = [*table.column("rewards").to_pylist()[:-1], 1.0]
        return table.set_column(table.schema.get_field_index("rewards"), "rewards", pa.array(rewards))

    rewrite(table_of(source, 2), pad_with_ones)
    rewrite(table_of(source, 6), pad_with_ones)
    ds, findings = converted(source, tmp_path / "d")
    np.testing.assert_array_equal(ds.episode(2)["rewards"], rollouts[2].columns["rewards"].astype(np.float64))
    padding = findings["padding-not-zero", None]
    assert (padding["count"], padding["file"]) == (2, "data/2/part-0.arrow")
    rows = len(rollouts[6]) + 1
    (source / "data/6/metadata.json").write_text(json.dumps({"id": 6, "total_steps": rows}))
    with pytest.raises(BadEpisodeError, match="no final observation") as error:
        gear_data.convert(source, tmp_path / "e")
    assert (error.value.file, error.value.row) == ("data/6/part-0.arrow", rows - 1)


def _no_steps(table: pa.Table) -> pa.Table:
    return table.slice(0, 1)


def _null_step(table: pa.Table) -> pa.Table:
    values = table.column("observations").to_pylist()
    values[1] = None
    index = table.schema.get_field_index("observations")
    return table.set_column(index, table.schema.field(index), pa.array(values, table.schema.field(index).type))


def _other_size(table: pa.Table) -> pa.Table:
    values = [row[:2] for row in table.column("observations").to_pylist()]
    index = table.schema.get_field_index("observations")
    return table.set_column(index, "observations", pa.array(values, pa.list_(pa.float32(), 2)))


def _missing_column(table: pa.Table) -> pa.Table:
    return table.drop_columns(["truncations"])


@pytest.mark.parametrize(
    ("spoil", "text", "column", "row"),
    [
        (_no_steps, "the episode has no steps", None, None),
        (_null_step, "holds a null", "observations", 1),
        (_other_size, r"column 'observations' is fixed_size_list<item: float>\[2\]", None, None),
        (_missing_column, "column 'truncations' is missing", None, None),
    ],
)
def test_bad_episodes(
    spoil: Callable[[pa.Table], pa.Table],
    text: str,
    column: str | None,
    row: int | None,
    source: Path,
    sources: Any,
    rollouts: Rollouts,
    tmp_path: Path,
) -> None:
    bad = [i for i, r in enumerate(rollouts) if len(r) > 2][:2]
    for i in bad:
        rewrite(table_of(source, i), spoil)
    with pytest.raises(BadEpisodeError, match=text) as error:
        gear_data.convert(source, tmp_path / "d")
    assert (error.value.file, error.value.column, error.value.row) == (f"data/{bad[0]}/part-0.arrow", column, row)
    _, findings = converted(source, tmp_path / "e", on_bad_episode="skip")
    left = [r for i, r in enumerate(rollouts) if i not in bad]
    sources.check_dataset(tmp_path / "e", as_written(left), final=True)
    skipped = findings["bad-episode", column]
    assert (skipped["count"], skipped["file"]) == (2, f"data/{bad[0]}/part-0.arrow")


def test_blocks_without_a_good_episode(
    source: Path, sources: Any, rollouts: Rollouts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(minari_arrow, "_BLOCK_BYTES", 1)
    rewrite(table_of(source, 1), _no_steps)
    converted(source, tmp_path / "d", on_bad_episode="skip")
    sources.check_dataset(tmp_path / "d", as_written([r for i, r in enumerate(rollouts) if i != 1]), final=True)


def test_shape_differs_from_the_space(source: Path, tmp_path: Path) -> None:
    path = source / "data/metadata.json"
    facts = json.loads(path.read_text())
    facts["observation_space"] = facts["observation_space"].replace('"shape": [3]', '"shape": [100000, 100000]')
    path.write_text(json.dumps(facts))
    with pytest.raises(CorruptSourceError, match="3 elements per step") as error:
        gear_data.convert(source, tmp_path / "d")
    assert error.value.column == "observations"


def test_unsupported_columns(source: Path, tmp_path: Path) -> None:
    def with_dates(table: pa.Table) -> pa.Table:
        return table.append_column("infos", pa.array([{"when": None}] * len(table), pa.struct({"when": pa.date32()})))

    rewrite(table_of(source, 0), with_dates)
    with pytest.raises(UnsupportedColumnError) as error:
        gear_data.convert(source, tmp_path / "d")
    assert error.value.column == "infos.when"


def test_damaged_files(source: Path, tmp_path: Path) -> None:
    path = table_of(source, 4)
    whole = path.read_bytes()
    for damage in (b"", whole[:50], whole[: len(whole) // 2], b"ARROW1\x00\x00" + b"\xff" * 64 + b"ARROW1"):
        path.write_bytes(damage)
        with pytest.raises(CorruptSourceError) as error:
            gear_data.convert(source, tmp_path / "d")
        assert error.value.file == "data/4/part-0.arrow"
    path.write_bytes(b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n")
    with pytest.raises(CorruptSourceError, match="Git-LFS pointer"):
        gear_data.convert(source, tmp_path / "d")
    path.write_bytes(whole)
    for name in ("metadata.json", "4/metadata.json"):
        text = (source / "data" / name).read_bytes()
        (source / "data" / name).write_text("[" * 100_000)
        with pytest.raises(CorruptSourceError) as error:
            gear_data.convert(source, tmp_path / "d")
        assert error.value.file == f"data/{name}"
        (source / "data" / name).write_bytes(text)


def test_compressed_buffers_are_not_unpacked(source: Path, tmp_path: Path) -> None:
    """No memory is allocated for a buffer that claims to unpack to 2^40 bytes."""
    path = table_of(source, 0)
    rewrite(path, lambda table: pa.concat_tables([table] * 500).combine_chunks(), compression="zstd")
    data = path.read_bytes()
    size = struct.pack("<q", 500 * 2 * 3 * 4)  # observations: 500 times two rows of three float32
    assert size in data
    path.write_bytes(data.replace(size, struct.pack("<q", 1 << 40)))
    with pytest.raises(CorruptSourceError, match="compressed"):
        gear_data.convert(source, tmp_path / "d")


def test_more_rows_than_a_file_can_hold(source: Path, tmp_path: Path) -> None:
    """A column of nulls takes no bytes, so it may claim any length."""
    path = table_of(source, 0)
    batch = pa.record_batch({"rewards": pa.Array.from_buffers(pa.null(), 1 << 40, [None])})
    with pa.ipc.new_file(path, batch.schema, options=pa.ipc.IpcWriteOptions(allow_64bit=True)) as writer:
        writer.write_batch(batch)
    with pytest.raises(CorruptSourceError, match=f"{1 << 40} rows"):
        gear_data.convert(source, tmp_path / "d")


def test_mutated_files_give_typed_errors(source: Path) -> None:
    rng = np.random.default_rng(0)
    path = table_of(source, 1)
    whole = path.read_bytes()
    opened, refused = 0, 0
    for _ in range(60):
        data = bytearray(whole)
        for place in rng.integers(0, len(data), 6):
            data[place] = rng.integers(256)
        path.write_bytes(bytes(data))
        try:
            found, _, _ = open_source(locate(str(source), None), "minari-arrow", SourceOptions())
            assert sum(len(block) for block in found.blocks(BEGIN, END)) > 0
            opened += 1
        except gear_data.errors.GearError:
            refused += 1
    assert opened > 0
    assert refused > 0


def test_several_datasets_or_no_dataset(source: Path, sources: Any, rollouts: Rollouts, tmp_path: Path) -> None:
    shutil.copytree(source, source.with_name("other-v0"))
    with pytest.raises(UnknownFormatError, match="several Minari datasets"):
        gear_data.convert(source.parent, tmp_path / "d", format="minari-arrow")
    sources.write_steps(tmp_path / "plain/0/part-0.parquet", rollouts)
    assert minari_arrow.probe(locate(str(tmp_path / "plain"), None)) is None
    with pytest.raises(UnknownFormatError, match=r"no metadata\.json"):
        gear_data.convert(tmp_path / "plain", tmp_path / "d", format="minari-arrow")


def test_pendulum(shared_data: Path, tmp_path: Path) -> None:
    source = shared_data / "minari/pendulum/noisy-v0"
    ds, findings = converted(source, tmp_path / "d")
    assert (ds.num_episodes, ds.num_steps) == (50, 10_000)
    assert findings == {}
    assert ds.episodes["truncated"].all()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MINARI_DATASETS_PATH", os.fspath(shared_data / "minari"))
        theirs = list(minari.load_dataset("pendulum/noisy-v0").iterate_episodes())
    for i, episode in enumerate(theirs):
        np.testing.assert_array_equal(ds.episode(i)["observations"], episode.observations[:-1])
        np.testing.assert_array_equal(ds.final(i)["observations"], episode.observations[-1])
        np.testing.assert_array_equal(ds.episode(i)["actions"], episode.actions)
        np.testing.assert_array_equal(ds.episode(i)["rewards"], episode.rewards)
