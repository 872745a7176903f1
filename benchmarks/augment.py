"""Measures augmentations of images beside torchvision's functions of uint8.

    python benchmarks/augment.py --json augment.json

Both work on the same frames with the same crops, angles and factors, in one thread, and take turns. The loader's side
draws them, too. Its frames are those of a batch; torchvision gets them one by one, because each has its own draw: with
channels last as a decoder of images leaves them, or first. Times are of the processor.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from common import ROOT, command_line, format_table, machine_facts, progress, spread, write_json

# The checkout's own gear_data and tests, installed or not.
sys.path.insert(0, str(ROOT))

from gear_data import ColorJitter, RandomResizedCrop, RandomRotation
from gear_data.loaders.decoding.augmenter import Augmenter
from tests.support.feed.torchvision_pixels import apply, drawn

_OCTO = [RandomResizedCrop(), ColorJitter(brightness=0.1, contrast=0.1, saturation=0.1, hue=0.05)]
_SAME = (0.95**2, 0.95**2)
#: Name -> augmentations.
AUGMENTATIONS: dict[str, list[Any]] = {
    "resized crop": [RandomResizedCrop()],
    "resized crop to 224": [RandomResizedCrop(size=224)],
    "rotation": [RandomRotation(5)],
    "brightness": [ColorJitter(brightness=0.3)],
    "contrast": [ColorJitter(contrast=0.3)],
    "saturation": [ColorJitter(saturation=0.3)],
    "hue": [ColorJitter(hue=0.05)],
    "Octo": _OCTO,
    "Octo, wrist": _OCTO[1:],
    "openpi": [RandomResizedCrop(_SAME, (1, 1)), RandomRotation(5), ColorJitter(0.3, 0.4, 0.5)],
}
#: Height and width of the frames.
SIZES = ((128, 128), (256, 256), (480, 640))


def _frames(count: int, height: int, width: int) -> np.ndarray[Any, Any]:
    random = np.random.default_rng(0)
    coarse = random.integers(0, 256, (count, 1, -(-height // 8), -(-width // 8), 3), np.uint8)
    return np.ascontiguousarray(coarse.repeat(8, 2).repeat(8, 3)[:, :, :height, :width])


def _contenders(augment: list[Any], images: np.ndarray[Any, Any], last: bool) -> dict[str, Callable[[], object]]:
    """Returns name -> a function that augments images [B, 1, H, W, 3], or [B, 1, 3, H, W] unless `last`."""
    augmenter = Augmenter(augment, {"image": None}, seed=0)
    height, width = images.shape[2:4] if last else images.shape[3:]
    tensors = [torch.from_numpy(image).permute(0, 3, 1, 2) if last else torch.from_numpy(image) for image in images]
    operations = [drawn(augment, "image", height, width, seed=0, step=0, row=row) for row in range(len(images))]
    return {
        "gear-data": lambda: augmenter(0, 0, {"image": images}),
        "torchvision": lambda: [apply(tensor, each) for tensor, each in zip(tensors, operations, strict=True)],
    }


def measure(augment: list[Any], height: int, width: int, last: bool, frames: int, rounds: int) -> dict[str, Any]:
    """Returns contender -> `spread` of the milliseconds of a frame."""
    images = _frames(frames, height, width)
    contenders = _contenders(augment, images if last else np.ascontiguousarray(images.transpose(0, 1, 4, 2, 3)), last)
    found: dict[str, list[float]] = {name: [] for name in contenders}
    for number in range(-1, rounds):  # before the first round, kernels are compiled
        for name, call in contenders.items():
            begun = time.process_time()
            call()
            if number >= 0:
                found[name].append(1e3 * (time.process_time() - begun) / frames)
    return {name: spread(values) for name, values in found.items()}


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few frames and rounds")
    parser.add_argument("--json", type=Path, help="write the full record here")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    args = make_parser().parse_args(arguments)
    frames, rounds = (2, 1) if args.quick else (16, 15)
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    machine = machine_facts()
    results: list[Mapping[str, Any]] = []
    for height, width in SIZES:
        for name, augment in AUGMENTATIONS.items():
            for last in (True, False):
                progress(f"{height} x {width}, {name}")
                times = measure(augment, height, width, last, frames, rounds)
                channels = "last" if last else "first"
                results.append({"frames": [height, width], "augment": name, "channels": channels, "ms": times})
    progress("")
    torch.set_num_threads(before)
    rows = []
    for each in results:
        ours, theirs = (each["ms"][name]["median"] for name in ("gear-data", "torchvision"))
        size = f"{each['frames'][0]} x {each['frames'][1]}"
        rows.append([size, each["augment"], each["channels"], f"{ours:.3f}", f"{theirs:.3f}", f"{theirs / ours:.1f}"])
    print(format_table(["frames", "augment", "channels", "gear-data ms", "torchvision ms", "ratio"], rows))
    if args.json is not None:
        write_json(args.json, {"command": command_line(), "machine": machine, "results": results})
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
