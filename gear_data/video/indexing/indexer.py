"""Worker processes that index video files: `index_files` for many at once, `process_workers` for now and then."""

from __future__ import annotations

import os
import queue
import threading
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

from gear_data.common.environment import usable_cores
from gear_data.common.extras import import_extra
from gear_data.errors import GearError
from gear_data.video.file_index import VideoFile
from gear_data.video.indexing.demux import index_file
from gear_data.video.indexing.worker_process import WorkerProcess

#: Seconds that a file may take, and further seconds for each byte. Demuxing reads 100 MB a second and more.
SECONDS, SECONDS_PER_BYTE = 60.0, 2e-7
#: Files that wait for each worker.
_AHEAD = 4
#: Most workers that a process keeps. Indexing takes 10 ms of a processor for a file.
_KEPT = 2
#: Whole files that are copied at once.
_WHOLE = 4


def index_files(inputs: Iterable[tuple[Path, str, str]], jobs: int) -> Iterator[VideoFile | GearError]:
    """Yields the index of each file, or its error, in the order of the files.

    Args:
        inputs: the path of each file, its name in the index, and the name of its contents (see `index_file`).
        jobs: number of worker processes.

    Yields:
        A VideoFile, or the error of `index_file`. A file at which FFmpeg crashes or hangs has CorruptSourceError.

    Raises:
        MissingExtraError: PyAV is not installed.
    """
    import_extra("av", "video")
    workers = IndexWorkers(jobs)
    pending: deque[Future[VideoFile | GearError]] = deque()
    threads = ThreadPoolExecutor(jobs, "gear-index")
    try:
        for each in inputs:
            pending.append(threads.submit(workers.index, *each))
            if len(pending) >= jobs * _AHEAD:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
    finally:
        for waiting in pending:
            waiting.cancel()
        workers.kill()
        threads.shutdown()
        workers.close()


class IndexWorkers:
    """Worker processes that index video files, each started when it is first needed. Threads share them.

    Args:
        count: number of processes.

    Attributes:
        whole: a thread holds it while it has a local copy of a whole file. A few do at once.
    """

    def __init__(self, count: int) -> None:
        self.whole = threading.Semaphore(_WHOLE)
        self._all = [WorkerProcess() for _ in range(count)]
        self._idle: queue.SimpleQueue[WorkerProcess] = queue.SimpleQueue()
        for worker in self._all:
            self._idle.put(worker)

    def index(self, path: Path, file: str, contents: str) -> VideoFile | GearError:
        """Returns the result of `index_file` in a process, or its error.

        A file at which FFmpeg crashes or hangs has CorruptSourceError.
        """
        worker = self._idle.get()
        seconds = SECONDS
        with suppress(OSError):
            seconds += path.stat().st_size * SECONDS_PER_BYTE
        try:
            return worker.run(index_file, path, file, contents, file=file, seconds=seconds)
        finally:
            self._idle.put(worker)

    def kill(self) -> None:
        """Ends the processes. Files that they read have errors."""
        for worker in self._all:
            worker.kill()

    def close(self) -> None:
        """Waits for the end of the processes. Call it when no thread uses them."""
        for worker in self._all:
            worker.close()


#: Number of a process -> its workers: a forked child cannot use those of its parent.
_of_process: dict[int, IndexWorkers] = {}


def process_workers() -> IndexWorkers:
    """Returns worker processes that live as long as this process. Ask them in a thread that no interrupt ends.

    Raises:
        MissingExtraError: PyAV is not installed.
    """
    import_extra("av", "video")
    process = os.getpid()
    if process not in _of_process:
        _of_process.setdefault(process, IndexWorkers(min(_KEPT, usable_cores())))
    return _of_process[process]
