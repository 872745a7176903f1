"""Contender TorchRL: a ReplayBuffer with a SliceSampler.

The storage is LazyTensorStorage (memory) or LazyMemmapStorage (mapped files).

The settings are the fastest ones found: cached boundaries, no truncation or init markers, no prefetch (its threads slow
it down on few cores), and the number of torch threads that measures best.
"""

# mypy: disable-error-code="import-not-found, import-untyped"

from __future__ import annotations

import argparse
import statistics
import tempfile
from typing import Any

import torch
from harness import Feed, load_steps, main, measure, versions_of
from tensordict import TensorDict
from torchrl.data import LazyMemmapStorage, LazyTensorStorage, ReplayBuffer, SliceSampler


def build(args: argparse.Namespace) -> Feed:
    torch.manual_seed(args.seed)
    steps = load_steps(args.data)
    count = len(steps)
    episodes = torch.repeat_interleave(torch.arange(len(steps.lengths)), torch.from_numpy(steps.lengths))
    delivered = (*steps.columns, "timesteps", "mask")
    data = TensorDict(
        {
            **{name: torch.from_numpy(column) for name, column in steps.columns.items()},
            "timesteps": torch.from_numpy(steps.timesteps),
            "mask": torch.ones(count),
            "episode": episodes,
        },
        batch_size=[count],
    )
    folder = tempfile.TemporaryDirectory(prefix="torchrl-feed-")
    in_memory = args.storage == "memory"
    buffer = ReplayBuffer(
        storage=LazyTensorStorage(count) if in_memory else LazyMemmapStorage(count, scratch_dir=folder.name),
        sampler=SliceSampler(
            slice_len=args.context,
            traj_key="episode",
            cache_values=True,
            strict_length=True,
            truncated_key=None,
            init_key=None,
        ),
        batch_size=args.batch_size * args.context,
    )
    buffer.extend(data)

    def next_batch() -> dict[str, Any]:
        sample = buffer.sample()
        return {name: sample[name].view(args.batch_size, args.context, *sample[name].shape[1:]) for name in delivered}

    def feed(threads: int) -> Feed:
        return Feed(
            next_batch=next_batch,
            windows=args.batch_size,
            notes="SliceSampler, strict_length: whole windows only, shorter episodes left out, nothing padded; "
            "all other keys of a batch are stored as columns, the mask is all ones; torch tensors; "
            f"torch threads: {threads}",
            versions=versions_of("torchrl", "tensordict", "torch", "numpy"),
            held=(folder,),
        )

    # More threads help or hurt, depending on the machine: measure both in alternating rounds.
    rates: dict[int, list[float]] = {1: [], torch.get_num_threads(): []}
    for _ in range(3):
        for threads, seen in rates.items():
            torch.set_num_threads(threads)
            seen.append(measure(feed(threads), args.seconds / 5)["windows_per_s"])
    best = max(rates, key=lambda threads: statistics.median(rates[threads]))
    torch.set_num_threads(best)
    return feed(best)


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--storage", choices=("memory", "memmap"), default="memory", help="storage of the steps")


if __name__ == "__main__":
    main(build, "Feed rate of TorchRL's SliceSampler; --data is a folder of steps.", configure)
