"""The engine of a Ray cluster."""

from __future__ import annotations

import functools
import logging
import os
from collections.abc import Sequence
from typing import Any

from gear_data.common.extras import import_extra
from gear_data.errors import GearError, RemoteError, WorkerError, errors_as
from gear_data.ingest.engine.spec import ConversionSpec
from gear_data.ingest.engine.tasks import Advance, Task, run_task
from gear_data.storage.remote.object_store import open_file_store
from gear_data.storage.writing.staging import TaskResult

#: The number of times that Ray retries a task whose worker died. Shards that were finished are not written again.
_MAX_RETRIES = 3
#: Seconds without an ended task, after which a line says what the cluster has.
_SILENT_SECONDS = 60.0

_log = logging.getLogger(__name__)


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
            reference = first_ended(ray, list(running))
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
        RemoteError: the cluster cannot be reached, or none can be started.
    """
    ray = import_extra("ray", "ray")
    if not ray.is_initialized():
        address = os.environ.get("RAY_ADDRESS")
        # A worker's failure arrives as an error. The other log lines of Ray do not concern the user.
        with errors_as(
            (OSError, RuntimeError, ValueError, ray.exceptions.RayError),
            lambda error: RemoteError(
                f"Ray does not connect: {reason(error)}",
                file=address,
                hint="set RAY_ADDRESS to the address of a running cluster, or leave it out for one on this machine",
            ),
        ):
            ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
    return ray


def first_ended(ray: Any, references: Sequence[Any]) -> Any:
    """Waits for a task, and returns the reference of the first one that has ended."""
    ended, _ = ray.wait(list(references), num_returns=1, timeout=_SILENT_SECONDS)
    if not ended:
        _tell_waiting(ray)
        ended, _ = ray.wait(list(references), num_returns=1)
    return ended[0]


@functools.cache  # one line is enough
def _tell_waiting(ray: Any) -> None:
    """Says that no task has ended. Ray itself says nothing, and waits for ever if the cluster has no CPU for a task."""
    _log.warning(
        "no Ray task has ended for %.0f s. A task needs a CPU; the cluster has %g, and %g of them are free",
        _SILENT_SECONDS,
        ray.cluster_resources().get("CPU", 0),
        ray.available_resources().get("CPU", 0),
    )


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
