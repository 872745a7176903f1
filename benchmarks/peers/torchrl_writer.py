"""Contender TorchRL: a ReplayBuffer over a LazyMemmapStorage."""

# mypy: disable-error-code="import-not-found, import-untyped"

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import torch
from harness import versions_of
from tensordict import TensorDict
from torchrl.data import LazyMemmapStorage, ReplayBuffer
from writer_harness import BATCH_SIZE, CONTEXT, Recorder, Recording, Step, Task, serve


class TorchrlRecorder:
    def __init__(self, task: Task) -> None:
        self._folder = task.folder
        self.buffer = ReplayBuffer(
            storage=LazyMemmapStorage(task.capacity, scratch_dir=str(task.folder / "steps")),
            batch_size=BATCH_SIZE * CONTEXT,
        )
        if not task.environments:
            self.append = self._append_one  # type: ignore[method-assign]

    def append(self, step: Step, ends: tuple[int, ...]) -> None:
        tensors = {name: torch.from_numpy(values) for name, values in step.items()}
        self.buffer.extend(TensorDict(tensors, batch_size=[len(step["rewards"])]))

    def _append_one(self, step: Step, ends: tuple[int, ...]) -> None:
        self.buffer.add(TensorDict({name: torch.as_tensor(value) for name, value in step.items()}, batch_size=[]))

    def settle(self) -> None:
        """Does nothing: the storage has each step at once."""

    def finish(self) -> None:
        self.buffer.dumps(str(self._folder / "dump"))

    def close(self) -> None:
        """Leaves the files to the caller."""


def sample(recorder: Recorder) -> Callable[[], Any]:
    buffer: Any = recorder.buffer  # type: ignore[attr-defined]
    return lambda: dict(buffer.sample().items())


def build(args: argparse.Namespace) -> Recording:
    torch.manual_seed(args.seed)
    # Threads cost more than they gain for so few steps.
    torch.set_num_threads(1)
    return Recording(
        TorchrlRecorder,
        versions_of("torchrl", "tensordict", "torch", "numpy"),
        "ReplayBuffer, LazyMemmapStorage, extend and add of a TensorDict; the finish is dumps(); samples: as many "
        "steps as the others' windows have, drawn one by one; one thread",
        sample,
    )


if __name__ == "__main__":
    serve(build, "Rate of TorchRL's ReplayBuffer with LazyMemmapStorage.")
