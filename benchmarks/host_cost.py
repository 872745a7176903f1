"""Measures what a batch of a GPU costs its host: microseconds of Python, and operations that the GPU receives.

    python benchmarks/host_cost.py --json host_cost.json

Stand-ins of CuPy and torch.cuda receive every operation and return at once, also on a machine with a GPU. So the
microseconds are Python's own, without the driver's; section (i) of gpu.py has the whole. Seconds are the processor's of
one thread, which other processes disturb less than the clock's.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from common import ROOT, command_line, format_table, machine_facts, synthetic_episodes, write_json, write_parquet

# The checkout's own gear_data and tests, installed or not.
sys.path.insert(0, str(ROOT))

import gear_data
from gear_data.kernels.cuda.launcher import CudaLauncher
from gear_data.selection.samplers import Weighted

BATCH, CONTEXT = 256, 20
#: Title -> residency, and arguments of the loader. Batches are of a Decision Transformer, and made one by one when they
#: are taken, unless the arguments say otherwise.
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "device, uniform": ("device", {}),
    "device, uniform, ahead": ("device", {"prefetch": 2}),
    "pinned, uniform": ("pinned", {}),
    "device, weighted": ("device", {"sampler": Weighted("length")}),
    "device, in order": ("device", {"sampler": "fifo"}),
    "device, shuffled": ("device", {"sampler": "shuffle"}),
    "device, no episode twice": ("device", {"sampler": Weighted("length", replacement=False)}),
    "device, drawn by the CPU": ("device", {"sampler": Weighted("length", beta=0.5)}),
    "mmap, by the CPU": ("mmap", {"execution": gear_data.ExecutionOptions(backend="cpu")}),
}
#: Batches of a round, and rounds of a case.
_BATCHES, _ROUNDS = 200, 9


def measure(path: Path, case: str, operations: Counter[str], batches: int) -> dict[str, float]:
    """Returns microseconds and operations of one batch.

    Args:
        path: a dataset.
        case: a key of `CASES`.
        operations: counts the operations that the GPU receives.
        batches: batches of a round.
    """
    residency, options = CASES[case]
    on_gpu = gear_data.ExecutionOptions(backend="cuda")
    arguments: dict[str, Any] = {"preset": "decision_transformer", "execution": on_gpu, "prefetch": 0, **options}
    loader = gear_data.SequenceLoader(
        gear_data.open(path, residency=residency), batch_size=BATCH, context=CONTEXT, device="cuda", **arguments
    )
    feed = iter(loader)
    with _clocked_launches() as launching:
        for _ in range(20):
            next(feed)
        whole, launched = [], []
        operations.clear()
        for _ in range(_ROUNDS):
            launching.clear()
            begun = time.thread_time_ns()
            for _ in range(batches):
                next(feed)
            whole.append((time.thread_time_ns() - begun) / 1e3 / batches)
            # Other processes disturb the sum of so many short spans by the clock, and not their median.
            launched.append(statistics.median(launching) * len(launching) / 1e3 / batches if launching else 0.0)
        count = sum(operations.values()) / (_ROUNDS * batches)
    feed.close()
    return {"us": statistics.median(whole), "launches us": statistics.median(launched), "operations": count}


@contextmanager
def _clocked_launches() -> Iterator[list[int]]:
    """Collects the nanoseconds of each launch of a kernel."""
    launch, spent = CudaLauncher.launch, []

    def clocked(launcher: CudaLauncher, *arguments: Any) -> None:
        begun = time.perf_counter_ns()
        launch(launcher, *arguments)
        spent.append(time.perf_counter_ns() - begun)

    CudaLauncher.launch = clocked  # type: ignore[method-assign]
    try:
        yield spent
    finally:
        CudaLauncher.launch = launch  # type: ignore[method-assign]


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few batches")
    parser.add_argument("--json", type=Path, help="write the full record here")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    args = make_parser().parse_args(arguments)
    # Imported here, because it needs pytest.
    from tests.support.cuda.idle_gpu import idle_gpu

    with tempfile.TemporaryDirectory(prefix="gear-bench-") as folder, idle_gpu() as operations:
        source, path = Path(folder) / "source.parquet", Path(folder) / "dataset"
        write_parquet(synthetic_episodes(200_000), source)
        gear_data.convert(source, path)
        results = {case: measure(path, case, operations, 20 if args.quick else _BATCHES) for case in CASES}
    titles = ["us", "launches us", "operations"]
    rows = [[case, *(f"{result[title]:.1f}" for title in titles)] for case, result in results.items()]
    print(format_table(["a batch", *titles], rows))
    if args.json is not None:
        record = {"command": command_line(), "machine": machine_facts(), "results": results}
        write_json(args.json, record)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
