"""Measurements of benchmarks/convert.py, and their tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from common import figure, format_table

MIB = 1 << 20


@dataclass(frozen=True)
class Scale:
    """N copies of the source's files; 0 copies: only its first episode."""

    copies: int
    folder: Path
    parquet_bytes: int
    arrow_bytes: int

    @property
    def label(self) -> str:
        return label(self.copies)


@dataclass(frozen=True)
class Timing:
    copies: int
    shard_bytes: int
    floor_seconds: dict[str, float]
    gear_seconds: dict[str, float]
    gear_to_floor: float  # throughput; median over the rounds


@dataclass(frozen=True)
class Memory:
    copies: int
    way: str
    shard_bytes: int | None
    baseline_bytes: float
    above_baseline_bytes: dict[str, float]


def label(copies: int) -> str:
    return f"{copies}x" if copies else "1 episode"


def print_times(scales: Sequence[Scale], timings: Sequence[Timing]) -> None:
    sizes = {scale.copies: scale.arrow_bytes for scale in scales}
    rows = []
    for timing in timings:
        gigabytes = sizes[timing.copies] / 1e9
        floor, gear = timing.floor_seconds["median"], timing.gear_seconds["median"]
        rows.append(
            [
                label(timing.copies),
                f"{timing.shard_bytes // MIB}",
                figure(sizes[timing.copies] / MIB),
                figure(floor),
                figure(gear),
                figure(gigabytes / floor),
                figure(gigabytes / gear),
                figure(timing.gear_to_floor),
            ]
        )
    header = ["data", "shard MiB", "Arrow MiB", "floor s", "gear s", "floor GB/s", "gear GB/s", "gear / floor, GB/s"]
    print(format_table(header, rows))


def print_memory(records: Sequence[Memory]) -> None:
    rows = [
        [
            label(record.copies),
            record.way,
            "-" if record.shard_bytes is None else f"{record.shard_bytes // MIB}",
            figure(record.baseline_bytes / MIB),
            figure(record.above_baseline_bytes["median"] / MIB),
            figure(record.above_baseline_bytes["max"] / MIB),
        ]
        for record in records
    ]
    header = ["data", "way", "shard MiB", "imports MiB", "peak above imports MiB", "largest MiB"]
    print(format_table(header, rows))
