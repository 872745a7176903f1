"""Checks every source layout: the dataset equals the source, step for step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import datasets
import fsspec
import h5py
import numpy as np
import pyarrow as pa
import pytest

import gear_data
from gear_data.errors import EmptySourceError, StorageFullError, UnknownFormatError
from gear_data.ingest.sources.registry import known_formats
from gear_data.ingest.sources.tables import dataset_stream, file_stream
from gear_data.ingest.sources.tree import source as tree
from gear_data.storage.writing.shard_writer import ShardWriter

Rollouts = Sequence[Any]


def _as_is(rollouts: Rollouts) -> Rollouts:
    return rollouts


def _one_flag(rollouts: Rollouts) -> Rollouts:
    """Returns rollouts as a source with only `dones` has them: each end is terminated."""
    return [
        r.with_columns(
            terminated=r.columns["terminated"] | r.columns["truncated"], truncated=np.zeros(len(r), np.bool_)
        )
        for r in rollouts
    ]


def _no_flags(rollouts: Rollouts) -> Rollouts:
    """Returns rollouts as a source without end flags has them: each is truncated."""
    swapped = [r.with_columns(truncated=r.columns["terminated"]) for r in _one_flag(rollouts)]
    return [r.with_columns(terminated=np.zeros(len(r), np.bool_)) for r in swapped]


@dataclass(frozen=True)
class Layout:
    """A layout of sources: a writer, and the expected conversion.

    Attributes:
        write: (fixture functions, folder, memory URL, rollouts) -> source.
        format: the format that "auto" should choose.
        reason: a part of the reason for it.
        expect: returns the rollouts that the dataset should hold.
        final: whether the dataset has final observations.
        options: options for `convert`.
        shared: whether the columns have canonical form. Then all layouts have one fingerprint.
    """

    write: Callable[[Any, Path, str, Rollouts], Any]
    format: str
    reason: str
    expect: Callable[[Rollouts], Rollouts] = _as_is
    final: bool = False
    options: dict[str, Any] | None = None
    shared: bool = False


def _hf_columns(rollouts: Rollouts, *, vectors: bool) -> list[dict[str, Any]]:
    """Replaces the two flags by `dones`. `vectors` makes scalars [T, 1]."""
    result = []
    for r in _one_flag(rollouts):
        scalars = {"rewards": r.columns["rewards"], "dones": r.columns["terminated"]}
        scalars = {name: values[:, None] if vectors else values for name, values in scalars.items()}
        result.append({name: r.columns[name] for name in ("observations", "actions")} | scalars)
    return result


def _jat_columns(rollouts: Rollouts) -> list[dict[str, Any]]:
    return [
        {
            "continuous_observations": r.columns["observations"],
            "continuous_actions": r.columns["actions"],
            "rewards": r.columns["rewards"],
        }
        for r in rollouts
    ]


def _several_files(s: Any, folder: Path, rollouts: Rollouts) -> Path:
    # Numbered so that alphabetical order differs: 2 before 10.
    for i, (first, last) in enumerate(((0, 3), (3, 4), (4, len(rollouts)))):
        s.write_episodes(folder / f"data/train-{(2, 9, 10)[i]}.parquet", rollouts[first:last], row_group=2)
    return folder


def _step_files(s: Any, folder: Path, rollouts: Rollouts) -> Path:
    """Writes files and row groups that end inside episodes."""
    table = s.step_table([r.columns for r in rollouts], episode=s.episode_numbers(rollouts) * 3 - 5)
    third = len(table) // 3
    for i in range(3):
        part = table.slice(i * third, third if i < 2 else None)
        s.write_parquet(folder / f"part{i}.parquet", part, row_group=3)
    return folder


def _step_flags(s: Any, folder: Path, rollouts: Rollouts) -> Path:
    return s.write_parquet(folder / "s.parquet", s.step_table([r.columns for r in rollouts]), row_group=5)


def _upload(path: Path, url: str) -> str:
    filesystem, root = fsspec.core.url_to_fs(url)
    filesystem.pipe(f"{root}/{path.name}", path.read_bytes())
    return url


def _dataset(table: pa.Table) -> datasets.Dataset:
    return datasets.Dataset(table)


def _stream(table: pa.Table) -> datasets.IterableDataset:
    """Returns a stream without features, like the stream of a user's generator."""
    return datasets.IterableDataset.from_generator(lambda: iter(table.to_pylist()))


def _float32(rollouts: Rollouts) -> Rollouts:
    """Returns rollouts in float64: a generator yields Python floats."""
    names = ("observations", "actions", "rewards")
    return [r.with_columns(**{name: r.columns[name].astype(np.float64) for name in names}) for r in rollouts]


LAYOUTS = {
    "episodes": Layout(
        lambda s, folder, url, r: s.write_episodes(folder / "e.parquet", r),
        "episode-rows", "'rewards' is a list", shared=True,
    ),
    "episodes-files": Layout(
        lambda s, folder, url, r: _several_files(s, folder, r), "episode-rows", "'rewards' is a list", shared=True
    ),
    "episodes-dones": Layout(
        lambda s, folder, url, r: s.write_parquet(
            folder / "e.parquet", s.episode_table(_hf_columns(r, vectors=False)), row_group=4
        ),
        "episode-rows", "'rewards' is a list", _one_flag,
    ),
    "episodes-column-vectors": Layout(
        lambda s, folder, url, r: s.write_parquet(
            folder / "e.parquet", s.episode_table(_hf_columns(r, vectors=True)), row_group=4
        ),
        "episode-rows", "'rewards' is a list", _one_flag,
    ),
    "jat": Layout(
        lambda s, folder, url, r: s.write_parquet(folder / "e.parquet", s.episode_table(_jat_columns(r))),
        "episode-rows", "'rewards' is a list", _no_flags,
    ),
    "episodes-memory": Layout(
        lambda s, folder, url, r: _upload(s.write_episodes(folder / "e.parquet", r), url),
        "episode-rows", "'rewards' is a list", shared=True,
    ),
    "steps": Layout(
        lambda s, folder, url, r: s.write_steps(folder / "s.parquet", r),
        "step-rows", "'episode_index' numbers the episodes", shared=True,
    ),
    "steps-files": Layout(
        lambda s, folder, url, r: _step_files(s, folder, r),
        "step-rows", "'episode' numbers the episodes", shared=True,
    ),
    "steps-flags": Layout(
        lambda s, folder, url, r: _step_flags(s, folder, r), "step-rows", "ends the episodes", shared=True
    ),
    "lerobot": Layout(
        lambda s, folder, url, r: s.write_lerobot(folder / "robot", r),
        "lerobot", "v2.1",
        options={"columns": ["observations", "actions", "rewards"]}, shared=True,
    ),
    "d4rl": Layout(
        lambda s, folder, url, r: s.write_d4rl(folder / "d.hdf5", r), "d4rl", "flat HDF5 datasets", final=True
    ),
    "d4rl-timeouts-only": Layout(
        lambda s, folder, url, r: s.write_d4rl(folder / "d.hdf5", r, next_observations=False),
        "d4rl",
        "flat",
        shared=True,
    ),
    "d4rl-jumps": Layout(
        lambda s, folder, url, r: s.write_d4rl(folder / "d.h5", r, timeouts=False), "d4rl", "flat", final=True
    ),
    "d4rl-column-vectors": Layout(
        lambda s, folder, url, r: s.write_d4rl(folder / "d.hdf5", r, column_vectors=True, compression="gzip"),
        "d4rl", "flat", final=True,
    ),
    "d4rl-memory": Layout(
        lambda s, folder, url, r: _upload(s.write_d4rl(folder / "d.hdf5", r), url), "d4rl", "flat", final=True
    ),
    "dataset-episodes": Layout(
        lambda s, folder, url, r: _dataset(s.episode_table([x.columns for x in r])),
        "episode-rows", "'rewards' is a list", shared=True,
    ),
    "dataset-steps": Layout(
        lambda s, folder, url, r: _dataset(s.step_table([x.columns for x in r], episode_id=s.episode_numbers(r))),
        "step-rows", "'episode_id' numbers", shared=True,
    ),
    "dataset-dict": Layout(
        lambda s, folder, url, r: datasets.DatasetDict(
            train=_dataset(s.episode_table([x.columns for x in r])),
            test=_dataset(s.episode_table([x.columns for x in r[:1]])),
        ),
        "episode-rows", "'rewards' is a list", options={"split": "train"}, shared=True,
    ),
    "stream-episodes": Layout(
        lambda s, folder, url, r: _stream(s.episode_table([x.columns for x in r])),
        "episode-rows", "'rewards' is a list", _float32,
    ),
    "stream-steps": Layout(
        lambda s, folder, url, r: _stream(s.step_table([x.columns for x in r], episode_index=s.episode_numbers(r))),
        "step-rows", "'episode_index' numbers", _float32,
    ),
}  # fmt: skip

COMMON = [name for name, layout in LAYOUTS.items() if layout.shared]


@pytest.fixture
def convert_layout(sources: Any, tmp_path: Path, memory_url: str) -> Callable[..., tuple[Path, Any]]:
    def convert(name: str, rollouts: Rollouts, **options: Any) -> tuple[Path, Any]:
        layout = LAYOUTS[name]
        source = layout.write(sources, tmp_path / "source", memory_url, rollouts)
        report = gear_data.convert(source, tmp_path / "out", **{**(layout.options or {}), **options})
        return tmp_path / "out", report

    return convert


@pytest.mark.parametrize("name", LAYOUTS)
def test_every_layout_converts_exactly(
    name: str, convert_layout: Any, sources: Any, rollouts: Rollouts, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A few hundred bytes per read, so that episodes straddle reads.
    monkeypatch.setattr(tree, "_BLOCK_BYTES", 300)
    monkeypatch.setattr(file_stream, "_BATCH_BYTES", 300)
    monkeypatch.setattr(dataset_stream, "_BATCH_BYTES", 300)
    layout = LAYOUTS[name]
    path, report = convert_layout(name, rollouts, shard_bytes=1024)
    expected = layout.expect(rollouts)
    sources.check_dataset(path, expected, final=layout.final)
    assert report.format == layout.format
    assert layout.reason in report.reason
    assert (report.episodes, report.steps) == (len(expected), sum(len(r) for r in expected))
    assert report.shards == len(list((path / "shards").iterdir())) > 1


@pytest.mark.parametrize("name", COMMON)
def test_equal_contents_have_one_fingerprint(
    name: str, convert_layout: Any, sources: Any, rollouts: Rollouts, tmp_path: Path
) -> None:
    reference = gear_data.convert(sources.write_episodes(tmp_path / "r.parquet", rollouts), tmp_path / "reference")
    path, report = convert_layout(name, rollouts, shard_bytes=2048)
    assert report.fingerprint == reference.fingerprint == gear_data.open(path).fingerprint
    found, expected = gear_data.open(path).statistics, gear_data.open(tmp_path / "reference").statistics
    assert {n: item.to_json() for n, item in found.items()} == {n: item.to_json() for n, item in expected.items()}


@pytest.mark.parametrize("name", LAYOUTS)
def test_every_layout_resumes_to_the_same_bytes(
    name: str, sources: Any, rollouts: Rollouts, tmp_path: Path, memory_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tree, "_BLOCK_BYTES", 900)
    monkeypatch.setattr(file_stream, "_BATCH_BYTES", 900)
    monkeypatch.setattr(dataset_stream, "_BATCH_BYTES", 900)
    layout = LAYOUTS[name]
    # All kinds of findings must be equal, also for episodes next to the resumed position.
    both = [r.with_columns(truncated=r.columns["terminated"] | r.columns["truncated"]) for r in rollouts]
    source = layout.write(sources, tmp_path / "source", memory_url, both)
    options = {**(layout.options or {}), "shard_bytes": 1024}
    shards = gear_data.convert(source, tmp_path / "whole", **options).shards
    expected = sources.folder_contents(tmp_path / "whole")
    write_shard = ShardWriter._write_shard
    for stop in {1, shards // 2, shards - 1}:

        def write(writer: ShardWriter, stop: int = stop) -> Any:
            if writer.finished_shards == stop:
                raise StorageFullError("no space left on the device")
            return write_shard(writer)

        monkeypatch.setattr(ShardWriter, "_write_shard", write)
        with pytest.raises(StorageFullError, match=f"{stop} finished shards? (is|are) kept: --resume"):
            gear_data.convert(source, tmp_path / f"out{stop}", **options)
        monkeypatch.setattr(ShardWriter, "_write_shard", write_shard)
        gear_data.convert(source, tmp_path / f"out{stop}", **options, resume=True)
        assert sources.folder_contents(tmp_path / f"out{stop}") == expected


def test_different_contents_have_different_fingerprints(sources: Any, rollouts: Rollouts, tmp_path: Path) -> None:
    def fingerprint(name: str, changed: Rollouts, **options: Any) -> str:
        source = sources.write_episodes(tmp_path / f"{name}.parquet", changed)
        return str(gear_data.convert(source, tmp_path / name, **options).fingerprint)

    first = rollouts[1]
    one_bit = first.columns["actions"].copy()
    one_bit[-1, -1] = np.nextafter(one_bit[-1, -1], np.float32(9))
    swapped = [rollouts[1], rollouts[0], *rollouts[2:]]
    found = [
        fingerprint("plain", rollouts),
        fingerprint("bit", [rollouts[0], first.with_columns(actions=one_bit), *rollouts[2:]]),
        fingerprint("order", swapped),
        fingerprint("fewer", rollouts[:-1]),
        fingerprint("renamed", rollouts, rename={"actions": "infos.actions"}),
        fingerprint("narrower", rollouts, columns=["observations", "rewards"]),
    ]
    assert len(set(found)) == len(found)


@pytest.mark.parametrize("shard_bytes", [1024, 1500, 4096, 512 << 20])
def test_layout_of_shards_changes_nothing(
    shard_bytes: int, sources: Any, rollouts: Rollouts, rollouts_path: Path, tmp_path: Path
) -> None:
    source = sources.write_d4rl(tmp_path / "s.hdf5", rollouts)
    gear_data.convert(source, tmp_path / "d", shard_bytes=shard_bytes)
    found, expected = gear_data.open(tmp_path / "d"), gear_data.open(rollouts_path)
    assert found.fingerprint == expected.fingerprint
    # Exactly equal: data normalised by them must not depend on the shards.
    assert {n: s.to_json() for n, s in found.statistics.items()} == {
        n: s.to_json() for n, s in expected.statistics.items()
    }
    step_bytes = found.schema.step_bytes
    for shard in found.manifest.shards:
        assert shard.episodes == 1 or shard.steps * step_bytes <= shard_bytes


def test_shards_close_before_an_episode_that_does_not_fit(sources: Any, tmp_path: Path) -> None:
    episodes = sources.make_rollouts(6, seed=3, states=4)
    lengths = [10, 20, 30, 100, 1, 29]
    columns = [{"observations": np.zeros((n, 1), np.float64), "rewards": np.ones(n)} for n in lengths]
    assert len(episodes) == len(lengths)
    source = sources.write_parquet(tmp_path / "s.parquet", sources.episode_table(columns))
    # 8 + 8 + 4 (returns_to_go) + 1 + 1 bytes per step: 60 steps per shard.
    gear_data.convert(source, tmp_path / "d", shard_bytes=60 * 22)
    shards = gear_data.open(tmp_path / "d").manifest.shards
    assert [shard.steps for shard in shards] == [60, 100, 30]
    assert [shard.episodes for shard in shards] == [3, 1, 2]


# Rules of single formats.


def test_scalar_columns_of_episodes_go_to_the_episode_table(sources: Any, rollouts: Rollouts, tmp_path: Path) -> None:
    some = rollouts[:6]
    facts = {
        "policy": ["a", "b", None, "a", "b", "c"],
        "level": [1, 2, 3, 4, None, 6],
        "task": ["walk", "run", "walk", "run", "walk", "run"],
        "success": [True, False, None, True, True, False],
    }
    source = sources.write_episodes(tmp_path / "s.parquet", some, row_group=2, **facts)
    gear_data.convert(source, tmp_path / "d", shard_bytes=1024)
    table = gear_data.open(tmp_path / "d").episodes
    for name, values in facts.items():
        assert table[name].to_list() == values
    sources.check_dataset(tmp_path / "d", some)


def test_facts_named_like_columns_of_the_episode_table(sources: Any, rollouts: Rollouts, tmp_path: Path) -> None:
    some = rollouts[:3]
    facts = {"episode_id": [70, 80, 90], "length": [0.5, 1.5, 2.5], "source": ["x", "y", "z"]}
    source = sources.write_episodes(tmp_path / "s.parquet", some, **facts)
    gear_data.convert(source, tmp_path / "d")
    table = gear_data.open(tmp_path / "d").episodes
    assert table["episode_id"].to_list() == [0, 1, 2]
    assert table["length"].to_list() == [len(r) for r in some]
    for name, values in facts.items():
        assert table[f"metadata.{name}"].to_list() == values


def test_times_among_facts_keep_their_nanoseconds(sources: Any, rollouts: Rollouts, tmp_path: Path) -> None:
    times = [1_700_000_000_123_456_789, None, 1_700_000_000_000_000_001]
    types = {"began": pa.timestamp("ns"), "zoned": pa.timestamp("ns", "UTC"), "took": pa.duration("ns")}
    facts = {name: pa.array(times, type_) for name, type_ in types.items()}
    source = sources.write_episodes(tmp_path / "s.parquet", rollouts[:3], row_group=2, **facts)
    gear_data.convert(source, tmp_path / "d", shard_bytes=1024)
    table = gear_data.open(tmp_path / "d").episode_table
    for name, values in facts.items():
        assert table.column(name).combine_chunks().equals(values), name


def test_task_of_another_type_becomes_text(sources: Any, rollouts: Rollouts, tmp_path: Path) -> None:
    source = sources.write_episodes(tmp_path / "s.parquet", rollouts[:3], task=[4, None, 6])
    gear_data.convert(source, tmp_path / "d")
    assert gear_data.open(tmp_path / "d").episodes["task"].to_list() == ["4", None, "6"]


def test_jat_names(sources: Any, tmp_path: Path) -> None:
    columns = [
        {
            "continuous_observations": np.ones((3, 2), np.float32),
            "discrete_observations": np.arange(6).reshape(3, 2),
            "discrete_actions": np.array([4, 5, 6]),
            "rewards": np.ones(3, np.float32),
        }
    ]
    source = sources.write_parquet(tmp_path / "s.parquet", sources.episode_table(columns))
    report = gear_data.convert(source, tmp_path / "d")
    ds = gear_data.open(tmp_path / "d")
    shapes = {c.name: (c.dtype, c.shape) for c in ds.schema.source_columns}
    assert shapes == {
        "observations": ("float32", (2,)),
        "observations.discrete": ("int64", (2,)),
        "actions": ("int64", ()),
        "rewards": ("float32", ()),
        "terminated": ("bool", ()),
        "truncated": ("bool", ()),
    }
    assert ds.schema["actions"].source == "discrete_actions"
    assert ds.episode(0)["actions"].tolist() == [4, 5, 6]
    assert [w.split(":")[0] for w in report.warnings] == ["no-end-flag"]


@pytest.mark.parametrize("row_group", [2, 100])
def test_final_observations_of_episode_rows(row_group: int, sources: Any, rollouts: Rollouts, tmp_path: Path) -> None:
    """Some episodes have no final observation; shards end between any two episodes."""
    some, without = rollouts[:20], {0, 2, 3, 9, 10, 11, 19}
    finals = [None if i in without else r.final.tolist() for i, r in enumerate(some)]
    facts = {"final_observations": pa.array(finals, pa.list_(pa.float32()))}
    source = sources.write_episodes(tmp_path / "s.parquet", some, row_group=row_group, **facts)
    assert gear_data.convert(source, tmp_path / "d", shard_bytes=1024).shards > 2
    ds = gear_data.open(tmp_path / "d")
    for i, rollout in enumerate(some):
        found = ds.final(i)
        if i in without:
            assert found is None
        else:
            assert found is not None
            np.testing.assert_array_equal(found["observations"], rollout.final)
    assert gear_data.verify(tmp_path / "d").ok


@pytest.mark.parametrize("dtype", ["int8", "uint16", "int64", "uint64", "float16", "float64", "bool"])
def test_dtypes_and_shapes_are_kept(dtype: str, sources: Any, tmp_path: Path) -> None:
    rng = np.random.default_rng(5)
    values = rng.integers(0, 2 if dtype == "bool" else 100, size=(4, 2, 3)).astype(dtype)
    columns = [{"observations": values, "rewards": np.ones(4)}, {"observations": values[:1], "rewards": np.ones(1)}]
    source = sources.write_parquet(tmp_path / "s.parquet", sources.episode_table(columns))
    gear_data.convert(source, tmp_path / "d")
    ds = gear_data.open(tmp_path / "d")
    assert ds.schema["observations"].shape == (2, 3)
    assert ds.episode(0)["observations"].dtype == np.dtype(dtype)
    np.testing.assert_array_equal(ds.episode(0)["observations"], values)
    np.testing.assert_array_equal(ds.episode(1)["observations"], values[:1])
    assert gear_data.verify(tmp_path / "d").ok


def test_fixed_size_and_large_lists(sources: Any, tmp_path: Path) -> None:
    values = np.arange(24, dtype=np.float32).reshape(8, 3)
    steps = pa.FixedSizeListArray.from_arrays(pa.array(values.reshape(-1)), 3)
    table = pa.table(
        {
            "observations": pa.LargeListArray.from_arrays(pa.array([0, 3, 8], pa.int64()), steps),
            "rewards": pa.LargeListArray.from_arrays(pa.array([0, 3, 8], pa.int64()), pa.array(np.ones(8))),
        }
    )
    # A slice, so that offsets do not begin at 0.
    gear_data.convert(datasets.Dataset(table).select([1]), tmp_path / "d")
    np.testing.assert_array_equal(gear_data.open(tmp_path / "d").episode(0)["observations"], values[3:])


def test_array2d_features(tmp_path: Path) -> None:
    images = np.arange(5 * 6, dtype=np.uint8).reshape(5, 2, 3)
    features = datasets.Features(
        {
            "observations": datasets.Array2D((2, 3), "uint8"),
            "rewards": datasets.Value("float32"),
            "episode": datasets.Value("int64"),
        }
    )
    rows = {"observations": images.tolist(), "rewards": [1.0] * 5, "episode": [0, 0, 0, 1, 1]}
    gear_data.convert(datasets.Dataset.from_dict(rows, features=features), tmp_path / "d")
    np.testing.assert_array_equal(gear_data.open(tmp_path / "d").episode(1)["observations"], images[3:])


@pytest.mark.parametrize(
    "flags", [("next.done", "next.truncated"), ("next.done", "next.terminated"), ("next.done",)], ids=",".join
)
def test_done_with_another_flag(flags: tuple[str, ...], sources: Any, rollouts: Rollouts, tmp_path: Path) -> None:
    """`done` and one of the two flags determine the other flag."""
    known = {
        "next.done": [r.columns["terminated"] | r.columns["truncated"] for r in rollouts],
        "next.truncated": [r.columns["truncated"] for r in rollouts],
        "next.terminated": [r.columns["terminated"] for r in rollouts],
    }
    columns = [
        {name: r.columns[name] for name in ("observations", "actions", "rewards")} | {f: known[f][i] for f in flags}
        for i, r in enumerate(rollouts)
    ]
    table = sources.step_table(columns, episode_index=sources.episode_numbers(rollouts))
    gear_data.convert(sources.write_parquet(tmp_path / "s.parquet", table), tmp_path / "d")
    sources.check_dataset(tmp_path / "d", rollouts if len(flags) == 2 else _one_flag(rollouts))


def test_step_rows_order_columns_are_not_stored(sources: Any, rollouts: Rollouts, tmp_path: Path) -> None:
    numbers = sources.episode_numbers(rollouts)
    table = sources.step_table(
        [r.columns for r in rollouts], episode_index=numbers + 10, frame_index=np.zeros(len(numbers), np.int64)
    )
    gear_data.convert(sources.write_parquet(tmp_path / "s.parquet", table), tmp_path / "d")
    sources.check_dataset(tmp_path / "d", rollouts)
    assert gear_data.open(tmp_path / "d").episodes["episode_index"].to_list() == [i + 10 for i in range(len(rollouts))]


def test_step_rows_with_text_ids_and_flags(sources: Any, rollouts: Rollouts, tmp_path: Path) -> None:
    ids = [f"run-{i}" for i in sources.episode_numbers(rollouts)]
    table = sources.step_table([r.columns for r in rollouts], episode=ids)
    source = sources.write_parquet(tmp_path / "s.parquet", table)
    gear_data.convert(source, tmp_path / "d", columns=["observations", "actions", "rewards"])
    sources.check_dataset(tmp_path / "d", rollouts)


def test_lerobot_tasks_timestamps_and_findings(sources: Any, rollouts: Rollouts, tmp_path: Path) -> None:
    source = sources.write_lerobot(tmp_path / "robot", rollouts, info={"total_episodes": 99})
    report = gear_data.convert(source, tmp_path / "d")
    ds = gear_data.open(tmp_path / "d")
    assert ds.episodes["task"].to_list() == [("pick", "place")[i % 2] for i in range(len(rollouts))]
    assert ds.episodes["source"][3] == "data/chunk-000/episode_000003.parquet"
    assert ds.episodes["episode_index"].to_list() == list(range(len(rollouts)))
    assert ds.schema["rewards"].source == "next.reward"
    expected = (np.arange(len(rollouts[3])) / 30).astype(np.float32)
    np.testing.assert_array_equal(ds.episode(3)["timestamp"], expected)
    assert ds.manifest.provenance["metadata"]["robot_type"] == "arm"
    text = "\n".join(report.warnings)
    assert "observation.effort" in text
    assert "declares 99 episodes" in text


def test_lerobot_trusts_the_rows(sources: Any, rollouts: Rollouts, tmp_path: Path) -> None:
    """One file holds three episodes."""
    source = sources.write_lerobot(tmp_path / "robot", rollouts[:2])
    columns = [{"observation.state": r.columns["observations"], "action": r.columns["actions"]} for r in rollouts[:3]]
    for path in (source / "data/chunk-000").iterdir():
        path.unlink()
    table = sources.step_table(columns, episode_index=sources.episode_numbers(rollouts[:3]))
    sources.write_parquet(source / "data/chunk-000/episode_000000.parquet", table)
    gear_data.convert(source, tmp_path / "d")
    assert gear_data.open(tmp_path / "d").lengths.tolist() == [len(r) for r in rollouts[:3]]


@pytest.mark.parametrize("version", ["v4.0", "v1.6"])
def test_lerobot_of_another_version(version: str, sources: Any, rollouts: Rollouts, tmp_path: Path) -> None:
    source = sources.write_lerobot(tmp_path / "robot", rollouts[:2], info={"codebase_version": version})
    with pytest.raises(UnknownFormatError, match=f"{version} is not supported"):
        gear_data.convert(source, tmp_path / "d")
    gear_data.convert(source, tmp_path / "d", format="step-rows")
    assert gear_data.open(tmp_path / "d").num_episodes == 2


def test_d4rl_infos_and_metadata(sources: Any, rollouts: Rollouts, tmp_path: Path) -> None:
    steps = sum(len(r) for r in rollouts)
    qpos = np.random.default_rng(2).normal(size=(steps, 4))
    extra = {
        "infos/qpos": qpos,
        "metadata/algorithm": "SAC",
        "metadata/iteration": 7,
        "metadata/score": float("nan"),
        "metadata/policy/fc0/weight": np.ones((2, 2)),
    }
    source = sources.write_d4rl(tmp_path / "s.hdf5", rollouts, extra=extra)
    gear_data.convert(source, tmp_path / "d", shard_bytes=2048)
    ds = gear_data.open(tmp_path / "d")
    offsets = ds.offsets
    for i in range(len(rollouts)):
        np.testing.assert_array_equal(ds.episode(i)["infos.qpos"], qpos[offsets[i] : offsets[i + 1]])
    assert ds.schema["infos.qpos"].source == "infos/qpos"
    metadata = ds.manifest.provenance["metadata"]
    assert metadata["algorithm"] == "SAC"
    assert metadata["iteration"] == 7
    assert "next_observations" not in ds.schema


@pytest.mark.parametrize("timeouts", [True, False])
def test_d4rl_unfinished_tail_is_an_episode(timeouts: bool, sources: Any, rollouts: Rollouts, tmp_path: Path) -> None:
    tail = rollouts[-1]
    nothing = np.zeros(len(tail), np.bool_)
    unfinished = [*rollouts[:-1], tail.with_columns(terminated=nothing, truncated=nothing)]
    source = sources.write_d4rl(tmp_path / "s.hdf5", unfinished, timeouts=timeouts)
    report = gear_data.convert(source, tmp_path / "d", shard_bytes=2048)
    cut_off = tail.with_columns(terminated=nothing, truncated=np.arange(len(tail)) == len(tail) - 1)
    sources.check_dataset(tmp_path / "d", [*rollouts[:-1], cut_off], final=True)
    if timeouts:
        first = sum(len(r) for r in rollouts[:-1])
        assert any("unfinished-episode" in w and f"row {first}" in w and "(1x" in w for w in report.warnings)


def test_d4rl_nan_is_not_an_episode_end(sources: Any, rollouts: Rollouts, tmp_path: Path) -> None:
    changed = [r.columns["observations"].copy() for r in rollouts]
    longest = int(np.argmax([len(r) for r in rollouts]))
    changed[longest][2, 1] = np.nan
    holed = [r.with_columns(observations=o) for r, o in zip(rollouts, changed, strict=True)]
    source = sources.write_d4rl(tmp_path / "s.hdf5", holed, timeouts=False)
    gear_data.convert(source, tmp_path / "d")
    assert gear_data.open(tmp_path / "d").lengths.tolist() == [len(r) for r in rollouts]


def test_d4rl_both_flags_mean_terminated(sources: Any, rollouts: Rollouts, tmp_path: Path) -> None:
    both = [r.with_columns(truncated=r.columns["terminated"] | r.columns["truncated"]) for r in rollouts]
    source = sources.write_d4rl(tmp_path / "s.hdf5", both)
    report = gear_data.convert(source, tmp_path / "d")
    sources.check_dataset(tmp_path / "d", rollouts, final=True)
    count = sum(bool(r.columns["terminated"][-1]) for r in rollouts)
    assert any(w.startswith("both-flags") and f"({count}x" in w for w in report.warnings)


def test_d4rl_without_ends_needs_an_option(sources: Any, rollouts: Rollouts, tmp_path: Path) -> None:
    source = sources.write_d4rl(tmp_path / "s.hdf5", rollouts, timeouts=False, next_observations=False)
    with pytest.raises(UnknownFormatError, match="neither 'timeouts' nor 'next_observations'"):
        gear_data.convert(source, tmp_path / "d")


def test_d4rl_folder_in_natural_order_with_an_empty_file(sources: Any, rollouts: Rollouts, tmp_path: Path) -> None:
    folder = tmp_path / "source"
    with h5py.File(sources.write_d4rl(folder / "part1.hdf5", rollouts[:1]), "r+") as file:
        for name in list(file):
            del file[name]
            file[name] = np.zeros(0, np.float32)
    sources.write_d4rl(folder / "part10.hdf5", rollouts[5:])
    sources.write_d4rl(folder / "part2.hdf5", rollouts[:5])
    report = gear_data.convert(folder, tmp_path / "d")
    sources.check_dataset(tmp_path / "d", rollouts, final=True)
    assert any(w.startswith("empty-file") and "part1.hdf5" in w for w in report.warnings)


def test_d4rl_all_files_empty(tmp_path: Path) -> None:
    (tmp_path / "s").mkdir()
    for name in ("a.hdf5", "b.hdf5"):
        with h5py.File(tmp_path / "s" / name, "w") as file:
            for column in ("observations", "actions", "rewards", "terminals", "timeouts"):
                file[column] = np.zeros(0, np.float32)
    with pytest.raises(EmptySourceError, match=r"a\.hdf5"):
        gear_data.convert(tmp_path / "s", tmp_path / "d")


def test_d4rl_next_observations_kept_on_request(sources: Any, rollouts: Rollouts, tmp_path: Path) -> None:
    source = sources.write_d4rl(tmp_path / "s.hdf5", rollouts)
    gear_data.convert(source, tmp_path / "d", columns=["observations", "next_observations"])
    ds = gear_data.open(tmp_path / "d")
    assert set(ds.schema.names) == {"observations", "next_observations", "terminated", "truncated"}
    for i, rollout in enumerate(rollouts):
        np.testing.assert_array_equal(ds.episode(i)["next_observations"], rollout.next_observations)


def test_d4rl_rename_of_structure(sources: Any, rollouts: Rollouts, tmp_path: Path) -> None:
    path = sources.write_d4rl(tmp_path / "s.hdf5", rollouts)
    with h5py.File(path, "r+") as file:
        file.move("observations", "state")
    gear_data.convert(path, tmp_path / "d", format="d4rl", rename={"state": "observations"})
    sources.check_dataset(tmp_path / "d", rollouts, final=True)


# Recognising formats.


def test_a_format_is_probed_before_others_that_would_accept_its_sources() -> None:
    tables = [name for name in known_formats() if name in ("lerobot", "episode-rows", "step-rows")]
    assert tables == ["lerobot", "episode-rows", "step-rows"]


def test_unrecognised_layout_lists_columns_and_options(sources: Any, tmp_path: Path) -> None:
    source = sources.write_parquet(tmp_path / "s.parquet", pa.table({"x": [1.0], "y": ["text"]}))
    with pytest.raises(UnknownFormatError) as error:
        gear_data.convert(source, tmp_path / "d")
    for part in ("x: double", "y: string", "--rename", "--format", *(known_formats().keys() - {"in-memory"})):
        assert part in str(error.value)
    assert not (tmp_path / "d").exists()


def test_unrecognised_files_are_listed(tmp_path: Path) -> None:
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "notes.txt").write_text("hello")
    with pytest.raises(UnknownFormatError, match=r"notes\.txt"):
        gear_data.convert(tmp_path / "source", tmp_path / "d")


def test_unknown_format_name_lists_known_formats(sources: Any, rollouts: Rollouts, tmp_path: Path) -> None:
    source = sources.write_episodes(tmp_path / "s.parquet", rollouts)
    with pytest.raises(gear_data.errors.UnknownNameError) as error:
        gear_data.convert(source, tmp_path / "d", format="episode-row")
    assert "did you mean 'episode-rows'" in str(error.value)
    assert "lerobot" in str(error.value)


@pytest.mark.parametrize("format", ["lerobot", "episode-rows", "step-rows", "d4rl"])
def test_an_unsuitable_format_option(format: str, sources: Any, rollouts: Rollouts, tmp_path: Path) -> None:
    if format == "d4rl":
        source = sources.write_episodes(tmp_path / "s.parquet", rollouts)
    else:
        source = sources.write_d4rl(tmp_path / "s.hdf5", rollouts)
    with pytest.raises(UnknownFormatError):
        gear_data.convert(source, tmp_path / "d", format=format)
    assert not (tmp_path / "d").exists()
