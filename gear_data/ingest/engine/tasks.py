"""Tasks: consecutive parts of a source that are converted independently.

The tasks depend only on the source and on the size of shards, not on the number of workers. So one process, eight
processes and a Ray cluster write the same bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from gear_data.errors import ResumeError
from gear_data.ingest.engine.spec import ConversionSpec
from gear_data.ingest.pipeline.prepare import prepared_blocks, stored_schema
from gear_data.ingest.source import UNIT_BYTES, EpisodeSource, Unit
from gear_data.storage.episode_block import END, Position
from gear_data.storage.writing.file_store import FileStore
from gear_data.storage.writing.one_behind import one_behind
from gear_data.storage.writing.progress_files import PROGRESS, START_OVER, read_progress_file, write_progress_file
from gear_data.storage.writing.shard_writer import ShardWriter
from gear_data.storage.writing.staging import TaskResult

#: Source bytes that are worth the start of one more worker process.
_BYTES_PER_WORKER = 128 << 20


@dataclass(frozen=True)
class Task:
    """A part of a source.

    Attributes:
        prefix: the prefix of its files' names.
        start: the position of its first episode.
        stop: the position of the next task's first episode, or `END`.
        bytes: its approximate size in the source, in bytes.
    """

    prefix: str
    start: Position
    stop: Position
    bytes: int


def useful_workers(source_bytes: int, shard_bytes: int) -> int:
    """Returns the number of workers that are worth their start, beside the process that converts too.

    Each of them gets at least one task of `_BYTES_PER_WORKER`, or as many smaller ones.
    """
    full = _task_bytes(shard_bytes)
    large = (source_bytes + max(0, full - _BYTES_PER_WORKER)) // full
    return max(0, min(source_bytes // _BYTES_PER_WORKER, large - 1))


def _task_bytes(shard_bytes: int) -> int:
    """Returns the bytes of a source at which a task is full: about half a shard's.

    Half, because sources are usually compressed.
    """
    return max(UNIT_BYTES, shard_bytes // 2)


def plan_tasks(units: Sequence[Unit], shard_bytes: int) -> tuple[Task, ...]:
    """Groups consecutive units into tasks of `_task_bytes`."""
    full = _task_bytes(shard_bytes)
    starts: list[Position] = []
    sizes: list[int] = []
    for unit in units:
        if not starts or sizes[-1] >= full:
            starts.append(unit.position)
            sizes.append(0)
        sizes[-1] += unit.bytes
    prefixes = [""] if len(starts) == 1 else [f"{i:05d}-" for i in range(len(starts))]
    return tuple(map(Task, prefixes, starts, [*starts[1:], END], sizes))


def run_task(
    task: Task, spec: ConversionSpec, source: EpisodeSource, store: FileStore, advance: Callable[[int], object]
) -> TaskResult:
    """Writes the shards of a task, or the shards that an earlier run did not write.

    Args:
        task: the task.
        spec: the conversion.
        source: the source, opened by `spec.open`.
        store: the destination.
        advance: called with the number of source rows read since the last call.

    Raises:
        GearError: the source is malformed, or the destination cannot be written.
    """
    done = f"{PROGRESS}/{task.prefix}done.json"
    if (data := read_progress_file(store, done)) is not None:
        try:
            return TaskResult.from_json(data)
        except (ValueError, KeyError, TypeError) as error:
            raise ResumeError(f"cannot be read: {error}", file=f"{store.name}/{done}", hint=START_OVER) from error
    source = spec.with_stored_cameras(source, store)
    source.findings.restore([])
    source.resume_state.clear()
    with ShardWriter(store, stored_schema(source), spec.shard_bytes, task.prefix) as writer:
        start, skip = task.start, 0
        if (point := writer.resume_point) is not None:
            start, skip = point.position, point.skip
            source.findings.restore(list(point.state["findings"]))
            source.resume_state.update(point.state["notes"])
        if start != END:
            with one_behind(writer.append) as append:
                for block, state in prepared_blocks(source, start, task.stop, strict=spec.strict):
                    append(block, state, skip)
                    # A resumed run may cut blocks shorter than the run that saved the position.
                    skip = max(0, skip - len(block))
                    advance(block.source_rows)
        findings = source.findings.to_json()
        writer.close({"findings": findings, "notes": {}})
    result = TaskResult(task.prefix, tuple(writer.shards), writer.statistics.state(), tuple(findings))
    write_progress_file(store, done, result.to_json())
    return result


#: Called with the number of source rows that were read since the last call.
Advance = Callable[[int], object]
#: The first message of a worker process: it has opened the source and waits for a task.
READY = "ready"


class Engine(Protocol):
    """Runs tasks in this process, in several processes, or on a Ray cluster."""

    def run(self, tasks: Sequence[Task], advance: Advance) -> list[TaskResult]:
        """Runs all tasks and returns their results, in the order of the tasks.

        Args:
            tasks: the tasks, in the order of the source.
            advance: reports progress.

        Raises:
            GearError: the error of the first task that failed. Tasks that finished keep their shards, and a resumed
                conversion uses them.
        """
