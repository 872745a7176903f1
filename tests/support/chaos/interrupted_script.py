"""Scripts that read batches until they are interrupted.

`tests.chaos.stops.interrupts` starts and interrupts them.

Usage: interrupted_script DATASET NODE.
"""

from __future__ import annotations

import itertools
import random
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch

import gear_data
from gear_data import Mixture, SequenceLoader
from tests.support.chaos.forked_scripts import fork_scripts, say

#: Sizes of a batch, small enough that an interrupt often arrives outside of the compiled call.
OPTIONS: dict[str, Any] = {"batch_size": 64, "context": 10, "seed": 3}
#: Seconds that a prefetch thread may live after its iterator is gone.
THREAD_SECONDS = 1.0


def local(folder: str, node: str, *, residency: str, prefetch: int) -> Iterable[Any]:
    return SequenceLoader(gear_data.open(folder, residency=residency), prefetch=prefetch, **OPTIONS)


def remote(folder: str, node: str, *, prefetch: int) -> Iterable[Any]:
    return SequenceLoader(gear_data.open(node), prefetch=prefetch, **OPTIONS)


def mixture(folder: str, node: str, *, prefetch: int) -> Iterable[Any]:
    datasets = [(gear_data.open(folder), 2), (gear_data.open(folder, residency="host"), 1)]
    return SequenceLoader(Mixture(datasets, join=True), prefetch=prefetch, **OPTIONS)


def workers(folder: str, node: str, *, prefetch: int) -> Iterable[Any]:
    # Workers cannot continue a pass without end.
    loader = SequenceLoader(gear_data.open(folder), prefetch=prefetch, passes="repeat", **OPTIONS)
    return torch.utils.data.DataLoader(loader, batch_size=None, num_workers=2)


LOADERS: dict[str, Callable[..., Iterable[Any]]] = {
    "local": local, "remote": remote, "mixture": mixture, "workers": workers,
}  # fmt: skip


def passes(loader: Iterable[Any], rng: random.Random) -> Iterator[None]:
    """Takes batches without end, in passes of random length.

    The passes end in each of the ways that users end them.
    """
    kept: list[Any] = []
    while True:
        batches = iter(loader)
        # Only in long passes, the thread waits while the consumer builds batches.
        for batch in itertools.islice(batches, rng.randrange(1, rng.choice((40, 1000)))):
            if rng.random() < 0.05:
                kept.append(batch)
            yield None
        if rng.random() < 0.3 and hasattr(batches, "close"):
            batches.close()
        del batches
        if rng.random() < 0.3:
            kept.clear()


def prefetch_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("gear-prefetch")]


#: A DataLoader runs these while a worker's batch arrives, and while its memory is freed. The interpreter drops an
#: interrupt in them.
_OF_DATALOADERS = ("StorageWeakRef.__del__", "_ConnectionBase.__del__")

#: Exceptions that the interpreter dropped since the last interrupt was caught.
dropped: list[str] = []


def drop(what: Any) -> None:
    name = getattr(what.object, "__qualname__", repr(what.object)).replace("\n", " ")
    dropped.append(f"{what.exc_type.__name__} in {name}")


def read_batches(loader: Iterable[Any], rng: random.Random) -> None:
    """Reads batches without end, or until the interpreter drops an exception."""
    if isinstance(loader, SequenceLoader):
        say("go")
        endless: Iterable[Any] = passes(loader, rng)
    else:
        # The interpreter itself loses interrupts that arrive while a process forks.
        endless = iter(loader)
        next(endless)
        say("go")
    for _ in endless:
        if dropped:
            return


def catch_interrupts(loader: Iterable[Any], rng: random.Random) -> None:
    """Reads batches; after each interrupt from the beginning."""
    sys.unraisablehook = drop
    while True:
        try:
            read_batches(loader, rng)
        except KeyboardInterrupt:
            say("caught")
        except BaseException as error:
            try:
                dropped.append(traceback.format_exc().replace("\n", " / "))
            except KeyboardInterrupt:  # only now
                dropped.append(repr(error))
        lost = [each for each in dropped if not each.endswith(_OF_DATALOADERS)]
        if lost:
            say(f"lost {lost}")
        elif dropped:
            say("caught")
        dropped.clear()
        end = time.monotonic() + THREAD_SECONDS
        while prefetch_threads() and time.monotonic() < end:
            time.sleep(0.001)
        if prefetch_threads():
            say(f"threads {prefetch_threads()}")


def main(folder: str, node: str) -> None:
    def run(case: dict[str, Any]) -> None:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        rng = random.Random(case["seed"])
        loader = LOADERS[case["loader"]](folder, node, **case["arguments"])
        if case["catches"]:
            catch_interrupts(loader, rng)
        else:
            read_batches(loader, rng)

    # Numba loses interrupts while it compiles, and while it reads its cache.
    warm = (
        local(folder, node, residency="mmap", prefetch=0),
        remote(folder, node, prefetch=0),
        mixture(folder, node, prefetch=0),
    )
    for loader in warm:
        next(iter(loader))
    torch.set_num_threads(1)
    # Only the scripts are interrupted.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    fork_scripts(run)


if __name__ == "__main__":
    main(*sys.argv[1:])
