"""gear-data's loader for all gear scripts here. It uses only the public interface."""

from __future__ import annotations

import argparse

import gear_data


def open_loader(args: argparse.Namespace, prefetch: int) -> gear_data.SequenceLoader:
    """Returns a loader of uniform windows in the contract's preset.

    `raw` delivers observations and actions.
    """
    return gear_data.SequenceLoader(
        gear_data.open(args.data),
        batch_size=args.batch_size,
        context=args.context,
        preset=args.contract,
        columns=("observations", "actions") if args.contract == "raw" else None,
        sampler="uniform",
        seed=args.seed,
        prefetch=prefetch,
    )
