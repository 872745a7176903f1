"""Tasks: a conversion cut into parts that can be done one after another, side by side, or on other machines.

How a source is cut depends on the source and the size of shards alone, never on how many work at it. So the shards of
one process, of eight, and of a Ray cluster are the same to the byte.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from gear_data.errors import ResumeError
from gear_data.ingest.engine.spec import ConversionSpec
from gear_data.ingest.pipeline.prepare import prepared_blocks, stored_schema
from gear_data.ingest.source import UNIT_BYTES, EpisodeSource, Unit
from gear_data.storage.block import END, Position
from gear_data.storage.writing.file_store import FileStore, put_text
from gear_data.storage.writing.progress_files import PROGRESS, START_OVER, read_progress_file
from gear_data.storage.writing.shard_writer import ShardWriter
from gear_data.storage.writing.staging import TaskResult


@dataclass(frozen=True)
class Task:
    """A part of a source.

    Attributes:
        prefix: of the names of its files.
        start, stop: its first episode's position, and that of the next task's first.
        bytes: about how many bytes of the source it has.
    """

    prefix: str
    start: Position
    stop: Position
    bytes: int

    def to_json(self) -> dict[str, Any]:
        return {"prefix": self.prefix, "start": list(self.start), "stop": list(self.stop), "bytes": self.bytes}

    @staticmethod
    def from_json(data: dict[str, Any]) -> Task:
        return Task(data["prefix"], Position(*data["start"]), Position(*data["stop"]), data["bytes"])


def plan(units: Sequence[Unit], shard_bytes: int) -> tuple[Task, ...]:
    """Units taken together to tasks of about half a shard's bytes: they are compressed, as a rule."""
    wanted = max(UNIT_BYTES, shard_bytes // 2)
    starts: list[Position] = []
    sizes: list[int] = []
    for unit in units:
        if not starts or sizes[-1] >= wanted:
            starts.append(unit.position)
            sizes.append(0)
        sizes[-1] += unit.bytes
    prefixes = [""] if len(starts) == 1 else [f"{i:05d}-" for i in range(len(starts))]
    return tuple(map(Task, prefixes, starts, [*starts[1:], END], sizes))


def run_task(
    task: Task, spec: ConversionSpec, source: EpisodeSource, store: FileStore, advance: Callable[[int], object]
) -> TaskResult:
    """Writes a task's shards, or what an earlier run left of them to write. `source` is what the spec opens;
    `advance` is told of its rows used up.

    Raises:
        GearError: one of its kinds, for what is wrong with the source or the folder.
    """
    done = f"{PROGRESS}/{task.prefix}done.json"
    if (text := read_progress_file(store, done)) is not None:
        try:
            return TaskResult.from_json(json.loads(text))
        except (ValueError, KeyError, TypeError) as error:
            raise ResumeError(f"cannot be read: {error}", file=f"{store.name}/{done}", hint=START_OVER) from error
    source.findings.restore([])
    source.resume_state.clear()
    with ShardWriter(store, stored_schema(source), spec.shard_bytes, task.prefix) as writer:
        start, skip = task.start, 0
        if (point := writer.resume_point) is not None:
            start, skip = point.position, point.skip
            source.findings.restore(list(point.state["findings"]))
            source.resume_state.update(point.state["notes"])
        if start != END:
            for block, state in prepared_blocks(source, start, task.stop, strict=spec.strict):
                writer.append(block, state, skip)
                # A block of the resumed run may be cut shorter than the one that the position came from.
                skip = max(0, skip - len(block))
                advance(block.source_rows)
        findings = source.findings.to_json()
        writer.close({"findings": findings, "notes": {}})
    result = TaskResult(task.prefix, tuple(writer.shards), writer.statistics.state(), tuple(findings))
    put_text(store, done, json.dumps(result.to_json()))
    return result
