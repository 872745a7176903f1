"""Contender tf.data: datasets of unlike shape, interleaved as Octo and openpi interleave RLDS datasets.

--data is a JSON file: mixture -> the npz files of its datasets. They are first written as TFRecords with one episode a
record. Each dataset is read, cut into a window at every step, and repeated; `sample_from_datasets` draws from all with
equal weights, a buffer shuffles, and batches are made. Actions are padded with zeros. A line "MIXTURE 0" on standard
input asks for the figures of a mixture. The pipeline has no position: a resumed run makes all batches before its step.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from harness import claim_stdout, parse_arguments, say, versions_of
from video_harness import cost

_NAMES = ("observations", "actions")


def write_records(source: Path, target: Path) -> int:
    """Writes the episodes of an npz file, flat arrays of all steps; returns the elements of an action."""
    import tensorflow as tf

    with np.load(source) as arrays:
        columns = {name: arrays[name] for name in _NAMES}
        ends = np.flatnonzero(arrays["terminals"] | arrays["timeouts"]) + 1
    with tf.io.TFRecordWriter(str(target)) as writer:
        for first, last in zip([0, *ends[:-1].tolist()], ends.tolist(), strict=True):
            values = {name: column[first:last].reshape(-1) for name, column in columns.items()}
            features = {
                name: tf.train.Feature(float_list=tf.train.FloatList(value=each)) for name, each in values.items()
            }
            writer.write(tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString())
    return int(columns["actions"].shape[1])


def windows_of(path: str, observation: int, action: int, args: argparse.Namespace) -> Any:
    """Returns a tf.data.Dataset of one dataset's windows, repeated."""
    import tensorflow as tf

    widths = dict(zip(_NAMES, (observation, action), strict=True))
    parsed = {name: tf.io.FixedLenSequenceFeature([width], tf.float32, True) for name, width in widths.items()}

    def cut(record: Any) -> dict[str, Any]:
        episode = tf.io.parse_single_example(record, parsed)
        steps = tf.shape(episode["actions"])[0]
        places = tf.range(steps)[:, None] + tf.range(args.context)[None]
        windows = {name: tf.gather(values, tf.minimum(places, steps - 1)) for name, values in episode.items()}
        windows["actions"] = tf.pad(windows["actions"], [[0, 0], [0, 0], [0, args.width - action]])
        return {**windows, "mask": places < steps}

    return tf.data.TFRecordDataset(path).repeat().map(cut, num_parallel_calls=tf.data.AUTOTUNE).unbatch()


def make_batches(records: Sequence[tuple[str, int, int]], args: argparse.Namespace) -> Any:
    import tensorflow as tf

    parts = [windows_of(path, observation, action, args) for path, observation, action in records]
    mixed = tf.data.Dataset.sample_from_datasets(parts, [1 / len(parts)] * len(parts), seed=args.seed)
    return mixed.shuffle(args.buffer, seed=args.seed).batch(args.batch_size, drop_remainder=True)


def measure(sources: Sequence[str], args: argparse.Namespace) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        records = []
        for number, source in enumerate(sources):
            path = Path(folder) / f"{number}.tfrecord"
            with np.load(source) as arrays:
                observation = int(arrays["observations"].shape[1])
            records.append((str(path), observation, write_records(Path(source), path)))
        found = cost(iter(make_batches(records, args)), args.seconds)
        return {**found, "resume_seconds": args.resumed_step * found["us"] / 1e6}


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--width", type=int, default=32, help="elements of padded actions (default 32)")
    parser.add_argument("--camera-batch", type=int, default=16, help="ignored: these mixtures have no cameras")
    parser.add_argument("--buffer", type=int, default=10_000, help="windows that are shuffled (default 10,000)")
    parser.add_argument(
        "--resumed-step", type=int, default=10**6, help="step at which a run resumes (default 1,000,000)"
    )


def main() -> None:
    args = parse_arguments(__doc__ or "", configure)
    out = claim_stdout()
    os.environ |= {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": ""}
    mixtures = json.loads(args.data.read_text())
    say(out, {"ready": True, "versions": versions_of("tensorflow-cpu")})
    for line in sys.stdin:
        say(out, measure(mixtures[line.split()[0]], args))


if __name__ == "__main__":
    main()
