"""Conversions from and to an S3 server."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import gear_data
from gear_data.errors import (
    DatasetNotFoundError,
    DestinationExistsError,
    RemoteError,
)
from gear_data.storage.remote.object_store import ObjectStore, open_file_store
from tests.support.remote import CuttingProxy, check_equal_batches, upload


def test_conversion_from_and_to_s3(
    sources: Any, rollouts: Any, rollouts_path: Path, s3_url: str, tmp_path: Path
) -> None:
    sources.write_d4rl(tmp_path / "h/source.hdf5", rollouts)
    sources.write_episodes(tmp_path / "p/data.parquet", rollouts, row_group=7)
    upload(tmp_path / "p", f"{s3_url}/p")
    upload(tmp_path / "h", f"{s3_url}/h")
    local = gear_data.convert(tmp_path / "p", tmp_path / "local", shard_bytes=4096)
    assert gear_data.convert(f"{s3_url}/h", tmp_path / "from").fingerprint == gear_data.open(rollouts_path).fingerprint
    report = gear_data.convert(f"{s3_url}/p", f"{s3_url}/to", shard_bytes=4096)
    assert (report.fingerprint, report.shards) == (local.fingerprint, local.shards)
    files = open_file_store(f"{s3_url}/to").files()
    assert not [name for name in files if ".progress" in name]
    with pytest.raises(DestinationExistsError):
        gear_data.convert(f"{s3_url}/p", f"{s3_url}/to", overwrite=True)
    assert check_equal_batches(gear_data.open(f"{s3_url}/to"), gear_data.open(tmp_path / "local")) == 12


def test_an_interrupted_conversion_to_s3_is_resumed(
    sources: Any, rollouts: Any, s3_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = sources.write_episodes(tmp_path / "data.parquet", rollouts, row_group=7)
    local = gear_data.convert(source, tmp_path / "local", shard_bytes=2048)
    upload, sent = ObjectStore.upload, []

    def fails(self: ObjectStore, path: Path, file: str) -> None:
        if file.startswith("shards/"):
            sent.append(file)
            if len(sent) == 3:
                raise RemoteError("the server is gone", file=file)
        upload(self, path, file)

    monkeypatch.setattr(ObjectStore, "upload", fails)
    with pytest.raises(RemoteError, match="the server is gone"):
        gear_data.convert(source, s3_url, shard_bytes=2048)
    with pytest.raises(DatasetNotFoundError, match="did not finish"):
        gear_data.open(s3_url)
    with pytest.raises(DestinationExistsError, match="--resume"):
        gear_data.convert(source, s3_url, shard_bytes=2048)
    assert gear_data.convert(source, s3_url, shard_bytes=2048, resume=True).fingerprint == local.fingerprint
    assert local.shards > 3
    assert len(sent) == local.shards + 1
    assert gear_data.verify(s3_url).ok


@pytest.mark.parametrize("seed", [0, 1])
def test_broken_connections(
    sources: Any, s3_url: str, tmp_path: Path, through_proxy: Callable[[list[int]], CuttingProxy], seed: int
) -> None:
    rollouts = sources.make_rollouts(60, seed=seed)
    for kind, write in (("h", sources.write_d4rl), ("p", sources.write_episodes)):
        write(tmp_path / kind / f"data.{'hdf5' if kind == 'h' else 'parquet'}", rollouts)
        upload(tmp_path / kind, f"{s3_url}/{kind}")
    local = gear_data.convert(tmp_path / "p", tmp_path / "local", shard_bytes=4096)
    numbers = random.Random(seed)
    cuts = [numbers.randrange(1, 30000) for _ in range(40)]
    proxy = through_proxy(cuts)
    assert gear_data.convert(f"{s3_url}/p", f"{s3_url}/to", shard_bytes=4096).fingerprint == local.fingerprint
    assert gear_data.convert(f"{s3_url}/h", tmp_path / "from").fingerprint
    assert check_equal_batches(gear_data.open(f"{s3_url}/to"), gear_data.open(tmp_path / "local")) == 12
    assert proxy.cut > 2


def test_a_dead_server_raises_soon(
    s3_url: str, tmp_path: Path, through_proxy: Callable[[list[int]], CuttingProxy]
) -> None:
    through_proxy([]).close()
    begin = time.monotonic()
    with pytest.raises(RemoteError, match="tried 5 times"):
        gear_data.open(s3_url)
    with pytest.raises(RemoteError, match="tried 5 times"):
        gear_data.convert(s3_url, tmp_path / "x")
    assert time.monotonic() - begin < 30
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize("kind", ["hdf5", "parquet"])
def test_a_server_that_dies_midway_is_not_a_damaged_file(
    kind: str, sources: Any, s3_url: str, tmp_path: Path, through_proxy: Callable[[list[int]], CuttingProxy]
) -> None:
    rollouts = sources.make_rollouts(200, seed=1)
    write = sources.write_d4rl if kind == "hdf5" else sources.write_episodes
    path = write(tmp_path / f"source/data.{kind}", rollouts)
    assert path.stat().st_size > 8000
    upload(path.parent, s3_url)
    through_proxy([4000] * 1000)
    with pytest.raises(RemoteError):
        gear_data.convert(s3_url, tmp_path / "x")
