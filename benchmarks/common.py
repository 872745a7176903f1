"""Helpers of all benchmarks: test data, machine facts, tables and figures.

Why: docs/explanation/decisions/measuring.md
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import platform
import resource
import shlex
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

ROOT = Path(__file__).resolve().parent.parent

#: Episodes in a row group of the files written here.
ROW_GROUP_EPISODES = 64

COLUMNS = ("observations", "actions", "rewards", "dones")


@dataclass(frozen=True)
class Episodes:
    """Episodes, concatenated in plain arrays."""

    observations: npt.NDArray[np.float32]  # [N, S]
    actions: npt.NDArray[np.float32]  # [N, A]
    rewards: npt.NDArray[np.float32]  # [N]
    terminals: npt.NDArray[np.bool_]  # [N]
    lengths: npt.NDArray[np.int64]  # [E]

    def __len__(self) -> int:
        return len(self.lengths)

    @property
    def steps(self) -> int:
        return len(self.rewards)


def synthetic_episodes(
    steps: int = 200_000, seed: int = 0, observation_width: int = 11, action_width: int = 3
) -> Episodes:
    """Returns random data of Hopper's shape: `steps` steps in episodes of 8 to 1000.

    About a fifth of the episodes reach the limit of 1000 steps, as under a good policy. The last episode is shortened
    so that the total is exact.
    """
    random = np.random.default_rng(seed)
    drawn = np.minimum(random.integers(8, 1250, size=steps // 8 + 1), 1000)
    lengths = drawn[: int(np.searchsorted(np.cumsum(drawn), steps)) + 1]
    lengths[-1] -= lengths.sum() - steps
    terminals = np.zeros(steps, np.bool_)
    terminals[np.cumsum(lengths) - 1] = True
    return Episodes(
        observations=random.standard_normal((steps, observation_width), dtype=np.float32),
        actions=random.uniform(-1, 1, (steps, action_width)).astype(np.float32),
        rewards=random.uniform(0, 4, steps).astype(np.float32),
        terminals=terminals,
        lengths=lengths,
    )


def nested(values: npt.NDArray[Any], offsets: npt.NDArray[np.int32]) -> pa.Array:
    """Returns an array [N] or [N, width] as one list per episode."""
    rows = pa.array(values.reshape(-1))
    if values.ndim == 2:
        inner = np.arange(0, values.size + 1, values.shape[1], dtype=np.int32)
        rows = pa.ListArray.from_arrays(pa.array(inner), rows)
    return pa.ListArray.from_arrays(pa.array(offsets), rows)


def write_parquet(episodes: Episodes, path: Path) -> None:
    """Writes Parquet with one row per episode.

    It has the columns of the Decision Transformer datasets on the HF hub.
    """
    offsets = np.concatenate([[0], np.cumsum(episodes.lengths)]).astype(np.int32)
    values = (episodes.observations, episodes.actions, episodes.rewards, episodes.terminals)
    table = pa.table({name: nested(array, offsets) for name, array in zip(COLUMNS, values, strict=True)})
    pq.write_table(table, path, row_group_size=ROW_GROUP_EPISODES)


def parquet_files(source: Path) -> list[Path]:
    files = sorted(source.rglob("*.parquet")) if source.is_dir() else [source]
    if not files:
        raise FileNotFoundError(f"no .parquet file under {source}")
    return files


def processor_name() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass  # not Linux
    return platform.processor() or platform.machine()


def last_level_cache_bytes() -> int | None:
    """Returns the bytes of the first core's largest cache; None if unknown."""
    sizes = []
    for file in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size"):
        text = file.read_text().strip()
        sizes.append(int(text[:-1]) << {"K": 10, "M": 20, "G": 30}[text[-1]])
    return max(sizes, default=None)


def versions(packages: Iterable[str]) -> dict[str, str]:
    found = {}
    for package in packages:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue  # a checkout that is not installed
    return found


def machine_facts() -> dict[str, Any]:
    return {
        "processor": processor_name(),
        "cores": os.cpu_count(),
        "last_level_cache_bytes": last_level_cache_bytes(),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        # Read before any measurement: it shows the load of other processes.
        "load_average": round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None,
        "versions": versions(("gear-data", "numpy", "pyarrow", "polars", "numba", "torch")),
    }


def command_line() -> str:
    """Returns the command line, for the record."""
    return shlex.join(["python", *sys.argv])


def describe_machine(facts: Mapping[str, Any]) -> str:
    packages = ", ".join(f"{name} {version}" for name, version in facts["versions"].items())
    cache = facts["last_level_cache_bytes"]
    size = "unknown" if cache is None else f"{cache >> 20} MiB"
    machine = (
        f"{facts['processor']}, {facts['cores']} cores (load {facts['load_average']} at the start), "
        f"last-level cache {size}"
    )
    return f"{machine}, {facts['system']}, Python {facts['python']}, {packages}"


def spread(values: Sequence[float]) -> dict[str, float]:
    return {"median": statistics.median(values), "min": min(values), "max": max(values)}


def cpu_seconds(*who: int) -> float:
    """Returns the seconds of all cores that processes took, of `resource.RUSAGE_...`. Children count once they end."""
    used = map(resource.getrusage, who)
    return sum(each.ru_utime + each.ru_stime for each in used)


def median_ms(call: Callable[[int], Any], count: int) -> float:
    """Returns the median time of count calls, in milliseconds. A call gets its number."""
    seconds = []
    for i in range(count):
        begun = time.perf_counter()
        call(i)
        seconds.append(time.perf_counter() - begun)
    return 1e3 * statistics.median(seconds)


def figure(value: float | None, digits: int = 3) -> str:
    """Formats a number for a table: `digits` significant digits, or "-" for None."""
    if value is None:
        return "-"
    if abs(value) >= 10 ** (digits - 1):
        return f"{value:,.0f}"
    return f"{value:.{digits}g}"


def format_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Formats a Markdown table with padded cells.

    Columns of numbers are right-aligned.
    """
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    right = [all(cell[:1].isdigit() or cell == "-" for cell in column) for column in zip(*rows, strict=True)]

    def line(cells: Sequence[str]) -> str:
        placed = (
            cell.rjust(width) if at_right else cell.ljust(width)
            for cell, width, at_right in zip(cells, widths, right, strict=True)
        )
        return f"| {' | '.join(placed)} |"

    rule = "|".join(
        "-" * (width + 1) + (":" if at_right else "-") for width, at_right in zip(widths, right, strict=True)
    )
    return "\n".join([line(header), f"|{rule}|", *map(line, rows)])


def write_json(path: Path, record: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(record, indent=2) + "\n")


def parse_with_quick(
    parser: argparse.ArgumentParser, arguments: Sequence[str] | None, quick: Mapping[str, Any]
) -> argparse.Namespace:
    """Parses arguments. `--quick` sets other defaults, which options still replace."""
    args = parser.parse_args(arguments)
    if args.quick:
        parser.set_defaults(**quick)
        args = parser.parse_args(arguments)
    return args


def progress(text: str) -> None:
    """Prints a status line that overwrites the last one.

    The empty text clears the line. Prints nothing if stderr is not a terminal.
    """
    if sys.stderr.isatty():
        print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)
