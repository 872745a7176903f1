"""Program for a rank that trains while its dataset grows.

Usage: python refresh_rank.py DATASET OUT STORE RANK WORLD_SIZE

$SERVED is a URL at which the dataset is served; without it, the ranks open the folder.

Writes the first step of each generation, its generations, errors and last state to OUT-RANK.json, and its batches to
OUT-RANK.npz. Rank 0 makes the dataset grow.
"""

from __future__ import annotations

import itertools
import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch

import gear_data
from gear_data.errors import GearError
from tests.support.feed.growing import GrowingDataset

STEPS, GROWTH = 60, (2, 5)


def loader(dataset: gear_data.Dataset | gear_data.Mixture, **options: Any) -> gear_data.SequenceLoader:
    sampler = gear_data.Weighted("length")
    return gear_data.SequenceLoader(
        dataset,
        6,
        context=5,
        sampler=sampler,
        seed=21,
        columns=["rewards"],
        batch=gear_data.BatchOptions(window_ids=True),
        **options,
    )


def refused(growing: gear_data.SequenceLoader, **options: Any) -> str:
    try:
        growing.refresh(**options)
    except GearError as error:
        return f"{type(error).__name__}: {error.message}"
    return ""


def opened_late(folder: GrowingDataset, rank: int) -> list[Any]:
    """Opens a dataset before it grows on rank 0, and after it on the other ranks.

    Returns:
        The generation that was opened, the generation of a loader, and the windows of its first batch.
    """
    opened = folder.open() if rank == 0 else None
    torch.distributed.barrier()
    if rank == 0:
        folder.grow(1)
    torch.distributed.barrier()
    opened = opened or folder.open()
    made = loader(opened, prefetch=0)
    return [opened.generation, made.dataset.generation, made.batch(0)["episode_id"].tolist()]


def main(path: str, out: str, store: str, rank: str, size: str) -> None:
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", init_method=f"file://{store}", rank=int(rank), world_size=int(size))
    folder = GrowingDataset.at(Path(path))
    training = loader(gear_data.open(os.environ.get("SERVED", path)), prefetch=[2, 8][int(rank)])
    batches, held_from, generations = [], [], []
    iterator = iter(training)
    for count in GROWTH:
        batches += list(itertools.islice(iterator, 7 + int(rank)))
        if rank == "0":
            folder.grow(count)
        torch.distributed.barrier()
        held_from.append(training.refresh())
        generations.append(training.dataset.generation)
    if rank == "0":
        folder.grow(1)
    torch.distributed.barrier()
    errors = [
        refused(training, from_step=100 + int(rank)),
        refused(training, from_step=-1 if rank == "1" else 100),
        refused(training, from_step=held_from[-1] - 1),
    ]
    batches += list(itertools.islice(iterator, STEPS - len(batches)))
    late = opened_late(folder, int(rank))
    facts = {
        "late": late,
        "from": held_from,
        "generations": generations,
        "errors": errors,
        "state": training.state_dict(),
    }
    Path(f"{out}-{rank}.json").write_text(json.dumps(facts))
    arrays = {key: np.stack([batch[key].numpy() for batch in batches]) for key in batches[0]}
    np.savez(f"{out}-{rank}.npz", **arrays)
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
