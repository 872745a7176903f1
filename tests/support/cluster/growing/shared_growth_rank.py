"""Program for a rank whose nodes share a dataset that grows.

Usage: torchrun shared_growth_rank.py DATASET OUT

Writes facts to OUT-RANK.json, and batches to OUT-RANK.npz. Rank 0 makes the dataset grow, and writes the batches of one
process, without a cluster, that refreshes from the same steps.
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
from gear_data.residency import host
from gear_data.storage.dataset_files import DatasetFiles
from tests.support.cluster.growing.refresh_rank import loader
from tests.support.feed.growing import GrowingDataset

STEPS = 60
#: Episodes of each generation; the last one evicts some.
GROWTH: tuple[tuple[int, dict[str, int]], ...] = ((2, {}), (4, {}), (4, {"max_steps": 130}))


def stacked(batches: list[Any]) -> dict[str, Any]:
    return {key: np.stack([batch[key].numpy() for batch in batches]) for key in batches[0]}


def main(path: str, out: str) -> None:
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo")
    rank = torch.distributed.get_rank()
    loaded: list[str] = []
    copy = host._copy

    def counted(descriptor: int, files: DatasetFiles, piece: host._CopyRange) -> int:
        loaded.append(piece.entry.file)
        return copy(descriptor, files, piece)

    host._copy = counted
    folder = GrowingDataset.at(Path(path))
    shared = gear_data.open(path, cluster="torchrun", residency="host")
    training = loader(shared, prefetch=[2, 8, 0][rank])
    single = loader(gear_data.open(path), rank=0, world_size=1, prefetch=0)
    # With a dataset that the nodes do not share.
    mixtures = [
        loader(gear_data.Mixture([(gear_data.open(path)[:3], 0.5), (live, 0.5)], join=True), prefetch=0, **options)
        for live, options in ((shared, {}), (gear_data.open(path), {"rank": 0, "world_size": 1}))
    ]
    facts: dict[str, Any] = {"from": [], "loaded": [], "held": [], "errors": []}
    batches: list[Any] = []
    iterator = iter(training)
    states = []
    for count, limits in GROWTH:
        batches += list(itertools.islice(iterator, 7 + rank))
        if rank == 0:
            folder.grow(count, **limits)
        torch.distributed.barrier()
        loaded.clear()
        facts["from"].append(training.refresh())
        assert training.refresh() == facts["from"][-1]
        single.refresh(from_step=facts["from"][-1])
        for each in mixtures:
            each.refresh(from_step=facts["from"][-1])
        store = training.dataset.store
        assert store.membership is not None
        facts["loaded"].append(sorted(set(loaded)))
        facts["held"].append([store.manifest.shards[shard].entry.file for shard in store.membership.shards])
        states.append(training.state_dict())
        shared = shared.refresh()
        facts["errors"].append(shared.generation - training.dataset.generation)
    batches += list(itertools.islice(iterator, STEPS - len(batches)))
    # An earlier generation, in a run that began with the newest one.
    resumed = loader(gear_data.open(path, cluster="torchrun"), prefetch=0)
    first = facts["from"][1] - 2
    resumed.load_state_dict({**states[1], "step": first})
    again = list(itertools.islice(resumed, 4))
    facts |= {"state": training.state_dict(), "resumed": first}
    Path(f"{out}-{rank}.json").write_text(json.dumps(facts))
    found = {f"run/{key}": values for key, values in stacked(batches).items()}
    found |= {f"again/{key}": values for key, values in stacked(again).items()}
    for name, each in zip(("mixed", "mixed-single"), mixtures, strict=True):
        found |= {f"{name}/{key}": values for key, values in stacked(list(itertools.islice(each, STEPS))).items()}
    if rank == 0:
        whole = list(itertools.islice(single, STEPS + 5))
        found |= {f"single/{key}": values for key, values in stacked(whole).items()}
    np.savez(f"{out}-{rank}.npz", **found)
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
