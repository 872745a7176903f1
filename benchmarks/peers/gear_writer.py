"""Contender gear-data: a Writer, and a SequenceLoader that samples beside it."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

from harness import versions_of
from writer_harness import BATCH_SIZE, CONTEXT, Recorder, Recording, Step, Task, serve

import gear_data


class GearRecorder:
    def __init__(self, task: Task) -> None:
        self.path = task.folder / "dataset"
        self._writer = gear_data.Writer(self.path, durability=task.options.durability)
        if not task.environments:
            self.append = self._append_one  # type: ignore[method-assign]

    def append(self, step: Step, ends: tuple[int, ...]) -> None:
        self._writer.append_batch(**step)

    def _append_one(self, step: Step, ends: tuple[int, ...]) -> None:
        self._writer.append(observations=step["observations"], actions=step["actions"], rewards=step["rewards"])
        if ends:
            self._writer.end_episode(terminated=step["terminated"], truncated=step["truncated"])

    def settle(self) -> None:
        """Does nothing: `append` writes an episode that ends."""

    def finish(self) -> None:
        self._writer.seal()

    def close(self) -> None:
        self._writer.close()


def build(args: argparse.Namespace) -> Recording:
    def sample(recorder: Recorder) -> Callable[[], Any]:
        recorder.finish()
        loader = gear_data.SequenceLoader(
            gear_data.open(recorder.path),  # type: ignore[attr-defined]
            batch_size=BATCH_SIZE,
            context=CONTEXT,
            preset="raw",
            sampler="uniform",
            seed=args.seed,
            prefetch=args.prefetch,
        )
        batches = iter(loader)
        return lambda: next(batches)

    return Recording(
        GearRecorder,
        {"gear-data": gear_data.__version__, **versions_of("numpy", "pyarrow")},
        f'Writer, durability="{args.durability}"; the finish is seal(); '
        f'samples: SequenceLoader of a sealed dataset, preset "raw", prefetch={args.prefetch}',
        sample,
    )


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--durability", default="os", help="of the Writer (default os)")
    parser.add_argument("--prefetch", type=int, default=2, help="batches built ahead (default 2)")


if __name__ == "__main__":
    serve(build, "Rate of gear_data.Writer.", configure)
