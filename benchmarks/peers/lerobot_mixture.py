"""Contender LeRobot: a DataLoader over a ConcatDataset of LeRobotDatasets of unlike shape.

--data is a JSON file: mixture -> the folders of its datasets. A line "MIXTURE CAMERAS" on standard input asks for the
figures of a mixture, where CAMERAS is 0 or 1. Windows of `--context` steps come from `delta_timestamps`, padded steps
included. The collate function pads actions with zeros.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from harness import claim_stdout, parse_arguments, say, versions_of
from video_harness import cost

FPS = 30
#: Batches that a resumed run skips in the sampler before they are extrapolated.
SKIPPED = 2_000


def make_dataset(folder: str, context: int) -> Any:
    from lerobot.datasets.lerobot_dataset import LeRobotDataset

    times = [step / FPS for step in range(context)]
    deltas = {"observation.state": times, "action": times} if context > 1 else None
    return LeRobotDataset("bench/data", root=folder, video_backend="pyav", delta_timestamps=deltas)


def make_loader(folders: Sequence[str], context: int, args: argparse.Namespace) -> Any:
    import torch

    def collate(items: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        def value(item: Mapping[str, Any], name: str) -> Any:
            found = item[name]
            return torch.nn.functional.pad(found, (0, args.width - found.shape[-1])) if name == "action" else found

        names = [name for name, first in items[0].items() if isinstance(first, torch.Tensor)]
        return {name: torch.stack([value(item, name) for item in items]) for name in names}

    data = torch.utils.data.ConcatDataset([make_dataset(folder, context) for folder in folders])
    return torch.utils.data.DataLoader(
        data, batch_size=args.batch_size if context > 1 else args.camera_batch, shuffle=True, collate_fn=collate,
        generator=torch.Generator().manual_seed(args.seed),
    )  # fmt: skip


def resume_seconds(folders: Sequence[str], context: int, args: argparse.Namespace) -> float:
    """Returns the seconds from the datasets' folders to the first batch after a step.

    The sampler is advanced to the step without reading an item. The time of that is extrapolated from some batches.
    """
    begun = time.perf_counter()
    loader = make_loader(folders, context, args)
    opened = time.perf_counter()
    numbers = itertools.chain.from_iterable(loader.batch_sampler for _ in itertools.count())
    for _ in itertools.islice(numbers, SKIPPED):
        pass
    skipped = time.perf_counter()
    next(iter(loader))
    return opened - begun + (skipped - opened) * args.resumed_step / SKIPPED + time.perf_counter() - skipped


def measure(folders: Sequence[str], context: int, args: argparse.Namespace) -> dict[str, Any]:
    loader = make_loader(folders, context, args)
    batches: Iterator[Any] = itertools.chain.from_iterable(loader for _ in itertools.count())
    return {**cost(batches, args.seconds), "resume_seconds": resume_seconds(folders, context, args)}


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--width", type=int, default=32, help="elements of padded actions (default 32)")
    parser.add_argument("--camera-batch", type=int, default=16, help="windows of a batch with cameras (default 16)")
    parser.add_argument(
        "--resumed-step", type=int, default=10**6, help="step at which a run resumes (default 1,000,000)"
    )


def main() -> None:
    args = parse_arguments(__doc__ or "", configure)
    out = claim_stdout()
    # Arrow copies of the data go to the folder of temporary files.
    os.environ |= {"HF_HUB_OFFLINE": "1", "HF_HOME": os.path.join(os.environ.get("TMPDIR", "/tmp"), "huggingface")}
    mixtures = json.loads(args.data.read_text())
    say(out, {"ready": True, "versions": versions_of("lerobot", "torch", "datasets")})
    for line in sys.stdin:
        name, cameras = line.split()
        say(out, measure(mixtures[name], 1 if int(cameras) else args.context, args))


if __name__ == "__main__":
    main()
