"""index_files: indexes many video files in worker processes."""

from __future__ import annotations

import queue
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

from gear_data.common.extras import import_extra
from gear_data.errors import GearError
from gear_data.video.file_index import VideoFile
from gear_data.video.indexing.demux import index_file
from gear_data.video.indexing.worker_process import WorkerProcess

#: Seconds that a file may take, and further seconds for each byte. Demuxing reads 100 MB a second and more.
SECONDS, SECONDS_PER_BYTE = 60.0, 2e-7
#: Files that wait for each worker.
_AHEAD = 4


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
    workers: queue.SimpleQueue[WorkerProcess] = queue.SimpleQueue()
    started = [WorkerProcess() for _ in range(jobs)]
    for worker in started:
        workers.put(worker)

    def run(path: Path, file: str, contents: str) -> VideoFile | GearError:
        worker = workers.get()
        seconds = SECONDS
        with suppress(OSError):
            seconds += path.stat().st_size * SECONDS_PER_BYTE
        try:
            return worker.run(index_file, path, file, contents, file=file, seconds=seconds)
        finally:
            workers.put(worker)

    pending: deque[Future[VideoFile | GearError]] = deque()
    threads = ThreadPoolExecutor(jobs, "gear-index")
    try:
        for each in inputs:
            pending.append(threads.submit(run, *each))
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
