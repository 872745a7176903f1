"""Engines: threads of this process, other processes, or a Ray cluster, which call methods of objects."""

from __future__ import annotations

import queue
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack, contextmanager
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any, TypeAlias, get_args

from gear_data.errors import GearError, WorkerError, unknown_name
from gear_data.words import EngineName

#: The number of an object, the name of its method, and the arguments.
Call: TypeAlias = "tuple[int, str, tuple[Any, ...]]"
#: Yields (number of a call, its result) for some calls, in any order.
Run: TypeAlias = "Callable[[Sequence[Call]], Iterator[tuple[int, Any]]]"


@contextmanager
def run_calls(engine: EngineName, objects: Sequence[Any], workers: int, *, processes: bool) -> Iterator[Run]:
    """Runs calls until the context exits.

    Args:
        engine: `local` or `ray`.
        objects: objects whose methods are called. They can be pickled.
        workers: calls that run at once.
        processes: whether workers of `local` are processes. False: they are threads of this process.

    Raises:
        UnknownNameError: no such engine.
        MissingExtraError: Ray is not installed.
        WorkerError: a process or a Ray task ended. `Run` raises it, and the errors of calls.
    """
    if engine not in get_args(EngineName):
        raise unknown_name("engine", engine, get_args(EngineName))
    with ExitStack() as stack:
        if engine == "ray":
            call = _ray(objects)
        elif processes:
            call = _processes(objects, workers, stack)
        else:
            call = _Threads(objects)
        threads = ThreadPoolExecutor(workers, "gear-statistics")
        stack.callback(threads.shutdown, cancel_futures=True)

        def run(calls: Sequence[Call]) -> Iterator[tuple[int, Any]]:
            waiting = {threads.submit(call, each): number for number, each in enumerate(calls)}
            for done in as_completed(waiting):
                yield waiting.pop(done), done.result()

        yield run


class _Threads:
    """Calls in this process. The kernels run without the interpreter's lock."""

    def __init__(self, objects: Sequence[Any]) -> None:
        self._objects = objects

    def __call__(self, call: Call) -> Any:
        return called(self._objects, call)


def called(objects: Sequence[Any], call: Call) -> Any:
    """Returns the result of a call."""
    number, name, arguments = call
    return getattr(objects[number], name)(*arguments)


def _processes(objects: Sequence[Any], count: int, stack: ExitStack) -> Callable[[Call], Any]:
    """Starts processes that end when the context exits, and returns what calls in them."""
    free: queue.SimpleQueue[tuple[subprocess.Popen[bytes], Connection[Any, Any]]] = queue.SimpleQueue()
    for _ in range(count):
        ours, theirs = Pipe()
        with theirs:
            command = [sys.executable, "-m", "gear_data.dataset.relative.worker", str(theirs.fileno())]
            process = subprocess.Popen(command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL)
        stack.callback(process.wait)
        stack.callback(process.kill)
        stack.callback(ours.close)
        try:
            ours.send(list(objects))
        except OSError as error:
            raise _ended(process) from error
        free.put((process, ours))

    def call(each: Call) -> Any:
        process, connection = free.get()
        try:
            connection.send(each)
            result = connection.recv()
        except (OSError, EOFError) as error:
            raise _ended(process) from error
        finally:
            free.put((process, connection))
        if isinstance(result, GearError):
            raise result
        return result

    return call


def _ended(process: subprocess.Popen[bytes]) -> WorkerError:
    return WorkerError(
        f"a worker process of the statistics ended with status {process.wait()}",
        hint="if it ran out of memory, give jobs= a smaller number",
    )


def _ray(objects: Sequence[Any]) -> Callable[[Call], Any]:
    """Returns what calls in tasks of a Ray cluster."""
    from gear_data.ingest.engine.ray_cluster import connected_ray, first_ended, reason

    ray = connected_ray()
    shared, task = ray.put(list(objects)), ray.remote(num_cpus=1)(_called)

    def call(each: Call) -> Any:
        try:
            result = ray.get(first_ended(ray, [task.remote(shared, each)]))
        except ray.exceptions.RayError as error:
            raise WorkerError(
                f"a Ray task failed: {reason(error)}", hint="repair the cluster, and try again"
            ) from error
        if isinstance(result, GearError):
            raise result
        return result

    return call


def _called(objects: Sequence[Any], call: Call) -> Any:
    """Returns the result of a call, or its error: Ray would wrap a raised error."""
    try:
        return called(objects, call)
    except GearError as error:
        return error
