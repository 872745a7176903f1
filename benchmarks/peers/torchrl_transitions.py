"""Contender TorchRL: a ReplayBuffer that draws single transitions.

The storage is LazyTensorStorage, without prefetching.
"""

# mypy: disable-error-code="import-not-found, import-untyped"

from __future__ import annotations

import argparse
from typing import Any

import torch
from harness import Feed, load_steps, main, transitions_of, versions_of
from tensordict import TensorDict
from torchrl.data import LazyTensorStorage, ReplayBuffer


def build(args: argparse.Namespace) -> Feed:
    torch.manual_seed(args.seed)
    # Threads cost more than they gain for such small batches.
    torch.set_num_threads(1)
    arrays = {name: torch.from_numpy(array) for name, array in transitions_of(load_steps(args.data)).items()}
    count = len(arrays["rewards"])
    buffer = ReplayBuffer(storage=LazyTensorStorage(count), batch_size=args.batch_size)
    buffer.extend(TensorDict(arrays, batch_size=[count]))

    def next_batch() -> dict[str, Any]:
        sample = buffer.sample()
        return {name: sample[name] for name in arrays}

    return Feed(
        next_batch=next_batch,
        windows=args.batch_size,
        notes="LazyTensorStorage, RandomSampler; five keys, flat; torch tensors; one thread",
        versions=versions_of("torchrl", "tensordict", "torch", "numpy"),
    )


if __name__ == "__main__":
    main(build, "Feed rate of TorchRL's ReplayBuffer; --data is a folder of steps.")
