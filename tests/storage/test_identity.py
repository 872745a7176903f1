"""The identity of a dataset: everything that readers depend on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gear_data.errors import DatasetReplacedError
from gear_data.storage.identity import OpenedDataset, dataset_identity, file_stamp
from gear_data.storage.manifest import Manifest


@pytest.fixture
def manifest(rollouts_path: Path) -> Manifest:
    return Manifest.load(rollouts_path)


def other_statistics(manifest: Manifest) -> Any:
    mean = manifest.statistics["rewards"].mean
    column = replace(manifest.statistics["rewards"], mean=np.nextafter(mean, np.inf))
    return replace(manifest, statistics={**manifest.statistics, "rewards": column})


def other_table(name: str) -> Callable[[Manifest], Manifest]:
    def change(manifest: Manifest) -> Manifest:
        entry = replace(manifest.tables[name], checksum="xxh3-128:" + "0" * 32)
        return replace(manifest, tables={**manifest.tables, name: entry})

    return change


def other_shard(manifest: Manifest) -> Manifest:
    first, *others = manifest.shards
    entry = replace(first.entry, checksum="xxh3-128:" + "0" * 32)
    return replace(manifest, shards=(replace(first, entry=entry), *others))


def other_buffers(manifest: Manifest) -> Manifest:
    first, *others = manifest.shards
    buffers = {**first.buffers, "rewards": first.buffers["rewards"] + 8}
    return replace(manifest, shards=(replace(first, buffers=buffers), *others))


@pytest.mark.parametrize(
    "change", [other_statistics, other_table("episodes"), other_table("finals"), other_shard, other_buffers]
)
def test_what_readers_depend_on_is_covered(change: Callable[[Manifest], Manifest], manifest: Manifest) -> None:
    changed = change(manifest)
    assert dataset_identity(changed) != dataset_identity(manifest)
    opened = OpenedDataset()
    assert opened.admit(manifest, "d") is manifest
    with pytest.raises(DatasetReplacedError, match="d: the dataset was replaced"):
        opened.admit(changed, "d")
    again = OpenedDataset(opened.version)
    with pytest.raises(DatasetReplacedError):
        again.admit(changed, "d")
    assert again.admit(manifest, "d") is manifest


def test_where_it_came_from_is_not_covered(manifest: Manifest) -> None:
    """A second conversion of the same episodes is the same dataset."""
    same = replace(manifest, provenance={"source": "elsewhere"}, findings=({"code": "x"},))
    assert dataset_identity(same) == dataset_identity(manifest)
    assert dataset_identity(Manifest.from_text(manifest.to_text(), "manifest.json")) == dataset_identity(manifest)


def test_stamps(tmp_path: Path) -> None:
    file = tmp_path / "a"
    assert file_stamp(file) is None
    file.write_text("one")
    first = file_stamp(file)
    assert first is not None
    assert first == file_stamp(file)
    (tmp_path / "b").write_text("one")
    (tmp_path / "b").replace(file)
    assert file_stamp(file) != first
