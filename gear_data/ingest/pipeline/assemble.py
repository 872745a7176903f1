"""Assembles a stream of steps into blocks of whole episodes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from operator import itemgetter
from typing import Any

import numpy as np
import numpy.typing as npt

from gear_data.ingest.findings.log import Finding, FindingLog
from gear_data.ingest.sources.arrays.blocks import joined
from gear_data.storage.episode_block import EpisodeBlock, Position, Values, rows_of


@dataclass(frozen=True)
class UnreadableRows:
    """Rows of a part that cannot be read.

    Attributes:
        rows: int64, the indices of the rows in the part.
        column: the source name of the column that cannot be read.
        reason: the problem of the first row.
    """

    rows: npt.NDArray[np.int64]
    column: str
    reason: str


@dataclass(frozen=True)
class StepPart:
    """Consecutive steps of one file.

    Attributes:
        file: the index of the file.
        name: the name of the file.
        rows: int64 [n], the source rows.
        episodes: int64 [n], the index of each step's episode. Over all parts it grows by 1 at the first step of each
            episode.
        keep: bool [n], False for steps that could not be read. Their whole episode is left out.
        columns: name -> keep.sum() values, as `EpisodeBlock.columns`.
        facts: name -> [n]. An episode takes the value of its first step.
        continues: whether the next part was read together with this part. No block ends between the two.
        faults: the reasons for the steps that are not kept, one per step.
    """

    file: int
    name: str
    rows: npt.NDArray[np.int64]
    episodes: npt.NDArray[np.int64]
    keep: npt.NDArray[np.bool_]
    columns: Mapping[str, Values]
    facts: Mapping[str, npt.NDArray[Any]]
    continues: bool = False
    faults: tuple[UnreadableRows, ...] = ()

    def cut(self, start: int, stop: int) -> StepPart:
        """Returns the steps from `start` up to `stop`."""
        first, last = int(self.keep[:start].sum()), int(self.keep[:stop].sum())
        return replace(
            self,
            rows=self.rows[start:stop],
            episodes=self.episodes[start:stop],
            keep=self.keep[start:stop],
            columns={name: values[first:last] for name, values in self.columns.items()},
            facts={name: values[start:stop] for name, values in self.facts.items()},
            continues=False,
            faults=tuple(
                replace(fault, rows=fault.rows[inside] - start)
                for fault in self.faults
                if (inside := (fault.rows >= start) & (fault.rows < stop)).any()
            ),
        )


def assemble(parts: Iterator[StepPart], findings: FindingLog) -> Iterator[EpisodeBlock]:
    """Yields blocks of whole episodes. The last episode ends with the stream.

    An episode may span several parts and files. Memory holds the parts that were read together and the episode before
    them.

    Args:
        parts: the steps, in source order.
        findings: receives findings about episodes that are left out.
    """
    pending: list[StepPart] = []
    for part in parts:
        pending.append(part)
        if part.continues:
            continue
        index, start = _last_start(pending)
        whole = [*pending[:index], pending[index].cut(0, start)] if start else pending[:index]
        if whole:
            yield _block(whole, findings)
            pending = [pending[index].cut(start, len(pending[index].rows)), *pending[index + 1 :]]
    if pending:
        yield _block(pending, findings)


def _last_start(parts: list[StepPart]) -> tuple[int, int]:
    """Returns the indices of the part and of its step where the last episode begins."""
    last, index = parts[-1].episodes[-1], len(parts) - 1
    while index and parts[index].episodes[0] == last == parts[index - 1].episodes[-1]:
        index -= 1
    return index, int(np.searchsorted(parts[index].episodes, last))


def _block(parts: list[StepPart], findings: FindingLog) -> EpisodeBlock:
    episodes = joined([part.episodes for part in parts])
    rows = joined([part.rows for part in parts])
    keep = joined([part.keep for part in parts])
    starts = np.append(0, np.flatnonzero(episodes[1:] != episodes[:-1]) + 1)
    lengths = np.diff(starts, append=len(episodes))
    whole = np.logical_and.reduceat(keep, starts)
    columns = {name: joined([part.columns[name] for part in parts]) for name in parts[0].columns}
    if not whole.all():
        _report_bad_episodes(parts, np.flatnonzero(~keep), episodes, findings)
        wanted = np.repeat(whole, lengths)[keep]
        columns = {name: rows_of(values, wanted) for name, values in columns.items()}
    good = starts[whole]
    which = np.searchsorted(np.cumsum([len(part.rows) for part in parts]), good, side="right")
    return EpisodeBlock(
        position=Position(parts[0].file, int(rows[0])),
        lengths=lengths[whole].astype(np.int64),
        columns=columns,
        sources=[parts[i].name for i in which],
        rows=rows[good],
        has_final=np.zeros(len(good), np.bool_),
        metadata={name: joined([part.facts[name] for part in parts])[good].tolist() for name in parts[0].facts},
        source_rows=len(rows),
    )


def _report_bad_episodes(
    parts: list[StepPart], bad: npt.NDArray[np.int64], episodes: npt.NDArray[np.int64], findings: FindingLog
) -> None:
    """Adds a finding for each column that has bad episodes.

    An episode is counted in the column of its first bad step.
    """
    firsts = bad[np.unique(episodes[bad], return_index=True)[1]]
    found_at: list[tuple[int, Finding]] = []
    start = 0
    for part in parts:
        for fault in part.faults:
            found = np.intersect1d(firsts, fault.rows + start)
            if len(found):
                row = int(part.rows[found[0] - start])
                finding = Finding("bad-episode", f"{fault.reason}; skipped", len(found), part.name, row, fault.column)
                found_at.append((int(found[0]), finding))
        start += len(part.rows)
    findings.extend(finding for _, finding in sorted(found_at, key=itemgetter(0)))
