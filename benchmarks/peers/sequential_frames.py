"""The limit: decodes the files from begin to end with PyAV, in one thread; --data is a folder with MP4 files."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from typing import Any

import av
import numpy as np
from harness import versions_of
from video_harness import FRAME_STEPS, Batches, serve


def build(args: argparse.Namespace) -> Batches:
    files = sorted(args.data.rglob("*.mp4"))

    def frames() -> Iterator[Any]:
        while True:
            for file in files:
                with av.open(str(file)) as container:
                    container.streams.video[0].codec_context.thread_count = 1
                    yield from container.decode(video=0)

    def batches() -> Iterator[Mapping[str, Any]]:
        size = {"width": args.resize, "height": args.resize} if args.resize else {}
        decoded = frames()
        while True:
            arrays = []
            for _ in range(args.batch_size * len(FRAME_STEPS)):
                arrays.append(next(decoded).to_ndarray(format="rgb24", **size))
            yield {"frames": np.stack(arrays)}

    return Batches(batches, args.batch_size, versions_of("av"))


if __name__ == "__main__":
    serve(build, __doc__ or "")
