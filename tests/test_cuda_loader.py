"""SequenceLoader(device="cuda") on a stand-in for a GPU: the same batches as on the CPU, in every order of the streams."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent / "feed"))

import feed_data
from cupy_stand_in import read_later, stand_in

import gear_data
from gear_data import SequenceLoader

BATCH, CONTEXT = 8, 9


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("kernels")


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    episodes = feed_data.locomotion([7, 1, 23, 40, 2, 20, 19, 21, 5], seed=11)
    place = tmp_path_factory.mktemp("device") / "dataset"
    feed_data.convert_episodes(episodes, place, shard_bytes=1024)
    return place


@pytest.fixture(params=[True, False], ids=["consumer first", "device first"])
def cupy(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, folder: Path) -> Any:
    with stand_in(monkeypatch, folder, consumer_first=request.param) as fake:
        yield fake


def test_first(cupy: Any, path: Path) -> None:
    options = dict(batch_size=BATCH, context=CONTEXT, preset="decision_transformer", seed=3, steps=12)
    expected = [{k: v.clone() for k, v in batch.items()} for batch in SequenceLoader(gear_data.open(path), **options)]
    ds = gear_data.open(path, residency="device")
    got = [read_later(cupy, batch) for batch in SequenceLoader(ds, device="cuda", backend="cuda", **options)]
    cupy.streams.finish_all()
    assert len(got) == len(expected)
    for one, other in zip(got, expected, strict=True):
        assert one.keys() == other.keys()
        for key in one:
            assert one[key].dtype == other[key].dtype
            assert torch.equal(one[key], other[key]), key
