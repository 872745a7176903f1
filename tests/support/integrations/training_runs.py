"""Runs of training scripts on several ranks, and checks of their batches."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import gear_data
from tests.support.cluster.runs import free_port
from tests.support.feed import data as feed_data
from tests.support.integrations import recorder

ROOT = Path(__file__).resolve().parents[3]
SCRIPTS = ROOT / "scripts" / "integrations"
#: Modules that every script imports. A framework adds its own modules, except those that may not be forked.
IMPORTS = ("tests.support.integrations.warm.kernels",)


def make_data(folder: Path) -> Path:
    """Converts episodes whose numbers all differ, and returns the folder."""
    lengths = [23, 40, 9, 61, 30, 5, 44]
    feed_data.convert_episodes(feed_data.locomotion(lengths, seed=5, observations=recorder.WIDTH), folder)
    return folder


@dataclass(frozen=True)
class Trained:
    """The result of one run.

    Attributes:
        inputs: for each rank, the inputs of each of its steps.
        logs: the output of each rank.
    """

    inputs: list[list[np.ndarray]]
    logs: list[str]

    def global_batches(self) -> list[np.ndarray]:
        """Returns the rows of all ranks of each step, in the order of the ranks."""
        return [np.concatenate(rows) for rows in zip(*self.inputs, strict=True)]


class RankServer:
    """Client of `rank_server`.

    Args:
        process: the server.
        folder: where records are written.
    """

    def __init__(self, process: subprocess.Popen[str], folder: Path) -> None:
        self._process, self._folder, self._runs = process, folder, 0

    def train(
        self, script: Path, arguments: Sequence[object], world_size: int, *, imports: Sequence[str] = (),
        kill_at: int | None = None, status: int = 0,
    ) -> Trained:  # fmt: skip
        """Runs a script on `world_size` ranks; checks their exit status.

        Args:
            script: the script; its model's first layer is `torch.nn.Linear(recorder.WIDTH, ...)`.
            arguments: of its command line.
            world_size: number of processes. With 1, no launcher's variables are set.
            imports: modules that are imported once for all runs.
            kill_at: number of the step of this run in which all ranks get SIGKILL. None: no rank is killed.
            status: exit status of each rank that is not killed.
        """
        self._runs += 1
        records = self._folder / f"run-{self._runs}"
        records.mkdir()
        request = {
            "script": str(script), "arguments": [*map(str, arguments)], "world_size": world_size,
            "imports": [*IMPORTS, *imports], "records": str(records), "kill_at": kill_at, "port": free_port(),
        }  # fmt: skip
        assert self._process.stdin is not None and self._process.stdout is not None
        print(json.dumps(request), file=self._process.stdin, flush=True)
        statuses = json.loads(self._process.stdout.readline())
        logs = [(records / f"rank-{rank}.log").read_text() for rank in range(world_size)]
        assert statuses == [status if kill_at is None else -9] * world_size, f"{statuses}\n" + "\n".join(logs)
        inputs = [recorder.read(str(records / f"rank-{rank}.npy")) for rank in range(world_size)]
        return Trained(inputs, logs)


@contextmanager
def rank_server(folder: Path) -> Iterator[RankServer]:
    """Yields a server that runs ranks, with one thread each."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.support.integrations.rank_server"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"},
    )  # fmt: skip
    with process:
        try:
            yield RankServer(process, folder)
        finally:
            # DataLoader workers that other tests left may hold the other end of its input, so it would never end.
            process.kill()


def global_batches(
    dataset: Path | gear_data.Dataset, steps: int, column: str = "observations", **options: object
) -> list[np.ndarray]:
    """Returns a column of the first batches of a loader without end, in one process."""
    opened = gear_data.open(dataset) if isinstance(dataset, Path) else dataset
    loader = gear_data.SequenceLoader(opened, prefetch=0, **options)
    return [loader.batch(step)[column].numpy() for step in range(steps)]


def check_resumed(
    server: RankServer, script: Path, dataset: Path, out: Path, expected: Sequence[np.ndarray], *,
    imports: Sequence[str] = (), arguments: Sequence[object] = (), save_every: int = 4, kill_at: int = 6,
    resumed_at: int | None = None, world_sizes: Sequence[int] = (2, 3),
) -> list[Trained]:  # fmt: skip
    """Trains, kills all ranks, resumes with other ranks; checks each step's rows.

    The script takes `DATASET --out FOLDER --steps N --save-every N`, and resumes from its last checkpoint by itself.

    Args:
        server: runs the ranks.
        script: see `RankServer.train`.
        dataset: from `make_data`.
        out: the folder of the run.
        expected: the global batches of all steps.
        imports: see `RankServer.train`.
        arguments: further arguments of the script; the last one of a name counts.
        save_every: steps between checkpoints.
        kill_at: number of the step of the first run in which its ranks get SIGKILL.
        resumed_at: number of the step with which the second run must begin. None: the last multiple of `save_every`.
        world_sizes: ranks of each of the two runs.

    Returns:
        Both runs.
    """
    command = [dataset, "--out", out, "--steps", len(expected), "--save-every", save_every, *arguments]
    killed = server.train(script, command, world_sizes[0], imports=imports, kill_at=kill_at)
    check_equal(killed.global_batches(), expected[: kill_at + 1])
    resumed = server.train(script, command, world_sizes[1], imports=imports)
    first = kill_at // save_every * save_every if resumed_at is None else resumed_at
    check_equal(resumed.global_batches(), expected[first:])
    return [killed, resumed]


def check_equal(found: Sequence[np.ndarray], expected: Sequence[np.ndarray]) -> None:
    """Checks that batches are equal bit for bit. An error names the steps found."""
    names = [next((step for step, one in enumerate(expected) if np.array_equal(one, each)), None) for each in found]
    assert names == [*range(len(expected))], f"the model was trained on steps {names} of {len(expected)}"


def check_over(
    server: RankServer, script: Path, dataset: Path, out: Path, steps: int, *, imports: Sequence[str] = ()
) -> None:
    """Checks that a run whose last checkpoint is of its last step trains no further when it is started again."""
    again = server.train(script, [dataset, "--out", out, "--steps", steps, "--save-every", 4], 2, imports=imports)
    assert again.inputs == [[], []]
