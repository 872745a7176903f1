"""Processes of runs: python rank_facts.py ENVIRONMENTS

ENVIRONMENTS is JSON: of each run, of each of its processes, the variables that it is told. Each says what it takes
itself for, and what the rank before it, in a circle, told it; JSON in the same order. All are forked from one that has
imported torch, which takes long.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from typing import Any

from torch import distributed  # noqa: F401

from gear_data.cluster.ranks import KeyValueStore, find_ranks


def facts() -> list[Any]:
    ranks = find_ranks()
    board = KeyValueStore(ranks.store, "facts/", 30.0)
    board.put(f"rank-{ranks.rank}", {"greets": ranks.rank})
    before = (ranks.rank - 1) % ranks.world_size
    greeting = board.take(f"rank-{before}", f"rank {before}")["greets"]
    # Rank 0's process is the store's: it stays till all have read.
    board.put(f"read-{ranks.rank}", {})
    if ranks.rank == 0:
        for rank in range(ranks.world_size):
            board.take(f"read-{rank}", f"rank {rank}")
    return [ranks.rank, ranks.world_size, ranks.node, greeting]


def start(environment: dict[str, str]) -> int:
    """A process of a run; gives the pipe that it answers through."""
    answer, say = os.pipe()
    if os.fork() == 0:
        try:
            os.environ.update(environment)
            os.write(say, json.dumps(facts()).encode())
        except Exception:
            traceback.print_exc()
        finally:
            os._exit(0)
    os.close(say)
    return answer


def main(runs: str) -> None:
    found = []
    for run in json.loads(runs):
        answers = [start(environment) for environment in run]
        found.append([json.loads(os.read(answer, 1 << 16) or "null") for answer in answers])
    print(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
