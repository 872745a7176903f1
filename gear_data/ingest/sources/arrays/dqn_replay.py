"""DQN Replay, and other replay buffers of Dopamine.

https://github.com/google-research/batch_rl

A checkpoint N is one file `$store$_X_ckpt.N.gz` for each X of `observation`, `action`, `reward` and `terminal`: an
`.npy` file of all rows of a ring buffer, compressed by gzip. `add_count_ckpt.N.gz` counts the rows that were ever
added, so it says where the oldest row is. `invalid_range_ckpt.N.gz` lists the rows around that place, which Dopamine
never samples.

The reference is `OutOfGraphReplayBuffer` in dopamine/replay_memory/circular_replay_buffer.py:

- Only rows below `add_count` hold data, until the buffer is full.
- Three rows of zeros precede each episode, as padding of frame stacks. Dopamine samples none of them.
- An observation is one frame, not a stack. Nothing is stored after a terminal step.

DQN Replay logs a buffer of 1,000,000 rows whenever all rows but the last were overwritten. The last row is then the
oldest one. It is left out, as Dopamine does. Otherwise a file would have to be unpacked twice.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import PurePosixPath
from typing import Any

import numpy as np
import numpy.typing as npt

from gear_data.errors import CorruptSourceError, UnknownFormatError, UnsupportedColumnError
from gear_data.ingest.findings.log import Finding, FindingLog
from gear_data.ingest.location import Location, SourceFile, holds_several, placed
from gear_data.ingest.pipeline.columns import choose_columns
from gear_data.ingest.source import Format, SourceOptions
from gear_data.ingest.sources.arrays.boundaries import scan_lengths
from gear_data.ingest.sources.arrays.classify import all_values, flag_values, integer_values, values_at
from gear_data.ingest.sources.arrays.numpy_files import ArrayReader, StoredArray, open_gzipped_npy
from gear_data.ingest.sources.arrays.source import ArraySource
from gear_data.ingest.sources.arrays.step_arrays import EpisodeRanges, StepArrays
from gear_data.schema import VARIABLE_TYPES
from gear_data.storage.episode_block import offsets_of

_STORE = re.compile(r"\$store\$_(?P<name>.+)_ckpt\.(?P<number>\d+)\.gz")
_COUNTER = re.compile(r"(?P<name>add_count|invalid_range)_ckpt\.(?P<number>\d+)\.gz")
_OBSERVATION, _ACTION, _REWARD, _TERMINAL = _REQUIRED = ("observation", "action", "reward", "terminal")
#: Rows of zeros before each episode: Dopamine's Atari agents stack 4 frames.
_PADDING = 3
#: Rows from the oldest one on that Dopamine does not sample, if no file lists them: the number of stacked frames.
_UNSAMPLED = 4
#: Folders of checkpoints, below the folder of a run. They say nothing about the game.
_CHECKPOINT_FOLDERS = ("replay_logs", "checkpoints")


def probe(location: Location) -> str | None:
    """Returns the reason if a file has a name of Dopamine's stores; otherwise None."""
    files = location.with_suffix(".gz")
    found = next((file for file in files if _STORE.fullmatch(PurePosixPath(file.name).name)), None)
    return f"DQN Replay: {found.name} is a store of a Dopamine replay buffer" if found is not None else None


def open_(location: Location, options: SourceOptions) -> ArraySource:
    """Opens the checkpoints of one game, in the order of folders and numbers.

    Raises:
        UnknownFormatError: there is no store, or there are several games.
        CorruptSourceError: a checkpoint lacks a file.
    """
    checkpoints = _checkpoints(location)
    if not checkpoints:
        raise UnknownFormatError("holds no file named $store$_observation_ckpt.N.gz", hint="leave --format out")
    games = list(dict.fromkeys(checkpoint.game for checkpoint in checkpoints))
    if len(games) > 1:
        raise holds_several("games", games, "convert one game at a time: give its folder")
    for checkpoint in checkpoints:
        if missing := [name for name in _REQUIRED if name not in checkpoint.stores]:
            raise CorruptSourceError(
                f"lacks the file $store$_{missing[0]}_ckpt.{checkpoint.number}.gz",
                file=checkpoint.name,
                hint="download it; or move the other files of this checkpoint away",
            )
    # The sizes of the unpacked files: frames are compressed so well that the files say little about the work.
    frames = [open_gzipped_npy(checkpoint.stores[_OBSERVATION]) for checkpoint in checkpoints]
    sizes = [math.prod(array.shape) * array.dtype.itemsize for array in frames]

    def open_arrays(i: int) -> StepArrays:
        return _step_arrays(checkpoints[i], options)

    names, findings = [checkpoint.name for checkpoint in checkpoints], FindingLog()
    named = [(file, PurePosixPath(file.name).name) for file in location.with_suffix(".gz")]
    if others := [file for file, name in named if not (_STORE.fullmatch(name) or _COUNTER.fullmatch(name))]:
        message = "compressed files of no checkpoint; left out"
        findings.add(Finding("files-left-out", message, len(others), others[0].name))
    return ArraySource(names, sizes, open_arrays, findings, open_reader=_WholeFileReader)


class _WholeFileReader(ArrayReader):
    """A reader that checks the ends of the files that it has read.

    A checkpoint is always read to its end, because it is one unit.
    """

    def __init__(self) -> None:
        super().__init__()
        self._read: dict[str, StoredArray] = {}

    def __exit__(self, *error: object) -> None:
        try:
            if error[0] is None:
                self.check_ends(self._read.values())
        finally:
            super().__exit__(*error)

    def read(self, array: StoredArray, start: int, stop: int) -> npt.NDArray[Any]:
        self._read[array.file.path] = array
        return super().read(array, start, stop)


@dataclass(frozen=True)
class _Checkpoint:
    """The files of one replay buffer.

    Attributes:
        folder: the folder of the files.
        number: the number in their names.
        stores: name of a store -> file.
        counters: `add_count` and `invalid_range` -> file, where they exist.
    """

    folder: str
    number: int
    stores: dict[str, SourceFile] = field(default_factory=dict)
    counters: dict[str, SourceFile] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return str(PurePosixPath(self.folder) / f"ckpt.{self.number}")

    @property
    def game(self) -> str:
        """The folder of the runs, such as `Pong` of `Pong/1/replay_logs`."""
        parts = list(PurePosixPath(self.folder).parts)
        while parts and (parts[-1] in _CHECKPOINT_FOLDERS or parts[-1].isdigit()):
            parts.pop()
        return "/".join(parts)


def _checkpoints(location: Location) -> list[_Checkpoint]:
    found: dict[str, dict[int, _Checkpoint]] = {}
    for file in location.files:
        path = PurePosixPath(file.name)
        store, counter = _STORE.fullmatch(path.name), _COUNTER.fullmatch(path.name)
        if match := store or counter:
            folder, number = str(path.parent), int(match["number"])
            checkpoint = found.setdefault(folder, {}).setdefault(number, _Checkpoint(folder, number))
            (checkpoint.stores if store else checkpoint.counters)[match["name"]] = file
    numbered = [checkpoint for folder in found.values() for _, checkpoint in sorted(folder.items())]
    return [checkpoint for checkpoint in numbered if checkpoint.stores]


@dataclass(frozen=True)
class _Ring:
    """The rows of a ring buffer to read, in the order of time.

    Attributes:
        oldest: the stored row that is read first.
        rows: the number of rows to read.
        is_overwritten: whether rows before `oldest` were overwritten or are left out.
        begins: whether a row that is left out shows that `oldest` begins an episode.
        findings: about the order and about rows that are left out.
    """

    oldest: int
    rows: int
    is_overwritten: bool = False
    begins: bool = False
    findings: tuple[Finding, ...] = ()


def _ring(checkpoint: _Checkpoint, terminal: StoredArray) -> _Ring:
    """Finds the oldest row of a buffer by the number of rows that were added."""
    capacity = len(terminal)
    count, findings = _add_count(checkpoint, capacity)
    cursor = count % max(1, capacity)
    if count < capacity:
        return _Ring(0, count, findings=findings)
    unsampled = set(range(cursor, cursor + _UNSAMPLED))
    if "invalid_range" in checkpoint.counters:
        unsampled = set(_integers(checkpoint.counters["invalid_range"]).tolist())
    if cursor and unsampled.issuperset(range(cursor, capacity)):
        message = "the oldest rows, at the end of the file: Dopamine samples none of them; left out"
        left_out = Finding("rows-left-out", message, capacity - cursor, checkpoint.name, cursor)
        begins = bool(values_at(terminal, np.array([capacity - 1])).any())
        return _Ring(0, cursor, True, begins, (*findings, left_out))
    return _Ring(cursor, capacity, True, False, findings)


def _add_count(checkpoint: _Checkpoint, capacity: int) -> tuple[int, tuple[Finding, ...]]:
    """Returns the number of rows that were added, and a finding if no file says it.

    Then the buffer is taken for one of DQN Replay, in which the last row is the oldest one.

    Raises CorruptSourceError if the number is invalid, or if `invalid_range` contradicts that.
    """
    file = checkpoint.counters.get("add_count")
    if file is not None:
        values = _integers(file)
        if values.size != 1 or values[0] < 0:
            raise CorruptSourceError(
                f"holds {values[:4].tolist()}, not one number of rows", file=file.name, hint="restore the file"
            )
        return int(values[0]), ()
    last = max(0, capacity - 1)
    ranges = checkpoint.counters.get("invalid_range")
    if ranges is not None and last not in _integers(ranges):
        raise CorruptSourceError(
            f"lacks the file add_count_ckpt.{checkpoint.number}.gz, and the last row is not the oldest one: "
            f"{PurePosixPath(ranges.name).name} holds {_integers(ranges).tolist()[:8]}",
            file=checkpoint.name,
            hint="copy that file from the folder of the other files",
        )
    message = "no file add_count_ckpt.N.gz says which row is the oldest one; read as DQN Replay's, where it is the last"
    return capacity + last, (Finding("no-cursor", message, file=checkpoint.name),)


def _integers(file: SourceFile) -> npt.NDArray[np.int64]:
    return integer_values(open_gzipped_npy(file), 1)


def _step_arrays(checkpoint: _Checkpoint, options: SourceOptions) -> StepArrays:
    """Opens the stores of a checkpoint.

    Raises:
        CorruptSourceError: they have different numbers of rows.
        UnsupportedColumnError: a required store holds no numbers.
    """
    stores = {name: open_gzipped_npy(file) for name, file in checkpoint.stores.items()}
    for name, array in stores.items():
        if not array.shape or array.shape[:1] != stores[_TERMINAL].shape[:1]:
            raise CorruptSourceError(
                f"has the shape {array.shape}, where '{_TERMINAL}' has {stores[_TERMINAL].shape}",
                file=array.place,
                column=name,
                hint="all files of a checkpoint have the same rows: download them again",
            )
    for name in _REQUIRED:
        if stores[name].column_dtype(name) in VARIABLE_TYPES:
            raise UnsupportedColumnError("holds text, not numbers", file=stores[name].place, column=name)
    ring = _ring(checkpoint, stores[_TERMINAL])
    stores = {name: replace(array, rotation=ring.oldest) for name, array in stores.items()}
    chosen = choose_columns(stores, options)
    return StepArrays(
        name=checkpoint.name,
        steps=ring.rows,
        arrays={column: stores[name] for name, column in chosen.items()},
        sources={column: name for name, column in chosen.items()},
        locate=lambda: _locate(checkpoint.name, stores, ring),
    )


def _locate(name: str, stores: Mapping[str, StoredArray], ring: _Ring) -> EpisodeRanges:
    """Finds the episodes in the rows of a buffer, without their padding."""
    findings = [*ring.findings, *_findings_about_atari(name, stores[_REWARD], ring.rows)]
    stored = stores[_TERMINAL]
    with placed(stored.place):
        terminal = flag_values(stored, len(stored), _TERMINAL, filled=ring.rows)
    lengths = scan_lengths(ring.rows, 1, [lambda start, stop: terminal[start:stop]])
    starts = offsets_of(lengths)[:-1]
    # Rows before the first one: overwritten in a full buffer, and in the last one of DQN Replay. Padding shows which.
    may_be_cut = ring.is_overwritten and not ring.begins
    is_padded = _has_padding(stores, starts[1:], lengths[1:])
    if len(starts) == 1 and not may_be_cut:
        is_padded = _has_padding(stores, starts, lengths)
    padding = np.minimum(lengths, _PADDING if is_padded else 0)
    if len(starts) and is_padded:
        padding[0] = _zero_rows(stores, int(padding[0]))
    if len(starts) and not padding[0] and (may_be_cut or (is_padded and not ring.begins)):
        message = "the buffer's oldest rows are the rest of an episode, which is read as an episode"
        findings.append(Finding("episode-cut", message, file=name, row=ring.oldest))
    if padding.any():
        message = "rows of zeros that Dopamine puts before each episode, to stack frames; left out"
        findings.append(Finding("padding-left-out", message, int(padding.sum()), name))
        starts, lengths = starts + padding, lengths - padding
        starts, lengths = starts[lengths > 0], lengths[lengths > 0]
    return EpisodeRanges(lengths, starts, findings=tuple(findings))


def _has_padding(
    stores: Mapping[str, StoredArray], starts: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64]
) -> bool:
    """Returns whether the first rows of all episodes are zero.

    Actions, rewards and flags are compared for all episodes, and frames for the first one: to reach the others, most of
    the file would have to be unpacked.
    """
    if not len(starts):
        return False
    rows = np.unique(np.concatenate([starts + np.minimum(i, lengths - 1) for i in range(_PADDING)]))
    if any(all_values(stores[name])[rows].any() for name in (_ACTION, _REWARD, _TERMINAL)):
        return False
    return not values_at(stores[_OBSERVATION], rows[rows < starts[0] + min(_PADDING, lengths[0])]).any()


def _zero_rows(stores: Mapping[str, StoredArray], limit: int) -> int:
    """Returns the number of zero rows at the start, at most `limit`.

    They are the padding of an episode, or the end of it.
    """
    rows = np.arange(limit)
    values = [values_at(stores[name], rows).reshape(limit, -1).any(axis=1) for name in _REQUIRED]
    return int((~np.logical_or.accumulate(np.logical_or.reduce(values))).sum())


def _findings_about_atari(name: str, reward: StoredArray, rows: int) -> list[Finding]:
    """Returns facts about the data that the files do not state."""
    message = "the stored action is the agent's choice; Dopamine's Atari repeats the previous one with probability 0.25"
    findings = [Finding("sticky-actions", message, file=name, column=_ACTION)]
    rewards = all_values(reward)[:rows]
    if rewards.dtype.kind in "iuf" and rewards.any() and np.isin(rewards, (-1, 0, 1)).all():
        message = "all rewards are -1, 0 or 1: Dopamine clips them, so that returns are not scores of the game"
        findings.append(Finding("clipped-rewards", message, file=name, column=_REWARD))
    return findings


FORMAT = Format("dqn-replay", probe, open_, suffixes=(".gz",))
