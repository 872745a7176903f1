"""Description of a dataset for `gear-data inspect`, as text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from gear_data.common.progress import format_bytes, pluralize
from gear_data.dataset.dataset import Dataset
from gear_data.loaders.mixing.table import dataset_rows, key_rows
from gear_data.reports.facts import finite_returns, summarize

_BARS = 12
_BAR_WIDTH = 40


def describe(dataset: Dataset) -> str:
    """Returns `summarize` as text: columns with statistics, cameras, and histograms.

    The histograms show the episodes' returns and lengths.
    """
    summary = summarize(dataset)
    generation = f", generation {summary['generation']}" if summary["generation"] else ""
    lines = [
        f"{dataset.path}: {pluralize(summary['episodes'], 'episode')}, {pluralize(summary['steps'], 'step')}, "
        f"{format_bytes(summary['bytes'])} in {pluralize(summary['shards'], 'shard')}{generation}",
        f"source {summary['source']} ({summary['format']}), fingerprint {summary['fingerprint']}",
        "",
        *_columns_table(dataset),
    ]
    if named := [spec for spec in dataset.schema if spec.element_names]:
        lines += ["", "elements", *(f"  {spec.name}: {', '.join(spec.element_names)}" for spec in named)]
    if summary["cameras"]:
        lines += ["", *_cameras_table(summary["cameras"])]
    for name, values in (("return", finite_returns(dataset)), ("length", dataset.lengths.astype(np.float64))):
        if len(values):
            lines += ["", f"{name} of an episode", *histogram(values)]
    if summary["findings"]:
        lines += ["", "findings of the conversion", *(f"  {_finding(finding)}" for finding in summary["findings"])]
    return "\n".join(lines)


def describe_mixture(facts: Mapping[str, Any]) -> str:
    """Returns `mixture_facts` as text."""
    lines = [*table(dataset_rows(facts)), "", *table(key_rows(facts))]
    if facts["problems"]:
        lines += ["", "cannot be joined:", *(f"  {each}" for each in facts["problems"])]
    return "\n".join(lines)


def histogram(values: npt.NDArray[np.float64]) -> list[str]:
    """Returns one line per bin: its lower edge, a bar and its count."""
    # Values that differ only by their rounding have no room for all bins.
    has_room = (np.diff(np.linspace(values.min(), values.max(), _BARS + 1)) > 0).all()
    counts, edges = np.histogram(values, bins=_BARS if has_room else 1)
    widest = counts.max()
    return [
        f"  {edge:>12,.1f} {'█' * int(np.ceil(count / widest * _BAR_WIDTH)):<{_BAR_WIDTH}} {count:,}"
        for edge, count in zip(edges[:-1], counts, strict=True)
    ]


def table(rows: Sequence[Sequence[str]]) -> list[str]:
    """Returns rows as aligned columns, with the first row underlined."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return [lines[0], "  ".join("─" * width for width in widths), *lines[1:]]


def _columns_table(dataset: Dataset) -> list[str]:
    rows = [["column", "dtype", "shape", "mean", "std", "min", "max", ""]]
    for spec in dataset.schema:
        note = "derived" if spec.derived else f"from {spec.source}" if spec.source else ""
        if spec.variable_length:
            total = sum(shard.variable[spec.name].bytes for shard in dataset.manifest.shards)
            shape = f"{format_bytes(total / dataset.manifest.steps)} per step"
            rows.append([spec.name, spec.dtype, shape, "", "", "", "", note])
            continue
        stats = dataset.statistics[spec.name]
        shape = "x".join(str(n) for n in spec.shape) or "scalar"
        if len(stats.mean) == 1:
            numbers = [f"{float(v[0]):.4g}" for v in (stats.mean, stats.std, stats.min, stats.max)]
        else:
            # A vector has too many elements to show; the range is over all of them.
            numbers = ["…", "…", f"{np.nanmin(stats.min):.4g}", f"{np.nanmax(stats.max):.4g}"]
        rows.append([spec.name, spec.dtype, shape, *numbers, note])
    return table(rows)


def _cameras_table(cameras: Mapping[str, Mapping[str, Any]]) -> list[str]:
    rows = [["camera", "shape", "fps", "codec", "frames", "files", "size", "mean", "std", "sample"]]
    for name, camera in cameras.items():
        shape = "x".join(str(n) for n in camera["shape"])
        fps = "unknown" if camera["fps"] is None else f"{camera['fps']:g}"
        counts = [f"{camera['frames']:,}", f"{camera['files']:,}", format_bytes(camera["bytes"])]
        rows.append([name, shape, fps, ", ".join(camera["codecs"]), *counts, *_sampled(camera["statistics"])])
    return table(rows)


def _sampled(statistics: Mapping[str, Any] | None) -> list[str]:
    """Returns the mean and std of each channel, and the number of sampled frames."""
    if statistics is None:
        return ["", "", ""]
    channels = [" ".join(f"{value:.0f}" for value in statistics[name]) for name in ("mean", "std")]
    return [*channels, f"{statistics['sampled_frames']:,}"]


def _finding(finding: Mapping[str, Any]) -> str:
    column = f" column '{finding['column']}'" if finding["column"] else ""
    return f"{finding['code']}:{column} {finding['message']} ({finding['count']}x)"
