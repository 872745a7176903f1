"""Leaves out steps that only reset an environment.

A vector environment of Gymnasium 1.x resets an ended environment in the next call of `step`, by default
(https://farama.org/Vector-Autoreset-Mode). A replay buffer then holds a transition from the final observation of an
episode to the first observation of the next episode. Its action had no effect, and its reward is 0.

Such a transition begins the next episode here: its observation is the final observation of the episode before.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import xxhash

from gear_data.errors import GearError, InvalidArgumentError
from gear_data.ingest.findings.log import Finding
from gear_data.ingest.pipeline.episode_values import rows_differ
from gear_data.ingest.pipeline.mapped_source import MappedSource, without
from gear_data.ingest.pipeline.previews import preview
from gear_data.ingest.source import EpisodeSource, SourceOptions, Unit, source_videos
from gear_data.schema import ColumnSpec
from gear_data.storage.episode_block import BEGIN, EpisodeBlock, Position, Values, offsets_of, rows_of

#: The search for reset steps ends after so many episodes, or bytes, or rows of the first file.
_EPISODES, _BYTES, _ROWS = 64, 64 << 20, 20_000
#: Reset steps move the observation so many times as far as other steps. One element counts at most `_MOST` times.
_JUMP, _MOST = 3.0, 100.0
#: Elements of a column that are compared: an image has many.
_ELEMENTS = 4096
_STATE_KEY = "final_before"

BoolArray = npt.NDArray[np.bool_]


def leave_out_reset_steps(source: EpisodeSource, options: SourceOptions, *, flat: bool) -> EpisodeSource:
    """Returns a source without the steps that only reset an environment.

    The first episodes show whether the source has such steps, unless the user says so. With cameras, the steps are
    kept, and a finding reports them. Sources that end an episode
    where the next one begins have none: their first steps go no further than other steps.

    Args:
        source: a source whose final observations are complete.
        options: the user's options.
        flat: whether the source is a stream of steps that can be read twice. Other sources are searched only if the
            user asks for it.

    Raises:
        InvalidArgumentError: the user wants reset steps to be dropped, and the source has no final observations, or
            it has cameras.
    """
    choice = options.episodes.reset_steps
    observations = tuple(spec for spec in source.columns if spec.has_final)
    if choice == "keep" or (choice is None and not flat):
        return source
    has_cameras = bool(source_videos(source).columns)
    if not observations or (has_cameras and choice == "drop"):
        if choice == "drop":
            raise InvalidArgumentError(
                "reset steps cannot be found: that takes next observations, and no cameras",
                hint="leave --reset-steps out (reset_steps=None)",
            )
        return source
    if choice is None:
        evidence = _evidence(source, observations)
        if has_cameras or not evidence.is_clear:
            if evidence.is_possible:
                source.findings.add(evidence.finding(has_cameras=has_cameras))
            return source
    return _WithoutResetSteps(source, observations)


def _begins_with_reset(
    block: EpisodeBlock, observations: Sequence[ColumnSpec], before: str | None
) -> tuple[BoolArray, str | None]:
    """Returns which episodes begin as a reset step, bool [n], and the final observation of the last episode.

    Args:
        block: the episodes.
        observations: the columns of the final observation.
        before: the final observation of the episode before, as this function returns it; None: there is none.
    """
    starts = block.offsets[:-1]
    ended = np.flatnonzero(block.has_final[:-1])  # the episodes whose next episode may begin with their final
    final_rows = offsets_of(block.has_final.astype(np.int64))[:-1]
    same = np.ones(len(ended), np.bool_)
    for spec in observations:
        values, finals = block.columns[spec.name], block.finals[spec.name]
        same &= ~rows_differ(rows_of(values, starts[ended + 1]), rows_of(finals, final_rows[ended]))
    found = np.zeros(len(block), np.bool_)
    found[ended + 1] = same
    found[0] = before is not None and before == _digest([_row(block.columns[spec.name], 0) for spec in observations])
    if "rewards" in block.columns:
        found &= (block.columns["rewards"][starts] == 0).reshape(len(block), -1).all(axis=1)
    last = _digest([_row(block.finals[spec.name], -1) for spec in observations]) if block.has_final[-1] else None
    return found, last


def _row(values: Values, row: int) -> bytes:
    if not isinstance(values, pa.Array):
        return np.ascontiguousarray(values[row]).tobytes()
    value = values[row if row >= 0 else len(values) + row].as_py()
    return value.encode("utf-8", "surrogatepass") if isinstance(value, str) else bytes(value)


def _digest(rows: Sequence[bytes]) -> str:
    digest = xxhash.xxh3_128()
    for row in rows:
        digest.update(len(row).to_bytes(8, "little") + row)
    return digest.hexdigest()


@dataclass
class _Evidence:
    """What the first episodes of a source show.

    Attributes:
        found: number of episodes that begin as a reset step.
        others: number of other episodes that follow an episode.
        jump: how many times as far the first steps of `found` move the observation as other steps, at the mean.
        to_start: whether these steps all lead to the first observation of the source.
        place: file and row of the first one.
    """

    found: int = 0
    others: int = 0
    jump: float = 0.0
    to_start: bool = False
    place: tuple[str, int] | None = None

    @property
    def is_clear(self) -> bool:
        """Whether the source has reset steps.

        One coincidence shows nothing. Some episodes follow none, such as the first ones of each environment.
        """
        return self.found >= 2 and self.found >= 4 * self.others and (self.jump >= _JUMP or self.to_start)

    @property
    def is_possible(self) -> bool:
        return self.found > self.others and (self.jump >= _JUMP / 2 or self.to_start)

    def finding(self, *, has_cameras: bool) -> Finding:
        """Returns the finding about steps that may be reset steps, and are kept."""
        way_out = "--reset-steps drop leaves it out"
        if has_cameras:
            way_out = "the frames of its cameras cannot be cut"
        message = (
            "an episode begins with the final observation of the episode before, and its first reward is 0: the step "
            f"may only reset the environment (Gymnasium's autoreset in the next step); kept: {way_out}"
        )
        file, row = self.place or (None, None)
        return Finding("reset-steps-possible", message, self.found, file, row)


def _evidence(source: EpisodeSource, observations: Sequence[ColumnSpec]) -> _Evidence:
    """Reads the first episodes of a source, and forgets what the source noted meanwhile."""
    evidence, moves = _Evidence(), _Moves()
    before: str | None = None
    size = 0
    # The conversion meets the error again, and reports it.
    with preview(source), suppress(GearError):
        for block in source.blocks(BEGIN, Position(0, _ROWS)):
            if not len(block):
                continue
            found, last = _begins_with_reset(block, observations, before)
            known = int(before is not None) + int(block.has_final[:-1].sum())
            evidence.found += int(found.sum())
            evidence.others += known - int(found.sum())
            if evidence.place is None and found.any():
                first = int(np.argmax(found))
                evidence.place = block.sources[first], int(block.rows[first])
            moves.add(block, observations, found)
            before = last
            size += sum(values.nbytes for values in block.columns.values())
            pairs = evidence.found + evidence.others
            if pairs >= _EPISODES or size >= _BYTES or evidence.others >= max(2, evidence.found):
                break
    evidence.jump, evidence.to_start = moves.jump(), moves.lead_to_start()
    return evidence


class _Moves:
    """How far steps move the observations: reset steps and others."""

    def __init__(self) -> None:
        self._resets: list[npt.NDArray[np.float64]] = []
        self._sums: npt.NDArray[np.float64] | float = 0.0
        self._count = 0
        self._start: npt.NDArray[np.float64] | None = None
        self._targets: list[BoolArray] = []

    def add(self, block: EpisodeBlock, observations: Sequence[ColumnSpec], found: BoolArray) -> None:
        """Adds the steps of a block.

        Args:
            block: the episodes.
            observations: the columns to look at; text and bytes are left out.
            found: bool [n], the episodes that begin as a reset step.
        """
        parts = [
            block.columns[spec.name].reshape(int(block.lengths.sum()), -1)[:, :_ELEMENTS].astype(np.float64)
            for spec in observations
            if not spec.variable_length
        ]
        if not parts:
            return
        values, starts = np.concatenate(parts, axis=1), block.offsets[:-1]
        if self._start is None:
            self._start = values[0]
        resets = starts[found & (block.lengths > 1)]
        moves = np.abs(np.diff(values, axis=0))
        inside = np.ones(len(moves), np.bool_)
        inside[starts[1:] - 1] = False
        self._resets.append(moves[resets])
        self._targets.append((values[resets + 1] == self._start).all(axis=1) & moves[resets].any(axis=1))
        inside[resets] = False
        self._sums += np.nansum(moves[inside], axis=0)
        self._count += int(inside.sum())

    def jump(self) -> float:
        """Returns how many times as far the reset steps move as other steps, the mean over steps and elements."""
        resets = np.concatenate(self._resets) if self._resets else np.empty((0, 0))
        if not len(resets) or not self._count:
            return 0.0
        usual = np.asarray(self._sums / self._count)
        moved = (usual > 0) | (resets > 0).any(axis=0)
        if not moved.any():
            return 0.0
        shares = np.minimum(resets[:, moved] / np.maximum(usual[moved], np.finfo(np.float64).tiny), _MOST)
        return float(np.nanmean(shares))

    def lead_to_start(self) -> bool:
        """Returns whether all reset steps lead to the first observation."""
        targets = np.concatenate(self._targets) if self._targets else np.zeros(0, np.bool_)
        return bool(len(targets)) and bool(targets.all())


class _WithoutResetSteps(MappedSource):
    """An `EpisodeSource` without reset steps.

    The source is one unit: whether an episode begins with a reset step depends on the episode before.

    Args:
        source: the other source.
        observations: the columns of the final observation.
    """

    def __init__(self, source: EpisodeSource, observations: Sequence[ColumnSpec]) -> None:
        super().__init__(source)
        self._observations = observations
        self._before: str | None = None

    def units(self) -> Sequence[Unit]:
        return [Unit(BEGIN, sum(unit.bytes for unit in self._source.units()))]

    def blocks(self, start: Position, stop: Position) -> Iterator[EpisodeBlock]:
        self._before = None if start == BEGIN else self.resume_state.get(_STATE_KEY)
        yield from super().blocks(start, stop)

    def _mapped(self, piece: EpisodeBlock) -> Iterator[EpisodeBlock]:
        found, self._before = _begins_with_reset(piece, self._observations, self._before)
        # The source may have cleared the state.
        self.resume_state[_STATE_KEY] = self._before
        if not found.any():
            yield piece
            return
        message = (
            "the first step of an episode only resets the environment (Gymnasium's autoreset in the next step); left "
            "out: --reset-steps keep keeps it"
        )
        self.findings.add_episodes(piece, "reset-step-left-out", message, found)
        keep = np.ones(int(piece.lengths.sum()), np.bool_)
        keep[piece.offsets[:-1][found]] = False
        changed = replace(
            piece,
            lengths=piece.lengths - found,
            rows=piece.rows + found * self.rows_are_steps,
            columns={name: rows_of(values, keep) for name, values in piece.columns.items()},
        )
        yield from without(changed, changed.lengths == 0)
