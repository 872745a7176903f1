"""Contender Reverb: writers of a server in the same process or in its own one, and a TrajectoryDataset.

Items have 20 steps. Each environment has a writer of its own: `Writer`, which was the fastest, or `TrajectoryWriter`.
Or one TrajectoryWriter takes a step of all environments as one step: an item then holds all environments, and no window
of one environment can be drawn.
"""

# mypy: disable-error-code="import-not-found, import-untyped"

from __future__ import annotations

import argparse
import multiprocessing
import os
from collections.abc import Callable
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # TensorFlow reads it on import

import numpy as np
import reverb
import tensorflow as tf
from harness import versions_of
from writer_harness import BATCH_SIZE, CONTEXT, Recorder, Recording, Step, Task, make_columns, serve

TABLE = "windows"
UNFLUSHED_ITEMS = 200


def make_server(items: int, folder: str) -> Any:
    table = reverb.Table(
        name=TABLE,
        sampler=reverb.selectors.Uniform(),
        remover=reverb.selectors.Fifo(),
        max_size=items,
        rate_limiter=reverb.rate_limiters.MinSize(1),
    )
    return reverb.Server([table], checkpointer=reverb.platform.checkpointers_lib.DefaultCheckpointer(folder))


def run_server(items: int, folder: str, told: Any) -> None:
    """Runs a server in its own process, until the other end of the pipe `told` closes."""
    server = make_server(items, folder)
    told.send(server.port)
    try:
        told.recv()
    except EOFError:
        server.stop()


class OwnWriter:
    """A Writer, with the chunks of an episode."""

    def __init__(self, client: Any, every: int) -> None:
        self._client, self._every = client, every
        self._begin()

    def _begin(self) -> None:
        self._writer = self._client.writer(max_sequence_length=CONTEXT, chunk_length=CONTEXT)
        self._length = 0

    def append(self, step: Step) -> None:
        self._writer.append(step)
        self._length += 1
        if self._length >= CONTEXT and not self._length % self._every:
            self._writer.create_item(TABLE, CONTEXT, 1.0)

    def end_episode(self) -> None:
        self._writer.close()
        self._begin()

    def flush(self) -> None:
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()


class OwnTrajectoryWriter:
    """A TrajectoryWriter, with a limit of items that are on their way."""

    def __init__(self, client: Any, every: int) -> None:
        self._writer, self._every = client.trajectory_writer(num_keep_alive_refs=CONTEXT), every
        self._length = self._items = 0

    def append(self, step: Step) -> None:
        if not self._length and not self._items:
            for name in step:
                self._writer.configure((name,), num_keep_alive_refs=CONTEXT, max_chunk_length=CONTEXT)
        self._writer.append(step)
        self._length += 1
        if self._length >= CONTEXT and not self._length % self._every:
            self._writer.create_item(TABLE, 1.0, {name: self._writer.history[name][-CONTEXT:] for name in step})
            self._items += 1
            if not self._items % UNFLUSHED_ITEMS:
                self._writer.flush(block_until_num_items=UNFLUSHED_ITEMS // 2)

    def end_episode(self) -> None:
        self._writer.end_episode()
        self._length = 0

    def flush(self) -> None:
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()


class ReverbRecorder:
    def __init__(self, task: Task) -> None:
        options = task.options
        items, folder = task.capacity // options.every, str(task.folder)
        self._together = options.writer == "together" and task.environments > 0
        if self._together:
            items //= task.environments
        if options.server == "process":
            spawn = multiprocessing.get_context("spawn")
            self._told, other = spawn.Pipe()
            self._process = spawn.Process(target=run_server, args=(items, folder, other), daemon=True)
            self._process.start()
            other.close()
            port = self._told.recv()
        else:
            self._server = make_server(items, folder)
            port = self._server.port
        self.address = f"localhost:{port}"
        self._client = reverb.Client(self.address)
        kind = OwnWriter if options.writer == "writer" else OwnTrajectoryWriter
        writers = 1 if self._together else max(1, task.environments)
        self._writers = [kind(self._client, options.every) for _ in range(writers)]
        if not task.environments:
            self.append = self._append_one  # type: ignore[method-assign]

    def append(self, step: Step, ends: tuple[int, ...]) -> None:
        if self._together:
            self._writers[0].append(step)
            return
        for row, writer in enumerate(self._writers):
            writer.append({name: values[row] for name, values in step.items()})
        for row in ends:
            self._writers[row].end_episode()

    def _append_one(self, step: Step, ends: tuple[int, ...]) -> None:
        self._writers[0].append({name: np.asarray(value) for name, value in step.items()})
        if ends:
            self._writers[0].end_episode()

    def settle(self) -> None:
        for writer in self._writers:
            writer.flush()

    def finish(self) -> None:
        self._client.checkpoint()

    def close(self) -> None:
        for writer in self._writers:
            writer.close()
        if hasattr(self, "_server"):
            self._server.stop()
        else:
            self._told.close()
            self._process.join()


def build(args: argparse.Namespace) -> Recording:
    columns = make_columns(args.shape, 1, 0)

    def sample(recorder: Recorder) -> Callable[[], Any]:
        dataset = reverb.TrajectoryDataset(
            server_address=recorder.address,  # type: ignore[attr-defined]
            table=TABLE,
            dtypes={name: tf.as_dtype(values.dtype) for name, values in columns.items()},
            shapes={name: tf.TensorShape([CONTEXT, *values.shape[2:]]) for name, values in columns.items()},
            max_in_flight_samples_per_worker=2 * BATCH_SIZE,
            num_workers_per_iterator=2 * (os.cpu_count() or 1),
        ).batch(BATCH_SIZE, drop_remainder=True)
        batches = iter(dataset.prefetch(2))
        return lambda: {name: tensor.numpy() for name, tensor in next(batches).data.items()}

    where = "in its own process" if args.server == "process" else "in the same process"
    writers = {
        "writer": "a Writer for each environment",
        "trajectory": "a TrajectoryWriter for each environment",
        "together": "one TrajectoryWriter, which takes a step of all environments as one step",
    }
    place = "at every step" if args.every == 1 else f"at every {args.every}th step"
    return Recording(
        ReverbRecorder,
        versions_of("dm-reverb", "tensorflow", "numpy"),
        f"server {where}; {writers[args.writer]}; chunks of {CONTEXT} steps, an item of {CONTEXT} steps {place}; the "
        "finish is a checkpoint; samples: TrajectoryDataset, prefetch 2",
        None if args.writer == "together" else sample,
    )


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--every", type=int, default=CONTEXT, help=f"steps from item to item (default {CONTEXT})")
    kinds = ("writer", "trajectory", "together")
    parser.add_argument("--writer", choices=kinds, default="writer", help="kind of writer (default writer)")
    help = "place of the server: this process, or its own one (default thread)"
    parser.add_argument("--server", choices=("thread", "process"), default="thread", help=help)


if __name__ == "__main__":
    serve(build, "Rate of Reverb's writers.", configure)
