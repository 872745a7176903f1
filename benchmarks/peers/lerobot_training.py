"""Contender of benchmarks/lerobot_train.py: the DataLoader of `lerobot-train`, with one of two datasets, or the limit.

The limit, `--dataset plain`, decodes the files from begin to end by PyAV in one thread, each frame once.

--data is a LeRobot dataset. The process prints a line when it is ready. For each line `SECONDS STEP` it draws batches
for that many seconds. After each batch it sleeps for STEP seconds, as a step on an accelerator would.
"""

from __future__ import annotations

import argparse
import importlib
import multiprocessing
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from harness import claim_stdout, parse_arguments, say, versions_of

CLASSES = {"gear": "gear_data.integrations.lerobot", "lerobot": "lerobot.datasets.lerobot_dataset"}
PLAIN = "plain"


def batches(args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yields the batches that the training script of LeRobot 0.6.1 draws."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    import torch
    from lerobot.datasets import EpisodeAwareSampler
    from lerobot.datasets.dataset_metadata import LeRobotDatasetMetadata

    meta = LeRobotDatasetMetadata("bench/data", root=args.data)
    window = [step / meta.fps for step in range(1 - args.window, 1)]
    dataset = importlib.import_module(CLASSES[args.dataset]).LeRobotDataset(
        "bench/data", root=args.data, return_uint8=True, video_backend=args.backend,
        delta_timestamps={**dict.fromkeys(meta.camera_keys, window), "observation.state": window, "action": window},
    )  # fmt: skip
    sampler = EpisodeAwareSampler(
        dataset.meta.episodes["dataset_from_index"], dataset.meta.episodes["dataset_to_index"], shuffle=True,
        seed=args.seed, absolute_to_relative_idx=dataset.absolute_to_relative_idx,
    )  # fmt: skip
    workers = {"prefetch_factor": 2, "persistent_workers": True} if args.workers else {}
    loader = torch.utils.data.DataLoader(
        dataset, batch_size=args.batch_size, sampler=sampler, num_workers=args.workers, drop_last=False, **workers
    )
    while True:
        yield from loader


def plain_batches(args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yields batches of frames in the order of the files: `batch_size` times a window of one camera."""
    import av
    import numpy as np

    frames = []
    while True:
        for file in sorted(args.data.rglob("*.mp4")):
            with av.open(str(file)) as container:
                container.streams.video[0].codec_context.thread_count = 1
                for frame in container.decode(video=0):
                    frames.append(frame.to_ndarray(format="rgb24"))
                    if len(frames) == args.batch_size * args.window:
                        stacked = np.stack(frames)
                        yield {"observation.images.all": stacked.reshape(args.batch_size, -1, *stacked.shape[1:])}
                        frames.clear()


def processor_seconds() -> float:
    """Returns the processor time of this process and its workers so far, from Linux's /proc."""
    ticks = 0
    for number in (os.getpid(), *(each.pid for each in multiprocessing.active_children())):
        fields = Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--dataset", choices=[*CLASSES, PLAIN], required=True, help="whose dataset class")
    parser.add_argument("--backend", default="pyav", help="LeRobot's decoder: torchcodec or pyav (default pyav)")
    parser.add_argument("--workers", type=int, default=0, help="workers of the DataLoader (default 0)")
    parser.add_argument("--window", type=int, default=8, help="steps of a sample (default 8)")


def main() -> None:
    args = parse_arguments(__doc__ or "", configure)
    out = claim_stdout()
    drawn = plain_batches(args) if args.dataset == PLAIN else batches(args)
    # The first batch opens the dataset, compiles kernels, and starts the workers. These fill their queues meanwhile.
    for _ in range(1 + 2 * args.workers):
        next(drawn)
    say(out, {"ready": True})
    for line in sys.stdin:
        seconds, step = map(float, line.split())
        count, waited, used, begun = 0, 0.0, processor_seconds(), time.perf_counter()
        while time.perf_counter() - begun < seconds:
            asked = time.perf_counter()
            batch = next(drawn)
            waited += time.perf_counter() - asked
            count += 1
            if step:
                time.sleep(step)
        cameras = {key: list(value.shape) for key, value in batch.items() if ".images." in key and value.ndim > 3}
        record = {
            "batches": count,
            "frames": count * sum(shape[0] * shape[1] for shape in cameras.values()),
            "seconds": time.perf_counter() - begun,
            "processor": processor_seconds() - used,
            "waited": waited,
            "versions": versions_of(*(() if args.dataset == PLAIN else ("lerobot", "torch")), "av"),
        }
        say(out, record)


if __name__ == "__main__":
    main()
