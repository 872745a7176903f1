"""Program for a rank that opens another dataset than the other rank.

Usage: python replaced_rank.py FOLDER OUT STORE RANK WORLD_SIZE

Rank R opens FOLDER/R. It writes the errors that it gets to OUT-RANK.json.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import gear_data
from gear_data.errors import GearError


def outcome(run: Callable[[], Any]) -> str:
    try:
        run()
    except GearError as error:
        return f"{type(error).__name__}: {error.message}"
    return "done"


def main() -> None:
    folder, out, store, rank, world_size = sys.argv[1:]
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{store}", rank=int(rank), world_size=int(world_size)
    )
    path = Path(folder, rank)
    ds = gear_data.open(path)
    found = {
        "skip": outcome(lambda: gear_data.open(path, on_bad_shard="skip")),
        "weights": outcome(
            lambda: gear_data.SequenceLoader(ds, 4, context=5, sampler=gear_data.Weighted("seed"), seed=1)
        ),
    }
    Path(f"{out}-{rank}.json").write_text(json.dumps(found))
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
