"""Takes final observations from columns of next observations.

The value of such a column at an episode's last step is the final observation. Its other values repeat the observations
of the next step, and are not stored.
"""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from gear_data.errors import UnsupportedColumnError
from gear_data.ingest.findings.log import Finding, place_of
from gear_data.ingest.pipeline.episode_values import rows_differ
from gear_data.ingest.pipeline.mapped_source import MappedSource
from gear_data.ingest.pipeline.names import is_next, observations_before
from gear_data.ingest.source import EpisodeSource, SourceOptions
from gear_data.storage.episode_block import EpisodeBlock, Values, rows_of


def next_pairs(names: Collection[str]) -> dict[str, str]:
    """Returns canonical name of a column of next observations -> column of observations, where both exist."""
    return {name: before for name in names if (before := observations_before(name, names)) is not None}


def alike_pairs(shapes: Mapping[str, tuple[int, ...]]) -> dict[str, str]:
    """Returns `next_pairs` of columns of one shape. Next observations of another shape have another meaning.

    Args:
        shapes: canonical name -> shape of a column.
    """
    return {name: before for name, before in next_pairs(shapes).items() if shapes[name] == shapes[before]}


class JumpFinder:
    """Finds the steps at which an episode begins, because they do not go on where the step before led.

    Args:
        pairs: as `alike_pairs` returns them.
        floats: column -> the dtype in the source, of floats. The user may have them read as wider ones, which are not
            equal to numbers that were never rounded.
    """

    def __init__(self, pairs: Mapping[str, str], floats: Mapping[str, npt.DTypeLike]) -> None:
        self._pairs, self._floats = pairs, floats
        self._last: dict[str, npt.NDArray[Any]] = {}

    def starts(self, columns: Mapping[str, Values], keep: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
        """Returns bool [n]: the rows whose observation is not the next observation of the row before.

        The rows follow the rows of the call before.

        Args:
            columns: name -> values of the rows in `keep`.
            keep: bool [n], the rows that could be read. Beside others, no jump is found.
        """
        starts, rows = np.zeros(len(keep), np.bool_), np.flatnonzero(keep)
        beside = np.diff(rows) == 1
        last: dict[str, npt.NDArray[Any]] = {}
        for name, before in self._pairs.items():
            following, observations = self._stored(name, columns), self._stored(before, columns)
            starts[rows[1:]] |= beside & rows_differ(following[:-1], observations[1:])
            if name in self._last and keep[0]:
                starts[0] |= rows_differ(self._last[name], observations[:1])[0]
            last[name] = following[-1:]
        self._last = last if keep[-1] else {}
        return starts

    def _stored(self, name: str, columns: Mapping[str, Values]) -> npt.NDArray[Any]:
        """Returns the values of a column as they are in the source."""
        return np.asarray(columns[name]).astype(self._floats.get(name, columns[name].dtype), copy=False)


def take_next_observations(
    source: EpisodeSource, options: SourceOptions, file: str, *, has_dtypes: bool = False
) -> EpisodeSource:
    """Returns a source whose columns of next observations have become final observations.

    A column that `options.columns` names stays a column, too. A column of which `options.stack` makes next observations
    waits for the stack. One of another shape than the observations has another meaning, and stays a column.

    Args:
        source: the source.
        options: the user's options.
        file: the name of the source, for errors.
        has_dtypes: whether the source can be read with other dtypes (`TableOptions.dtype`).

    Raises:
        UnsupportedColumnError: next observations have another dtype than the observations.
    """
    specs = {spec.name: spec for spec in source.columns}
    stacked = {part for new, parts in (options.stack or {}).items() if is_next(new) for part in parts}
    before = {
        name: observations
        for name, observations in alike_pairs({name: spec.shape for name, spec in specs.items()}).items()
        if stacked.isdisjoint((name, specs[name].source))
    }
    for name, observations in before.items():
        own, other = specs[name], specs[observations]
        if own.dtype != other.dtype:
            column = own.source or name
            cast = ""
            if has_dtypes and not own.variable_length and not other.variable_length:
                dtype = np.promote_types(own.dtype, other.dtype).name
                sources = [spec.source_name for spec in (other, own) if spec.dtype != dtype]
                casts = [f"--dtype {shlex.quote(each)}={dtype}" for each in sources]
                cast = f"read both as one dtype: {' '.join(casts)}; or "
            raise UnsupportedColumnError(
                f"is {own.dtype}, where '{other.source or observations}' is {other.dtype}; final observations must "
                "have the dtype of the others",
                file=file,
                column=column,
                hint=f"{cast}keep it as a column of another name: --rename {shlex.quote(f'{column}=infos.{name}')}",
            )
    kept = frozenset(name for name in before if options.names_column(specs[name]))
    return _WithFinals(source, before, kept) if before else source


class _WithFinals(MappedSource):
    """An `EpisodeSource` that takes final observations from columns of next observations.

    Args:
        source: the source.
        before: canonical name of a column of next observations -> name of the column of observations.
        kept: the columns of next observations that stay columns.
    """

    def __init__(self, source: EpisodeSource, before: Mapping[str, str], kept: frozenset[str]) -> None:
        #: Whether the source itself says which episodes have final observations.
        self._has_finals = any(spec.has_final for spec in source.columns)
        self._before = before
        self._dropped = before.keys() - kept
        self._specs = {spec.name: spec for spec in source.columns}
        columns = (
            replace(spec, has_final=True) if spec.name in before.values() else spec
            for spec in source.columns
            if spec.name not in self._dropped
        )
        super().__init__(source, tuple(columns))

    def _mapped(self, piece: EpisodeBlock) -> Iterator[EpisodeBlock]:
        has_final = piece.has_final if self._has_finals else np.ones(len(piece), np.bool_)
        last = piece.offsets[1:][has_final] - 1
        finals = dict(piece.finals)
        for name, observations in self._before.items():
            self._report_differing(piece, name, observations)
            if not self._specs[observations].has_final:
                finals[observations] = rows_of(piece.columns[name], last)
        yield replace(
            piece,
            columns={name: values for name, values in piece.columns.items() if name not in self._dropped},
            has_final=has_final,
            finals=finals,
        )

    def _report_differing(self, block: EpisodeBlock, name: str, observations: str) -> None:
        """Adds a finding for next observations that are not the observations of the next step."""
        differ = rows_differ(block.columns[name][:-1], block.columns[observations][1:])
        differ[block.offsets[1:-1] - 1] = False
        steps = np.flatnonzero(differ)
        if len(steps):
            episode, step = block.locate(steps[0])
            message = "differs from the next row's observation inside an episode; left out, observations are kept"
            place = place_of(block, episode, step * self.rows_are_steps)
            column = self._specs[name].source or name
            self.findings.add(Finding("next-observation-differs", message, len(steps), *place, column))
