"""Contender Flashbax: a trajectory buffer on the CPU, and a Vault that keeps its steps."""

# mypy: disable-error-code="import-not-found, import-untyped"

from __future__ import annotations

import argparse
import threading
from collections.abc import Callable
from typing import Any

import flashbax
import jax
import numpy as np
from flashbax.vault import Vault
from harness import versions_of
from writer_harness import BATCH_SIZE, CONTEXT, SHAPES, Recorder, Recording, Step, Task, make_columns, serve

#: Steps of each environment between two calls of `Vault.write`.
VAULT_STEPS = 1024


class FlashbaxRecorder:
    def __init__(self, task: Task) -> None:
        environments = max(1, task.environments)
        self.buffer = flashbax.make_trajectory_buffer(
            add_batch_size=environments,
            sample_batch_size=BATCH_SIZE,
            sample_sequence_length=CONTEXT,
            period=1,
            min_length_time_axis=CONTEXT,
            max_length_time_axis=task.capacity // environments,
        )
        first = {name: values[0, 0] for name, values in make_columns(task.shape, environments, 0).items()}
        self.state = self.buffer.init(first)
        self._add = jax.jit(self.buffer.add, donate_argnums=0)
        self._vault = Vault("steps", self.state.experience, rel_dir=str(task.folder))
        # Adding invalidates the state that samples are drawn of.
        self.lock = threading.Lock()
        self._single, self._unwritten = not task.environments, 0

    def append(self, step: Step, ends: tuple[int, ...]) -> None:
        axes = (None, None) if self._single else (slice(None), None)
        with self.lock:
            self.state = self._add(self.state, {name: np.asarray(value)[axes] for name, value in step.items()})
            self._unwritten += 1
            if self._unwritten == VAULT_STEPS:
                self._vault.write(self.state)
                self._unwritten = 0

    def settle(self) -> None:
        jax.block_until_ready(self.state)

    def finish(self) -> None:
        self._vault.write(self.state)

    def close(self) -> None:
        """Leaves the files to the caller."""


def build(args: argparse.Namespace) -> Recording:
    def sample(recorder: Recorder) -> Callable[[], Any]:
        store: Any = recorder
        draw, keys = jax.jit(store.buffer.sample), iter(())

        def next_batch() -> dict[str, Any]:
            nonlocal keys
            key = next(keys, None)
            if key is None:
                # Splitting a key for each batch would cost more than the batch.
                keys = iter(jax.random.split(jax.random.key(args.seed), 4096))
                key = next(keys)
            with store.lock:
                batch: dict[str, Any] = jax.block_until_ready(draw(store.state, key).experience)
            return batch

        return next_batch

    length = SHAPES[args.shape][2]
    return Recording(
        FlashbaxRecorder,
        versions_of("flashbax", "jax", "tensorstore", "numpy"),
        f"make_trajectory_buffer, jitted add, one step of each environment at once; Vault.write (its default, gzip) "
        f"every {VAULT_STEPS:,} steps of an environment; no ends of episodes (here every {length:,} steps)",
        sample,
    )


if __name__ == "__main__":
    serve(build, "Rate of Flashbax's trajectory buffer with a Vault.")
