"""Tables of benchmarks/writer.py, and its targets."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from common import figure, format_table

from recording.contenders import OURS, REVERB, TOGETHER

#: gear-data's steps per second divided by Reverb's, in batches of environments.
OF_REVERB = 5.0
#: The same with frames and the finish.
FINISHED_FRAMES = 1.2
#: Microseconds of `append_batch` for each step.
STEP_US = 5.0
#: Batches per second beside a writer, divided by those without one.
KEPT = 0.85

Row = Mapping[str, Any]


def steps_per_second(record: Row) -> float:
    return float(record["steps"] / record["seconds"])


def with_finish(record: Row) -> float:
    """Returns steps per second when the finish of the recording counts."""
    finish = record["finish_seconds"] / record["finished_steps"]
    return float(1 / (record["seconds"] / record["steps"] + finish))


def _median(row: Row, kind: str, value: Callable[[Row], float]) -> float:
    return statistics.median(value(each[kind]) for each in row["rounds"])


def insertion_table(rows: Sequence[Row], environments: int) -> str:
    header = [
        "contender",
        f"batches of {environments}: steps/s",
        "with the finish",
        "us a step",
        "p99 of a call, us",
        "one by one: steps/s",
        "p99 of append, us",
        "outlives the process",
        "outlives a loss of power",
    ]
    cells = []
    for row in rows:
        if "failure" in row:
            cells.append([row["title"], *["-"] * 6, row["failure"], "-"])
            continue
        rate = _median(row, "batches", steps_per_second)
        numbers = [
            rate,
            _median(row, "batches", with_finish),
            1e6 / rate,
            _median(row, "batches", lambda each: each["p99_us"]),
            _median(row, "single", steps_per_second),
            _median(row, "single", lambda each: each["p99_us"]),
        ]
        cells.append([row["title"], *map(figure, numbers), row["process_dies"], row["power_fails"]])
    return format_table(header, cells)


def sampling_table(rows: Sequence[Row]) -> str:
    header = [
        "contender",
        "batches/s without a writer",
        "batches/s beside it",
        "kept",
        "writer's steps/s",
        "p99 of its append, us",
    ]
    cells = []
    for row in rows:
        if "failure" in row:
            cells.append([row["title"], *["-"] * 4, row["failure"]])
            continue
        numbers = [
            statistics.median(each["alone"]["batches_per_s"] for each in row["rounds"]),
            statistics.median(each["beside"]["batches_per_s"] for each in row["rounds"]),
            statistics.median(kept(row)),
            statistics.median(each["writer"]["steps_per_s"] for each in row["rounds"]),
            statistics.median(each["writer"]["p99_us"] for each in row["rounds"]),
        ]
        cells.append([row["title"], *map(figure, numbers)])
    return format_table(header, cells)


def kept(row: Row) -> list[float]:
    """Returns the share of the sampling rate that is left beside a writer, in each round."""
    return [each["beside"]["batches_per_s"] / each["alone"]["batches_per_s"] for each in row["rounds"]]


def notes(rows: Sequence[Row]) -> str:
    """Says how each contender was set up, with its versions."""
    lines = {}
    for row in rows:
        if "failure" not in row:
            (first, *_) = row["rounds"]
            record = first.get("batches") or first["alone"]
            versions = ", ".join(f"{name} {version}" for name, version in record["versions"].items())
            lines[row["title"]] = f"- {row['title']}: {record['notes']} ({versions})"
    return "\n".join(lines.values())


def rates(rows: Sequence[Row], name: str, rate: Callable[[Row], float] = steps_per_second) -> list[float]:
    """Returns a contender's rate in batches of environments, in each round; empty if it failed."""
    row = next((row for row in rows if row["name"] == name), {"failure": "left out"})
    return [] if "failure" in row else [rate(each["batches"]) for each in row["rounds"]]


def _ratio(ours: Sequence[float], theirs: Sequence[Sequence[float]]) -> float | None:
    """Returns the median of the rounds' ratios to the best of some contenders; None if none was measured."""
    measured = [each for each in theirs if each]
    if not ours or not measured:
        return None
    return statistics.median(own / max(others) for own, *others in zip(ours, *measured, strict=True))


def judge_insertion(shape: str, rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Returns the figures of gear-data for one shape of steps. Those with the finish have a target for frames only."""
    ours = rates(rows, OURS)
    small = shape == "hopper"
    per_step = 1e6 / statistics.median(ours) if ours else None
    return [
        {
            "what": f'{shape}, batches, durability="os": steps/s to the best Reverb with items of one environment',
            "value": _ratio(ours, [rates(rows, name) for name in REVERB]),
            "least": OF_REVERB if small else None,
        },
        {
            "what": f"{shape}, batches: steps/s to Reverb with items of all environments together",
            "value": _ratio(ours, [rates(rows, TOGETHER)]),
        },
        {
            "what": f'{shape}, batches, durability="os": us a step',
            "value": per_step,
            "most": STEP_US if small else None,
        },
        {
            "what": f'{shape}, batches, durability="os", with the finish: steps/s to that Reverb',
            "value": _ratio(rates(rows, OURS, with_finish), [rates(rows, name, with_finish) for name in REVERB]),
            "least": None if small else FINISHED_FRAMES,
        },
    ]


def judge_sampling(rows: Sequence[Row], rate: float) -> list[dict[str, Any]]:
    """Returns the share of the sampling rate that gear-data keeps, with its target."""
    row = next(row for row in rows if row["name"] == OURS)
    value = None if "failure" in row else statistics.median(kept(row))
    return [{"what": f"sampling kept beside a writer at {rate:,.0f} steps/s", "value": value, "least": KEPT}]


def verdict(found: Mapping[str, Any]) -> str:
    """Says a figure, with its target and whether it is met."""
    value, least, most = found["value"], found.get("least"), found.get("most")
    if value is None:
        return f"{found['what']}: not measured"
    if least is not None:
        judged = f" (target at least {least:g}: {'met' if value >= least else 'missed'})"
    elif most is not None:
        judged = f" (target below {most:g}: {'met' if value < most else 'missed'})"
    else:
        judged = ""
    return f"{found['what']}: {value:.2f}{judged}"
