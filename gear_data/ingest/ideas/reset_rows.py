"""Reads episodes whose first row belongs to the reset, and refuses last rows that may be no steps.

Replay buffers of dm_env store a row for each time step: an observation, and the action and the reward that led to it
(https://github.com/denisyarats/exorl). The first row has the first observation, and an action and a reward of zero.

RLDS and Dreamer mark the rows of an episode by `is_first`, `is_last` and `is_terminal`. Their last row has no valid
action. Others write the same names beside rows that are all steps.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from gear_data.errors import UnknownFormatError
from gear_data.ingest.findings.log import NO_STEPS
from gear_data.ingest.pipeline.columns import END_FLAGS, ONE_VALUE, other_flags
from gear_data.ingest.pipeline.mapped_source import MappedSource, without
from gear_data.ingest.pipeline.names import is_next, is_observation
from gear_data.ingest.pipeline.previews import first_block
from gear_data.ingest.source import EpisodeSource, SourceOptions, source_videos
from gear_data.schema import ColumnSpec
from gear_data.storage.episode_block import EpisodeBlock, rows_of

_DISCOUNT = "discount"
#: The names of dm_env.
_NAMES = {"actions": "action", "rewards": "reward", _DISCOUNT: _DISCOUNT}
_OBSERVATION = "observation"
_FIRST = "is_first"
_KEEP = "if each row is a step: --reset-steps keep (episodes=EpisodeBoundaries(reset_steps='keep'))"


def shift_reset_rows(source: EpisodeSource, options: SourceOptions, *, once: bool) -> EpisodeSource:
    """Returns a source whose actions, rewards and flags stand beside the observations that they follow.

    The names of dm_env, and zeros in the first row of each episode of the first block, show that they do not. With
    cameras, the rows are kept: their frames cannot be moved.

    Args:
        source: the source.
        options: the user's options.
        once: as for `first_block`.
    """
    specs = {spec.name: spec for spec in source.columns}
    if options.episodes.reset_steps == "keep" or not _has_names(specs) or source_videos(source).columns:
        return source
    head = first_block(source, once=once)
    if head is None or not head.columns["actions"].any() or _differing(head).any() or (head.lengths < 2).all():
        return source
    return _WithoutResetRows(source, skip_bad=options.skip_bad)


def _has_names(specs: dict[str, ColumnSpec]) -> bool:
    """Returns whether columns have the names of dm_env, and nothing else says what the rows are."""
    # The name of numbered arrays ends with `_*`.
    names = {name: (spec.source or name).rpartition("/")[2].rstrip("_-. *") for name, spec in specs.items()}
    return (
        all(name in specs and names[name] == own for name, own in _NAMES.items())
        and specs["actions"].dtype.startswith("float")
        and any(is_observation(name) and own.startswith(_OBSERVATION) for name, own in names.items())
        and not any(spec.has_final or is_next(name) for name, spec in specs.items())
        and _FIRST not in specs
    )


def _differing(block: EpisodeBlock) -> npt.NDArray[np.bool_]:
    """Returns bool [n]: the episodes whose first action or reward is not zero, or whose first discount is not one."""
    starts = block.offsets[:-1]
    values = ((block.columns[name][starts], float(name == _DISCOUNT)) for name in _NAMES)
    differing = np.zeros(len(block), np.bool_)
    for rows, expected in values:
        differing |= (rows != expected).reshape(len(rows), -1).any(axis=1)
    return differing


class _WithoutResetRows(MappedSource):
    """An `EpisodeSource` with steps in place of rows of time steps.

    Args:
        source: the other source.
        skip_bad: whether malformed episodes are left out.
    """

    def __init__(self, source: EpisodeSource, *, skip_bad: bool) -> None:
        names = {spec.name for spec in source.columns}
        self._shifted = {*_NAMES, *END_FLAGS, *other_flags(names)} & names
        self._columns = tuple(
            replace(spec, has_final=True) if is_observation(spec.name) else spec for spec in source.columns
        )
        super().__init__(source, self._columns, skip_bad=skip_bad)

    def _mapped(self, piece: EpisodeBlock) -> Iterator[EpisodeBlock]:
        differing, empty = _differing(piece), piece.lengths < 2
        for i in np.flatnonzero(differing | empty).tolist():
            message = (
                NO_STEPS if empty[i] else "the first row is no reset: an action or a reward is not 0, unlike before"
            )
            self._report_bad(piece, i, message, "actions", None if empty[i] else _KEEP)
        for block in without(piece, differing | empty):
            message = (
                "the first row of an episode has an action and a reward of 0: read as the reset, so that actions, "
                f"rewards and flags belong to the row before; {_KEEP}"
            )
            self.findings.add_episodes(block, "reset-row", message, np.arange(len(block)))
            yield self._shift(block)

    def _shift(self, block: EpisodeBlock) -> EpisodeBlock:
        rows = np.arange(int(block.offsets[-1]))
        last = np.isin(rows, block.offsets[1:] - 1)
        first = np.isin(rows, block.offsets[:-1])
        return replace(
            block,
            lengths=block.lengths - 1,
            columns={
                name: rows_of(values, ~first if name in self._shifted else ~last)
                for name, values in block.columns.items()
            },
            has_final=np.ones(len(block), np.bool_),
            finals={spec.name: rows_of(block.columns[spec.name], last) for spec in self._columns if spec.has_final},
        )


_LAST = {"is_last": "dones", "is_terminal": "terminated"}


def refuse_unclear_last_rows(source: EpisodeSource, file: str) -> None:
    """Refuses a source whose last rows are not clear.

    They are steps if the source has the final observations elsewhere, or end flags of usual names.

    Args:
        source: the source.
        file: the name of the source, for the error.

    Raises:
        UnknownFormatError: the names are those of RLDS, and nothing else says what the last row of an episode is.
    """
    names = {spec.name: spec.source_name for spec in source.columns if spec.shape in ONE_VALUE}
    last = next((name for name in _LAST if name in other_flags(names)), None)
    if last is None or _FIRST not in names or END_FLAGS & names.keys() or any(s.has_final for s in source.columns):
        return
    raise UnknownFormatError(
        f"could mean two things: the row of '{names[last]}' may be a step, or only the final observation (RLDS, "
        "Dreamer)",
        file=file,
        column=names[_FIRST],
        hint=f"if it is a step: --rename {shlex.quote(f'{names[last]}={_LAST[last]}')}; if it is the final "
        "observation, save the arrays with numpy.savez, under the names that RLDS or Dreamer uses, and convert the "
        ".npz files",
    )
