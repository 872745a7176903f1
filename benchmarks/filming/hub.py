"""A hub on this machine that answers as late and as slowly as over a network."""

from __future__ import annotations

import multiprocessing
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

REPOSITORY = "bench/robot"
_SECONDS = 120.0


@dataclass(frozen=True)
class Sent:
    """What the hub has sent.

    Attributes:
        requests: the number of requests.
        bytes: of all answers.
        video_bytes: of video files.
    """

    requests: int
    bytes: int
    video_bytes: int


class SlowHub:
    """The hub, in another process.

    Attributes:
        url: what HF_ENDPOINT is.
    """

    def __init__(self, connection: Connection[Any, Any]) -> None:
        self._connection = connection
        self.url: str = self._receive()

    def take(self) -> Sent:
        """Returns what was sent since the last call."""
        self._connection.send(True)
        return Sent(*self._receive())

    def _receive(self) -> Any:
        if not self._connection.poll(_SECONDS):
            raise TimeoutError(f"the hub does not answer within {_SECONDS:.0f} s")
        return self._connection.recv()


@contextmanager
def slow_hub(folder: Path, latency: float, bandwidth: float) -> Iterator[SlowHub]:
    """Serves a folder as the repository `REPOSITORY`.

    Args:
        folder: the files.
        latency: seconds before each answer.
        bandwidth: bytes a second, of all answers together.
    """
    spawn = multiprocessing.get_context("spawn")
    ours, theirs = spawn.Pipe()
    process = spawn.Process(target=_serve, args=(theirs, folder, latency, bandwidth), daemon=True)
    process.start()
    try:
        yield SlowHub(ours)
    finally:
        process.kill()
        process.join()
        ours.close()


def _serve(connection: Connection[Any, Any], folder: Path, latency: float, bandwidth: float) -> None:
    from tests.support.running.hub_server import running_hub

    lock, free, sent = threading.Lock(), 0.0, [0, 0, 0]

    def wait(line: str) -> None:
        time.sleep(latency)

    def send(line: str, size: int) -> None:
        nonlocal free
        with lock:
            free = max(free, time.monotonic()) + size / bandwidth
            seconds = free - time.monotonic()
            for place, count in enumerate((1, size, size * (".mp4" in line))):
                sent[place] += count
        time.sleep(max(0.0, seconds))

    with running_hub() as hub:
        hub.add(
            REPOSITORY,
            {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()},
        )
        hub.on_request, hub.on_answer = wait, send
        connection.send(hub.url)
        while connection.recv():
            with lock:
                connection.send(tuple(sent))
                sent[:] = 0, 0, 0
