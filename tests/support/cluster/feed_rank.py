"""Program for one rank of a torch.distributed group.

Usage: python feed_rank.py DATASET OUT STORE RANK WORLD_SIZE

Writes the batches of its loaders to OUT-RANK.npz.
"""

from __future__ import annotations

import itertools
import pickle
import sys

import numpy as np
import torch
from torch.utils.data import DataLoader

import gear_data

STEPS = 6


def loader(dataset: gear_data.Dataset) -> gear_data.SequenceLoader:
    return gear_data.SequenceLoader(dataset, batch_size=11, context=5, seed=21)


def observations(batches: object) -> np.ndarray:
    return np.concatenate([batch["observations"].numpy() for batch in itertools.islice(batches, STEPS)])


def main(path: str, out: str, store: str, rank: str, world_size: str) -> None:
    torch.set_num_threads(1)
    dataset = gear_data.open(path)
    early = loader(dataset)
    before = pickle.loads(pickle.dumps(early))
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{store}", rank=int(rank), world_size=int(world_size)
    )
    results = {
        "early": observations(early),  # created, and pickled below, before the group exists
        "inline": observations(loader(dataset)),
        "workers": observations(DataLoader(loader(dataset), batch_size=None, num_workers=2)),
        "before": observations(before),  # pickled while there was a single process, as mp.spawn and Ray do
    }
    travelled = pickle.dumps(loader(dataset))
    torch.distributed.destroy_process_group()
    results["travelled"] = observations(pickle.loads(travelled))
    np.savez(f"{out}-{rank}.npz", **results)


if __name__ == "__main__":
    main(*sys.argv[1:])
