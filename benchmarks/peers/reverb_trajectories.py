"""Contender Reverb: a table of windows, read by TrajectoryDataset.

The reader is in the server's process, so no gRPC is between them.

Each step ends one item of `context` steps. Reverb has no padding: each episode is written after `context - 1` zero
steps with mask 0, which gives the same left-padded windows. Chunks of `context` steps and two sampler workers per core
were the fastest settings tried.
"""

# mypy: disable-error-code="import-not-found, import-untyped"

from __future__ import annotations

import argparse
import os
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # TensorFlow reads it on import

import numpy as np
import reverb
import tensorflow as tf
from harness import Feed, Steps, load_steps, main, versions_of

TABLE = "windows"
UNFLUSHED_ITEMS = 200


def signature(steps: Steps, context: int) -> dict[str, tf.TensorSpec]:
    return {
        **{
            name: tf.TensorSpec([context, *column.shape[1:]], tf.as_dtype(column.dtype))
            for name, column in steps.columns.items()
        },
        "timesteps": tf.TensorSpec([context], tf.int64),
        "mask": tf.TensorSpec([context], tf.float32),
    }


def fill(client: reverb.Client, steps: Steps, columns: list[str], context: int) -> None:
    writer = client.trajectory_writer(num_keep_alive_refs=context)
    for name in columns:
        writer.configure((name,), num_keep_alive_refs=context, max_chunk_length=context)

    def row(index: int) -> dict[str, Any]:
        return {
            **{name: column[index] for name, column in steps.columns.items()},
            "timesteps": steps.timesteps[index],
            "mask": np.float32(1),
        }

    padding = {name: np.zeros_like(value) for name, value in row(0).items()}
    for start, length in zip(steps.starts, steps.lengths, strict=True):
        for _ in range(context - 1):
            writer.append(padding)
        for index in range(start, start + length):
            writer.append(row(index))
            writer.create_item(TABLE, 1.0, {name: writer.history[name][-context:] for name in columns})
            if index % UNFLUSHED_ITEMS == 0:
                writer.flush(block_until_num_items=UNFLUSHED_ITEMS // 2)
        writer.end_episode()
    writer.close()


def build(args: argparse.Namespace) -> Feed:
    steps = load_steps(args.data)
    specs = signature(steps, args.context)
    server = reverb.Server(
        [
            reverb.Table(
                name=TABLE,
                sampler=reverb.selectors.Uniform(),
                remover=reverb.selectors.Fifo(),
                max_size=len(steps),
                rate_limiter=reverb.rate_limiters.MinSize(1),
                signature=specs,
            )
        ]
    )
    address = f"localhost:{server.port}"
    fill(reverb.Client(address), steps, list(specs), args.context)
    dataset = reverb.TrajectoryDataset.from_table_signature(
        server_address=address,
        table=TABLE,
        max_in_flight_samples_per_worker=2 * args.batch_size,
        num_workers_per_iterator=2 * (os.cpu_count() or 1),
    ).batch(args.batch_size, drop_remainder=True)
    batches = iter(dataset.prefetch(2))

    def next_batch() -> dict[str, Any]:
        return {name: tensor.numpy() for name, tensor in next(batches).data.items()}

    return Feed(
        next_batch=next_batch,
        windows=args.batch_size,
        notes="TrajectoryDataset in the server's process, uniform, one item a step, left padding stored as zero steps; "
        "NumPy views of TensorFlow tensors; two sampler workers a core, prefetch 2",
        versions=versions_of("dm-reverb", "tensorflow", "numpy"),
        held=(server,),
    )


if __name__ == "__main__":
    main(build, "Feed rate of Reverb's TrajectoryDataset; --data is a folder of steps.")
