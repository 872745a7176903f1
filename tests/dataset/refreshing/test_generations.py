"""Datasets that grow, as their readers see them."""

from __future__ import annotations

import gc
import multiprocessing
import pickle
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl
import pytest

import gear_data
from gear_data.dataset.stores.store import DatasetStore
from gear_data.errors import (
    CorruptShardError,
    DatasetReplacedError,
    EpisodeIndexError,
    GenerationGoneError,
    InvalidArgumentError,
)
from gear_data.residency import host
from gear_data.selection.windows import Int64Array
from gear_data.storage import sidecar
from gear_data.storage.dataset_files import DatasetFiles


def add(writer: gear_data.Writer, first: int, count: int) -> None:
    """Records episodes with numbers that say who they are: `steps_of`."""
    for number in range(first, first + count):
        for value in steps_of(number):
            writer.append(actions=value, rewards=float(number))
        writer.end_episode(terminated=True, final=None, number=number)


def steps_of(number: int) -> list[int]:
    return [1000 * number + t for t in range(3 + number % 5)]


def numbers(ds: gear_data.Dataset) -> list[int]:
    """Returns the numbers of a dataset's episodes, after a comparison of all steps."""
    found = ds.episodes["number"].to_list()
    for position, number in enumerate(found):
        assert ds[position]["actions"].tolist() == steps_of(number)
    return [int(number) for number in found]


def grown(folder: Path, generations: int, each: int = 10, **options: object) -> gear_data.Writer:
    writer = gear_data.Writer(folder, durability="os", **options)  # type: ignore[arg-type]
    for generation in range(generations):
        add(writer, generation * each, each)
        writer.seal()
    return writer


def test_readers_keep_their_generation(tmp_path: Path) -> None:
    folder = tmp_path / "ds"
    with grown(folder, 1) as writer:
        opened = []
        for generation in range(1, 12):
            opened.append(gear_data.open(folder))
            add(writer, 10 * generation, 10)
            writer.seal()
        for position, ds in enumerate(opened, 1):
            assert (ds.generation, numbers(ds)) == (position, list(range(10 * position)))
            assert ds.refresh().generation == 12
        again = pickle.loads(pickle.dumps(opened[3]))
        assert (again.generation, numbers(again)) == (4, list(range(40)))
        assert numbers(opened[0].at_generation(7)) == list(range(70))
        newest = opened[0].refresh()
        assert newest.refresh() is newest


def test_files_go_when_nobody_reads_them(tmp_path: Path) -> None:
    folder = tmp_path / "ds"
    with grown(folder, 3) as writer:
        ds = gear_data.open(folder)
        pickled = pickle.dumps(ds)
        add(writer, 30, 10)
        writer.seal()
        assert [path.stem for path in sorted((folder / "generations").iterdir())] == ["000003", "000004"]
        del ds
        add(writer, 40, 10)
        writer.seal()
        assert [path.stem for path in sorted((folder / "generations").iterdir())] == ["000005"]
        listed = {entry.file for entry in gear_data.open(folder).manifest.files}
        assert {f"shards/{path.name}" for path in (folder / "shards").iterdir()} <= listed
    with pytest.raises(GenerationGoneError, match="generation 3 is no longer on disk"):
        pickle.loads(pickled)
    with pytest.raises(GenerationGoneError, match="generation 2"):
        gear_data.open(folder).at_generation(2)


def read_and_wait(folder: Path, pipe: object) -> None:
    ds = gear_data.open(folder)
    pipe.send(ds.generation)  # type: ignore[attr-defined]
    pipe.recv()  # type: ignore[attr-defined]


@pytest.mark.processes
def test_a_lease_ends_with_its_process(tmp_path: Path) -> None:
    folder = tmp_path / "ds"
    with grown(folder, 1) as writer:
        here, there = multiprocessing.Pipe()
        child = multiprocessing.get_context("spawn").Process(target=read_and_wait, args=(folder, there))
        child.start()
        assert here.recv() == 1
        add(writer, 10, 10)
        writer.seal()
        assert (folder / "generations/000001.json").exists()
        child.kill()
        child.join()
        add(writer, 20, 10)
        writer.seal()
        assert not (folder / "generations/000001.json").exists()


@pytest.mark.parametrize("limit", [{"max_steps": 200}, {"max_bytes": 40_000}])
def test_the_oldest_episodes_leave(tmp_path: Path, limit: dict[str, int]) -> None:
    """Ids stay, and are never used again."""
    folder = tmp_path / "ds"
    with grown(folder, 30, 5, **limit) as writer:
        ds = gear_data.open(folder)
        found = numbers(ds)
        assert found == list(range(found[0], 150))
        assert found[0] > 0
        size = sum(shard.entry.bytes for shard in ds.manifest.shards)
        assert ds.num_steps <= limit.get("max_steps", ds.num_steps) and size <= limit.get("max_bytes", size)
        assert ds.episode_ids is not None and ds.episode_ids.tolist() == found
        assert ds.episodes["episode_id"].to_list() == found
        assert ds[0].id == found[0]
        assert ds.episode(149)["actions"].tolist() == steps_of(149)
        with pytest.raises(EpisodeIndexError, match="some have left the dataset"):
            ds.episode(0)
        steps = np.concatenate([steps_of(number) for number in found])
        statistics = ds.statistics["actions"]
        np.testing.assert_allclose([statistics.mean[0], statistics.std[0]], [steps.mean(), steps.std()])
        assert (statistics.min[0], statistics.max[0], statistics.count[0]) == (steps.min(), steps.max(), len(steps))
        add(writer, 150, 1)
    ds = ds.refresh()
    assert numbers(ds)[-1] == 150
    assert ds[-1].id == 150
    assert gear_data.verify(folder, deep=True).ok


def test_the_worst_episodes_leave(tmp_path: Path) -> None:
    folder = tmp_path / "ds"
    order = [7, 3, 9, 1, 8, 2, 6, 4, 5, 0]
    with gear_data.Writer(folder, max_steps=60, evict="return", shard_bytes=1024) as writer:
        for number in order:
            add(writer, 10 * number, 2)
            writer.seal()
    ds = gear_data.open(folder)
    recorded = [10 * number + each for number in order for each in (0, 1)]
    # Each shard has one episode. 70 steps are too many by those of the three smallest returns.
    assert numbers(ds) == [number for number in recorded if number not in (10, 11, 20)]
    assert ds.num_steps == 60
    assert ds.episode_ids is not None and ds.episode_ids.tolist() == sorted(ds.episode_ids)


def test_the_smallest_integers_above_2_to_the_53_leave(tmp_path: Path) -> None:
    with gear_data.Writer(tmp_path / "ds", max_steps=60, evict="stamp", shard_bytes=1024, durability="os") as writer:
        for number in range(20):
            for step in range(5):
                writer.append(actions=step, rewards=1.0)
            writer.end_episode(terminated=True, final=None, stamp=(1 << 60) + (number << 20) + 1)
            writer.seal()
    ds = gear_data.open(tmp_path / "ds")
    assert ds.num_steps <= 60
    assert ds.episodes["stamp"].to_list() == [(1 << 60) + (n << 20) + 1 for n in range(20 - len(ds), 20)]


def test_final_observations_stay_with_their_episodes(tmp_path: Path) -> None:
    with gear_data.Writer(tmp_path / "ds", max_steps=40, durability="os") as writer:
        for number in range(30):
            writer.append_batch(observations=np.full((1, 2), number, np.float32), actions=np.zeros(1))
            final = np.full(2, 1000 + number, np.float32) if number % 3 else None
            writer.append(observations=np.full(2, number, np.float32), actions=0.0)
            writer.end_episode(terminated=True, final=final)
            writer.seal()
    ds = gear_data.open(tmp_path / "ds")
    assert ds.episode_ids is not None and len(ds) <= 20
    for position, number in enumerate(ds.episode_ids.tolist()):
        final = ds.final(position)
        assert (final is None) == (number % 3 == 0)
        assert final is None or final["observations"].tolist() == [1000 + number] * 2
    with pytest.raises(InvalidArgumentError, match="has grown"):
        (tmp_path / "ds" / ds.manifest.shards[0].entry.file).write_bytes(b"")
        gear_data.repair(tmp_path / "ds", tmp_path)


def test_a_dataset_that_lost_episodes_is_merged(tmp_path: Path) -> None:
    """The merged dataset numbers its episodes from 0."""
    for name in "ab":
        with gear_data.Writer(tmp_path / name, max_steps=20, durability="os") as writer:
            for number in range(30):
                writer.append(observations=np.full(2, number, np.float32), rewards=0.0)
                writer.append(observations=np.full(2, number, np.float32), rewards=0.0)
                writer.end_episode(final=np.full(2, 1000 + number, np.float32) if number % 2 else None)
                writer.seal()
    gear_data.merge([tmp_path / "a", tmp_path / "b"], tmp_path / "merged")
    ds, a = gear_data.open(tmp_path / "merged"), gear_data.open(tmp_path / "a")
    assert a.episode_ids is not None and ds.episode_ids is None
    for row, number in enumerate([*a.episode_ids, *a.episode_ids]):
        assert ds[row]["observations"][:, 0].tolist() == [number] * 2
        final = ds.final(row)
        assert (final is None) == (number % 2 == 0)
        assert final is None or final["observations"][0] == 1000 + number
    assert gear_data.verify(tmp_path / "merged", deep=True).ok


def test_filters_are_applied_again(tmp_path: Path) -> None:
    folder = tmp_path / "ds"
    with grown(folder, 3, max_steps=150) as writer:
        ds = gear_data.open(folder)
        view = ds.filter("number % 3 = 0").filter(pl.col("return") >= pl.col("return").median())
        steps = view.filter_steps("actions % 2 = 1", mode="all")
        for generation in range(3, 9):
            add(writer, 10 * generation, 10)
            writer.seal()
        for old in (view, steps):
            new, whole = old.refresh(), ds.refresh()
            expected = whole.filter("number % 3 = 0").filter(pl.col("return") >= pl.col("return").median())
            assert numbers(new) == numbers(expected)
            assert new.generation == 9
        expected = expected.filter_steps("actions % 2 = 1", mode="all")
        assert steps.refresh().fingerprint == expected.fingerprint


def test_views_of_positions_stay(tmp_path: Path) -> None:
    with grown(tmp_path / "ds", 2) as writer:
        ds = gear_data.open(tmp_path / "ds")
        add(writer, 20, 1)
        writer.seal()
        for view in (ds[3:5], ds.split({"a": 0.5, "b": 0.5})["a"]):
            with pytest.raises(InvalidArgumentError, match="stays at its generation"):
                view.refresh()


def test_a_dataset_without_its_damaged_shards_stays(tmp_path: Path) -> None:
    """A refresh would have the damaged shards again."""
    folder = tmp_path / "ds"
    grown(folder, 2, shard_bytes=1024).close()
    shard = folder / gear_data.open(folder).manifest.shards[0].entry.file
    data = bytearray(shard.read_bytes())
    data[len(data) // 2] ^= 1
    shard.write_bytes(data)
    with pytest.warns(RuntimeWarning, match="left out"):
        sound = gear_data.open(folder, on_bad_shard="skip")
    assert 0 < len(sound) < 20
    for view in (sound, sound.filter("number > 3"), sound.filter_steps("actions > 3")):
        with pytest.raises(InvalidArgumentError, match="stays at its generation"):
            view.refresh()


def test_a_replaced_dataset_is_no_generation(tmp_path: Path) -> None:
    with grown(tmp_path / "ds", 2):
        pass
    ds = gear_data.open(tmp_path / "ds")
    episode = {"actions": np.arange(3), "rewards": np.zeros(3)}
    gear_data.convert([episode], tmp_path / "ds", overwrite=True)
    with pytest.raises(DatasetReplacedError):
        ds.refresh()


@pytest.mark.parametrize("shard_bytes", [1024, 1 << 20], ids=["shards of one name", "joined shards"])
@pytest.mark.parametrize("reads", ["all", "the table"])
def test_a_copy_that_grew_elsewhere_is_no_generation(shard_bytes: int, reads: str, tmp_path: Path) -> None:
    """Its later generations are not those of the dataset that was opened, though both have one id of growth."""
    folder, other = tmp_path / "ds", tmp_path / "other"
    grown(folder, 1, shard_bytes=shard_bytes).close()
    shutil.copytree(folder, other)
    for place, first in ((folder, 100), (other, 200), (other, 300)):
        with gear_data.Writer(place, durability="os", shard_bytes=shard_bytes) as writer:
            add(writer, first, 10)
    ds = gear_data.open(folder, follow=True)
    expected = [*range(10), *range(100, 110)]
    assert (numbers(ds) if reads == "all" else ds.episodes["number"].to_list()) == expected
    folder.rename(tmp_path / "moved")
    other.rename(folder)
    with pytest.raises(DatasetReplacedError):
        ds.refresh()
    if reads == "all":
        assert numbers(ds) == expected
    else:
        with pytest.raises(DatasetReplacedError):
            numbers(ds)


def test_a_damaged_shard_is_not_joined(tmp_path: Path) -> None:
    """A joined shard has a new checksum, which would hide the damage."""
    writer = grown(tmp_path / "ds", 1)
    (shard,) = (tmp_path / "ds/shards").iterdir()
    data = bytearray(shard.read_bytes())
    data[len(data) // 2] ^= 1
    shard.write_bytes(data)
    add(writer, 10, 10)
    with pytest.raises(CorruptShardError, match="its checksum is"):
        writer.seal()
    data[len(data) // 2] ^= 1
    shard.write_bytes(data)
    writer.close()
    assert numbers(gear_data.open(tmp_path / "ds")) == list(range(20))


@pytest.mark.parametrize("residency", ["mmap", "host"])
def test_residencies(tmp_path: Path, residency: str) -> None:
    with grown(tmp_path / "ds", 2) as writer:
        ds = gear_data.open(tmp_path / "ds", residency)
        add(writer, 20, 10)
        writer.seal()
        new = ds.refresh()
        assert (new.residency, numbers(new), numbers(ds)) == (residency, list(range(30)), list(range(20)))
        discounted = ds.with_discount(0.9).refresh()
        assert (discounted.discount, discounted.generation) == (0.9, 3)


def test_only_new_shards_are_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Generations share the memory of shards, and the memory of evicted shards is freed."""
    loaded: list[str] = []
    copy = host._copy

    def counted(descriptor: int, files: DatasetFiles, piece: host._CopyRange) -> int:
        loaded.append(piece.entry.file)
        return copy(descriptor, files, piece)

    monkeypatch.setattr(host, "_copy", counted)
    gc.collect()
    before = shared_bytes()  # of other tests
    with grown(tmp_path / "ds", 1, max_steps=400) as writer:
        ds, known = gear_data.open(tmp_path / "ds", "host"), set[str]()
        for generation in range(1, 20):
            known |= {shard.entry.file for shard in ds.manifest.shards}
            add(writer, 10 * generation, 10)
            writer.seal()
            loaded.clear()
            ds = ds.refresh()
            assert set(loaded) == {shard.entry.file for shard in ds.manifest.shards} - known
        assert numbers(ds) == ds.episodes["episode_id"].to_list()
        gc.collect()
        assert shared_bytes() - before < 4 * sum(shard.entry.bytes for shard in ds.manifest.shards)


def shared_bytes() -> int:
    """Returns the size of the shared memory that this process maps."""
    sizes = {}
    for line in Path("/proc/self/maps").read_text().splitlines():
        if "gear-data" in line:
            first, last = (int(each, 16) for each in line.split()[0].split("-"))
            sizes[first] = last - first
    return sum(sizes.values())


def test_statistics_of_views_read_new_shards_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are the numbers that a view has which is made at once, and those of all steps."""
    read: list[int] = []
    steps_of_store = DatasetStore.steps

    def counted(self: DatasetStore, name: str, rows: Int64Array) -> npt.NDArray[Any]:
        if name == "actions":
            read.extend(self.episodes["number"].gather(rows).to_list())
        return steps_of_store(self, name, rows)

    monkeypatch.setattr(DatasetStore, "steps", counted)
    with grown(tmp_path / "ds", 3, max_steps=400, shard_bytes=1024) as writer:
        view = gear_data.open(tmp_path / "ds").filter("number % 3 = 0")
        assert view.statistics["actions"].count[0] == view.num_steps
        for generation in range(3, 14):
            files = {shard.entry.file for shard in view.manifest.shards}
            add(writer, 10 * generation, 10)
            writer.seal()
            view = view.refresh()
            read.clear()
            statistics = view.statistics["actions"]
            new = [number for number, shard in enumerate(view.manifest.shards) if shard.entry.file not in files]
            assert read == view.episodes.filter(pl.col("shard").is_in(new))["number"].to_list()
            values = np.concatenate([steps_of(number) for number in view.episodes["number"].to_list()])
            np.testing.assert_allclose([statistics.mean[0], statistics.std[0]], [values.mean(), values.std()])
            assert (statistics.min[0], statistics.max[0], statistics.count[0]) == (
                values.min(), values.max(), len(values),
            )  # fmt: skip
    at_once = gear_data.open(tmp_path / "ds").filter("number % 3 = 0")
    assert {name: each.to_json() for name, each in at_once.statistics.items()} == {
        name: each.to_json() for name, each in view.statistics.items()
    }
    discounted = view.with_discount(0.5)
    assert discounted.statistics["returns_to_go"].mean[0] != view.statistics["rewards"].mean[0]
    assert discounted.statistics["actions"].mean == view.statistics["actions"].mean


def sidecars(folder: Path) -> set[str]:
    found = {path.relative_to(folder / "sidecars") for path in (folder / "sidecars").rglob("*.*") if path.is_file()}
    return {str(path) for path in found if path.suffix != ".lock" and path.name != ".lock"}


def test_sidecars_grow_and_leave_with_their_shards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only new shards are computed. A generation that is open keeps its files."""
    computed: list[str] = []
    compute = sidecar._compute_shard

    def counted(path: Path, *arguments: Any) -> Any:
        computed.append(path.name)
        return compute(path, *arguments)

    monkeypatch.setattr(sidecar, "_compute_shard", counted)
    folder = tmp_path / "ds"
    with grown(folder, 2, max_steps=300, shard_bytes=1024) as writer:
        ds = gear_data.open(folder).with_discount(0.5)
        held = ds
        for generation in range(2, 12):
            known = {shard.entry.file for shard in ds.manifest.shards}
            add(writer, 10 * generation, 10)
            writer.seal()
            computed.clear()
            ds = ds.refresh()
            assert len(computed) == len({shard.entry.file for shard in ds.manifest.shards} - known) > 0
            ds.quantiles("rewards")
            if generation == 4:
                check_discounted(held)
                del held
        check_discounted(ds)
        shards = len(ds.manifest.shards)
        again = gear_data.open(folder).with_discount(0.5)
        assert again.statistics["returns_to_go"].to_json() == ds.statistics["returns_to_go"].to_json()
        add(writer, 120, 1)
        writer.seal()
        # The files of the last generation stay as long as it is open: also a description, and quantiles.
        assert len(sidecars(folder)) == shards + 2
        del ds, again
        add(writer, 121, 1)
        writer.seal()
        left = sidecars(folder)
        assert 0 < len(left) < shards and all(name.endswith(".arrow") for name in left)


def check_discounted(ds: gear_data.Dataset) -> None:
    """Compares the returns of a dataset of `add` with a plain loop."""
    everything = []
    for row, number in enumerate(ds.episodes["number"].to_list()):
        returns = [0.0]
        for _ in steps_of(number):
            returns.append(number + 0.5 * returns[-1])
        everything += returns[1:]
        assert ds[row]["returns_to_go"].tolist() == np.array(returns[:0:-1], np.float32).tolist()
    values = np.array(everything, np.float32).astype(float)
    found = ds.statistics["returns_to_go"]
    np.testing.assert_allclose([found.mean[0], found.std[0], found.max[0]], [values.mean(), values.std(), values.max()])


@pytest.mark.parametrize("limit", [{"max_steps": 500}, {"max_bytes": 40_000}])
def test_single_episodes_of_small_weight_leave(tmp_path: Path, limit: dict[str, int]) -> None:
    """Against a plain buffer: what left is among the smallest weights, and nothing else changed."""
    folder, choose = tmp_path / "ds", np.random.default_rng(0)
    weights: dict[int, float] = {}
    previous: list[int] = []
    with gear_data.Writer(folder, durability="os", evict="weight", **limit) as writer:
        for generation in range(30):
            new = list(range(8 * generation, 8 * generation + 8))
            for number in new:
                weights[number] = float(choose.normal())
                for value in steps_of(number):
                    writer.append(
                        observations=np.full(3, value, np.float32), actions=value, infos={"text": f"n{number} {value}"}
                    )
                final = np.full(3, -number, np.float32) if number % 2 else None
                writer.end_episode(terminated=True, final=final, number=number, weight=weights[number])
            writer.seal()
            ds = gear_data.open(folder)
            found = [int(each) for each in ds.episodes["number"]]
            assert ds.episodes["episode_id"].to_list() == found
            left = [number for number in previous if number not in found]
            assert set(found) == set(previous + new) - set(left)
            if left:
                # At most the excess and an eighth of the dataset have smaller weights than the largest that left.
                below = [number for number in found if weights[number] < max(weights[each] for each in left)]
                old = sum(len(steps_of(each)) for each in below if each in previous)
                assert old <= sum(len(steps_of(each)) for each in found + left) / 8 + 8
            size = sum(shard.entry.bytes for shard in ds.manifest.shards)
            assert ds.num_steps <= limit.get("max_steps", ds.num_steps) and size <= limit.get("max_bytes", size)
            assert len(ds.manifest.shards) <= 24
            previous = found
    for row, number in enumerate(previous):
        episode, final = ds[row], ds.final(row)
        assert episode["actions"].tolist() == steps_of(number)
        assert episode["infos.text"].tolist() == [f"n{number} {value}" for value in steps_of(number)]
        assert (final is None) == (number % 2 == 0)
        assert final is None or final["observations"].tolist() == [-number] * 3
    values = np.concatenate([steps_of(number) for number in previous])
    np.testing.assert_allclose(ds.statistics["actions"].mean, [values.mean()])
    assert np.mean([weights[number] for number in previous]) > 0.3
    assert gear_data.verify(folder, deep=True).ok
