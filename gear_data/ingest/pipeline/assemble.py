"""From a stream of steps to blocks of whole episodes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from operator import itemgetter
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from gear_data.ingest.findings.log import Finding, FindingLog
from gear_data.storage.block import EpisodeBlock, Position


@dataclass(frozen=True)
class UnreadableRows:
    """Why steps cannot be read: int64 `rows` of a part, the column, and what is wrong with the first of them."""

    rows: npt.NDArray[np.int64]
    column: str
    reason: str


@dataclass(frozen=True)
class StepPart:
    """Consecutive steps of one file.

    Attributes:
        file, name: the file's number and name.
        rows: int64 [n], source rows.
        episodes: int64 [n], a running number that grows by one at every episode's first step, over all parts.
        keep: bool [n], False for steps that could not be read; their whole episode is left out.
        columns: name -> [keep.sum(), *shape].
        variable: name -> array of keep.sum() values, as `EpisodeBlock.variable`.
        facts: name -> [n], values of which an episode takes its first step's.
        finals: name -> [n, *shape], of which an episode takes its last step's as final observation.
        more: whether the next part was read together with this one, so that no block ends between them.
        ended: whether the last step is known to be its episode's last.
        faults: of the steps that are not kept, each in one of them.
    """

    file: int
    name: str
    rows: npt.NDArray[np.int64]
    episodes: npt.NDArray[np.int64]
    keep: npt.NDArray[np.bool_]
    columns: Mapping[str, npt.NDArray[Any]]
    facts: Mapping[str, npt.NDArray[Any]]
    finals: Mapping[str, npt.NDArray[Any]]
    variable: Mapping[str, pa.Array] = field(default_factory=dict)
    continues: bool = False
    ends_episode: bool = False
    faults: tuple[UnreadableRows, ...] = ()

    def cut(self, start: int, stop: int) -> StepPart:
        first, last = int(self.keep[:start].sum()), int(self.keep[:stop].sum())
        return StepPart(
            file=self.file,
            name=self.name,
            rows=self.rows[start:stop],
            episodes=self.episodes[start:stop],
            keep=self.keep[start:stop],
            columns={name: values[first:last] for name, values in self.columns.items()},
            facts={name: values[start:stop] for name, values in self.facts.items()},
            finals={name: values[start:stop] for name, values in self.finals.items()},
            variable={name: array[first:last] for name, array in self.variable.items()},
            faults=tuple(
                replace(fault, rows=fault.rows[inside] - start)
                for fault in self.faults
                if (inside := (fault.rows >= start) & (fault.rows < stop)).any()
            ),
        )


def assemble(parts: Iterator[StepPart], findings: FindingLog, *, has_final: bool) -> Iterator[EpisodeBlock]:
    """Blocks of whole episodes; the last episode ends with the stream.

    An episode may run over any number of parts and files. What is held is what was read together, and the episode
    before it.
    """
    held: list[StepPart] = []
    for part in parts:
        held.append(part)
        if part.continues:
            continue
        if part.ends_episode:
            yield _block(held, findings, has_final)
            held = []
            continue
        index, start = _last_start(held)
        whole = [*held[:index], held[index].cut(0, start)] if start else held[:index]
        if whole:
            yield _block(whole, findings, has_final)
            held = [held[index].cut(start, len(held[index].rows)), *held[index + 1 :]]
    if held:
        yield _block(held, findings, has_final)


def _last_start(parts: list[StepPart]) -> tuple[int, int]:
    """Where the last of the episodes begins: the part, and the step in it."""
    last, index = parts[-1].episodes[-1], len(parts) - 1
    while index and parts[index].episodes[0] == last == parts[index - 1].episodes[-1]:
        index -= 1
    return index, int(np.searchsorted(parts[index].episodes, last))


def _block(parts: list[StepPart], findings: FindingLog, has_final: bool) -> EpisodeBlock:
    episodes = _concatenate([part.episodes for part in parts])
    rows = _concatenate([part.rows for part in parts])
    keep = _concatenate([part.keep for part in parts])
    starts = np.append(0, np.flatnonzero(episodes[1:] != episodes[:-1]) + 1)
    lengths = np.diff(starts, append=len(episodes))
    whole = np.logical_and.reduceat(keep, starts)
    columns = {name: _concatenate([part.columns[name] for part in parts]) for name in parts[0].columns}
    variable = {name: pa.concat_arrays([part.variable[name] for part in parts]) for name in parts[0].variable}
    if not whole.all():
        _note_bad(parts, np.flatnonzero(~keep), episodes, findings)
        wanted = np.repeat(whole, lengths)[keep]
        columns = {name: values[wanted] for name, values in columns.items()}
        variable = {name: array.filter(pa.array(wanted)) for name, array in variable.items()}
    good = starts[whole]
    which = np.searchsorted(np.cumsum([len(part.rows) for part in parts]), good, side="right")
    last = good + lengths[whole] - 1
    return EpisodeBlock(
        position=Position(parts[0].file, int(rows[0])),
        lengths=lengths[whole].astype(np.int64),
        columns=columns,
        sources=[parts[i].name for i in which],
        rows=rows[good],
        has_final=np.full(len(good), has_final),
        finals={name: _concatenate([part.finals[name] for part in parts])[last] for name in parts[0].finals},
        metadata={name: _concatenate([part.facts[name] for part in parts])[good].tolist() for name in parts[0].facts},
        variable=variable,
        source_rows=len(rows),
    )


def _note_bad(
    parts: list[StepPart], bad: npt.NDArray[np.int64], episodes: npt.NDArray[np.int64], findings: FindingLog
) -> None:
    """Adds a finding for each column in which episodes are bad, each episode under the first of its `bad` steps."""
    firsts = bad[np.unique(episodes[bad], return_index=True)[1]]
    noted: list[tuple[int, Finding]] = []
    start = 0
    for part in parts:
        for fault in part.faults:
            found = np.intersect1d(firsts, fault.rows + start)
            if len(found):
                row = int(part.rows[found[0] - start])
                finding = Finding("bad-episode", f"{fault.reason}; skipped", len(found), part.name, row, fault.column)
                noted.append((int(found[0]), finding))
        start += len(part.rows)
    for _, finding in sorted(noted, key=itemgetter(0)):
        findings.add(finding)


def _concatenate(arrays: list[npt.NDArray[Any]]) -> npt.NDArray[Any]:
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)
