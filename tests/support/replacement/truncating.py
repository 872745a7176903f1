"""Truncates files of a dataset while they are mapped, and reads them.

Prints the outcome of each way of reading:

    python -m tests.support.replacement.truncating FOLDER

It runs in a process of its own, because a mistake ends the process by SIGBUS.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

import gear_data
from gear_data import SequenceLoader
from gear_data.cluster.protocol import ColumnGroup, Request
from gear_data.cluster.server.shard_server import ShardServer
from gear_data.errors import CorruptShardError
from gear_data.storage import mapped_files
from gear_data.storage.dataset_files import FolderFiles
from tests.support.replacement.datasets import EPISODES, STEPS


def truncate(folder: Path, pattern: str) -> None:
    for file in folder.glob(pattern):
        os.truncate(file, 0)


def overwrite_bytes(folder: Path, pattern: str) -> None:
    for file in folder.glob(pattern):
        with file.open("r+b") as opened:
            opened.write(bytes(file.stat().st_size))


def batches(ds: Any, column: str = "observations") -> Iterator[Any]:
    loader = SequenceLoader(ds, batch_size=64, context=5, prefetch=0, columns=[column])
    for batch in loader:
        yield batch[column].sum() if column != "text" else len(batch[column])


def overlaid(ds: Any) -> Iterator[Any]:
    yield from batches(ds.with_discount(0), "returns_to_go")


def text(ds: Any) -> Iterator[Any]:
    yield from batches(ds, "text")


def whole_episodes(ds: Any) -> Iterator[Any]:
    while True:
        yield sum(ds.episode(index)["observations"].sum() for index in range(EPISODES))


def filters(ds: Any) -> Iterator[Any]:
    while True:
        yield ds.filter_steps("rewards > 0").num_steps


def exports(ds: Any) -> Iterator[Any]:
    while True:
        with tempfile.TemporaryDirectory() as folder:
            yield gear_data.export(ds, Path(folder, "a.parquet"))


def discounts(ds: Any) -> Iterator[Any]:
    yield ds.episode(0)["rewards"].sum()
    yield ds.with_discount(0.5)


def serves(ds: Any) -> Iterator[Any]:
    server = ShardServer(FolderFiles(ds.path))
    column = server.manifest.schema.index("rewards")
    while True:
        for shard in range(EPISODES):
            group = ColumnGroup((column,), np.zeros(1, np.int64), np.full(1, STEPS))
            server.answer(Request(np.array([shard]), (group,)))
        yield None


WAYS: dict[str, tuple[Callable[[Any], Iterator[Any]], str]] = {
    "batches": (batches, "shards/*"),
    "batches of a sidecar": (overlaid, "sidecars/*/*.arrow"),
    "text": (text, "shards/*"),
    "final observations": (batches, "finals.arrow"),
    "episode table": (batches, "episodes.arrow"),
    "episodes": (whole_episodes, "shards/*"),
    "filter": (filters, "shards/*"),
    "export": (exports, "shards/*"),
    "discount": (discounts, "shards/*"),
    "node": (serves, "shards/*"),
}


def main(original: Path) -> None:
    # Every batch checks: the outcome does not depend on the time.
    mapped_files.CHECK_SECONDS = 0.0
    for change in (truncate, overwrite_bytes):
        for name, (read, pattern) in WAYS.items():
            if change is overwrite_bytes and name == "discount":
                continue  # computed from the file as it is now: its checksum is the matter of `verify`
            with tempfile.TemporaryDirectory() as scratch:
                folder = Path(scratch, "d")
                shutil.copytree(original, folder)
                ds = gear_data.open(folder)
                if name == "final observations":
                    ds.final(0)["observations"].sum()
                reader = read(ds)
                next(reader)
                print(f"{change.__name__}, {name}: ", end="", flush=True)
                change(folder, pattern)
                try:
                    next(reader)
                except CorruptShardError as error:
                    print(error.message, flush=True)
                else:
                    print("nothing", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
