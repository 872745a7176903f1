"""SequenceLoader(device="cuda") on a stand-in for a GPU: the CPU's batches, in every order of the streams."""

from __future__ import annotations

import itertools
import logging
import os
import pickle
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent / "feed"))

import feed_data
import variable_data
from cupy_stand_in import ORDERS, read_later, stand_in

import gear_data
from gear_data import Mixture, SequenceLoader
from gear_data.errors import (
    DeviceError,
    DeviceMemoryError,
    InvalidArgumentError,
    MissingExtraError,
    UnknownNameError,
)
from gear_data.loaders.presets import PRESETS
from gear_data.selection.samplers import Weighted

OPTIONS: dict[str, Any] = {"batch_size": 8, "context": 9, "seed": 3}
STEPS = 20
#: What a batch of every kind is made of: rows of many sizes, integers, booleans, half precision.
LENGTHS = [7, 1, 23, 40, 2, 20, 19, 21, 5]


def episodes(seed: int) -> list[dict[str, np.ndarray]]:
    rng = np.random.default_rng(seed)
    made = feed_data.locomotion(LENGTHS, seed)
    for episode in made:
        length = len(episode["rewards"])
        episode["observations.image"] = rng.integers(0, 256, (length, 5, 3), np.uint8)
        episode["infos.half"] = rng.normal(0, 1, (length, 7)).astype(np.float16)
        episode["infos.count"] = rng.integers(-9, 9, length)
        episode["infos.flag"] = rng.integers(0, 2, (length, 3)).astype(np.bool_)
    return made


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("device")


@pytest.fixture(scope="module")
def path(folder: Path) -> Path:
    feed_data.convert_episodes(episodes(11), folder / "dataset", shard_bytes=2048)
    return folder / "dataset"


@pytest.fixture(scope="module")
def other(folder: Path) -> Path:
    feed_data.convert_episodes(episodes(12), folder / "other", shard_bytes=4096)
    return folder / "other"


@pytest.fixture(params=["all late"])
def cupy(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, folder: Path) -> Iterator[Any]:
    with stand_in(monkeypatch, folder, order=request.param) as fake:
        yield fake


every_order = pytest.mark.parametrize("cupy", ORDERS, indirect=True)


def tiered(path: Path) -> gear_data.Dataset:
    """A third of the bytes in each tier."""
    ds = gear_data.open(path)
    third = ds.num_steps * sum(column.row_bytes for column in ds.schema.fixed_columns) // 3
    plan = ds.residency_plan(third, third, sampler=Weighted("episode_id % 4 + 1"))
    assert all(plan.bytes(tier) > third // 2 for tier in ("device", "pinned", "disk"))
    return ds.place(plan)


RESIDENCIES: dict[str, Callable[[Path], gear_data.Dataset]] = {
    "mmap": gear_data.open,
    "pinned": lambda path: gear_data.open(path, residency="pinned"),
    "device": lambda path: gear_data.open(path, residency="device"),
    "tiered": tiered,
}


def copies(loader: SequenceLoader) -> list[dict[str, Any]]:
    """The first batches, on the CPU."""
    return [
        {key: value.clone() if isinstance(value, torch.Tensor) else value for key, value in batch.items()}
        for batch in itertools.islice(loader, STEPS)
    ]


def from_device(cupy: Any, loader: SequenceLoader) -> list[dict[str, Any]]:
    """The same from the device, as a training step on the consumer's stream reads them."""
    got = [read_later(cupy, batch) for batch in itertools.islice(loader, STEPS)]
    assert "gear_collect" in cupy.launched
    cupy.streams.finish_all()
    return got


def same(got: list[dict[str, Any]], expected: list[dict[str, Any]]) -> None:
    assert len(got) == len(expected) > 0
    for step, (one, other) in enumerate(zip(got, expected, strict=True)):
        assert one.keys() == other.keys()
        for key, value in other.items():
            if not isinstance(value, torch.Tensor):
                assert one[key] == value
                continue
            assert (one[key].dtype, one[key].shape) == (value.dtype, value.shape), key
            # By bytes: NaN too.
            assert one[key].view(torch.uint8).equal(value.view(torch.uint8)), (step, key)


def check(cupy: Any, path: Path, residency: str, **options: Any) -> None:
    options = {**OPTIONS, **options}
    expected = copies(SequenceLoader(gear_data.open(path), **options))
    ds = RESIDENCIES[residency](path)
    same(from_device(cupy, SequenceLoader(ds, device="cuda", backend="cuda", **options)), expected)


every_residency = pytest.mark.parametrize("residency", RESIDENCIES)


@every_order
@every_residency
def test_every_residency_in_every_order_of_the_streams(cupy: Any, path: Path, residency: str) -> None:
    check(cupy, path, residency, preset="decision_transformer", steps=60)


@pytest.mark.parametrize("preset", [name for name in PRESETS if name != "gato"])
@pytest.mark.parametrize("residency", ["pinned", "tiered"])
def test_every_preset(cupy: Any, path: Path, preset: str, residency: str) -> None:
    check(cupy, path, residency, preset=preset)


@pytest.mark.parametrize("sampler", feed_data.EVERY_SAMPLER)
def test_every_sampler(cupy: Any, path: Path, sampler: str) -> None:
    check(cupy, path, "tiered", sampler=feed_data.EVERY_SAMPLER[sampler])


CASES: dict[str, dict[str, Any]] = {
    "bfloat16": {"dtype": "bfloat16", "normalize": True},
    "float16": {"dtype": torch.float16, "columns": ["observations", "infos.half", "infos.count"]},
    "float64": {"dtype": "float64", "normalize": "infos.count"},
    "n-step": {"n_step": 5, "discount": 0.9},
    "discount": {"preset": "corl", "discount": 0.97},
    "offsets": {"preset": "lerobot", "offsets": {"observations": (-2, 3), "actions": (0, 50)}},
    "edges": {"preset": "jat", "columns": ["next_observations"], "anchor": "end"},
    "long context": {"context": 45, "preset_options": {"side": "left"}},
    "no short windows": {"short_windows": False, "stride": 3, "anchor": "random"},
    "made when asked for": {"prefetch": 0},
    "deep": {"prefetch": 11},
    "large": {"batch_size": 300, "context": 40, "steps": 5},
    "short last batch": {"sampler": "shuffle", "epochs": 1, "batch_size": 16},
    "one rank of three": {"rank": 1, "world_size": 3, "sampler": "fifo", "epochs": 1},
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("residency", ["device", "tiered"])
def test_every_option(cupy: Any, path: Path, case: str, residency: str) -> None:
    check(cupy, path, residency, **CASES[case])


@pytest.mark.parametrize("residency", ["pinned", "device", "tiered", "mmap"])
def test_final_observations(cupy: Any, rollouts_path: Path, residency: str) -> None:
    assert gear_data.open(rollouts_path).final(0) is not None
    columns = ["observations", "next_observations", "rewards"]
    check(cupy, rollouts_path, residency, columns=columns, batch_size=40, offsets={"observations": (-1, 4)})


def test_views(cupy: Any, path: Path) -> None:
    def view(ds: gear_data.Dataset) -> gear_data.Dataset:
        return ds.filter("length > 2").filter_steps(pl.col("rewards") > 0, mode="first")

    expected = copies(SequenceLoader(view(gear_data.open(path)), **OPTIONS))
    for residency in ("device", "tiered"):
        ds = view(RESIDENCIES[residency](path))
        same(from_device(cupy, SequenceLoader(ds, device="cuda", backend="cuda", **OPTIONS)), expected)


@pytest.mark.parametrize("join", [False, True])
def test_mixtures(cupy: Any, path: Path, other: Path, join: bool) -> None:
    def loader(first: Any, second: Any, **options: Any) -> SequenceLoader:
        mixture = Mixture([(first, 2.0), (second, 1.0, {"sampler": Weighted("length")})], join=join)
        return SequenceLoader(mixture, **OPTIONS, **options)

    expected = loader(gear_data.open(path), gear_data.open(other))
    expected_batches = copies(expected)
    got = loader(tiered(path), gear_data.open(other, residency="device"), device="cuda", backend="cuda")
    same(from_device(cupy, got), expected_batches)
    for name in ("pad_fraction", "mixture", "windows", "batches"):
        assert got.metrics()[name] == expected.metrics()[name]


def test_weights_that_change(cupy: Any, path: Path) -> None:
    def run(ds: gear_data.Dataset, read: Callable[[Any], Any], **options: Any) -> list[Any]:
        loader = SequenceLoader(ds, sampler=Weighted("length"), **OPTIONS, **options)
        found = []
        for step, batch in enumerate(itertools.islice(loader, 50)):
            found.append(read(batch))
            if step == 5:
                loader.update_weights([0, 1], [1000.0, 1000.0], from_step=40)
        return found

    expected = run(gear_data.open(path), lambda batch: {key: value.clone() for key, value in batch.items()})
    got = run(gear_data.open(path, residency="device"), lambda batch: read_later(cupy, batch), device="cuda")
    cupy.streams.finish_all()
    same(got, expected)
    assert got[-1]["weights_version"].tolist() == [1] * 8


def test_metrics_are_those_of_the_cpu(cupy: Any, path: Path) -> None:
    loaders = [
        SequenceLoader(gear_data.open(path), steps=12, **OPTIONS),
        SequenceLoader(tiered(path), steps=12, device="cuda", backend="cuda", **OPTIONS),
    ]
    for loader in loaders:
        assert len(list(loader)) == 12
    found, expected = (loader.metrics() for loader in reversed(loaders))
    assert 0 < expected["pad_fraction"] < 1
    for name in ("batches", "windows", "pad_fraction"):
        assert found[name] == expected[name]


def test_batches_that_are_kept_stay(cupy: Any, path: Path) -> None:
    expected = copies(SequenceLoader(gear_data.open(path), **OPTIONS))
    ds = gear_data.open(path, residency="device")
    kept = list(itertools.islice(SequenceLoader(ds, device="cuda", backend="cuda", **OPTIONS), STEPS))
    cupy.streams.finish_all()
    same(kept, expected)


@every_order
def test_memory_is_used_again_and_given_back(cupy: Any, path: Path) -> None:
    ds = tiered(path)
    held, pinned = cupy.taken, cupy.pinned
    loader = iter(SequenceLoader(ds, device="cuda", backend="cuda", **OPTIONS))
    for _ in range(30):
        next(loader)
    most = cupy.taken
    for _ in range(200):
        next(loader)
    assert cupy.taken == most > held
    loader.close()
    del loader
    assert (cupy.taken, cupy.pinned) == (held, pinned)
    del ds
    assert (cupy.taken, cupy.pinned) == (0, 0)


def test_a_budget_of_multiprocessors(cupy: Any, path: Path) -> None:
    check(cupy, path, "device", sm_budget=0.5)
    with pytest.raises(InvalidArgumentError, match="sm_budget is 0"):
        SequenceLoader(gear_data.open(path), sm_budget=0)


class TestPinned:
    def test_registered_once_for_all_views_and_loaders(self, cupy: Any, path: Path) -> None:
        ds = gear_data.open(path, residency="pinned")
        assert len(cupy.registered) == 1
        first = from_device(cupy, SequenceLoader(ds, device="cuda", backend="cuda", **OPTIONS))
        again = SequenceLoader(ds.filter("length > 0"), device="cuda", backend="cuda", **OPTIONS)
        same(from_device(cupy, again), first)
        assert len(cupy.registered) == 1
        assert cupy.taken == cupy.pinned == 0
        del ds, again
        assert not cupy.registered

    def test_a_driver_that_does_not_register_costs_a_copy(
        self, cupy: Any, path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        cupy.refuses_to_register = True
        check(cupy, path, "pinned")
        assert caplog.text.count("this process makes a pinned copy of its own") == 1


def test_the_cpu_reads_as_before(cupy: Any, path: Path) -> None:
    plain = gear_data.open(path)
    for name in ("pinned", "device", "tiered"):
        ds = RESIDENCIES[name](path)
        assert ds.residency == name
        assert (ds.fingerprint, ds.num_steps) == (plain.fingerprint, plain.num_steps)
        np.testing.assert_array_equal(ds.steps("observations", 0, 9), plain.steps("observations", 0, 9))
        same(copies(SequenceLoader(ds, **OPTIONS)), copies(SequenceLoader(plain, **OPTIONS)))


def test_too_little_device_memory(monkeypatch: pytest.MonkeyPatch, path: Path, folder: Path) -> None:
    with stand_in(monkeypatch, folder, order="all late", device_bytes=1000) as fake:
        with pytest.raises(DeviceMemoryError, match="bytes of device memory") as error:
            gear_data.open(path, residency="device")
        assert "budget" in str(error.value.hint)
        del error
        assert fake.taken == 0


class TestWhatTheCpuMakes:
    def test_text_stays_a_list(self, cupy: Any, folder: Path) -> None:
        variable_data.convert(variable_data.make_episodes(), folder / "text", names=(variable_data.TEXT,))
        expected = copies(SequenceLoader(gear_data.open(folder / "text"), **OPTIONS))
        ds = gear_data.open(folder / "text", residency="device")
        got = []
        for batch in itertools.islice(SequenceLoader(ds, device="cuda", backend="cuda", **OPTIONS), STEPS):
            words = batch.pop(variable_data.TEXT)
            got.append({**read_later(cupy, batch), variable_data.TEXT: words})
        cupy.streams.finish_all()
        same(got, expected)

    @pytest.mark.parametrize(
        ("options", "reason"),
        [({"preset": "gato"}, "makes tokens"), ({"transform": feed_data.add_noise}, "transform=")],
    )
    def test_is_said_in_the_log(
        self, cupy: Any, path: Path, caplog: pytest.LogCaptureFixture, options: dict[str, Any], reason: str
    ) -> None:
        with caplog.at_level(logging.WARNING):
            SequenceLoader(gear_data.open(path, residency="device"), device="cuda", **options)
        (record,) = caplog.records
        assert "collected on the CPU" in record.message
        assert reason in record.message


class TestArguments:
    def test_no_such_backend(self, path: Path) -> None:
        with pytest.raises(UnknownNameError, match="unknown backend 'gpu'"):
            SequenceLoader(gear_data.open(path), backend="gpu")

    def test_a_backend_without_a_device(self, path: Path) -> None:
        with pytest.raises(InvalidArgumentError, match="collects in a GPU's memory"):
            SequenceLoader(gear_data.open(path), backend="cuda")

    @pytest.mark.parametrize("residency", ["pinned", "device"])
    def test_without_cupy(self, monkeypatch: pytest.MonkeyPatch, path: Path, residency: str) -> None:
        monkeypatch.setitem(sys.modules, "cupy", None)
        with pytest.raises(MissingExtraError, match=r"gear-data\[gpu\]"):
            gear_data.open(path, residency=residency)
        ds = gear_data.open(path)
        with pytest.raises(MissingExtraError, match=r"gear-data\[gpu\]"):
            ds.place(ds.residency_plan(1000, 1000))

    def test_a_plan_of_another_dataset(self, cupy: Any, path: Path, rollouts_path: Path) -> None:
        plan = gear_data.open(rollouts_path).residency_plan(10**6, 10**6)
        with pytest.raises(InvalidArgumentError, match="lies in no extent of the plan"):
            gear_data.open(path).place(plan)
        assert cupy.taken == 0

    def test_a_forked_child(self, cupy: Any, path: Path) -> None:
        loader = SequenceLoader(gear_data.open(path, residency="device"), device="cuda", backend="cuda", **OPTIONS)
        child = os.fork()
        if not child:
            try:
                iter(loader)
            except DeviceError as error:
                os._exit(0 if "a forked child cannot" in str(error) else 1)
            finally:
                os._exit(2)
        assert os.waitpid(child, 0)[1] == 0


def test_pickled_where_there_is_no_gpu(cupy: Any, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("pinned", "device", "tiered"):
        data = pickle.dumps(RESIDENCIES[name](path).with_discount(0.5))
        with monkeypatch.context() as patch:
            patch.setitem(sys.modules, "cupy", None)
            again = pickle.loads(data)
            assert again.residency == name
            assert len(copies(SequenceLoader(again, **OPTIONS))) == STEPS
