"""Workers of Ray Train that record their batches, and kill themselves together."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from gear_data import SequenceLoader
from gear_data.errors import InvalidArgumentError
from gear_data.integrations.ray_train import load_checkpoint
from tests.support.integrations import recorder

Loop = Callable[[dict[str, Any]], None]


def recorded(
    loop: Loop, records: Path, storage: Path, kill_at: int | None, loader: SequenceLoader | None = None
) -> Loop:
    """Returns a training loop whose workers record to `records/rank-R.npy`.

    Args:
        loop: the training loop.
        records: the folder.
        storage: the folder of the run; the workers die after Ray took up a checkpoint.
        kill_at: number of the step after which all workers get SIGKILL; None: no worker is killed.
        loader: a loader of the driver; its first batch in a worker is saved in `records/travelled-R.npy`, and the error
            for a loader with a fixed rank in `records/refused-R.txt`.
    """

    def run(config: dict[str, Any]) -> None:
        import ray.train

        context = ray.train.get_context()
        rank, workers = context.get_world_rank(), context.get_world_size()
        reading, writing = os.pipe()
        recorder.start(f"{records}/rank-{rank}.npy", kill_at, writing)

        def die() -> None:
            os.read(reading, 1)
            (records / f"rank-{rank}.arrived").touch()
            # Ray takes up a reported checkpoint some time later, and writes a snapshot.
            while len(list(records.glob("*.arrived"))) < workers or not list(storage.glob("*_snapshot.json")):
                time.sleep(0.01)
            os.kill(os.getpid(), signal.SIGKILL)

        if loader is not None:
            np.save(records / f"travelled-{rank}.npy", next(iter(loader))["observations"])
            fixed = SequenceLoader(loader.dataset, 4, rank=0, world_size=1)
            try:
                load_checkpoint(fixed)
            except InvalidArgumentError as error:
                (records / f"refused-{rank}.txt").write_text(str(error))
        threading.Thread(target=die, daemon=True).start()
        loop(config)

    return run
