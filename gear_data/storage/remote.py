"""Where a dataset is written."""

from __future__ import annotations

from pathlib import Path

from gear_data.storage.store import LocalStore, Store


def open_store(destination: str | Path) -> Store:
    return LocalStore(Path(destination))


def is_remote(destination: str) -> bool:
    return "://" in destination
