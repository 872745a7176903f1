"""Servers that take episodes, and the episodes that tests send to them."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import gear_data
from gear_data.recording.writer import Writer
from tests.support.cluster.nodes import NodeProcess


class WriteServerProcess(NodeProcess):
    """A `gear-data serve --writable` process. It keeps its port when it is restarted.

    Args:
        dataset: folder of the dataset.
        options: further options of the command.
    """

    def __init__(self, dataset: Path, options: Sequence[str] = ()) -> None:
        super().__init__(dataset, options=["--writable", *options])

    @property
    def url(self) -> str:
        return f"gear://{self.address}"

    def end(self) -> dict[str, Any]:
        """Ends the process by SIGTERM, and returns its report."""
        self._running.send_signal(signal.SIGTERM)
        return self.report()

    def report(self) -> dict[str, Any]:
        """Returns the report of a process that has got a signal."""
        printed = self._running.communicate(timeout=60)[0]
        if not printed:
            raise RuntimeError(f"the server printed no report: it ended with {self._running.returncode}")
        report: dict[str, Any] = json.loads(printed)
        return report


def steps_of(number: int, writer: int = 0) -> int:
    """Returns the number of steps of an episode."""
    return 1 + (number * 7 + writer) % 40


def add_episode(to: Writer, number: int, writer: int = 0, env_id: int = 0) -> None:
    """Records an episode, whose values depend on its number and its writer."""
    for t in range(steps_of(number, writer)):
        value = writer * 100_000 + number * 100 + t
        to.append(
            env_id=env_id,
            observations={
                "position": np.full(3, value, np.float32),
                "image": np.full((4, 4, 3), value % 251, np.uint8),
            },
            actions=np.int64(value),
            infos={"words": f"step {value}" * (t % 3)},
        )
    final = {"position": np.full(3, -value, np.float32), "image": np.zeros((4, 4, 3), np.uint8)}
    # An episode in three has no final observation.
    to.end_episode(
        env_id, terminated=bool(number % 2), final=final if number % 3 else None, number=number, writer=writer
    )


def recorded_here(folder: Path, order: Iterable[tuple[int, int]]) -> gear_data.Dataset:
    """Records episodes into a folder of this machine.

    Args:
        folder: of the dataset.
        order: (writer, number) of each episode.
    """
    with Writer(folder, durability="os") as writer:
        for each, number in order:
            add_episode(writer, number, each)
    return gear_data.open(folder)


def order_of(dataset: gear_data.Dataset) -> list[tuple[int, int]]:
    """Returns (writer, number) of each episode of a dataset."""
    return [(writer, number) for writer, number in dataset.episodes.select("writer", "number").rows()]
