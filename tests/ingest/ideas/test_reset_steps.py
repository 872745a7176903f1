"""Steps that only reset an environment of Gymnasium's vector environments."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import gear_data
from gear_data.errors import InvalidArgumentError
from tests.support.checks import folder_contents
from tests.support.interrupted import convert_until
from tests.support.makers.own_formats import write_hdf5

Columns = dict[str, npt.NDArray[Any]]
NAMES = ("observations", "actions", "rewards", "next_observations", "terminals", "timeouts")


def walk(lengths: Sequence[int], *, resets: bool = True, dtype: str = "float32", seed: int = 3) -> Columns:
    """Returns transitions of random walks; with `resets`, those of a vector environment."""
    rng, rows = np.random.default_rng(seed), []
    for number, length in enumerate(lengths):
        state = (10 * rng.normal(size=4)).astype(dtype)
        if rows and resets:
            rows.append((rows[-1][3], 1, 0.0, state, False, False))
        for t in range(length):
            after = (state + rng.normal(size=4)).astype(dtype)
            last = t == length - 1
            rows.append((state, 0, 1.0, after, last and number % 2 == 0, last and number % 2 == 1))
            state = after
    return {name: np.array([row[i] for row in rows]) for i, name in enumerate(NAMES)}


def hdf5(folder: Path, columns: Columns) -> Any:
    return write_hdf5(folder / "data.hdf5", columns)


def npz(folder: Path, columns: Columns) -> Any:
    np.savez(folder / "data.npz", **columns)  # type: ignore[arg-type]
    return folder / "data.npz"


def npy(folder: Path, columns: Columns) -> Any:
    (folder / "data").mkdir()
    for name, values in columns.items():
        np.save(folder / f"data/{name}.npy", values)
    return folder / "data"


def parquet(folder: Path, columns: Columns) -> Any:
    table = pa.table({name: pa.array(values.tolist()) for name, values in columns.items()})
    pq.write_table(table, folder / "data.parquet", row_group_size=7)
    return folder / "data.parquet"


def tuples(_: Path, columns: Columns) -> Any:
    return list(zip(*(columns[name] for name in NAMES), strict=True))


def arrays(_: Path, columns: Columns) -> Any:
    return columns


def torchrl(folder: Path, columns: Columns) -> Any:
    tensordict = pytest.importorskip("tensordict")
    torch = pytest.importorskip("torch")
    values = {name: torch.from_numpy(each.copy()) for name, each in columns.items()}
    after = {"observation": values["next_observations"], "reward": values["rewards"][:, None]}
    flags = {"terminated": values["terminals"][:, None], "truncated": values["timeouts"][:, None]}
    step = {"observation": values["observations"], "action": values["actions"], "next": {**after, **flags}}
    tensordict.TensorDict(step, [len(values["rewards"])]).memmap(folder / "data")
    return folder / "data"


FORMATS: dict[str, Callable[[Path, Columns], Any]] = {
    "hdf5": hdf5, "npz": npz, "npy": npy, "parquet": parquet, "tuples": tuples, "arrays": arrays, "torchrl": torchrl
}  # fmt: skip


def convert(source: Any, target: Path, choice: Any = None, **options: Any) -> tuple[gear_data.Dataset, list[str]]:
    episodes = gear_data.EpisodeBoundaries(reset_steps=choice)
    report = gear_data.convert(source, target, episodes=episodes, progress=False, **options)
    return gear_data.open(target), [each for each in report.warnings if each.startswith("reset-step")]


@pytest.mark.parametrize("format", FORMATS)
def test_reset_steps_are_left_out(format: str, tmp_path: Path) -> None:
    """The dataset equals the dataset of the same walks without resets, in every flat format."""
    lengths = (5, 7, 6, 1, 4)
    for name in ("with", "without"):
        (tmp_path / name).mkdir()
    ds, found = convert(FORMATS[format](tmp_path / "with", walk(lengths)), tmp_path / "a")
    plain, nothing = convert(FORMATS[format](tmp_path / "without", walk(lengths, resets=False)), tmp_path / "b")
    assert ds.episodes["length"].to_list() == list(lengths)
    assert ds.fingerprint == plain.fingerprint
    assert len(found) == 1 and "reset-step-left-out" in found[0] and "(4x" in found[0]
    assert nothing == []


@pytest.mark.parametrize("format", FORMATS)
def test_a_user_keeps_them(format: str, tmp_path: Path) -> None:
    ds, found = convert(FORMATS[format](tmp_path, walk((5, 7, 6))), tmp_path / "d", "keep")
    assert ds.episodes["length"].to_list() == [5, 8, 7]
    assert found == []


def test_several_environments_one_after_another(tmp_path: Path) -> None:
    """The first episode of each environment follows no reset."""
    parts = [walk((5, 7, 6, 8, 3, 4), seed=seed) for seed in (1, 2)]
    columns = {name: np.concatenate([part[name] for part in parts]) for name in NAMES}
    ds, found = convert(npz(tmp_path, columns), tmp_path / "d")
    assert ds.episodes["length"].to_list() == [5, 7, 6, 8, 3, 4] * 2
    assert "(10x" in found[0]


def test_an_environment_of_gymnasium(tmp_path: Path) -> None:
    """The transitions that a training loop stores, against `record`, which leaves resets out itself."""
    envs = gear_data.record(gymnasium.make_vec("CartPole-v1", num_envs=1), tmp_path / "recorded", durability="os")
    observations, _ = envs.reset(seed=5)
    envs.action_space.seed(5)
    rows = []
    for _ in range(120):
        actions = envs.action_space.sample()
        after, rewards, terminated, truncated, _ = envs.step(actions)
        rows.append((observations[0], actions[0], float(rewards[0]), after[0], terminated[0], truncated[0]))
        observations = after
    envs.close()
    ds, found = convert(rows, tmp_path / "d")
    recorded = gear_data.open(tmp_path / "recorded")
    assert ds.episodes["length"].to_list() == recorded.episodes["length"].to_list()
    assert len(found) == 1
    for i in range(len(ds)):
        np.testing.assert_array_equal(ds[i]["observations"], recorded[i]["observations"])
        np.testing.assert_array_equal(ds.final(i)["observations"], recorded.final(i)["observations"])


def continuing(steps: int, every: int, reward: float = 0.0) -> Columns:
    """Returns one walk that time limits cut: each episode begins where the one before ended."""
    columns = walk([steps], resets=False)
    columns["terminals"][:] = False
    columns["timeouts"] = np.arange(steps) % every == every - 1
    columns["rewards"] = np.full(steps, reward)
    return columns


def one_coincidence() -> Columns:
    """Returns episodes of which one begins with the final observation of the one before, and a reward of 0."""
    columns = walk((5, 7, 6), resets=False)
    columns["observations"][5] = columns["next_observations"][4]
    columns["rewards"][5] = 0
    return columns


def round_trips() -> Columns:
    """Returns episodes that leave a place and come back, with a reward only there."""
    place = np.array([0, 1, 2, 1, 0], np.float32)[:, None]
    count = 6
    last = np.tile(np.arange(4) == 3, count)
    return {
        "observations": np.tile(place[:-1], (count, 1)),
        "actions": np.zeros(4 * count),
        "rewards": last.astype(float),
        "next_observations": np.tile(place[1:], (count, 1)),
        "terminals": last,
        "timeouts": np.zeros(4 * count, bool),
    }


def next_rows() -> Columns:
    """Returns episodes whose next observations are the next rows, also across their ends."""
    columns = walk((5, 7, 6, 5), resets=False)
    columns["next_observations"] = np.concatenate([columns["observations"][1:], columns["observations"][:1]])
    columns["rewards"][:] = 0
    return columns


@pytest.mark.parametrize("columns", [continuing(60, 10), continuing(60, 10, 1.0), round_trips(), next_rows()])
def test_real_steps_stay(columns: Columns, tmp_path: Path) -> None:
    """First steps that move as far as others are no resets, whatever their rewards and observations."""
    ds, found = convert(npz(tmp_path, columns), tmp_path / "d")
    assert (ds.num_steps, found) == (len(columns["rewards"]), [])


def test_one_coincidence_is_only_reported(tmp_path: Path) -> None:
    columns = one_coincidence()
    ds, found = convert(npz(tmp_path, columns), tmp_path / "d")
    assert (ds.num_steps, found) == (18, [])
    ds, found = convert(npz(tmp_path, walk((5, 7))), tmp_path / "two")
    assert ds.episodes["length"].to_list() == [5, 8]
    assert "reset-steps-possible" in found[0] and "--reset-steps drop" in found[0]
    ds, found = convert(tmp_path / "data.npz", tmp_path / "dropped", "drop")
    assert ds.episodes["length"].to_list() == [5, 7]
    assert "reset-step-left-out" in found[0]


def test_resets_to_one_place_are_found_by_that_place(tmp_path: Path) -> None:
    """A small grid: a reset moves no further than a step, and always to the first cell."""
    rng, rows = np.random.default_rng(1), []
    for _ in range(8):
        cell = 0
        if rows:
            rows.append((rows[-1][3], 0, 0.0, np.array([cell]), False, False))
        for t in range(4):
            after = cell + 1 if t == 3 else int(rng.integers(0, 3))
            rows.append((np.array([cell]), 1, 0.0, np.array([after]), t == 3, False))
            cell = after
    ds, found = convert(rows, tmp_path / "d")
    assert ds.episodes["length"].to_list() == [4] * 8
    assert "reset-step-left-out" in found[0]


def test_dropping_needs_next_observations(tmp_path: Path) -> None:
    columns = walk((5, 7, 6))
    del columns["next_observations"]
    with pytest.raises(InvalidArgumentError, match="reset steps cannot be found"):
        convert(npz(tmp_path, columns), tmp_path / "d", "drop")
    with pytest.raises(InvalidArgumentError, match="reset_steps must be 'drop', 'keep' or None, not 'maybe'"):
        gear_data.EpisodeBoundaries(reset_steps="maybe")  # type: ignore[arg-type]


def test_columns_that_a_user_leaves_out(tmp_path: Path) -> None:
    """Without the rewards, the observations decide."""
    ds, found = convert(npz(tmp_path, walk((5, 7, 6))), tmp_path / "d", columns=["observations", "actions"])
    assert ds.episodes["length"].to_list() == [5, 7, 6]
    assert "(2x" in found[0]


LENGTHS = [20 + i % 7 for i in range(300)]


def test_small_blocks_and_a_resumed_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The episode before the first one of a block decides, also if a run is resumed there."""
    monkeypatch.setattr("gear_data.ingest.sources.tree.source._BLOCK_BYTES", 1 << 12)
    source = hdf5(tmp_path, walk(LENGTHS))
    options: dict[str, Any] = {"progress": False, "shard_bytes": 1 << 14, "jobs": 1}
    whole, _ = convert(source, tmp_path / "whole", jobs=1, shard_bytes=1 << 14)
    assert whole.episodes["length"].to_list() == LENGTHS
    assert len(whole.manifest.shards) > 5
    for stop in (1, 4):
        convert_until(source, tmp_path / f"{stop}", stop, options, monkeypatch)
        gear_data.convert(source, tmp_path / f"{stop}", resume=True, **options)
        assert folder_contents(tmp_path / f"{stop}/shards") == folder_contents(tmp_path / "whole/shards")
        resumed = gear_data.open(tmp_path / f"{stop}").manifest
        assert (resumed.fingerprint, resumed.findings) == (whole.manifest.fingerprint, whole.manifest.findings)


@pytest.mark.processes
def test_several_processes(tmp_path: Path) -> None:
    sources = tmp_path / "sources"
    sources.mkdir()
    for seed in (1, 2):
        (sources / f"{seed}").mkdir()
        hdf5(sources / f"{seed}", walk(LENGTHS, seed=seed))
    one, _ = convert(sources, tmp_path / "one", jobs=1)
    two, _ = convert(sources, tmp_path / "two", jobs=2)
    assert one.fingerprint == two.fingerprint
    assert one.episodes["length"].to_list() == LENGTHS * 2
