"""ProcessState: decoded frames, idle decoders and threads of a process.

All readers of a process share it. A forked child begins with an empty state. It never frees the inherited state: a
thread of the parent may have held a lock inside FFmpeg at the fork.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Hashable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

from gear_data.common.fork_lock import fork_safe_lock
from gear_data.video.decoding.decoder import Decoder
from gear_data.video.decoding.frame_cache import FrameCache

#: Idle decoders that a process keeps for each thread of a reader. A dataset has a few cameras of different parameters.
_IDLE_DECODERS = 4
#: Seconds that a thread waits for another thread to decode a group.
_GROUP_SECONDS = 10.0


class ProcessState:
    """Holds decoded frames, idle decoders and threads. Thread-safe.

    Attributes:
        cache: decoded frames.
    """

    def __init__(self) -> None:
        self.cache = FrameCache()
        self._lock = fork_safe_lock()
        #: Parameters of a decoder -> idle decoders. Those used last are at the end. No OrderedDict: iterating one
        #: hashes keys, and takes an interrupt that arrives in Python code of a hash for a missing key.
        self._idle: dict[Hashable, list[Decoder]] = {}
        self._executors: dict[int, ThreadPoolExecutor] = {}
        #: One of each call that decodes now.
        self._calls: set[int] = set()
        #: Groups that a thread decodes now.
        self._groups: dict[Hashable, threading.Event] = {}

    def take_decoder(self, parameters: Hashable) -> Decoder | None:
        """Returns an idle decoder of some parameters, or None. The caller gives it back."""
        with self._lock:
            idle = self._idle.get(parameters)
            return idle.pop() if idle else None

    def give_back(self, parameters: Hashable, decoder: Decoder, threads: int) -> None:
        """Makes a decoder idle. A decoder that raised an error is not given back.

        Args:
            parameters: of the decoder.
            decoder: no thread uses it.
            threads: threads of the reader.
        """
        # They are freed when the lock is free again.
        dropped: list[Decoder] = []
        with self._lock:
            self._idle[parameters] = [*self._idle.pop(parameters, ()), decoder]
            excess = sum(map(len, self._idle.values())) - _IDLE_DECODERS * threads
            while excess > 0:
                oldest = self._idle.pop(next(iter(self._idle)))
                dropped += oldest
                excess -= len(oldest)

    def executor(self, threads: int) -> ThreadPoolExecutor:
        """Returns the threads of readers that have this number of threads."""
        with self._lock:
            if threads not in self._executors:
                self._executors[threads] = ThreadPoolExecutor(threads, "gear-data-decode")
            return self._executors[threads]

    @contextmanager
    def decoding(self) -> Iterator[int]:
        """Counts the calls that decode in their own threads. Yields their number, with this one."""
        # An interrupt may leave the number behind. The next call of the thread removes it.
        mine = threading.get_ident()
        try:
            with self._lock:
                self._calls.add(mine)
                number = len(self._calls)
            yield number
        finally:
            with self._lock:
                self._calls.discard(mine)

    @contextmanager
    def only_thread(self, group: Hashable) -> Iterator[None]:
        """Waits until no other thread decodes a group, and holds the group in the block."""
        mine = threading.Event()
        try:
            while True:
                with self._lock:
                    other = self._groups.setdefault(group, mine)
                # An interrupted thread may have left the group behind. Decoding it twice does no harm.
                if other is mine or not other.wait(_GROUP_SECONDS):
                    break
            yield
        finally:
            with self._lock:
                if self._groups.get(group) is mine:
                    del self._groups[group]
            mine.set()


_state = ProcessState()
#: States of parents.
_inherited: list[ProcessState] = []


def process_state() -> ProcessState:
    """Returns the state of this process."""
    return _state


def _after_fork_in_child() -> None:
    global _state
    _inherited.append(_state)
    _state = ProcessState()


os.register_at_fork(after_in_child=_after_fork_in_child)
