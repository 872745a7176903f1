"""Contender LeRobot: a DataLoader of LeRobotDataset; --data is a LeRobot dataset."""

from __future__ import annotations

import argparse
import importlib
import os
from collections.abc import Iterator, Mapping
from typing import Any

from harness import versions_of
from video_harness import ACTION_STEPS, FRAME_STEPS, Batches, serve

CAMERA = "observation.images.front"


def build(args: argparse.Namespace) -> Batches:
    os.environ["HF_HUB_OFFLINE"] = "1"
    import torch
    from lerobot.datasets.lerobot_dataset import LeRobotDataset
    from torchvision.transforms.v2 import Resize

    if args.backend == "torchcodec":
        # LeRobot would fail at the first frame, with workers alive.
        try:
            importlib.import_module("torchcodec.decoders")
        except (ImportError, OSError, RuntimeError) as error:
            raise SystemExit(f"torchcodec does not load: {str(error).strip().splitlines()[0]}") from None

    fps = 30
    dataset = LeRobotDataset(
        "bench/data", root=args.data, video_backend=args.backend,
        delta_timestamps={
            CAMERA: [step / fps for step in FRAME_STEPS], "action": [step / fps for step in range(ACTION_STEPS)],
        },
        image_transforms=Resize((args.resize, args.resize)) if args.resize else None,
    )  # fmt: skip
    loader = torch.utils.data.DataLoader(
        dataset, batch_size=args.batch_size, shuffle=True, drop_last=True, num_workers=args.workers,
        generator=torch.Generator().manual_seed(args.seed),
    )  # fmt: skip

    def start() -> Iterator[Mapping[str, Any]]:
        iterator = iter(loader)  # starts the workers

        def endless() -> Iterator[Mapping[str, Any]]:
            yield from iterator
            while True:
                yield from loader

        return endless()

    packages = ("lerobot", "torch", "torchcodec" if args.backend == "torchcodec" else "av")
    return Batches(start, args.batch_size, versions_of(*packages))


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--backend", default="pyav", help="torchcodec or pyav (default pyav)")
    parser.add_argument("--workers", type=int, default=0, help="workers of the DataLoader (default 0)")


if __name__ == "__main__":
    serve(build, __doc__ or "", configure)
