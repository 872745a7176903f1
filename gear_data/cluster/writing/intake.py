"""EpisodeIntake: puts the episodes of many writers into one log, each one exactly once."""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from copy import copy
from dataclasses import dataclass, replace
from typing import Protocol

from gear_data.cluster.writing.videos import ReceivedVideos
from gear_data.errors import (
    EpisodeRefusedError,
    GearError,
    InvalidArgumentError,
    NodeRefusedError,
    NodeUnreachableError,
    RateLimitError,
    UnsupportedColumnError,
)
from gear_data.schema import ColumnSpec, split_cameras
from gear_data.storage.journal.episode_log import EarlierEpisodes, EpisodeLog
from gear_data.storage.journal.record import EpisodeOrigin, RecordedEpisode
from gear_data.storage.journal.videos import next_number

#: Seconds that a call waits for memory, or for training. Then the writer tries again.
WAIT_SECONDS = 20.0

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class IntakeLimits:
    """Limits of the memory that writers can use.

    Attributes:
        episode_bytes: size of the largest episode.
        memory_bytes: size of all episodes that are being received, together. At least one is received.
        calls: number of writers that send at the same time.
    """

    episode_bytes: int
    memory_bytes: int
    calls: int


class InsertLimit(Protocol):
    """Makes writers wait while training is too slow."""

    def wait(self, timeout: float) -> None:
        """Waits until an episode may be inserted.

        Raises:
            RateLimitError: the wait lasted longer than `timeout` seconds.
        """

    def add(self, number: int) -> None:
        """Counts inserted steps."""


class EpisodeIntake:
    """Puts the episodes of many writers into one log, each one exactly once.

    An episode has the id of its writer and a sequence number, which ascends. An episode whose number is not above the
    writer's last one was sent again. The log keeps both beside the episode, so a restarted server knows them, too.

    Thread-safe.

    Args:
        log: keeps the episodes. Nothing else uses it until `close` returns.
        earlier: the episodes that the log has.
        limits: of memory.
        insert_limit: makes writers wait for training; None: they do not wait.

    Attributes:
        columns: of all episodes, with cameras; empty before the first one.
        episodes, steps: number of those that were put into the log since the intake was made.
    """

    def __init__(
        self,
        log: EpisodeLog,
        earlier: EarlierEpisodes,
        limits: IntakeLimits,
        insert_limit: InsertLimit | None = None,
    ) -> None:
        self.limits = limits
        self._log = log
        self._insert_limit = insert_limit
        self._mutex = threading.Lock()
        self.columns = earlier.columns
        #: Writer -> sequence number of its last episode; -1: it has none.
        self._sequences, self._forgotten = dict(earlier.sequences), earlier.forgotten
        #: Writer -> hash of its last episode, as far as this process knows.
        self._contents: dict[str, int | None] = {}
        self._has_begun = self._is_unsynced = False
        self.episodes = self.steps = 0
        #: Number of the next received videos.
        self._next_video = 0 if log.video_folder is None else next_number(log.video_folder)
        #: The error that ended the intake.
        self._ended: GearError | None = None
        self._memory = threading.Condition()
        self._used_bytes = self._calls = 0

    def check_columns(self, columns: Sequence[ColumnSpec]) -> None:
        """Checks the columns and cameras of a writer. The first episode decides those of all.

        Raises:
            InvalidArgumentError: the first column that differs.
        """
        with self._mutex:
            self._check_columns(columns)

    def _check_columns(self, columns: Sequence[ColumnSpec]) -> None:
        if not self.columns:
            return
        expected, found = ({each.name: _essence(each) for each in some} for some in (self.columns, columns))
        for name in [*expected, *found]:
            if expected.get(name) != found.get(name):
                wanted = _text(expected.get(name))
                raise InvalidArgumentError(
                    f"is {_text(found.get(name))}, and the server's other episodes have {wanted}",
                    column=name,
                    hint="send steps with the columns, dtypes and shapes of the first episode",
                )

    def new_videos(self) -> ReceivedVideos:
        """Returns where the videos of one episode are received.

        Raises:
            UnsupportedColumnError: the log takes no videos.
        """
        folder = self._log.video_folder
        if folder is None:
            raise UnsupportedColumnError("the server takes no videos", hint="send frames as arrays")
        with self._mutex:
            number, self._next_video = self._next_video, self._next_video + 1
        return ReceivedVideos(folder, number)

    def add(
        self,
        episode: RecordedEpisode,
        origin: EpisodeOrigin,
        content: int,
        columns: Sequence[ColumnSpec],
        deadline: float,
    ) -> bool:
        """Puts an episode into the log, unless the log has it.

        Args:
            episode: the episode. Its videos are in the log's folder.
            origin: its writer and sequence number.
            content: hash of all that it has.
            columns: its columns and cameras.
            deadline: time of `time.monotonic` until which the call may wait for training.

        Returns:
            Whether the log took it.

        Raises:
            EpisodeRefusedError: this episode cannot be recorded, now or later. It has the sequence number.
            InvalidArgumentError: see `check_columns`.
            NodeUnreachableError: the intake is closed, or training is too slow.
            NodeRefusedError: the log has another episode of this writer and number.
            GearError: the log does not have the episode.
        """
        if not self._has(origin):
            self._wait_for_training(deadline)
        with self._mutex:
            self._check_usable()
            if self._has(origin):
                if origin.sequence == self._sequences[origin.client]:
                    self._check_same(origin, content)
                return False
            self._check_columns(columns)
            try:
                self._put(episode, origin, content, columns)
            except EpisodeRefusedError as error:
                raise _refused(error, origin.sequence) from error
            return True

    def _put(
        self, episode: RecordedEpisode, origin: EpisodeOrigin, content: int, columns: Sequence[ColumnSpec]
    ) -> None:
        if episode.finals and self.columns and not any(column.has_final for column in self.columns):
            raise EpisodeRefusedError("the dataset has no final observations", hint="leave final out")
        if not self._has_begun:
            # Columns may have another order than in earlier episodes. They are written by name.
            self._log.begin(*split_cameras(self.columns or columns))
            self._has_begun = True
        # All memory first: an episode without its number would be sent again, and taken again.
        both, steps, episodes = self.columns or tuple(columns), self.steps + episode.steps, self.episodes + 1
        self._sequences.setdefault(origin.client, -1)
        self._contents.setdefault(origin.client, None)
        before = self._log.episodes
        try:
            self._log.append(episode)
            if self._insert_limit is not None:
                self._insert_limit.add(episode.steps)
        except Exception:
            if self._log.episodes == before:
                raise
            with suppress(MemoryError):
                _log.exception("episode %d of %s was recorded, with an error", origin.sequence, origin.client)
        self.columns = both
        self._sequences[origin.client] = origin.sequence
        self._contents[origin.client] = content
        self._is_unsynced = True
        self.episodes = episodes
        self.steps = steps

    def _check_same(self, origin: EpisodeOrigin, content: int) -> None:
        if self._contents.get(origin.client) not in (None, content):
            raise copied_writer(f"has another episode {origin.sequence} of this Writer")

    def _has(self, origin: EpisodeOrigin) -> bool:
        return origin.sequence <= self._sequences.get(origin.client, -1)

    def _wait_for_training(self, deadline: float) -> None:
        """Waits. Other calls go on meanwhile."""
        if self._insert_limit is not None:
            try:
                self._insert_limit.wait(max(0.0, deadline - time.monotonic()))
            except RateLimitError as error:
                raise NodeUnreachableError(f"is busy: {error.message}") from error

    def synced(self, client: str) -> int:
        """Waits until the disk has all episodes.

        Returns:
            The sequence number of the writer's last episode, or -1.

        Raises:
            NodeUnreachableError: the intake is closed.
            GearError: the disk failed, now or before. Only a restarted server knows what the disk has then.
        """
        with self._mutex:
            self._check_usable()
            if self._is_unsynced:
                try:
                    self._log.sync()
                except GearError as error:
                    self._ended = error
                    raise
                self._is_unsynced = False
            return self._sequences.get(client, -1)

    def has_forgotten(self, client: str) -> bool:
        """Returns whether the log may have episodes of a writer, and the intake does not know."""
        with self._mutex:
            return self._sequences.get(client, -1) < 0 and client <= self._forgotten

    def forget(self, client: str) -> None:
        """Lets the log forget a writer that sends no episode any more."""
        with self._mutex:
            if self._sequences.get(client, -1) >= 0:
                # A call that broke may still be read here. Its episodes were sent again, and are in the log.
                self._sequences[client] = sys.maxsize
                self._log.forget(client)

    def close(self) -> None:
        """Refuses all further episodes. The log can be sealed then."""
        with self._mutex:
            self._ended = self._ended or NodeUnreachableError("is shutting down")

    def _check_usable(self) -> None:
        if self._ended is not None:
            raise copy(self._ended)

    @contextmanager
    def call(self) -> Iterator[None]:
        """Counts a call in which a writer sends episodes.

        Raises:
            NodeUnreachableError: too many writers send at the same time.
        """
        with self._memory:
            if self._calls >= self.limits.calls:
                raise NodeUnreachableError(f"is busy: {self._calls} writers send at the same time")
            self._calls += 1
        try:
            yield
        finally:
            with self._memory:
                self._calls -= 1

    @contextmanager
    def memory(self, size: int) -> Iterator[None]:
        """Waits for the memory of an episode, and holds it.

        Args:
            size: bytes of the episode.

        Raises:
            InvalidArgumentError: the episode is too large.
            NodeUnreachableError: other writers' episodes fill the memory.
        """
        if size > self.limits.episode_bytes:
            raise episode_too_large(size, self.limits.episode_bytes)
        deadline = time.monotonic() + WAIT_SECONDS
        with self._memory:
            while self._used_bytes and self._used_bytes + size > self.limits.memory_bytes:
                if not self._memory.wait(deadline - time.monotonic()):
                    raise NodeUnreachableError("is busy: episodes of other writers fill its memory")
            self._used_bytes += size
        try:
            yield
        finally:
            with self._memory:
                self._used_bytes -= size
                self._memory.notify_all()


def copied_writer(what: str) -> NodeRefusedError:
    """Returns the error of a Writer as which another process sends, too.

    Args:
        what: what the server has.
    """
    return NodeRefusedError(
        f"{what}: the machine of the Writer was copied while it ran",
        hint="make another Writer, and record the episodes again that the server has not acknowledged",
    )


def episode_too_large(size: int, limit: int) -> InvalidArgumentError:
    """Returns the error for an episode that a server does not take."""
    return InvalidArgumentError(
        f"the episode has {size:,} bytes, and the server takes at most {limit:,}",
        hint="end episodes earlier, or restart the server with a larger --max-episode",
    )


def _refused(error: EpisodeRefusedError, sequence: int) -> EpisodeRefusedError:
    """Returns the error for the writer of an episode, which has ended there."""
    found = EpisodeRefusedError(
        f"refused episode {sequence} of this Writer: {error.message}",
        column=error.column,
        hint=f"the Writer drops this episode: record it again, and {error.hint}",
    )
    found.sequence = sequence
    return found


def _essence(column: ColumnSpec) -> ColumnSpec:
    """Returns what columns of one name must share. Cameras share the size of frames.

    A writer does not know whether the dataset has final observations.
    """
    if column.video is None:
        return replace(column, has_final=False, source=None, element_names=())
    return replace(column, source=None, video=replace(column.video, fps=None))


def _text(column: ColumnSpec | None) -> str:
    if column is None:
        return "missing"
    kind = "" if column.video is None else "a camera of "
    return f"{kind}{column.dtype} {list(column.shape)}"
