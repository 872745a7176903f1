"""Program for a rank that changes weights.

Usage: python update_rank.py DATASET OUT STORE RANK WORLD_SIZE

Writes the first step of each of its updates and its windows to OUT-RANK.json, and its batches to OUT-RANK.npz.
"""

from __future__ import annotations

import itertools
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch

import gear_data
from gear_data.errors import InvalidArgumentError
from tests.support.feed.arguments import grouped

STEPS = 60
#: Updates of each rank: after how many batches, episodes, values. Episode 3 gets the last rank's value.
UPDATES: list[list[tuple[int, list[int], list[float]]]] = [
    [(2, [3, 0], [1000.0, 500.0]), (20, [], [])],
    [(9, [3, 5], [0.0, 250.0]), (25, [1, 0], [800.0, 0.0])],
]


def loader(dataset: gear_data.Dataset, **options: Any) -> gear_data.SequenceLoader:
    sampler = gear_data.Weighted("length")
    return gear_data.SequenceLoader(dataset, 6, **grouped(context=5, sampler=sampler, seed=21, steps=STEPS, **options))


def by_steps(dataset: gear_data.Dataset, **options: Any) -> gear_data.SequenceLoader:
    """Returns a loader with one weight a step. Only rank 0's weights count."""
    weights = np.ones(dataset.num_steps) * (1 + options.get("prefetch", 0))
    return gear_data.SequenceLoader(
        dataset, 6, **grouped(context=5, sampler=gear_data.Weighted(weights), steps=STEPS, **options)
    )


def steps_update(rank: int) -> tuple[list[int], list[float], list[int]]:
    """Returns each rank's episodes, values and steps."""
    return [3, 3 + rank], [400.0, 900.0 * rank], [20, 1]


def refused(changing: gear_data.SequenceLoader, *update: Any, **options: Any) -> str:
    try:
        changing.update_weights(*update, **options)
    except InvalidArgumentError as error:
        return error.message
    return ""


def main(path: str, out: str, store: str, rank: str, size: str) -> None:
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", init_method=f"file://{store}", rank=int(rank), world_size=int(size))
    changing = loader(gear_data.open(path), prefetch=[2, 8][int(rank)])
    batches, held_from = [], []
    iterator = iter(changing)
    for after, ids, values in UPDATES[int(rank)]:
        batches += list(itertools.islice(iterator, after - len(batches)))
        held_from.append(changing.update_weights(ids, values))
    # First only rank 1 is wrong, then the ranks do not agree. Both updates are refused on both ranks.
    errors = [
        refused(changing, [0], [-1.0 if rank == "1" else 1.0]),
        refused(changing, [99 if rank == "1" else 0], [1.0]),
        refused(changing, [0], [1.0], from_step=50 + int(rank)),
        refused(changing, [0], [1.0], from_step=held_from[1] - 1),
    ]
    of_steps = by_steps(gear_data.open(path), prefetch=int(rank))
    ids, values, steps = steps_update(int(rank))
    held_from.append(of_steps.update_weights(ids, values, steps=steps, from_step=4))
    errors.append(refused(of_steps, ids, values, steps=steps if rank == "1" else None))
    starts = [of_steps.windows(step)["start"].tolist() for step in range(20)]
    batches += list(iterator)
    windows = [{name: values.tolist() for name, values in changing.windows(step).items()} for step in range(STEPS)]
    Path(f"{out}-{rank}.json").write_text(
        json.dumps({"from": held_from, "errors": errors, "windows": windows, "starts": starts})
    )
    arrays = {key: np.stack([batch[key].numpy() for batch in batches]) for key in batches[0]}
    np.savez(f"{out}-{rank}.npz", **arrays)
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
