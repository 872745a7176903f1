"""Conversions that fail at a chosen shard."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import gear_data
from gear_data.errors import StorageFullError
from gear_data.storage.writing.shard_writer import ShardWriter


def convert_until(source: Path, folder: Path, stop: int, options: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs a conversion whose task fails after N shards."""
    write_shard = ShardWriter._write_shard

    def fail(writer: ShardWriter, **kwargs: Any) -> Any:
        if len(writer.shards) == stop:
            raise StorageFullError("no space left on the device")
        return write_shard(writer, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(ShardWriter, "_write_shard", fail)
        with pytest.raises(StorageFullError):
            gear_data.convert(source, folder, **options)
