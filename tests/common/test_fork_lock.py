"""Locks after a fork."""

from __future__ import annotations

import gc
import os
import signal
import threading
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from gear_data.video.file_index import VideoFile


class _Waiting:
    """A video file whose packets are not known before an event."""

    def __init__(self) -> None:
        self.started, self.go_on = threading.Event(), threading.Event()

    @property
    def packets(self) -> Any:
        self.started.set()
        assert self.go_on.wait(60)
        return SimpleNamespace(flags=np.zeros(3, np.int64), pts=np.array([2, 0, 1]))


@pytest.mark.processes
def test_a_property_that_a_thread_computes_is_free_in_a_child() -> None:
    """A thread decodes videos, and workers of a DataLoader are forked: in Python 3.11 they waited for ever."""
    waiting, known = _Waiting(), _Waiting()
    known.go_on.set()
    thread = threading.Thread(target=VideoFile.frames.__get__, args=(waiting,))
    thread.start()
    try:
        assert waiting.started.wait(60)
        if not (child := os.fork()):
            signal.alarm(30)  # whose default ends the child
            gc.freeze()  # a collection would free what other tests left, such as clients of gRPC
            os._exit(VideoFile.frames.__get__(known).tolist() != [1, 2, 0])
        assert os.waitpid(child, 0)[1] == 0
    finally:
        waiting.go_on.set()
        thread.join()
    assert waiting.__dict__["frames"].tolist() == [1, 2, 0]
