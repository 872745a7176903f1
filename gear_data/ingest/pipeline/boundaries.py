"""Finds where episodes begin in a stream of steps, and compares step numbers with their order."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from gear_data.errors import BadEpisodeError, UnsupportedColumnError
from gear_data.ingest.findings.log import Finding, FindingLog, place_of
from gear_data.ingest.pipeline.id_ranges import SeenIds, id_returns
from gear_data.ingest.sources.tables.stream import TablePart
from gear_data.ingest.sources.tables.to_numpy import null_rows, storage_array
from gear_data.storage.episode_block import EpisodeBlock

#: Replaces a missing step number. No number precedes it.
_NONE = np.iinfo(np.int64).min


def step_numbers(array: pa.Array) -> npt.NDArray[np.int64]:
    """Returns an integer column of step numbers as int64 [n]. Nulls become `_NONE`."""
    values: npt.NDArray[np.int64] = array.cast(pa.int64(), safe=False).fill_null(_NONE).to_numpy(zero_copy_only=False)
    return values


def not_increasing(numbers: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    """Returns which numbers are not larger than the number before, bool [n - 1]."""
    return numbers[1:] <= numbers[:-1]


def check_step_order(
    block: EpisodeBlock, numbers: npt.NDArray[np.int64], column: str, findings: FindingLog, *, from_zero: bool
) -> None:
    """Adds findings for step numbers that do not rise by one, or do not begin with 0.

    Args:
        block: the episodes.
        numbers: the step numbers of all episodes of the block, int64 [steps].
        column: the column of the step numbers, for messages.
        findings: the log to add to.
        from_zero: whether the numbers of each episode must begin with 0.
    """
    starts = block.offsets[:-1]
    falling, consecutive = np.zeros(len(numbers), np.bool_), np.ones(len(numbers), np.bool_)
    falling[1:] = not_increasing(numbers)
    consecutive[1:] = numbers[1:] == numbers[:-1] + 1
    falling[starts] = False
    consecutive[starts] = numbers[starts] == 0 if from_zero else True
    kinds = {
        "steps-not-monotonic": (falling, "a step number is not larger than the number before it"),
        "steps-gapped": (~consecutive & ~falling, "step numbers are missing"),
    }
    for code, (found, message) in kinds.items():
        steps = np.flatnonzero(found)
        if len(steps):
            episode, step = block.locate(steps[0])
            # The row of the episode: the step itself may be in another file.
            message = f"{message}, first at step {step} of its episode; the source's order of rows is kept"
            findings.add(Finding(code, message, len(steps), *place_of(block, episode), column))


_STATE_KEY = "episode_ids"


@dataclass(frozen=True)
class EpisodeIdColumn:
    """The episode id of every row.

    Attributes:
        codes: int64 [n], the ids, or indices into `names`.
        names: the ids as text; None if the ids are integers.
    """

    codes: npt.NDArray[np.int64]
    names: npt.NDArray[Any] | None

    def __getitem__(self, row: int) -> int | str:
        code = int(self.codes[row])
        return code if self.names is None else str(self.names[code])

    def values(self) -> npt.NDArray[Any]:
        """Returns the ids, [n]."""
        return self.codes if self.names is None else self.names[self.codes]

    def outside(self, low: Any, high: Any) -> npt.NDArray[np.bool_]:
        """Returns which ids are outside [low, high), bool [n]. None means no bound."""
        values = self.codes if self.names is None else self.names
        found = np.zeros(len(values), np.bool_)
        if low is not None:
            found |= values < low
        if high is not None:
            found |= values >= high
        return found if self.names is None else found[self.codes]


def read_episode_ids(part: TablePart, column: str) -> EpisodeIdColumn:
    """Reads the episode ids of a part.

    Raises:
        BadEpisodeError: a step has no episode id, or an id is outside int64.
        UnsupportedColumnError: an id is a float that is no whole number.
    """
    array = storage_array(part.table.column(column))
    missing = null_rows(array)
    if len(missing):
        file, row = part.place(int(missing[0]))
        raise BadEpisodeError("holds a null", file=file, column=column, row=row, hint="give every step an episode id")
    if pa.types.is_integer(array.type) or pa.types.is_floating(array.type):
        try:
            return EpisodeIdColumn(array.cast(pa.int64()).to_numpy(), None)
        except pa.ArrowInvalid as error:
            file, row = part.place(0)
            if pa.types.is_floating(array.type):
                hint = "choose another column with --episode-column (episodes=EpisodeBoundaries(episode_column=...))"
                raise UnsupportedColumnError(
                    f"holds {array.type}, where episode ids are integers or text: {error}",
                    file=file,
                    column=column,
                    row=row,
                    hint=f"{hint}, or give this one another name with --rename {shlex.quote(column)}=NAME",
                ) from error
            raise BadEpisodeError(
                f"holds an episode id outside int64: {error}",
                file=file,
                column=column,
                row=row,
                hint="use smaller numbers or text as episode ids",
            ) from error
    encoded = array.dictionary_encode()
    names = np.array(encoded.dictionary.to_pylist(), dtype=object)
    return EpisodeIdColumn(encoded.indices.to_numpy().astype(np.int64), names)


def _joint(columns: Sequence[EpisodeIdColumn]) -> EpisodeIdColumn:
    """Returns one id for each row, such as `2/0` of the seed 2 and the episode 0."""
    if len(columns) == 1:
        return columns[0]
    codes = np.stack([column.codes for column in columns], axis=1)
    _, rows, inverse = np.unique(codes, axis=0, return_index=True, return_inverse=True)
    names = ["/".join(str(column[row]) for column in columns) for row in rows.tolist()]
    return EpisodeIdColumn(inverse.reshape(-1).astype(np.int64), np.array(names, object))


class EpisodeIdChecker:
    """Finds the first steps of episodes by their ids, and refuses ids that come back.

    Args:
        column: the column of ids; with several columns, the first.
        resume_state: receives the ids of ended episodes. A resumed run passes the state of the earlier run.
        low: the lowest id of this part of the source; None for no bound.
        high: all ids of this part are lower; None for no bound.
        may_return: whether something else ends the episodes, too, so that an id may come back.
        hint: what helps if an id comes back.
    """

    def __init__(
        self, column: str | None, resume_state: dict[str, Any], low: Any, high: Any, *, may_return: bool, hint: str
    ) -> None:
        self._column, self._may_return, self._hint = column, may_return, hint
        self._resume_state = resume_state
        self._low, self._high = low, high
        self._ended = SeenIds(resume_state.get(_STATE_KEY))
        self._last: int | str | None = None

    def starts(self, columns: Sequence[EpisodeIdColumn], part: TablePart) -> npt.NDArray[np.bool_]:
        """Returns whether each row begins an episode, bool [n].

        `columns` are the columns that name an episode together.

        Raises:
            BadEpisodeError: an episode continues after another one began, or an id belongs to another part.
        """
        outside, ids = columns[0].outside(self._low, self._high), _joint(columns)
        if outside.any():
            row = int(np.argmax(outside))
            raise self._error(
                f"episode {ids[row]} is out of order: the ids of other files or row groups rise", row, part
            )
        starts = np.empty(len(ids.codes), np.bool_)
        starts[0] = ids[0] != self._last
        starts[1:] = ids.codes[1:] != ids.codes[:-1]
        for row in np.flatnonzero(starts).tolist():
            if self._last is not None and not self._may_return:
                self._ended.add(self._last)
            value = ids[row]
            if value in self._ended:
                raise self._error(id_returns(value), row, part)
            self._last = value
        self._resume_state[_STATE_KEY] = self._ended.to_json()
        return starts

    def _error(self, message: str, row: int, part: TablePart) -> BadEpisodeError:
        file, place = part.place(row)
        return BadEpisodeError(message, file=file, column=self._column, row=place, hint=self._hint)


class EpisodeNumbering:
    """Assigns running indices to the episodes of a stream of steps."""

    def __init__(self) -> None:
        self._number = -1
        self._ended = True
        self._step: npt.NDArray[np.int64] | None = None

    def by_ends(self, ends: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
        """Returns whether each row begins an episode, bool [n], given the ends."""
        starts = np.concatenate([[self._ended], ends[:-1]])
        self._ended = bool(ends[-1])
        return starts

    def by_steps(self, numbers: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """Returns whether each row begins an episode, bool [n], given step numbers.

        The step numbers start again in every episode.
        """
        before = self._step
        self._step = numbers[-1:]
        if before is None:
            return np.concatenate([[True], not_increasing(numbers)])
        return not_increasing(np.concatenate([before, numbers]))

    def number(self, starts: npt.NDArray[np.bool_]) -> npt.NDArray[np.int64]:
        """Returns the running index of each row's episode, int64 [n]."""
        numbers: npt.NDArray[np.int64] = self._number + np.cumsum(starts, dtype=np.int64)
        self._number = int(numbers[-1])
        return numbers
