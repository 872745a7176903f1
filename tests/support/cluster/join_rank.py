"""Program for a rank of a training run under torchrun.

Usage: python join_rank.py DATASET OUT

`{node}` in DATASET stands for the number of the node: each node may have only its shards and their videos.
Writes the batches of its loaders to OUT-RANK.npz, and facts to OUT-RANK.json.
"""

from __future__ import annotations

import itertools
import json
import os
import pickle
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader

import gear_data
from gear_data import SequenceLoader, Weighted
from gear_data.cluster.client.shard_client import ShardClient
from tests.support.feed.arguments import grouped

STEPS = 8
CAMERA = "observations.images.front"
OPTIONS: dict[str, Any] = {"batch_size": 13, "context": 6, "seed": 5, "steps": STEPS}
#: Options of the loaders of every rank, and of the single process that they are compared with.
LOADERS: dict[str, dict[str, Any]] = {
    "uniform": {},
    "at once": {"prefetch": 0},
    "weighted": {"sampler": Weighted("exp(length / 20)")},
    "shuffled": {"sampler": "shuffle", "steps": None, "epochs": 1},
    "discounted": {"preset": "decision_transformer", "discount": 0.9, "normalize": True},
    "wide": {"offsets": {"observations": (-3, 4)}, "n_step": 2, "context": 30},
    "cameras": {"preset": "raw", "columns": [CAMERA, "observations"], "context": 2},
}
#: Weight updates of each rank: after how many batches, episodes, values. The last rank's value counts.
UPDATES = {0: (2, [3, 0], [1000.0, 500.0]), 1: (2, [3, 5], [0.0, 250.0])}


def stacked(batches: Any) -> dict[str, np.ndarray]:
    """Returns key -> the rows of all batches."""
    found: dict[str, list[np.ndarray]] = {}
    for batch in batches:
        for key, value in batch.items():
            found.setdefault(key, []).append(value.numpy().copy())
    return {key: np.concatenate(values) for key, values in found.items()}


def updated(dataset: gear_data.Dataset, rank: int | None) -> dict[str, np.ndarray]:
    """Returns batches with changing weights.

    With `rank` None, the updates of ranks 0 and 1 together.
    """
    loader = SequenceLoader(dataset, **grouped(**{**OPTIONS, "steps": 60}, sampler=Weighted("length"), prefetch=2))
    batches = iter(loader)
    first = stacked(itertools.islice(batches, 2))
    updates = [UPDATES[0], UPDATES[1]] if rank is None else [UPDATES.get(rank, (2, [], []))]
    ids, values = ([value for update in updates for value in update[i]] for i in (1, 2))
    loader.update_weights(ids, values, from_step=40)
    rest = stacked(batches)
    return {key: np.concatenate([first[key], rest[key]]) for key in first}


def main(dataset: str, out: str) -> None:
    torch.set_num_threads(1)
    opened = gear_data.open(dataset.replace("{node}", os.environ["GROUP_RANK"]), cluster="torchrun", sampler="uniform")
    torch.distributed.init_process_group("gloo")
    rank = torch.distributed.get_rank()
    results = {
        name: stacked(SequenceLoader(opened, **grouped(**{**OPTIONS, **more}))) for name, more in LOADERS.items()
    }
    results["updated"] = updated(opened, rank if torch.distributed.get_world_size() > 1 else None)
    results["filtered"] = stacked(SequenceLoader(opened.filter("length > 6"), **grouped(**OPTIONS)))
    results["workers"] = stacked(
        DataLoader(SequenceLoader(opened, **grouped(**OPTIONS)), batch_size=None, num_workers=2)
    )
    results["pickled"] = stacked(SequenceLoader(pickle.loads(pickle.dumps(opened)), **grouped(**OPTIONS)))
    results["episode"] = {"observations": np.concatenate([opened.episode(i)["observations"] for i in range(10)])}
    torch.distributed.barrier()
    interrupted = SequenceLoader(opened, **grouped(**OPTIONS))
    list(itertools.islice(interrupted, 3))

    requests: list[object] = []
    fetching = ShardClient.fetching
    ShardClient.fetching = lambda self, *request: [requests.append(request), fetching(self, *request)][1]  # type: ignore[assignment, method-assign]
    own = SequenceLoader(opened, **grouped(**{**OPTIONS, "batch_size": 24}, selection="decentralized"))
    results["decentralized"] = stacked(own)
    in_decentralized = len(requests)
    stacked(SequenceLoader(opened, **grouped(**OPTIONS)))
    facts = {
        "here": list(opened.store.membership.shards),
        "own": own.windows(3)["episode_id"].tolist(),
        "requests": [in_decentralized, len(requests)],
        "state": own.state_dict(),
        "interrupted": interrupted.state_dict(),
        "token": [secret for secret in _secrets() if secret.encode() in pickle.dumps(opened)],
    }
    Path(f"{out}-{rank}.json").write_text(json.dumps(facts))
    np.savez(f"{out}-{rank}.npz", **{f"{name}/{key}": v for name, keys in results.items() for key, v in keys.items()})
    # A node's server ends 3 s after its ranks. Slower ranks may still read from it.
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


def _secrets() -> list[str]:
    return [json.loads(v)["token"] for k, v in os.environ.items() if k.startswith("GEAR_DATA_RUN_")]


if __name__ == "__main__":
    main(*sys.argv[1:])
