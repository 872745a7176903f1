"""Tables and records of a feed benchmark, from its measurements."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from common import figure, format_table, spread

from feeding.contenders import INLINE, THREADS, Contender
from feeding.scenarios import WAIT_TARGET

Records = Sequence[Mapping[str, Any]]

#: Accepted growth between batch 10^3 and the last: an allocator's own pages.
GROWTH_LIMIT_BYTES = 2 << 20

#: Of a profile, where there is a floor: microseconds of a batch, and how many times as long gear-data's batch takes.
FLOOR_FIGURES = ("floor_us", "kept_floor_us", "times_the_floor", "times_the_kept_floor")


def ratio(ours: Records | None, theirs: Records) -> float | None:
    """Returns the median over rounds of our padded bytes per second divided by theirs."""
    if ours is None:
        return None
    quantity = "padded_gb_per_s"
    return float(statistics.median(a[quantity] / b[quantity] for a, b in zip(ours, theirs, strict=True)))


def summarise(contender: Contender, measured: Mapping[str, Records], target: float | None) -> dict[str, Any]:
    """Returns the row of a contender."""
    records = measured[contender.name]
    last = records[-1]
    windows = [record["windows_per_s"] for record in records]
    ratios = {
        "inline_ratio": ratio(measured.get(INLINE), records),
        "threads_ratio": ratio(measured.get(THREADS), records),
    }
    return {
        "name": contender.name,
        "title": contender.title,
        "padded_gb_per_s": spread([record["padded_gb_per_s"] for record in records]),
        "windows_per_s": None if None in windows else spread(windows),
        **ratios,
        "target": target,
        "met": None if target is None else {name: r is not None and r >= target for name, r in ratios.items()},
        **{key: last[key] for key in ("padded_bytes_per_batch", "delivers", "versions", "notes")},
    }


def verdict(met: Mapping[str, bool] | None) -> str:
    """Returns whether the target is met: by both ratios, by one only, or by none."""
    if met is None:
        return "-"
    reached = [name.removesuffix("_ratio") for name, yes in met.items() if yes]
    return "yes" if len(reached) == len(met) else " ".join([*reached, "only"]) if reached else "no"


def contender_table(rows: Records) -> str:
    """Returns the table of one shape."""
    cells = []
    for row in rows:
        if "failure" in row:
            cells.append([row["title"], "-", "-", "-", "-", "-", "not measured"])
            continue
        rate = row["windows_per_s"]
        cells.append(
            [
                row["title"],
                figure(row["padded_gb_per_s"]["median"]),
                "-" if rate is None else f"{rate['median']:,.0f}",
                figure(row["inline_ratio"]),
                figure(row.get("threads_ratio")),
                figure(row["target"]),
                verdict(row["met"]),
            ]
        )
    header = [
        "contender",
        "padded GB/s",
        "windows/s",
        "prefetch=0 / contender",
        "prefetch=2 / contender",
        "target",
        "met",
    ]
    return format_table(header, cells)


def contender_notes(tables: Sequence[Records]) -> str:
    """Returns a line for each contender: its notes, or the reason why it failed.

    Notes describe the batches that a contender delivers. If they differ between tables, the line has all of them.
    """
    notes: dict[str, list[str]] = {}
    for rows in tables:
        for row in rows:
            text = row["notes"] if "notes" in row else f"not measured: {row['failure']}"
            seen = notes.setdefault(row["title"], [])
            if text not in seen:
                seen.append(text)
    return "\n".join(f"- {title}: {' | '.join(texts)}" for title, texts in notes.items())


def wait_table(rows: Records) -> str:
    """Returns the table of a trainer's waiting time."""
    cells = [
        [
            row["scenario"],
            row["consumer"],
            f"{row['wait_fraction']['median']:.2%}",
            figure(row["wait_us_median"]["median"]),
            figure(row["wait_us_p99"]["median"]),
            f"{WAIT_TARGET:.0%}",
            "yes" if row["wait_fraction"]["median"] < WAIT_TARGET else "no",
        ]
        for row in rows
    ]
    header = ["shape", "step of 5 ms", "wait", "median us", "99th percentile us", "target: under", "met"]
    return format_table(header, cells)


def memory_table(rows: Records) -> str:
    """Returns the table of resident memory, in MiB.

    The growth leaves out mapped files.
    """
    marks = list(rows[0]["resident_bytes"])
    cells = []
    for row in rows:
        growth = growth_bytes(row)
        cells.append(
            [
                f"prefetch={row['prefetch']}",
                *(f"{row['resident_bytes'][mark] / 2**20:,.1f}" for mark in marks),
                f"{growth / 2**10:,.0f}",
                f"{GROWTH_LIMIT_BYTES >> 10:,}",
                "yes" if growth < GROWTH_LIMIT_BYTES else "no",
            ]
        )
    titles = [f"MiB after {int(mark):,}" for mark in marks]
    return format_table(["gear-data", *titles, "growth KiB", "target: under", "met"], cells)


def growth_bytes(row: Mapping[str, Any]) -> int:
    """Returns the growth of anonymous memory from the first mark to the last."""
    sizes = list(row["anonymous_bytes"].values())
    return int(sizes[-1] - sizes[0])


def profile_table(rows: Records) -> str:
    """Returns the table of the stages of a batch."""
    stages = list(rows[0]["stages_us"])
    cells = [
        [
            row["scenario"],
            figure(row["batch_us"]),
            *(
                f"{figure(row['stages_us'][stage])} ({row['stages_us'][stage] / row['batch_us']:.0%})"
                for stage in stages
            ),
            figure(row["threads_us"]),
            figure(row.get("threads_ratio")),
            figure(row["hot_copy_us"]),
            figure(row["cold_copy_us"]),
            *(figure(row.get(name)) for name in FLOOR_FIGURES),
        ]
        for row in rows
    ]
    header = ["shape", "batch us", *stages, "prefetch=2", "to prefetch=0", "memmove of its bytes, hot", "memmove, cold"]
    header += ["floor, new tensors", "floor, tensors used again", "batch / floor", "batch / floor, used again"]
    return format_table(header, cells)
