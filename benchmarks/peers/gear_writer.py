"""Contender gear-data: a Writer, and a SequenceLoader that samples beside it."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from harness import versions_of
from writer_harness import BATCH_SIZE, CONTEXT, Recorder, Recording, Step, Task, serve

import gear_data

#: Seconds between two refreshes of the loader.
REFRESH_SECONDS = 1.0


class GearRecorder:
    def __init__(self, task: Task) -> None:
        own = task.folder / "dataset"
        options: dict[str, Any] = {"durability": task.options.durability}
        if task.store is not None and task.options.publish_every:
            self.path = Path(task.store)
            options["publish_every"] = task.options.publish_every
        else:
            self.path = own
        self._server = WriteServer(self.path) if task.options.server else None
        self._writer = gear_data.Writer(self.path if self._server is None else self._server.url, **options)
        if not task.environments:
            self.append = self._append_one  # type: ignore[method-assign]

    def append(self, step: Step, ends: tuple[int, ...]) -> None:
        self._writer.append_batch(**step)

    def _append_one(self, step: Step, ends: tuple[int, ...]) -> None:
        self._writer.append(observations=step["observations"], actions=step["actions"], rewards=step["rewards"])
        if ends:
            self._writer.end_episode(terminated=step["terminated"], truncated=step["truncated"])

    def settle(self) -> None:
        """Waits for the server. Without one, `append` writes an episode that ends."""
        if self._server is not None:
            self._writer.flush()

    def finish(self) -> None:
        self._writer.close()
        if self._server is not None:
            self._server.end()

    def close(self) -> None:
        self.finish()


class WriteServer:
    """A process of `gear-data serve --writable` on this machine."""

    def __init__(self, path: Path) -> None:
        command = [sys.executable, "-m", "gear_data.cli", "serve", str(path), "--writable", "--json"]
        self._process = subprocess.Popen([*command, "--listen", "127.0.0.1:0"], stdout=subprocess.PIPE, text=True)
        if self._process.stdout is None:
            raise RuntimeError("the server has no output")
        self.url = f"gear://{json.loads(self._process.stdout.readline())['listen']}"

    def end(self) -> None:
        """Waits until the dataset is published."""
        if self._process.poll() is None:
            self._process.terminate()
            self._process.communicate()


def build(args: argparse.Namespace) -> Recording:
    def sample(recorder: Recorder) -> Callable[[], Any]:
        recorder.close()
        loader = gear_data.SequenceLoader(
            gear_data.open(store_of(recorder)),
            batch_size=BATCH_SIZE,
            context=CONTEXT,
            preset="raw",
            sampler="uniform",
            seed=args.seed,
            prefetch=args.prefetch,
        )
        batches, refreshed = iter(loader), time.perf_counter()

        def next_batch() -> Any:
            nonlocal refreshed
            if args.publish_every and time.perf_counter() > refreshed + REFRESH_SECONDS:
                loader.refresh()
                refreshed = time.perf_counter()
            return next(batches)

        return next_batch

    beside = (
        f"publish_every={args.publish_every:g}, and the loader refreshes every {REFRESH_SECONDS:g} s"
        if args.publish_every
        else "the writer publishes nothing"
    )
    return Recording(
        GearRecorder,
        {"gear-data": gear_data.__version__, **versions_of("numpy", "pyarrow")},
        f'Writer, durability="{args.durability}"; the finish is close(); samples: SequenceLoader, preset "raw", '
        f"prefetch={args.prefetch}; {beside}",
        sample,
        store_of,
    )


def store_of(recorder: Recorder) -> str:
    return str(recorder.path)  # type: ignore[attr-defined]


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--durability", default="os", help="of the Writer (default os)")
    help = "seconds between generations that the loader takes; 0: none (default 1)"
    parser.add_argument("--publish-every", type=float, default=1.0, help=help)
    parser.add_argument("--server", action="store_true", help="send the episodes to a server in its own process")
    parser.add_argument("--prefetch", type=int, default=2, help="batches built ahead (default 2)")


if __name__ == "__main__":
    serve(build, "Rate of gear_data.Writer.", configure)
