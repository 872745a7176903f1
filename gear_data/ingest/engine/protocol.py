"""The interface of engines, which run the tasks of a conversion."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from gear_data.ingest.engine.tasks import Task
from gear_data.storage.writing.staging import TaskResult

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
