"""Fixtures of conversions that stop, fail or are resumed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import gear_data
from gear_data.errors import (
    StorageFullError,
)
from gear_data.ingest.sources.tables import file_stream
from gear_data.ingest.sources.tree import source as tree
from gear_data.storage.writing.shard_writer import ShardWriter

#: Bytes that `small_reads` makes sources read at a time.
READ_BYTES = 2000


@pytest.fixture
def small_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes sources read few bytes at a time."""
    monkeypatch.setattr(file_stream, "_BATCH_BYTES", READ_BYTES)
    monkeypatch.setattr(tree, "_BLOCK_BYTES", READ_BYTES)


@pytest.fixture
def stop_at(monkeypatch: pytest.MonkeyPatch) -> Callable[[int | None], None]:
    """Makes writing of a shard fail. None lets all shards succeed."""
    write_shard = ShardWriter._write_shard

    def stop(shard: int | None) -> None:
        def write(writer: ShardWriter) -> Any:
            if writer.finished_shards == shard:
                raise StorageFullError("no space left on the device")
            return write_shard(writer)

        monkeypatch.setattr(ShardWriter, "_write_shard", write)

    return stop


@pytest.fixture
def source(sources: Any, rollouts: list[Any], tmp_path: Path) -> Path:
    return sources.write_episodes(tmp_path / "s.parquet", rollouts)  # type: ignore[no-any-return]


@pytest.fixture
def half_done(source: Path, stop_at: Any, tmp_path: Path) -> Path:
    """Returns an unfinished conversion of `source` with two finished shards."""
    stop_at(2)
    with pytest.raises(StorageFullError):
        gear_data.convert(source, tmp_path / "d", shard_bytes=2048)
    stop_at(None)
    return tmp_path / "d"
