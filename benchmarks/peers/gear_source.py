"""gear-data's loader for all gear scripts here. It uses only the public interface."""

from __future__ import annotations

import argparse
from typing import Any

import gear_data


def open_loader(args: argparse.Namespace, prefetch: int) -> gear_data.SequenceLoader:
    """Returns a loader of uniform windows in the contract's preset.

    `raw` delivers observations and actions, `goals` transitions with goals.
    """
    own: dict[str, Any] = {"preset": args.contract}
    if args.contract == "raw":
        own["columns"] = ("observations", "actions")
    elif args.contract == "goals":
        own = {"preset": "transitions", "goals": gear_data.Goals()}
    return gear_data.SequenceLoader(
        gear_data.open(args.data),
        batch_size=args.batch_size,
        context=args.context,
        **own,
        sampler="uniform",
        seed=args.seed,
        prefetch=prefetch,
    )
