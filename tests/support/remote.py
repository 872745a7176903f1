"""Helpers for tests of remote datasets."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

import gear_data
from gear_data.storage.remote.range_reader import filesystem_of
from tests.support.feed.arguments import grouped


class CuttingProxy:
    """A proxy that cuts the first connections after given numbers of response bytes."""

    def __init__(self, endpoint: str, cuts: list[int]) -> None:
        host, port = endpoint.rsplit(":", 1)
        self._server = (host, int(port))
        self._cuts = cuts
        self.cut = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._listen, daemon=True).start()

    def close(self) -> None:
        with suppress(OSError):  # already closed
            self._listener.shutdown(socket.SHUT_RDWR)  # unlike `close`, this ends `accept`
        self._listener.close()

    def _listen(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            budget = self._cuts.pop(0) if self._cuts else None
            server = socket.create_connection(self._server)
            threading.Thread(target=self._pass, args=(client, server, None), daemon=True).start()
            threading.Thread(target=self._pass, args=(server, client, budget), daemon=True).start()

    def _pass(self, source: socket.socket, target: socket.socket, budget: int | None) -> None:
        try:
            while data := source.recv(1 << 14):
                if budget is not None and len(data) >= budget:
                    self.cut += 1
                    target.sendall(data[:budget])
                    break
                budget = None if budget is None else budget - len(data)
                target.sendall(data)
        except OSError:
            pass
        for each in (source, target):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)


def check_equal_batches(first: Any, second: Any, **options: Any) -> int:
    arguments = {"batch_size": 8, "context": 5, "preset": "decision_transformer", "seed": 3, "steps": 12, **options}
    count = 0
    loaders = [gear_data.SequenceLoader(dataset, **grouped(**arguments)) for dataset in (first, second)]
    for mine, theirs in zip(*loaders, strict=True):
        assert mine.keys() == theirs.keys()
        for key in mine:
            np.testing.assert_array_equal(np.asarray(mine[key]), np.asarray(theirs[key]), err_msg=key)
        count += 1
    return count


def upload(folder: Path, url: str) -> Any:
    filesystem, place = filesystem_of(url)
    filesystem.put(f"{folder}/", place, recursive=True)
    return filesystem, place
