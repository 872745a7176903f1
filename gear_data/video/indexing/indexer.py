"""index_files: indexes many video files in worker processes.

FFmpeg parses untrusted bytes there. A crash, a hang, or too much memory is an error of one file, and the worker is
replaced.
"""

from __future__ import annotations

import queue
import subprocess
import sys
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from gear_data.common.extras import import_extra
from gear_data.errors import CorruptSourceError, GearError
from gear_data.video.file_index import VideoFile

#: Seconds that a file may take, and further seconds for each byte. Demuxing reads 100 MB a second and more.
_SECONDS, _SECONDS_PER_BYTE = 60.0, 2e-7
#: Files that wait for each worker.
_AHEAD = 4


def index_files(inputs: Iterable[tuple[Path, str]], jobs: int) -> Iterator[VideoFile | GearError]:
    """Yields the index of each file, or its error, in the order of the files.

    Args:
        inputs: the path of each file, and its name in the index.
        jobs: number of worker processes.

    Yields:
        A VideoFile, or the error of `index_file`. A file at which FFmpeg crashes or hangs has CorruptSourceError.

    Raises:
        MissingExtraError: PyAV is not installed.
    """
    import_extra("av", "video")
    workers: queue.SimpleQueue[_Worker] = queue.SimpleQueue()
    started = [_Worker() for _ in range(jobs)]
    for worker in started:
        workers.put(worker)

    def run(path: Path, file: str) -> VideoFile | GearError:
        worker = workers.get()
        try:
            return worker.index(path, file)
        finally:
            workers.put(worker)

    pending: deque[Future[VideoFile | GearError]] = deque()
    threads = ThreadPoolExecutor(jobs, "gear-index")
    try:
        for path, file in inputs:
            pending.append(threads.submit(run, path, file))
            if len(pending) >= jobs * _AHEAD:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
    finally:
        for waiting in pending:
            waiting.cancel()
        for worker in started:
            worker.kill()
        threads.shutdown()
        for worker in started:
            worker.close()


class _Worker:
    """A worker process, started at its first file and again after it died. One thread uses it at a time."""

    def __init__(self) -> None:
        self._running: tuple[subprocess.Popen[bytes], Connection[Any, Any]] | None = None

    def index(self, path: Path, file: str) -> VideoFile | GearError:
        """Returns the index of a file or its error."""
        process, connection = self._started()
        limit = _SECONDS
        with suppress(OSError):
            limit += path.stat().st_size * _SECONDS_PER_BYTE
        try:
            connection.send((path, file))
            if connection.poll(limit):
                result: VideoFile | GearError = connection.recv()
                return result
            problem = f"FFmpeg did not finish reading it within {limit:.0f} s"
        except (EOFError, OSError):
            problem = f"FFmpeg ended its process with status {process.wait()} while reading it"
        self.close()
        return CorruptSourceError(
            problem, file=file, hint="the file may be damaged: copy or download it again, or encode it again"
        )

    def kill(self) -> None:
        """Ends the process. If it is reading a file, the file has an error."""
        if self._running is not None:
            self._running[0].kill()

    def close(self) -> None:
        """Waits for the end of the process. Call it when no thread uses the worker."""
        if self._running is not None:
            process, connection = self._running
            self._running = None
            process.kill()
            process.wait()
            connection.close()

    def _started(self) -> tuple[subprocess.Popen[bytes], Connection[Any, Any]]:
        if self._running is None:
            ours, theirs = Pipe()
            with theirs:
                command = [sys.executable, "-m", "gear_data.video.indexing.worker", str(theirs.fileno())]
                process = subprocess.Popen(command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL)
            self._running = process, ours
        return self._running
