"""Tasks of a conversion on a Ray cluster."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Sequence
from typing import Any

from gear_data.common.extras import import_extra
from gear_data.errors import GearError, WorkerError
from gear_data.ingest.engine.processes import Advance, Engine
from gear_data.ingest.engine.spec import ConversionSpec
from gear_data.ingest.engine.tasks import Task, run_task
from gear_data.ingest.engine.worker import error_from_json, error_to_json
from gear_data.storage.remote.object_store import open_file_store
from gear_data.storage.writing.staging import TaskResult

#: How often Ray tries a task again whose worker died. What it had finished is not done again.
_TRIES = 3


def on_ray(spec: ConversionSpec, destination: str, jobs: int | None) -> Engine:
    """Each task is a Ray task. The source and the destination must mean the same to every node: URLs, or paths of a
    file system that all of them mount.

    Raises:
        MissingExtraError: Ray is not installed.
    """
    ray = import_extra("ray", "ray")

    def run(tasks: Sequence[Task], advance: Advance) -> list[TaskResult]:
        if not ray.is_initialized():
            # What goes wrong in a worker comes back as an error; what else it and Ray have to say is nobody's question.
            ray.init(address=os.environ.get("RAY_ADDRESS"), log_to_driver=False, logging_level=logging.ERROR)
        remote = ray.remote(num_cpus=1, max_retries=_TRIES)(_do)
        job = json.dumps({"source": spec.source, "options": spec.to_json(), "destination": destination})
        waiting = list(enumerate(tasks))[::-1]
        running: dict[Any, int] = {}
        results: dict[int, TaskResult] = {}
        failed: dict[int, GearError] = {}
        while waiting or running:
            while waiting and (jobs is None or len(running) < jobs):
                index, task = waiting.pop()
                running[remote.remote(job, json.dumps(task.to_json()))] = index
            (reference,), _ = ray.wait(list(running), num_returns=1)
            index = running.pop(reference)
            try:
                answer = json.loads(ray.get(reference))
            except ray.exceptions.RayError as error:
                failed[index] = WorkerError(
                    f"a Ray task failed: {_reason(error)}", hint="mend the cluster and go on with --resume"
                )
            else:
                if "error" in answer:
                    failed[index] = error_from_json(answer["error"])
                else:
                    results[index] = TaskResult.from_json(answer["result"])
                    advance(answer["rows"])
            if failed:
                waiting.clear()
        if failed:
            raise failed[min(failed)]
        return [results[index] for index in range(len(tasks))]

    return run


def _reason(error: Exception) -> str:
    """In a line: what a task raised, else what Ray has to say."""
    cause = getattr(error, "cause", None)
    text = str(error) if cause is None else f"{type(cause).__name__}: {cause}"
    return (text.splitlines() or [type(error).__name__])[0]


def _do(job: str, task: str) -> str:
    """In a Ray worker; all that goes in and out is text, so that nothing of this package is pickled but its name."""
    given = json.loads(job)
    spec = ConversionSpec.from_json(given["source"], given["options"])
    rows = 0

    def advance(count: int) -> None:
        nonlocal rows
        rows += count

    try:
        source, _, _ = spec.open()
        store = open_file_store(given["destination"])
        result = run_task(Task.from_json(json.loads(task)), spec, source, store, advance)
    except GearError as error:
        return json.dumps({"error": error_to_json(error)})
    return json.dumps({"result": result.to_json(), "rows": rows})
