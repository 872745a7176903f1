"""gear-data's loader for all gear scripts here. It uses only the public interface."""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np
from harness import ALPHA, BETA, PAD, RAW

import gear_data


def open_loader(args: argparse.Namespace, prefetch: int) -> gear_data.SequenceLoader:
    """Returns a loader of the contract's batches, of uniform windows unless they have priorities."""
    dataset = gear_data.open(args.data)
    own: dict[str, Any] = {"preset": args.contract, "sampler": "uniform"}
    if args.contract in RAW:
        own |= {"preset": "raw", "columns": ("observations", "actions")}
    if args.contract == "shifted":
        own["batch"] = gear_data.BatchOptions(augment=gear_data.RandomShift(PAD, channels="last"))
    elif args.contract == "stacked" and not getattr(args, "converted", False):
        stack = {"stacked": ["first_half", "second_half"]}
        own |= {"batch": gear_data.BatchOptions(stack=stack), "columns": ("stacked", "actions")}
    elif args.contract == "goals":
        own |= {"preset": "transitions", "goals": gear_data.Goals()}
    elif args.contract == "priorities":
        sampler = gear_data.Weighted(np.ones(dataset.num_steps), beta=BETA, divide_by_max=True)
        own |= {"preset": "transitions", "sampler": sampler, "batch": gear_data.BatchOptions(window_ids=True)}
    return gear_data.SequenceLoader(
        dataset, batch_size=args.batch_size, context=args.context, **own, seed=args.seed, prefetch=prefetch
    )


def update_priorities(loader: gear_data.SequenceLoader, batch: dict[str, Any]) -> None:
    """Gives the windows of a batch other priorities, of rewards in place of temporal-difference errors."""
    priorities = (np.abs(batch["rewards"].numpy()) + 1e-6) ** ALPHA
    loader.update_weights(batch["episode_id"].numpy(), priorities, steps=batch["start"].numpy())
