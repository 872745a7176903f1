"""Program for a rank that may be killed at a place of a refresh.

Usage: python killed_rank.py DATASET '{"initialize": BOOL, "state": STATE OR null}'

Opens the dataset with the other ranks, and prints one line of JSON: its state, and hashes of its first batches. Then it
answers each line of input, a JSON object, with another:

    {"from_step": S}                  refreshes its loader; answers the outcome, its state, and the places it passed
    {"from_step": S, "limit": L}      as above, and waits L seconds for other ranks
    {"from_step": S, "place": PLACE}  as above, but is killed at this place, or after the refresh
    {"batches": N}                    hashes of the next batches, or the error

A place is a call or a return of a function of gear-data or torch.distributed, with its number in the refresh.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import signal
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from types import FrameType
from typing import Any

import gear_data
from tests.support.cluster.growing.refresh_rank import loader

FIRST = 3
#: Passes of one place that count as different places: loops would hide the others.
_PASSES = 2


def main(path: str, text: str) -> None:
    options = json.loads(text)
    rank, size = int(os.environ["SLURM_PROCID"]), int(os.environ["SLURM_NTASKS"])
    whose: dict[str, Any] = {"rank": rank, "world_size": size}
    if options["initialize"]:
        import torch.distributed

        torch.distributed.init_process_group("gloo", rank=rank, world_size=size)
        whose = {}
    training = loader(gear_data.open(path, cluster="torchrun"), prefetch=0, **whose)
    if options["state"] is not None:
        training.load_state_dict(options["state"])
    batches = iter(training)
    answer(_hashes(batches, FIRST) | {"state": training.state_dict()})
    for line in sys.stdin:
        asked = json.loads(line)
        if "batches" in asked:
            answer(_attempt(partial(_hashes, batches, asked["batches"])))
            continue
        outcome = _refresh(training, **asked)
        answer(outcome)
        if "error" in outcome and options["initialize"]:
            return  # as a script that does not catch it: in a collective, others may wait for this rank


def answer(value: object) -> None:
    print(json.dumps(value), flush=True)


def _refresh(
    training: gear_data.SequenceLoader, from_step: int, place: str | None = None, limit: float | None = None
) -> dict[str, Any]:
    """Refreshes a loader. Every call and return in this thread is a place."""
    if limit is not None:
        os.environ["GEAR_DATA_JOIN_TIMEOUT"] = str(limit)
    passed: Counter[str] = Counter()

    def look(frame: FrameType, event: str, arg: Any) -> None:
        if (name := _name(frame, event, arg)) is not None:
            passed[name] += 1
            if place == f"{name} {passed[name]}":
                os.kill(os.getpid(), signal.SIGKILL)

    sys.setprofile(look)
    try:
        outcome = _attempt(lambda: {"from_step": training.refresh(from_step)})
    finally:
        sys.setprofile(None)
    if place is not None:
        os.kill(os.getpid(), signal.SIGKILL)
    places = [f"{name} {number}" for name, count in passed.items() for number in range(1, min(count, _PASSES) + 1)]
    return outcome | {"generation": training.dataset.generation, "state": training.state_dict(), "places": places}


def _name(frame: FrameType, event: str, arg: Any) -> str | None:
    file = frame.f_code.co_filename
    if "/gear_data/" not in file and "/torch/distributed/" not in file:
        return None
    module = os.path.basename(file).removesuffix(".py")
    if event in ("call", "return"):
        return f"{event} {module}.{frame.f_code.co_name}"
    name = getattr(arg, "__name__", "")
    return f"{event} {module}.{frame.f_code.co_name} {name}" if module in _EXCHANGE else None


#: Modules whose calls of torch's store and collectives are places, too.
_EXCHANGE = {"key_value_store", "distributed_c10d"}


def _attempt(call: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Returns the result of a call, or its error and whether that is typed."""
    try:
        return call()
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}", "typed": isinstance(error, gear_data.GearError)}


def _hashes(batches: Iterator[Any], count: int) -> dict[str, Any]:
    return {"hashes": [digest(batch) for batch in itertools.islice(batches, count)]}


def digest(batch: Any, rows: slice = slice(None)) -> str:
    """Returns a hash of some rows of a batch."""
    return hashlib.sha256(b"".join(batch[key].numpy()[rows].tobytes() for key in sorted(batch))).hexdigest()


if __name__ == "__main__":
    main(*sys.argv[1:])
