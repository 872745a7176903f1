"""Contender TorchRL: a PrioritizedReplayBuffer, updated after every batch.

The storage is LazyTensorStorage, without prefetching.
"""

# mypy: disable-error-code="import-not-found, import-untyped"

from __future__ import annotations

import argparse
from typing import Any

import torch
from harness import ALPHA, BETA, Feed, load_steps, main, transitions_of, versions_of
from tensordict import TensorDict
from torchrl.data import LazyTensorStorage, PrioritizedReplayBuffer


def build(args: argparse.Namespace) -> Feed:
    torch.manual_seed(args.seed)
    # Threads cost more than they gain for such small batches.
    torch.set_num_threads(1)
    arrays = {name: torch.from_numpy(array) for name, array in transitions_of(load_steps(args.data)).items()}
    count = len(arrays["rewards"])
    buffer = PrioritizedReplayBuffer(
        alpha=ALPHA, beta=BETA, storage=LazyTensorStorage(count), batch_size=args.batch_size
    )
    buffer.extend(TensorDict(arrays, batch_size=[count]))

    def next_batch() -> dict[str, Any]:
        sample, info = buffer.sample(return_info=True)
        # The sampler raises priorities to the power of alpha.
        buffer.update_priority(info["index"], sample["rewards"].abs())
        return {**{name: sample[name] for name in arrays}, "priority_weight": info["priority_weight"]}

    return Feed(
        next_batch=next_batch,
        windows=args.batch_size,
        notes="LazyTensorStorage, PrioritizedSampler (sum tree in C++); all priorities of a batch change after it; "
        "torch tensors; one thread",
        versions=versions_of("torchrl", "tensordict", "torch", "numpy"),
    )


if __name__ == "__main__":
    main(build, "Feed rate of TorchRL's prioritised ReplayBuffer; --data is a folder of steps.")
