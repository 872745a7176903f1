"""Contender of benchmarks/in_place.py: batches of a LeRobot dataset on a hub, by LeRobot.

`--way download`: `LeRobotDataset`, which downloads all files first. `--way streaming`: `StreamingLeRobotDataset`, which
shuffles in a buffer. Both are read by torch's DataLoader. See gear_in_place.py for the lines of the process.
"""

from __future__ import annotations

import argparse
from typing import Any

from hub_harness import Batches, run


def batches(args: Any) -> Batches:
    import torch
    from lerobot.datasets.lerobot_dataset import LeRobotDataset
    from lerobot.datasets.streaming_dataset import StreamingLeRobotDataset

    def drawn() -> Any:
        torch.manual_seed(args.seed)
        if args.way == "streaming":
            dataset: Any = StreamingLeRobotDataset(args.repository, revision="main", return_uint8=True, seed=args.seed)
        else:
            dataset = LeRobotDataset(args.repository, revision="main", return_uint8=True, video_backend="pyav")
        yield None
        workers = {"num_workers": args.workers, "prefetch_factor": 2} if args.workers else {}
        shuffled = args.way != "streaming"
        yield from torch.utils.data.DataLoader(dataset, batch_size=args.batch_size, shuffle=shuffled, **workers)

    return Batches(drawn(), {}, ("lerobot", "torch", "av"))


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--way", choices=("download", "streaming"), required=True, help="which class")
    parser.add_argument("--workers", type=int, default=2, help="workers of the DataLoader (default 2)")


if __name__ == "__main__":
    run(batches, __doc__ or "", configure)
