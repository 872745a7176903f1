"""Contender gear-data: batches of two frames and sixteen actions; --data is a gear-data dataset."""

from __future__ import annotations

import argparse

from harness import versions_of
from video_harness import ACTION_STEPS, FRAME_STEPS, Batches, serve

import gear_data

CAMERA = "observations.images.front"


def build(args: argparse.Namespace) -> Batches:
    dataset = gear_data.open(args.data)
    loader = gear_data.SequenceLoader(
        dataset, batch_size=args.batch_size, context=ACTION_STEPS, preset=args.preset, seed=args.seed,
        columns=("observations", "actions", CAMERA), offsets={CAMERA: list(FRAME_STEPS)},
        resize=(args.resize, args.resize) if args.resize else None, video=gear_data.VideoOptions(threads=args.threads),
        prefetch=args.prefetch,
    )  # fmt: skip
    versions = {"gear-data": gear_data.__version__, **versions_of("av", "torch")}
    return Batches(lambda: iter(loader), args.batch_size, versions)


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--preset", default="raw", help="raw: uint8 frames; lerobot: float32 (default raw)")
    parser.add_argument("--threads", type=int, default=1, help="threads that decode (default 1)")
    parser.add_argument("--prefetch", type=int, default=0, help="batches built ahead (default 0)")


if __name__ == "__main__":
    serve(build, __doc__ or "", configure)
