"""A process that does tasks of a conversion: `python -m gear_data.ingest.engine.worker`, started by `ingest.engines`.

It reads a JSON line that says what to convert and where to, opens the source, reads then a line a task, and answers
with lines: `rows` used up since the last one, a task's `result`, or the `error` it ended with.
"""

from __future__ import annotations

import json
import sys
from typing import Any, TextIO

import pyarrow as pa

from gear_data import errors
from gear_data.errors import GearError
from gear_data.ingest.engine.spec import ConversionSpec
from gear_data.ingest.engine.tasks import Task, run_task
from gear_data.storage.remote.object_store import open_file_store


def main(lines: TextIO, answers: TextIO) -> None:
    def answer(kind: str, value: Any) -> None:
        answers.write(json.dumps({kind: value}) + "\n")
        answers.flush()

    job = json.loads(lines.readline())
    spec = ConversionSpec.from_json(job["source"], job["options"])
    pa.set_cpu_count(job["threads"])
    store = open_file_store(job["destination"])
    try:
        source, _, _ = spec.open(threads=job["threads"])
    except GearError as error:
        lines.readline()  # an answer is to a task
        answer("error", error_to_json(error))
        return
    for line in lines:
        try:
            task = Task.from_json(json.loads(line))
            result = run_task(task, spec, source, store, lambda rows: answer("rows", rows))
        except GearError as error:
            answer("error", error_to_json(error))
            return
        answer("result", result.to_json())


def error_to_json(error: GearError) -> dict[str, Any]:
    kind = type(error).__name__
    fields = {name: getattr(error, name) for name in ("message", "file", "column", "row", "hint")}
    return {"kind": kind, **fields}


def error_from_json(data: dict[str, Any]) -> GearError:
    """The same error, in the process that asked."""
    kind: type[GearError] = getattr(errors, data["kind"], GearError)
    return kind(data["message"], file=data["file"], column=data["column"], row=data["row"], hint=data["hint"])


if __name__ == "__main__":
    main(sys.stdin, sys.stdout)
