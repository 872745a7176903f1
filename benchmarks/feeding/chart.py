"""The chart of a feed benchmark: windows per second of each contender, as SVG for light and for dark pages."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from common import figure

#: Theme -> colours of texts, of gear-data's bars, and of the other bars.
THEMES = {"light": ("#1f2328", "#0969da", "#8c959f"), "dark": ("#e6edf3", "#4493f8", "#7d8590")}
_FONT = "-apple-system, 'Segoe UI', Helvetica, Arial, sans-serif"


def write_charts(scenario: Mapping[str, Any], folder: Path) -> None:
    """Writes `feed-light.svg` and `feed-dark.svg` into a folder.

    Args:
        scenario: an entry of `scenarios` in the record of `benchmarks/feed.py`.
        folder: made if it does not exist.

    Raises:
        ModuleNotFoundError: vl-convert-python is not installed.
    """
    import vl_convert

    folder.mkdir(parents=True, exist_ok=True)
    for theme in THEMES:
        (folder / f"feed-{theme}.svg").write_text(vl_convert.vegalite_to_svg(chart(scenario, theme)), encoding="utf-8")


def chart(scenario: Mapping[str, Any], theme: str) -> dict[str, Any]:
    """Returns the Vega-Lite specification: a bar for each contender that counts windows, the fastest one first."""
    text, ours, others = THEMES[theme]
    rows = [each for each in scenario["contenders"] if each.get("windows_per_s")]
    rows.sort(key=lambda row: row["windows_per_s"]["median"], reverse=True)
    values = [
        {
            "title": each["title"],
            "rate": each["windows_per_s"]["median"],
            "label": figure(each["windows_per_s"]["median"] / 1e6, 2),
            "ours": each["name"].startswith("gear"),
        }
        for each in rows
    ]
    size, context = scenario["batch"]
    axis = {"title": None, "domain": False, "ticks": False, "labelPadding": 8, "labelLimit": 360}
    titles = {"field": "title", "type": "nominal", "sort": None, "axis": axis}
    return {
        "$schema": "https://vega.github.io/schema/vega-lite/v5.json",
        "background": None,
        "width": 420,
        "height": {"step": 24},
        "title": {"text": f"Million windows a second, batches of {size} x {context}", "anchor": "start", "offset": 12},
        "data": {"values": values},
        "encoding": {"y": titles, "x": {"field": "rate", "type": "quantitative", "axis": None}},
        "layer": [
            {
                "mark": {"type": "bar", "height": 14, "cornerRadiusEnd": 3},
                "encoding": {"color": {"condition": {"test": "datum.ours", "value": ours}, "value": others}},
            },
            {
                "mark": {"type": "text", "align": "left", "dx": 6, "color": text},
                "encoding": {"text": {"field": "label", "type": "nominal"}},
            },
        ],
        "config": {
            "font": _FONT,
            "view": {"stroke": None},
            "axis": {"labelColor": text, "labelFontSize": 12},
            "title": {"color": text, "fontSize": 13, "fontWeight": 600},
            "text": {"fontSize": 12},
        },
    }
