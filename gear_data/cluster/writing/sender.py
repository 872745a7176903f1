"""EpisodeSender: keeps finished episodes in memory until the server has them."""

from __future__ import annotations

import atexit
import logging
import os
import random
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Sequence

from gear_data.cluster.writing.connection import OutgoingEpisode, WriteConnection
from gear_data.cluster.writing.intake import copied_writer
from gear_data.errors import (
    ClusterError,
    EpisodeRefusedError,
    ForkedProcessError,
    GearError,
    NodeRefusedError,
    NodeUnreachableError,
)
from gear_data.schema import ColumnSpec

WRITE_TIMEOUT_VARIABLE, WRITE_BUFFER_VARIABLE = "GEAR_DATA_WRITE_TIMEOUT", "GEAR_DATA_WRITE_BUFFER"
#: Most bytes of episodes in one call, unless one episode has more.
_CALL_BYTES = 32 << 20
#: Seconds before a failed call is repeated. Each further delay is twice as long, up to the last one.
FIRST_DELAY, LAST_DELAY = 0.1, 5.0

#: Seconds for which `stop` waits for a call. Only a busy machine, or a server that hangs, needs more than one.
_END_SECONDS = 10.0

_log = logging.getLogger(__name__)

_senders: weakref.WeakSet[EpisodeSender] = weakref.WeakSet()


class EpisodeSender:
    """Sends finished episodes in a thread, in order, and keeps each one until it is acknowledged.

    If the server cannot be reached, the thread tries again. After any other error it waits: a `flush` or the second
    `put` makes it try again, and the first `put` raises the error. An episode is dropped only if the server's error
    names its number.

    Args:
        connection: the server.
        columns: the columns and cameras of all episodes.
        buffer_bytes: size of the episodes that are kept. At least one is kept.
        seconds: the longest wait without an acknowledgement.
    """

    def __init__(
        self, connection: WriteConnection, columns: Sequence[ColumnSpec], buffer_bytes: int, seconds: float
    ) -> None:
        self._connection, self._columns = connection, tuple(columns)
        self._limit, self._seconds = buffer_bytes, seconds
        self._pid = os.getpid()
        self._changed = threading.Condition()
        self._kept: deque[OutgoingEpisode] = deque()
        self._bytes = 0
        #: Whether the thread waits after an error, and the error if nobody has seen it.
        self._is_paused = False
        self._error: GearError | None = None
        #: Whether the last error was about this Writer.
        self._is_unknown = False
        #: The reason why the last call failed, if the thread tries again.
        self._trouble: NodeUnreachableError | None = None
        #: Sequence number of the last acknowledged episode, and the time of the acknowledgement.
        self._acknowledged, self._progress = -1, time.monotonic()
        #: Sequence number of the last episode that a call has sent, or tried to send.
        self._sent = -1
        self._is_stopped = False
        self._thread = threading.Thread(target=self._run, name="gear-data-writer", daemon=True)
        self._thread.start()
        _senders.add(self)

    def put(self, episode: OutgoingEpisode) -> None:
        """Takes an episode. Waits while the buffer is full.

        Raises:
            NodeUnreachableError: the server acknowledged nothing for a long time. The episode was not taken.
            ForkedProcessError: a child process calls it.
            EpisodeRefusedError: an earlier episode was refused, and is dropped. The episode was not taken.
            GearError: the server could not take an earlier episode. The episode was not taken.
        """
        self._check_process()
        with self._changed:
            self._raise_error()
            self._resume()
            self._wait(lambda: not self._kept or self._bytes + episode.bytes <= self._limit)
            self._kept.append(episode)
            self._bytes += episode.bytes
            self._changed.notify_all()

    def flush(self) -> None:
        """Waits until the server has all episodes.

        Raises:
            NodeUnreachableError: the server acknowledged nothing for a long time. The episodes are still sent.
            ForkedProcessError: a child process calls it.
            EpisodeRefusedError: an episode was refused, and is dropped. The next call sends the episodes behind it.
            GearError: the server could not take an episode. `flush` tries again.
        """
        self._check_process()
        with self._changed:
            if isinstance(self._error, EpisodeRefusedError):
                self._raise_error()  # no other try would find it again
            self._error = None
            self._resume()
            self._wait(lambda: not self._kept)

    def stop(self) -> None:
        """Ends the thread. Episodes that are not acknowledged are not sent any more."""
        with self._changed:
            self._is_stopped = True
            self._changed.notify_all()
        self._thread.join(_END_SECONDS)

    def _raise_error(self) -> None:
        if self._error is not None:
            error, self._error = self._error, None
            raise error

    def _resume(self) -> None:
        self._is_paused = False
        self._changed.notify_all()

    def _wait(self, condition: Callable[[], bool]) -> None:
        begin = time.monotonic()
        while True:
            self._raise_error()
            if condition():
                return
            left = max(begin, self._progress) + self._seconds - time.monotonic()
            if left <= 0:
                raise self._late()
            # The main thread gets an interrupt only between two waits.
            self._changed.wait(min(left, 1.0))

    def _late(self) -> NodeUnreachableError:
        reason = f": {self._trouble.message}" if self._trouble is not None else ""
        return NodeUnreachableError(
            f"did not acknowledge {len(self._kept)} episodes within {self._seconds:g} s{reason}",
            file=self._connection.name,
            hint="the episodes are kept: start the server again, then call flush",
        )

    @property
    def is_of_this_process(self) -> bool:
        """Whether this process made it. A forked child has no thread that sends."""
        return os.getpid() == self._pid

    def _check_process(self) -> None:
        if not self.is_of_this_process:
            raise ForkedProcessError(
                "this Writer belongs to the parent process", hint="make another Writer in the child process"
            )

    def _run(self) -> None:
        failures = 0
        while (episodes := self._next_call()) is not None:
            try:
                if failures:
                    # The last call may have arrived, without its acknowledgement.
                    hello = self._connection.hello(self._columns)
                    # A server that refused this Writer may have episodes of a copy under these numbers.
                    last = self._acknowledged if self._is_unknown else self._checked(hello.last)
                    if not hello.forgot:
                        self._warn_of_losses(last)
                    if last > self._acknowledged:
                        self._acknowledge(last)
                    if episodes[-1].sequence > last:
                        episodes = [each for each in episodes if each.sequence > last]
                        again = [each for each in episodes if each.sequence <= self._sent]
                        last = self._put(episodes)
                        if hello.forgot and again:
                            self._warn_of_copies(len(again))
                else:
                    last = self._put(episodes)
            except NodeUnreachableError as error:
                failures += 1
                self._pause(error, min(FIRST_DELAY * 2 ** (failures - 1), LAST_DELAY))
            except Exception as error:
                failures += 1
                with self._changed:
                    if isinstance(error, EpisodeRefusedError):
                        self._drop(error.sequence)
                    self._is_paused = True
                    self._error = error if isinstance(error, GearError) else _unexpected(error)
                    self._is_unknown |= isinstance(error, NodeRefusedError)
                    self._changed.notify_all()
            else:
                failures = 0
                self._is_unknown = False
                self._acknowledge(last)

    def _put(self, episodes: Sequence[OutgoingEpisode]) -> int:
        self._sent = max(self._sent, episodes[-1].sequence)
        return self._checked(self._connection.put(self._columns, episodes))

    def _checked(self, last: int) -> int:
        """Returns the sequence number of the last episode that the server has.

        Raises:
            NodeRefusedError: this Writer has not sent it.
        """
        if last > self._sent:
            raise copied_writer(f"has episode {last} of this Writer, which has sent {self._sent + 1}")
        return last

    def _drop(self, sequence: int | None) -> None:
        """Drops an episode. The server may have taken those before it, without an acknowledgement."""
        for episode in [each for each in self._kept if each.sequence == sequence]:
            self._kept.remove(episode)
            episode.remove_videos()
            self._bytes -= episode.bytes

    def _next_call(self) -> list[OutgoingEpisode] | None:
        """Waits for episodes, and returns the first ones; None: the sender was stopped."""
        with self._changed:
            while not self._is_stopped and (not self._kept or self._is_paused):
                self._changed.wait()
            if self._is_stopped:
                return None
            found: list[OutgoingEpisode] = []
            size = 0
            for episode in self._kept:
                size += episode.bytes
                if found and size > _CALL_BYTES:
                    break
                found.append(episode)
            return found

    def _pause(self, error: NodeUnreachableError, seconds: float) -> None:
        with self._changed:
            if self._trouble is None:
                _log.warning("%s: episodes wait: %s", self._connection.name, error.message)
            self._trouble = error
            # Random, so that writers whose server was restarted do not return together.
            deadline = time.monotonic() + seconds * random.uniform(0.5, 1.0)
            while not self._is_stopped and (left := deadline - time.monotonic()) > 0:
                self._changed.wait(left)

    def _acknowledge(self, last: int) -> None:
        with self._changed:
            while self._kept and self._kept[0].sequence <= last:
                episode = self._kept.popleft()
                episode.remove_videos()
                self._bytes -= episode.bytes
            self._acknowledged = max(self._acknowledged, last)
            self._progress, self._trouble = time.monotonic(), None
            self._changed.notify_all()

    def _warn_of_losses(self, last: int) -> None:
        if last < self._acknowledged:
            _log.warning(
                "%s: the server has lost %d episodes that it had acknowledged",
                self._connection.name,
                self._acknowledged - last,
            )

    def _warn_of_copies(self, number: int) -> None:
        _log.warning(
            "%s: %d episodes may be in the dataset twice: their acknowledgement was lost, and the server has forgotten "
            "this Writer since; gear-data dedupe leaves copies out",
            self._connection.name,
            number,
        )


def _unexpected(error: Exception) -> ClusterError:
    _log.error("the thread that sends episodes failed", exc_info=error)
    return ClusterError(f"cannot send episodes: {type(error).__name__}: {error}", hint="the log has the traceback")


@atexit.register
def _stop_all() -> None:
    """Ends the threads before the interpreter ends: a call that returns after that would crash the process."""
    for sender in list(_senders):
        if sender.is_of_this_process:
            sender.stop()
