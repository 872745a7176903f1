"""What tests share: seeded rollouts, writers for every source layout, and one check of a dataset against them."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

# Before anything imports the hub's client: no test reaches for the network.
os.environ["HF_HUB_OFFLINE"] = "1"

import gear_data
from gear_data.storage.block import BEGIN, END

Columns = dict[str, npt.NDArray[Any]]


@dataclass(frozen=True)
class Rollout:
    """One episode as it should come out of a conversion: canonical columns [T, ...], and the observation after."""

    columns: Columns
    final: npt.NDArray[Any]

    def __len__(self) -> int:
        return len(self.columns["rewards"])

    @property
    def next_observations(self) -> npt.NDArray[Any]:
        return np.concatenate([self.columns["observations"][1:], self.final[None]])

    def with_columns(self, **columns: npt.NDArray[Any]) -> Rollout:
        return replace(self, columns={**self.columns, **columns})


def make_rollouts(
    count: int = 9, seed: int = 0, *, max_length: int = 12, states: int = 3, actions: int = 2, short: bool = True
) -> list[Rollout]:
    """Episodes of 1 to `max_length` steps; the first has one step (`short`), ends are of both kinds in turn."""
    rng = np.random.default_rng(seed)
    rollouts = []
    for i in range(count):
        length = 1 if i == 0 and short else int(rng.integers(1, max_length + 1))
        last = np.arange(length) == length - 1
        columns: Columns = {
            "observations": rng.normal(size=(length, states)).astype(np.float32),
            "actions": rng.normal(size=(length, actions)).astype(np.float32),
            "rewards": rng.normal(size=length).astype(np.float32),
            "terminated": last if i % 2 == 0 else np.zeros(length, np.bool_),
            "truncated": last if i % 2 == 1 else np.zeros(length, np.bool_),
        }
        rollouts.append(Rollout(columns, rng.normal(size=states).astype(np.float32)))
    return rollouts


def nested(values: npt.NDArray[Any]) -> pa.Array:
    """[n, ...] as an Arrow array of nested lists; [n] as a primitive one."""
    return pa.array(values.tolist(), _list_type(values))


def _list_type(values: npt.NDArray[Any]) -> pa.DataType:
    type_ = pa.from_numpy_dtype(values.dtype)
    for _ in range(values.ndim - 1):
        type_ = pa.list_(type_)
    return type_


def episode_table(columns: Sequence[Columns], **facts: Sequence[Any]) -> pa.Table:
    """A row an episode; `facts` become scalar columns."""
    arrays = {
        name: pa.array([episode[name].tolist() for episode in columns], pa.list_(_list_type(columns[0][name])))
        for name in columns[0]
    }
    return pa.table({**arrays, **facts})


def step_table(columns: Sequence[Columns], **facts: Any) -> pa.Table:
    """A row a step; `facts` become further columns."""
    arrays = {name: nested(np.concatenate([episode[name] for episode in columns])) for name in columns[0]}
    return pa.table({**arrays, **facts})


def episode_numbers(rollouts: Sequence[Rollout]) -> npt.NDArray[np.int64]:
    """int64 [steps]: the episode of every step."""
    return np.repeat(np.arange(len(rollouts)), [len(rollout) for rollout in rollouts])


def write_parquet(path: Path, table: pa.Table, *, row_group: int = 1 << 20) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, path, row_group_size=row_group)
    return path


def write_episodes(path: Path, rollouts: Sequence[Rollout], *, row_group: int = 1 << 20, **facts: Any) -> Path:
    """Parquet, a row an episode, under canonical names."""
    return write_parquet(path, episode_table([r.columns for r in rollouts], **facts), row_group=row_group)


def write_steps(path: Path, rollouts: Sequence[Rollout], *, row_group: int = 1 << 20) -> Path:
    """Parquet, a row a step, under canonical names, with an `episode_index`."""
    table = step_table([r.columns for r in rollouts], episode_index=episode_numbers(rollouts))
    return write_parquet(path, table, row_group=row_group)


def write_d4rl(
    path: Path,
    rollouts: Sequence[Rollout],
    *,
    timeouts: bool = True,
    following: bool = True,
    column_vectors: bool = False,
    extra: dict[str, Any] | None = None,
    **options: Any,
) -> Path:
    """D4RL HDF5. `column_vectors` gives rewards and flags the shape (N, 1); `extra` are further datasets by path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    flat = {name: np.concatenate([r.columns[name] for r in rollouts]) for name in rollouts[0].columns}
    datasets = {name: flat[name] for name in ("observations", "actions", "rewards")}
    datasets["terminals"] = flat["terminated"]
    if timeouts:
        datasets["timeouts"] = flat["truncated"]
    if column_vectors:
        datasets = {name: values.reshape(len(values), -1) for name, values in datasets.items()}
    if following:
        datasets["next_observations"] = np.concatenate([r.next_observations for r in rollouts])
    with h5py.File(path, "w") as file:
        for name, values in {**datasets, **(extra or {})}.items():
            file.create_dataset(name, data=values, **(options if np.ndim(values) else {}))
    return path


def write_lerobot(folder: Path, rollouts: Sequence[Rollout], *, info: dict[str, Any] | None = None) -> Path:
    """A LeRobot v2.1 folder: two tasks in turn, a declared video that has no Parquet column."""
    first = 0
    for i, rollout in enumerate(rollouts):
        columns, count = rollout.columns, len(rollout)
        table = pa.table(
            {
                "observation.state": nested(columns["observations"]),
                "action": nested(columns["actions"]),
                "next.reward": columns["rewards"],
                "next.terminated": columns["terminated"],
                "next.truncated": columns["truncated"],
                "timestamp": (np.arange(count) / 30).astype(np.float32),
                "frame_index": np.arange(count),
                "episode_index": np.full(count, i),
                "index": np.arange(first, first + count),
                "task_index": np.full(count, i % 2),
            }
        )
        write_parquet(folder / f"data/chunk-000/episode_{i:06d}.parquet", table)
        first += count
    features = {name: {"dtype": "float32"} for name in table.column_names}
    features["observation.images.top"] = {"dtype": "video"}
    known = {
        "codebase_version": "v2.1",
        "robot_type": "arm",
        "fps": 30,
        "total_episodes": len(rollouts),
        "total_frames": first,
        "features": features,
    }
    meta = folder / "meta"
    meta.mkdir(parents=True, exist_ok=True)
    (meta / "info.json").write_text(json.dumps({**known, **(info or {})}))
    tasks = [{"task_index": 0, "task": "pick"}, {"task_index": 1, "task": "place"}]
    (meta / "tasks.jsonl").write_text("".join(json.dumps(task) + "\n" for task in tasks))
    return folder


def check_dataset(path: Path, rollouts: Sequence[Rollout], *, final: bool = False) -> None:
    """That a dataset holds exactly these episodes, with all that is derived from them worked out here anew."""
    ds = gear_data.open(path)
    assert ds.num_episodes == len(rollouts)
    assert ds.num_steps == sum(len(rollout) for rollout in rollouts)
    derived = {"returns_to_go"} if "rewards" in rollouts[0].columns else set()
    assert set(ds.schema.names) == rollouts[0].columns.keys() | derived
    table = ds.episodes
    places: dict[int, int] = {}
    for i, rollout in enumerate(rollouts):
        episode = ds.episode(i)
        assert episode.num_steps == len(rollout)
        for name, expected in rollout.columns.items():
            assert episode[name].dtype == expected.dtype, name
            np.testing.assert_array_equal(episode[name], expected, err_msg=f"episode {i}, {name}")
        row = table.row(i, named=True)
        assert row["episode_id"] == i
        assert row["length"] == len(rollout)
        assert row["start"] == places.get(row["shard"], 0)
        places[row["shard"]] = row["start"] + len(rollout)
        ends = (rollout.columns["terminated"][-1], rollout.columns["truncated"][-1])
        assert any(ends)
        assert (row["terminated"], row["truncated"]) == ends
        if derived:
            total, expected_rtg = 0.0, []
            for reward in reversed(rollout.columns["rewards"].tolist()):
                total += reward
                expected_rtg.append(total)
            np.testing.assert_array_equal(episode["returns_to_go"], np.array(expected_rtg[::-1], np.float32))
            assert row["return"] == pytest.approx(total, rel=1e-12, abs=1e-12)
        else:
            assert row["return"] is None
        if final:
            np.testing.assert_array_equal((ds.final(i) or {})["observations"], rollout.final)
        else:
            assert ds.final(i) is None
    assert [places[shard] for shard in range(len(ds.manifest.shards))] == [s.steps for s in ds.manifest.shards]
    for name in rollouts[0].columns:
        _check_statistics(ds.statistics[name], np.concatenate([r.columns[name] for r in rollouts]))
    assert gear_data.verify(path).ok


def _check_statistics(found: Any, values: npt.NDArray[Any]) -> None:
    flat = values.astype(np.float64)
    flat = flat if flat.ndim == 2 else flat.reshape(-1, 1)
    assert found.count.tolist() == [len(flat)] * flat.shape[1]
    np.testing.assert_allclose(found.mean, flat.mean(axis=0), rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(found.std, flat.std(axis=0), rtol=1e-12, atol=1e-14)
    np.testing.assert_array_equal(found.min, flat.min(axis=0))
    np.testing.assert_array_equal(found.max, flat.max(axis=0))


def check_units(open_source: Callable[[], Any]) -> int:
    """That a source read by units, and from each of its blocks on, gives what it gives in one go; the units' number."""

    def read(start: Any, stop: Any) -> tuple[list[Any], dict[Any, int], list[Any]]:
        source = open_source()
        source.findings.restore([])
        episodes, positions = [], []
        for block in source.blocks(start, stop):
            positions.append(block.position)
            for i in range(len(block)):
                one = block.slice(i, i + 1)
                arrays = [{n: v.tobytes() for n, v in part.items()} for part in (one.columns, one.finals)]
                texts = {name: array.to_pylist() for name, array in one.variable.items()}
                facts = {name: values[0] for name, values in one.metadata.items() if values[0] is not None}
                episodes.append((one.lengths[0], one.sources[0], one.rows[0], *arrays, texts, facts))
        return episodes, {(f.code, f.column): f.count for f in source.findings}, positions

    whole, noticed, positions = read(BEGIN, END)
    units = [unit.position for unit in open_source().units()]
    assert units[0] == BEGIN
    assert units == sorted(set(units)) == [unit.position for unit in open_source().units()]
    episodes, counts = [], Counter[Any]()
    for start, stop in pairwise([*units, END]):
        part, found, _ = read(start, stop)
        episodes += part
        counts.update(found)
    assert episodes == whole
    assert counts == noticed
    for position in positions[:: 1 + len(positions) // 6]:
        rest, _, _ = read(position, END)
        assert rest == whole[-len(rest) :]
    return len(units)


def folder_contents(folder: Path) -> dict[str, bytes]:
    """Every file in a folder, by its name there."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@dataclass(frozen=True)
class Sources:
    """The functions of this module, for tests: under importlib mode tests cannot import it."""

    Rollout: type[Rollout] = Rollout
    make_rollouts: Callable[..., list[Rollout]] = make_rollouts
    nested: Callable[..., pa.Array] = nested
    episode_table: Callable[..., pa.Table] = episode_table
    step_table: Callable[..., pa.Table] = step_table
    episode_numbers: Callable[..., npt.NDArray[np.int64]] = episode_numbers
    write_parquet: Callable[..., Path] = write_parquet
    write_episodes: Callable[..., Path] = write_episodes
    write_steps: Callable[..., Path] = write_steps
    write_d4rl: Callable[..., Path] = write_d4rl
    write_lerobot: Callable[..., Path] = write_lerobot
    check_dataset: Callable[..., None] = check_dataset
    check_units: Callable[..., int] = check_units
    folder_contents: Callable[..., dict[str, bytes]] = folder_contents


@pytest.fixture(scope="session", autouse=True)
def no_waiting_for_the_disk() -> Iterator[None]:
    """`fsync` is most of the time of a small conversion, and no test cuts the power."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda descriptor: None)
        yield


@pytest.fixture(scope="session")
def sources() -> Sources:
    """Rollouts, writers of every source layout, and `check_dataset`."""
    return Sources()


@pytest.fixture(scope="session")
def rollouts() -> list[Rollout]:
    """A few dozen episodes of up to 12 steps: 3 observations, 2 actions."""
    return make_rollouts(40, seed=7)


@pytest.fixture(scope="session")
def rollouts_path(rollouts: list[Rollout], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`rollouts` converted, with final observations, into several shards. Not to be changed."""
    folder = tmp_path_factory.mktemp("rollouts")
    source = write_d4rl(folder / "source.hdf5", rollouts)
    assert gear_data.convert(source, folder / "dataset", shard_bytes=2048).shards > 2
    return folder / "dataset"


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Real data, where there is some: $GEAR_DATA_SHARED, or shared/data beside the repository."""
    beside = Path(__file__).resolve().parents[2] / "shared" / "data"
    folder = Path(os.environ.get("GEAR_DATA_SHARED", beside))
    if not folder.is_dir():
        pytest.skip(f"no real data: {folder} is not a folder, and GEAR_DATA_SHARED names no other")
    return folder


@pytest.fixture
def memory_url(tmp_path: Path) -> Iterator[str]:
    """A folder of fsspec's in-memory file system, emptied afterwards."""
    import fsspec

    name = f"/{tmp_path.name}"
    yield f"memory:/{name}"
    filesystem = fsspec.filesystem("memory")
    if filesystem.exists(name):
        filesystem.rm(name, recursive=True)
