"""A dataset that is replaced after it was opened.

Readers get the old data or `DatasetReplacedError`, never the other data.
"""

from __future__ import annotations

import os
import pickle
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch

import gear_data
from gear_data import SequenceLoader
from gear_data.cluster.server.shard_server import ShardServer
from gear_data.errors import DatasetNotFoundError, DatasetReplacedError
from gear_data.residency import host
from gear_data.storage import mapped_files, sidecar
from gear_data.storage import verify as verify_module
from gear_data.storage.dataset_files import FolderFiles
from gear_data.storage.manifest import Manifest
from tests.support.replacement.datasets import EPISODES, NEW, OLD, REPLACEMENTS, STEPS, convert, overwrite, remove


@pytest.fixture(autouse=True)
def check_always(monkeypatch: pytest.MonkeyPatch) -> None:
    """Looks at mapped files before each read: `copy_over` changes them in place."""
    monkeypatch.setattr(mapped_files, "CHECK_SECONDS", 0.0)


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return convert(tmp_path_factory.mktemp("replaced") / "d", OLD)


@pytest.fixture
def folder(original: Path, tmp_path: Path) -> Path:
    shutil.copytree(original, tmp_path / "d")
    return tmp_path / "d"


@pytest.fixture(params=REPLACEMENTS, ids=lambda function: function.__name__)
def replace(request: pytest.FixtureRequest) -> Callable[[Path], None]:
    function: Callable[[Path], None] = request.param
    return function


def episodes(ds: Any, columns: tuple[str, ...] = ("observations", "actions", "rewards")) -> Iterator[Any]:
    for index in range(EPISODES):
        episode = ds.episode(index)
        for name in columns:
            yield episode[name]


def text(ds: Any) -> Iterator[Any]:
    for index in range(EPISODES):
        yield [float(str(value).removeprefix("value ")) for value in ds.episode(index)["text"]]


def final_observations(ds: Any) -> Iterator[Any]:
    for index in range(EPISODES):
        yield ds.final(index)["observations"]


def table(ds: Any) -> Iterator[Any]:
    yield ds.episodes["seed"].to_numpy()


def batches(ds: Any) -> Iterator[Any]:
    for batch in SequenceLoader(ds, batch_size=16, context=5, steps=4):
        yield batch["observations"]
        yield batch["rewards"]
        yield batch["actions"]


def worker_batches(ds: Any) -> Iterator[Any]:
    loader = SequenceLoader(ds, batch_size=16, context=5, steps=2)
    for batch in torch.utils.data.DataLoader(loader, batch_size=None, num_workers=1):
        yield batch["rewards"]


def pickled(ds: Any) -> Iterator[Any]:
    yield from episodes(pickle.loads(ds))


def pickled_loader(ds: Any) -> Iterator[Any]:
    for batch in pickle.loads(ds):
        yield batch["rewards"]


def discounted(ds: Any) -> Iterator[Any]:
    yield from episodes(ds.with_discount(0), ("returns_to_go",))


def discounted_before(ds: Any) -> Iterator[Any]:
    yield from episodes(ds, ("returns_to_go",))


def filtered(ds: Any) -> Iterator[Any]:
    assert ds.filter_steps(f"rewards == {OLD}").num_steps == EPISODES * STEPS
    yield OLD


def exported(ds: Any) -> Iterator[Any]:
    target = Path(tempfile.mkdtemp(dir=Path(ds.path).parent), "exported.parquet")
    gear_data.export(ds, target)
    yield np.concatenate(pl.read_parquet(target)["rewards"].to_list())


def served(server: Any) -> Iterator[Any]:
    from gear_data.cluster.protocol import ColumnGroup, Request

    column = server.manifest.schema.index("rewards")
    for shard in range(EPISODES):
        group = ColumnGroup((column,), np.zeros(1, np.int64), np.full(1, STEPS))
        answer = server.answer(Request(np.array([shard]), (group,)))
        yield answer.data[: answer.sizes[0]].view(np.float32)


def opened(folder: Path) -> Any:
    return gear_data.open(folder)


def touched(folder: Path) -> Any:
    ds = gear_data.open(folder)
    ds.episode(0)["rewards"].sum()
    return ds


def in_memory(folder: Path) -> Any:
    return gear_data.open(folder, residency="host")


def as_pickle(folder: Path) -> bytes:
    return pickle.dumps(gear_data.open(folder))


def as_pickle_in_memory(folder: Path) -> bytes:
    return pickle.dumps(gear_data.open(folder, residency="host"))


def loader_as_pickle(folder: Path) -> bytes:
    return pickle.dumps(SequenceLoader(gear_data.open(folder), batch_size=16, context=5, steps=4))


def with_discount(folder: Path) -> Any:
    return gear_data.open(folder).with_discount(0)


def server(folder: Path) -> ShardServer:
    return ShardServer(FolderFiles(folder))


def server_in_memory(folder: Path) -> ShardServer:
    return ShardServer(FolderFiles(folder), residency="host")


WAYS: dict[str, tuple[Callable[[Path], Any], Callable[[Any], Iterator[Any]]]] = {
    "episodes": (opened, episodes),
    "episodes, one read before": (touched, episodes),
    "text": (opened, text),
    "final observations": (opened, final_observations),
    "table": (opened, table),
    "batches": (opened, batches),
    "batches of workers": (opened, worker_batches),
    "batches from host memory": (in_memory, batches),
    "pickle": (as_pickle, pickled),
    "pickle, host memory": (as_pickle_in_memory, pickled),
    "pickle of a loader": (loader_as_pickle, pickled_loader),
    "discount": (opened, discounted),
    "discount from host memory": (in_memory, discounted),
    "discount, opened before": (with_discount, discounted_before),
    "filter": (touched, filtered),
    "export": (touched, exported),
    "node": (server, served),
    "node with host memory": (server_in_memory, served),
}


def values_of(parts: Iterator[Any]) -> Iterator[float]:
    """Yields the different values, except the zeros that pad batches."""
    for part in parts:
        yield from (float(value) for value in np.unique(part) if value)


@pytest.mark.processes
@pytest.mark.parametrize("way", WAYS)
def test_readers_never_get_the_other_dataset(way: str, replace: Callable[[Path], None], folder: Path) -> None:
    open_, read = WAYS[way]
    # As it should be: without a replacement all values are the old ones.
    assert set(values_of(read(open_(folder)))) == {OLD}
    dataset = open_(folder)
    replace(folder)
    seen: set[float] = set()
    for _ in range(2):  # a caller that goes on after an error gets nothing else either
        try:
            for value in values_of(read(dataset)):
                seen.add(value)
        except DatasetReplacedError as error:
            assert "open the dataset again" in str(error)
        except DatasetNotFoundError:
            assert replace is remove
            assert way.startswith("pickle")
        assert seen <= {OLD}


@pytest.mark.parametrize("way", ["episodes", "batches", "pickle", "discount", "node"])
def test_the_same_dataset_in_its_place_is_no_replacement(way: str, folder: Path, tmp_path: Path) -> None:
    """Copies, `touch`, and a second conversion of the same episodes."""
    open_, read = WAYS[way]
    for same in ("copy", "touch", "convert"):
        dataset = open_(folder)
        if same == "copy":
            shutil.copytree(folder, tmp_path / "copy")
            shutil.rmtree(folder)
            (tmp_path / "copy").rename(folder)
        elif same == "touch":
            for file in folder.rglob("*"):
                os.utime(file)
        else:
            convert(folder, OLD, overwrite=True)
        assert set(values_of(read(dataset))) == {OLD}


def test_host_memory_is_never_filled_from_the_other_dataset(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The dataset is replaced between the manifest and the columns."""
    fill = host._fill

    def late(*arguments: Any) -> None:
        monkeypatch.undo()
        overwrite(folder)
        fill(*arguments)

    monkeypatch.setattr(host, "_fill", late)
    with pytest.raises(DatasetReplacedError):
        gear_data.open(folder, residency="host")
    assert set(values_of(episodes(gear_data.open(folder, residency="host")))) == {NEW}


def test_verify_does_not_mix_datasets(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checksum = verify_module.checksum

    def late(path: Path) -> str:
        monkeypatch.undo()
        overwrite(folder)
        return checksum(path)

    monkeypatch.setattr(verify_module, "checksum", late)
    with pytest.raises(DatasetReplacedError):
        gear_data.verify(folder)
    assert gear_data.verify(folder).ok


def test_bad_shards_are_of_the_opened_dataset(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The dataset is replaced after the bad shards were found."""
    from gear_data.dataset import open as open_module

    shard = next((folder / "shards").iterdir())
    shard.write_bytes(bytes(shard.stat().st_size))
    find = open_module.find_bad_shards

    def late(*arguments: Any) -> Any:
        found = find(*arguments)
        overwrite(folder)
        return found

    monkeypatch.setattr(open_module, "find_bad_shards", late)
    with pytest.warns(RuntimeWarning, match="left out"), pytest.raises(DatasetReplacedError):
        gear_data.open(folder, on_bad_shard="skip")


def test_a_new_sidecar_in_the_same_folder_is_noticed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The dataset is copied over in place. Another process computes its sidecar."""
    ds = with_discount(folder)
    assert ds.episode(0)["returns_to_go"][0] == OLD
    other = convert(folder.with_name("other"), NEW)
    shutil.copytree(other, folder, dirs_exist_ok=True)
    write = sidecar.put_single_text

    def before_the_description(*arguments: Any) -> None:
        assert ds.episode(1)["returns_to_go"][0] == OLD
        write(*arguments)

    monkeypatch.setattr(sidecar, "put_single_text", before_the_description)
    assert gear_data.open(folder).with_discount(0).episode(1)["returns_to_go"][0] == NEW
    with pytest.raises(DatasetReplacedError):
        ds.episode(2)["returns_to_go"].sum()


def test_a_reader_that_fails_names_the_replacement(folder: Path) -> None:
    """The other dataset has fewer shards, so a file is missing."""
    ds = gear_data.open(folder)
    gear_data.convert([{"observations": np.ones((3, 1)), "actions": np.ones(3)}], folder, overwrite=True)
    with pytest.raises(DatasetReplacedError, match="replaced or removed after it was opened"):
        ds.episode(EPISODES - 1)["rewards"].sum()
    assert Manifest.load(folder).episodes == 1
