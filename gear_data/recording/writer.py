"""Writer: records episodes into a dataset that grows."""

from __future__ import annotations

import os
import threading
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Never, get_args

import numpy as np
import numpy.typing as npt

from gear_data.common.keywords import check_range, refuse_keywords_of, refuse_misspelled, suggest_keywords
from gear_data.common.paths import absolute_path, is_remote, plain_path
from gear_data.errors import EpisodeRefusedError, ForkedProcessError, InvalidArgumentError, NodeUnreachableError
from gear_data.growing.publish import Publication
from gear_data.growing.seal_options import OLDEST, SealOptions
from gear_data.ingest.engine.spec import MIN_SHARD_BYTES, SHARD_BYTES
from gear_data.recording.cameras.camera import Camera
from gear_data.recording.cameras.recorder import CameraRecorder
from gear_data.recording.declared_columns import declared_columns
from gear_data.recording.open_episodes import OpenEpisodes
from gear_data.recording.rate_limit.limit import RateLimit
from gear_data.recording.rate_limit.limiter import RateLimiter
from gear_data.recording.sinks.opening import open_sink
from gear_data.recording.step_columns import (
    check_names,
    checked_flags,
    checked_rows,
    checked_value,
    first_row,
    flat_step,
    infer_columns,
    num_rows,
    one_row,
)
from gear_data.schema import ColumnSpec, Schema
from gear_data.storage.journal.record import RecordedEpisode
from gear_data.words import Durability

#: Arguments of methods that take any other name as a column or a fact.
_ENDS = ("env_id", "terminated", "truncated", "final")


@suggest_keywords
class Writer:
    """Records episodes step by step into a dataset that grows.

    A finished episode goes into a journal in the folder `PATH.journal`. `seal` makes a generation of the dataset: all
    earlier episodes, then those of the journal. Readers that have the dataset open keep their generation;
    `Dataset.refresh` gives them the new one. If the process dies, the journal has every finished episode, and the next
    `Writer` of the same path publishes them. An episode that was open is lost as a whole.

    Several Writers of one path, in one or several processes, append to the same dataset. The path may have a dataset of
    the same columns already. Methods may be called from several threads; in a forked child they raise
    ForkedProcessError, and in a signal handler that interrupts another call InvalidArgumentError. As a context manager,
    a Writer closes at the end of the block, also after an exception: `with gear_data.Writer("runs/") as writer: ...`. A
    Writer that is not closed warns with a ResourceWarning, and leaves its episodes as if the process had died.

    Args:
        path: the folder of the dataset. Or `s3://BUCKET/PATH` on a server that has conditional puts: the journals are
            on this machine, and `flush` and `seal` upload them. Or `gear://HOST:PORT`: a server of
            `gear-data serve --writable`, which makes the dataset. Finished episodes are then kept in memory until the
            disk of the server has them. With `durability="episode"`, `end_episode` waits for that; else `flush` does.
        durability: when a finished episode outlives a loss of power: `episode`, when `end_episode` returns; `flush`,
            when `flush` returns; `os`, when the operating system wrote it. It always outlives the process. Of an
            `s3://` dataset, it outlives the loss of this machine's disk only when `flush` or `seal` returned.
        shard_bytes: the size up to which shards are filled, in bytes of column data.
        publish_every: seconds between generations that a thread publishes; None: `seal` and `close` publish.
        max_steps, max_bytes: the largest size of the dataset. A generation keeps its newest shard in any case. None: no
            limit.
        evict: what leaves first: `oldest`, whole shards; or a numeric column of the episode table, such as `return`:
            single episodes of the smallest values.
        schema: the columns of every step: the schema of a dataset, such as `gear_data.open("runs/").schema`, or a
            mapping of column -> (dtype, shape), such as `{"actions": ("float32", (6,)), "rewards": ("float32", ())}`.
            The dtype of text is `str`. None: the first step decides.
        cameras: column -> `Camera`. The frames of these columns are encoded as video while they are recorded.
        rate_limit: how far this Writer may be ahead of training: `end_episode` and `append_batch` wait before they end
            an episode. `rate_limited` is the side of training.

    Raises:
        InvalidArgumentError: the path is another URL, or its server ignores the conditions of puts, or an argument has
            a wrong value.
        UnknownArgumentError: there is no argument of a name.
        DestinationExistsError: the folder holds other files.
        UnwritableError: the folder cannot be written to.
        RemoteError: the server of the bucket cannot be reached. `flush`, `seal` and `close` raise it, too: the episodes
            stay in the journals of this machine.
        NodeUnreachableError, NodeRefusedError: the server cannot be reached, or does not accept the token. Later
            calls raise these errors, too, and other errors of the server.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        durability: Durability = "episode",
        shard_bytes: int = SHARD_BYTES,
        publish_every: float | None = None,
        max_steps: int | None = None,
        max_bytes: int | None = None,
        evict: str = OLDEST,
        schema: Schema | Mapping[str, Any] | None = None,
        cameras: Mapping[str, Camera] | None = None,
        rate_limit: RateLimit | None = None,
        **unknown: Never,
    ) -> None:
        refuse_keywords_of(Writer, unknown)
        if durability not in get_args(Durability):
            words = ", ".join(get_args(Durability))
            raise InvalidArgumentError(f"durability must be one of {words}, not {durability!r}")
        if publish_every is not None and not (isinstance(publish_every, int | float) and publish_every > 0):
            raise InvalidArgumentError(f"publish_every must be above 0, not {publish_every!r}")
        check_range("shard_bytes", shard_bytes, MIN_SHARD_BYTES)
        #: Whether the disk has an episode when the call that ends it returns.
        self._syncs = durability == "episode"
        self._columns: dict[str, ColumnSpec] = {}
        self._cameras = CameraRecorder(cameras or {})
        self._declared = None if schema is None else self._cameras.declare(declared_columns(schema))
        self._open: OpenEpisodes | None = None
        #: The slot of the episode that ends, and the number of finished episodes before its end.
        self._ending: tuple[int, int] | None = None
        #: Sequence number -> error about an episode that a server refused, if no call has raised it. `close` does.
        self._refused: dict[int, EpisodeRefusedError] = {}
        self._pid = os.getpid()
        self._mutex = threading.RLock()
        self._closed = True
        self._path = text = plain_path(path)
        place = text if is_remote(text) else absolute_path(text)  # the current folder may change
        options = SealOptions(shard_bytes, max_steps, max_bytes, evict)
        self._limiter: RateLimiter | None = None
        #: Whether episodes end without a wait for training: the Writer closes next.
        self._is_closing = False
        if rate_limit is not None and not is_remote(text):
            self._limiter = RateLimiter(Path(place), rate_limit, "inserted")
        self._sink = open_sink(place, options, publish_every, limited=rate_limit is not None)
        self._closed = False

    # At the interpreter's exit, the modules `warnings` and `os` can be gone before the Writer.
    def __del__(self, warn: Callable[..., None] = warnings.warn, getpid: Callable[[], int] = os.getpid) -> None:
        if not getattr(self, "_closed", True) and getpid() == self._pid:
            warn(
                f"the Writer of {self._path} was not closed: episodes that are open, or that a server has not "
                "acknowledged, are lost; the next Writer publishes the others. Call close(), or use "
                "'with gear_data.Writer(...) as writer:'",
                ResourceWarning,
                stacklevel=2,
                source=self,
            )

    @property
    def episodes(self) -> int:
        """The number of finished episodes. The episodes of a Writer that died count."""
        return self._sink.episodes

    @property
    def columns(self) -> tuple[ColumnSpec, ...] | None:
        """The columns of every step, end flags left out; None: the first step will decide."""
        if self._open is not None:
            return (*self._columns.values(), *self._cameras.columns)
        return self._declared or self._sink.columns()

    def append(self, env_id: int = 0, **step: Any) -> None:
        """Appends a step to the open episode of an environment.

        Values are numbers, arrays, text or bytes, and mappings or tuples of these (Dict and Tuple spaces). Without
        `schema`, the first step of a Writer decides the columns, their dtypes and shapes. Python's numbers fit into a
        column of floats.

        Args:
            env_id: the environment.
            step: column -> value, such as `observations=obs, actions=action, rewards=reward`.

        Raises:
            InvalidArgumentError: a column is missing, or there is another one, or a value has another dtype or shape.
                The open episode stays as it is.
            UnsupportedColumnError: a value of the first step is neither numbers, text nor bytes.
        """
        self._check_process()
        with self._mutex:
            flat, frames = self._cameras.split(flat_step(step))
            opened = self._opened(flat, frames)
            slot = opened.slot(env_id)
            length = opened.length(slot)
            where = f"step {length} of the open episode of environment {env_id}"
            check_names(flat, self._columns, where)
            row = {name: checked_value(flat[name], column, where) for name, column in self._columns.items()}
            if self._cameras.columns:
                self._cameras.append([slot], [length], self._cameras.checked(frames, None, where))
            opened.append_row(slot, row)

    def append_batch(
        self,
        env_id: Sequence[int] | None = None,
        *,
        terminated: Any = None,
        truncated: Any = None,
        final: Any = None,
        **steps: Any,
    ) -> None:
        """Appends a step to the open episode of each of n environments, and ends episodes.

        Args:
            env_id: the environments, n different ints. None is 0 to n - 1.
            terminated, truncated: bool [n], which episodes end with this step; None: none.
            final: the observations after this step, as in `end_episode`, with n rows. Only rows of episodes that end
                are used. None: episodes have no final observation.
            steps: column -> n values.

        Raises:
            InvalidArgumentError, UnsupportedColumnError: see `append`. No environment has the step then.
            UnknownArgumentError: a column of the first step is nearly called like an argument, such as `terminate`.
            StorageFullError, UnwritableError: the journal cannot be written, or see `end_episode`. Episodes that are
                not in it stay open, with this step: call `end_episode` for them.
            RateLimitError: training is too slow. No environment has the step then.
        """
        self._check_process()
        if self._open is None:  # later steps have the columns of the first one
            refuse_misspelled("Writer.append_batch", steps, _ENDS, "a column needs a name that differs more")
        if self._limiter is not None and (np.any(terminated) or np.any(truncated)):
            self._wait()
        with self._mutex:
            flat, frames = self._cameras.split(flat_step(steps))
            first = first_row(flat), first_row(frames)
            count = num_rows(flat)
            environments = list(range(count)) if env_id is None else [int(each) for each in env_id]
            if len(environments) != count or len(set(environments)) != count:
                raise InvalidArgumentError(f"env_id must be {count} different ints, not {environments!r:.80}")
            opened = self._opened(*first)
            where = f"a step of {count} environments"
            check_names(flat, self._columns, where)
            rows = {name: checked_rows(flat[name], column, count, where) for name, column in self._columns.items()}
            flags = checked_flags(terminated, count, "terminated"), checked_flags(truncated, count, "truncated")
            finals = {} if final is None else self._finals(final, count, where)
            slots = opened.slots(environments)
            if self._cameras.columns:
                lengths = [opened.length(slot) for slot in slots.tolist()]
                self._cameras.append(slots.tolist(), lengths, self._cameras.checked(frames, count, where))
            opened.append(slots, rows)
            ended = flags[0] | flags[1]
            if self._cameras.columns:
                self._cameras.begin_finish(slots[ended].tolist(), sync=self._syncs)
            for row in ended.nonzero()[0].tolist():
                last = {name: values[row] for name, values in finals.items()}
                self._end(opened, int(slots[row]), bool(flags[0][row]), bool(flags[1][row]), last, {}, sync=self._syncs)

    def end_episode(
        self, env_id: int = 0, *, terminated: bool = False, truncated: bool = False, final: Any = None, **facts: Any
    ) -> None:
        """Ends the open episode of an environment, and writes the episode to the journal.

        Args:
            env_id: the environment.
            terminated, truncated: how it ended, as Gymnasium's `step` says. An episode that did not terminate is
                recorded as truncated.
            final: the observation after the last step: a value, or a mapping of values for a Dict space. Frames of
                cameras and text are left out. None: the episode has no final observation.
            facts: about the episode: text, numbers and booleans, such as `task="lift"` or `seed=3`. They become columns
                of the episode table.

        Raises:
            InvalidArgumentError: the environment has no open episode, or the final observation has another dtype or
                shape, or the dataset has none, or a fact is no text, number or boolean, or has another type than in
                earlier episodes, or no episode has the fact of `evict`. The episode stays open. With `gear://`, see
                `flush`: an EpisodeRefusedError with a `sequence` is about an episode that has ended.
            UnknownArgumentError: a fact is nearly called like an argument, such as `terminate`. The episode stays open.
            UnsupportedColumnError: another Writer recorded the first episode of all, or another dataset took the place,
                with other columns. The episode stays open.
            StorageFullError, UnwritableError: the journal cannot be written, and the episode stays open: call again. Or
                the journal has it, and the disk failed: see `flush`. `open_episodes` tells which.
            RateLimitError: training is too slow. The episode stays open: call again.
            NodeUnreachableError: the server acknowledged nothing for a long time. If the episode is still open, call
                again; else call `flush`.
        """
        refuse_misspelled("Writer.end_episode", facts, _ENDS, "a fact needs a name that differs more")
        self._check_process()
        self._wait()
        with self._mutex:
            opened, slot = self._opened_with_steps(env_id)
            where = f"the final observation of environment {env_id}"
            finals = (
                {}
                if final is None
                else {name: values[0] for name, values in self._finals(one_row(final), 1, where).items()}
            )
            self._end(
                opened, slot, bool(terminated), bool(truncated or not terminated), finals, facts, sync=self._syncs
            )

    def discard(self, env_id: int = 0) -> None:
        """Removes the open episode of an environment, such as a failed demonstration."""
        self._check_process()
        with self._mutex:
            self._forget_ended()
            if self._open is not None:
                slot = self._open.slot(env_id)
                self._cameras.discard(slot)
                self._open.clear(slot)

    def flush(self) -> None:
        """Waits until the disk has all finished episodes.

        With `s3://`, waits until the bucket has them. They are not in a generation before `seal`, of any Writer of the
        bucket.

        Raises:
            InvalidArgumentError: the Writer is closed.
            StorageFullError, UnwritableError: the disk failed, now or at an earlier episode: its journal has it, and a
                loss of power may damage it. Later calls raise this, too, until `seal` has published it.
            EpisodeRefusedError: the server refused an episode because of its facts or its final observation. `sequence`
                is its number. The Writer drops it, and keeps all others.
            NodeUnreachableError: the server acknowledged nothing for a long time. The episodes are kept.
        """
        self._check_process()
        self._check_open()
        self._sink.flush()  # first: what it brings elsewhere does not need this disk
        with self._mutex:
            self._sink.sync()

    def seal(self) -> Publication | None:
        """Publishes a generation of the dataset with all finished episodes.

        Open episodes stay open, and the Writer goes on. Ctrl-C ends the wait, and not the publication: the next `seal`
        or `close` waits for it.

        Returns:
            The generation; None if no episode was finished since the last one. A bucket's generation has the flushed
            episodes of all Writers; it may be another Writer's.

        Raises:
            InvalidArgumentError: a server makes the dataset.
            GearError: the generation cannot be written. The journals stay; `seal` can be called again.
        """
        self._check_process()
        self._check_open()
        return self._sink.seal()

    def open_episodes(self) -> list[int]:
        """Returns the environments with an open episode.

        They are in the order of their first steps.
        """
        with self._mutex:
            self._forget_ended()
            return [] if self._open is None else self._open.environments()

    def close(self) -> Publication | None:
        """Publishes a generation with all episodes, and ends the Writer.

        Open episodes end as truncated, without a final observation. Episodes of Writers that died are published, too.
        A server gets the episodes, and publishes them itself.

        Returns:
            As `seal`.

        Raises:
            GearError: the generation cannot be written. The journals stay, for the next Writer. Or an open episode
                cannot end: all other episodes are safe, and `close` can be called again.
            EpisodeRefusedError: the server refused an episode: see `flush`. The notes of the error name further ones.
                All others are safe, and the Writer is closed.
            NodeUnreachableError: the server acknowledged nothing for a long time. `close` can be called again.
        """
        self._check_process()
        with self._mutex:
            if self._closed:
                return None
            failed: Exception | None = None
            if environments := self.open_episodes():
                # What failed before is tried again: it says nothing about these episodes.
                self._past_refusals(self._sink.before_close)
            for environment in environments:
                opened, slot = self._opened_with_steps(environment)
                try:
                    self._past_refusals(partial(self._end, opened, slot, False, True, {}, {}, sync=False))
                except NodeUnreachableError:
                    raise
                except Exception as error:  # the other episodes are not lost with this one
                    failed = failed or error
            self._past_refusals(self._sink.before_close)
            if failed is not None:
                raise failed
            self._cameras.close()
            self._closed = True
        if self._limiter is not None:
            self._limiter.close()
        publication = self._sink.close()
        if self._refused:
            first, *others = self._refused.values()
            for other in others:
                first.add_note(str(other))
            raise first
        return publication

    def __enter__(self) -> Writer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _check_process(self) -> None:
        """Checks that this process made the Writer, and that this thread is in no other call of it.

        A forked child has no thread that encodes or publishes. It would write where its parent does.
        """
        if os.getpid() != self._pid:
            raise ForkedProcessError(
                "this Writer belongs to the parent process",
                file=self._path,
                hint="make another Writer in the child process",
            )
        # The call that the handler interrupted holds locks for which this one would wait for ever.
        if self._mutex._is_owned():  # type: ignore[attr-defined]
            raise InvalidArgumentError(
                "a signal handler, or a finalizer, calls the Writer during another call of the same thread",
                hint="let the handler raise SystemExit, and close the Writer in a 'with' block or in 'finally'",
            )

    def _check_open(self) -> None:
        if self._closed:
            raise InvalidArgumentError("the Writer is closed", hint="make another Writer of the same path")

    def _wait(self) -> None:
        """Waits for training. Other threads can use the Writer meanwhile."""
        if self._limiter is not None and not self._is_closing and not self._limiter.may_go_on():
            if not self._limiter.has_dataset():
                self._sink.seal()  # training may wait for the first generation
            self._limiter.wait()

    def _opened(self, first: Mapping[str, Any], frames: Mapping[str, Any]) -> OpenEpisodes:
        """Returns the open episodes.

        The first step decides the columns, and opens the journal.

        Args:
            first: a step: dotted name -> value.
            frames: the frames of the step.
        """
        self._check_open()
        self._forget_ended()
        if self._open is None:
            columns = self._declared or infer_columns(first, "the first step")
            if known := self._sink.columns():
                columns = _as_known(columns, known)
            self._cameras.begin(frames, self._sink.video_folder)
            self._sink.begin(columns, self._cameras.columns)
            self._columns = {column.name: column for column in columns}
            self._open = OpenEpisodes(columns)
        return self._open

    def _opened_with_steps(self, env_id: int) -> tuple[OpenEpisodes, int]:
        """Returns the open episodes, and the slot of an environment that has one."""
        self._forget_ended()
        if self._open is None or not self._open.length(slot := self._open.slot(env_id)):
            raise InvalidArgumentError(
                f"environment {env_id} has no open episode", hint="append at least one step before end_episode"
            )
        return self._open, slot

    def _finals(self, final: Any, count: int, where: str) -> dict[str, npt.NDArray[Any]]:
        """Returns the final observations: name -> [count, ...]."""
        wanted = {name: column for name, column in self._columns.items() if column.has_final}
        flat, _ = self._cameras.split(flat_step({"observations": final}))
        # A dataset keeps no text of the final observation, and no frame.
        texts = {name for name, column in self._columns.items() if column.variable_length}
        flat = {name: value for name, value in flat.items() if name not in texts}
        if flat and not wanted:
            raise InvalidArgumentError(
                f"{where} is given, and the dataset has no final observations", hint="leave final out"
            )
        check_names(flat, wanted, where)
        return {name: checked_rows(flat[name], column, count, where) for name, column in wanted.items()}

    def _end(
        self,
        opened: OpenEpisodes,
        slot: int,
        terminated: bool,
        truncated: bool,
        finals: Mapping[str, npt.NDArray[Any]],
        facts: Mapping[str, Any],
        *,
        sync: bool,
    ) -> None:
        """Puts an open episode into the sink. sync: wait until the disk has it."""
        videos = self._cameras.finish(slot, sync=self._syncs)
        self._ending = slot, self._sink.episodes
        try:
            self._sink.append(RecordedEpisode(opened.steps(slot), terminated, truncated, finals, facts, videos))
        finally:
            self._forget_ended()
        if sync:
            self._sink.sync()

    def _begin_ends(self, environments: Sequence[int]) -> None:
        """Begins to complete the videos of open episodes that end next. `end_episode` then waits less."""
        with self._mutex:
            if self._open is not None and self._cameras.columns:
                self._cameras.begin_finish([self._open.slot(each) for each in environments], sync=self._syncs)

    def _past_refusals(self, call: Callable[[], None]) -> None:
        """Calls a function again after each error about an earlier episode, which a server refused."""
        while True:
            try:
                return call()
            except EpisodeRefusedError as error:
                if error.sequence is None or error.sequence in self._refused:
                    raise
                self._refused[error.sequence] = error

    def _forget_ended(self) -> None:
        """Forgets the steps of the last episode that ended, if the sink has it.

        After an interrupt, the next call does it: the episode must not be recorded twice.
        """
        if self._ending is None or self._open is None:
            return
        slot, before = self._ending
        if self._sink.episodes > before:
            self._cameras.clear(slot)
            steps = self._open.length(slot)
            self._open.clear(slot)
            if self._limiter is not None and steps:
                self._limiter.add(steps)
        self._ending = None


def _as_known(columns: Sequence[ColumnSpec], known: Sequence[ColumnSpec]) -> tuple[ColumnSpec, ...]:
    """Returns columns in the order of a dataset's columns. Those have final observations that have them there."""
    names = [column.name for column in known]
    finals = {column.name: column.has_final for column in known}
    found = (replace(column, has_final=finals.get(column.name, column.has_final)) for column in columns)
    return tuple(sorted(found, key=lambda column: names.index(column.name) if column.name in names else len(names)))
