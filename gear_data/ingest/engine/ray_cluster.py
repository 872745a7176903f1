"""The engine of a Ray cluster."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from typing import Any

from gear_data.common.extras import import_extra
from gear_data.errors import GearError, WorkerError
from gear_data.ingest.engine.spec import ConversionSpec
from gear_data.ingest.engine.tasks import Advance, Task, run_task
from gear_data.storage.remote.object_store import open_file_store
from gear_data.storage.writing.staging import TaskResult

#: The number of times that Ray retries a task whose worker died. Shards that were finished are not written again.
_MAX_RETRIES = 3


class RayEngine:
    """Runs each task as a Ray task.

    The source and the destination must mean the same on every node: URLs, or paths of a file system that all nodes
    mount.

    Args:
        spec: the conversion.
        destination: the folder or URL to write to.
        jobs: the most tasks that run at once; None leaves that to Ray.

    Raises:
        MissingExtraError: Ray is not installed.
    """

    def __init__(self, spec: ConversionSpec, destination: str, jobs: int | None) -> None:
        self._ray = import_extra("ray", "ray")
        self._spec = spec
        self._destination = destination
        self._jobs = jobs

    def run(self, tasks: Sequence[Task], advance: Advance) -> list[TaskResult]:
        ray = connected_ray()
        remote_task = ray.remote(num_cpus=1, max_retries=_MAX_RETRIES)(_convert_task)
        pending = list(enumerate(tasks))[::-1]
        running: dict[Any, int] = {}
        results: dict[int, TaskResult] = {}
        errors: dict[int, GearError] = {}
        while pending or running:
            while pending and (self._jobs is None or len(running) < self._jobs):
                index, task = pending.pop()
                running[remote_task.remote(self._spec, self._destination, task)] = index
            (reference,), _ = ray.wait(list(running), num_returns=1)
            index = running.pop(reference)
            outcome, rows = self._fetch(reference)
            if isinstance(outcome, GearError):
                errors[index] = outcome
                pending.clear()
            else:
                results[index] = outcome
                advance(rows)
        if errors:
            raise errors[min(errors)]
        return [results[index] for index in range(len(tasks))]

    def _fetch(self, reference: Any) -> tuple[TaskResult | GearError, int]:
        """Returns a finished task's result or error, and the source rows that it read."""
        try:
            return self._ray.get(reference)  # type: ignore[no-any-return]
        except self._ray.exceptions.RayError as error:
            return WorkerError(
                f"a Ray task failed: {reason(error)}",
                hint="repair the cluster and continue with --resume (resume=True)",
            ), 0


def connected_ray() -> Any:
    """Returns the module `ray`, connected to a cluster: that of RAY_ADDRESS, or one on this machine.

    Raises:
        MissingExtraError: Ray is not installed.
    """
    ray = import_extra("ray", "ray")
    if not ray.is_initialized():
        # A worker's failure arrives as an error. The other log lines of Ray do not concern the user.
        ray.init(address=os.environ.get("RAY_ADDRESS"), log_to_driver=False, logging_level=logging.ERROR)
    return ray


def reason(error: Exception) -> str:
    """Returns the error that a task raised, or else the first line of Ray's message."""
    cause = getattr(error, "cause", None)
    text = str(error) if cause is None else f"{type(cause).__name__}: {cause}"
    return (text.splitlines() or [type(error).__name__])[0]


def _convert_task(spec: ConversionSpec, destination: str, task: Task) -> tuple[TaskResult | GearError, int]:
    """Runs a task in a Ray worker.

    Errors are returned, not raised: Ray would wrap a raised error.
    """
    rows = 0

    def advance(count: int) -> None:
        nonlocal rows
        rows += count

    try:
        source, _, _ = spec.open()
        return run_task(task, spec, source, open_file_store(destination), advance), rows
    except GearError as error:
        return error, rows
