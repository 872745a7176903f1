"""The table that Jupyter shows."""

from __future__ import annotations

from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gear_data
from gear_data.storage.mapped_shards import MappedShards
from tests.support.cameras.filmed import FRONT, Filmed


class Page(HTMLParser):
    """Collects the tags and the cells of the rows."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.open: list[str] = []
        self.rows: list[list[str]] = []
        self.text = ""
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.tags.add(tag)
        if tag != "br":
            self.open.append(tag)
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data
        if self.open[-1] in ("td", "th"):
            self.rows[-1][-1] += data


def test_columns_and_counts(mixed: gear_data.Dataset) -> None:
    page = Page(mixed._repr_html_())
    rows = {row[0]: row[1:] for row in page.rows}
    assert page.rows[0] == ["column", "dtype", "shape", "size", "stored as"]
    assert list(rows)[1:] == list(mixed.schema.names)
    image_bytes = sum(episode["observations.image"].nbytes for episode in mixed)
    assert rows["observations.image"] == ["uint8", "2 x 4 x 3", f"{image_bytes / 1024:.1f} KiB", "column"]
    said = sum(len(text.encode()) for episode in mixed for text in episode["said"])
    assert rows["said"] == ["string", "scalar", f"{said} B", "column"]
    assert rows["returns_to_go"][-1] == "derived"
    steps = sum(episode.length for episode in mixed)
    assert f"{len(mixed)} episodes, {steps} steps" in page.text


def test_quantiles_of_returns(mixed: gear_data.Dataset) -> None:
    view = mixed[2:9]
    returns = sorted(float(np.sum(episode["rewards"], dtype=np.float64)) for episode in view)
    expected = f"min {returns[0]:,.4g}, 25 % {(returns[1] + returns[2]) / 2:,.4g}, median {returns[3]:,.4g}"
    assert expected in Page(view._repr_html_()).text


def test_no_shard_is_read(mixed: gear_data.Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("a shard was read")

    opened = gear_data.open(mixed.path)
    monkeypatch.setattr(MappedShards, "touch", refuse)
    assert Page(opened._repr_html_()).rows == Page(mixed._repr_html_()).rows
    assert "View of a dataset" in opened[1:3]._repr_html_()


def test_text_of_the_data_is_escaped(tmp_path: Path) -> None:
    name = "<script src='x'>&\""
    folder = tmp_path / "<img src=x onerror=alert(1)>"
    gear_data.convert([{name: np.zeros(3), "actions": np.zeros(3)}], folder, progress=False)
    text = gear_data.open(folder)._repr_html_()
    page = Page(text)
    assert page.tags <= {"div", "strong", "code", "br", "table", "thead", "tbody", "tr", "th", "td"}
    assert name in [row[0] for row in page.rows]
    assert str(folder) in page.text


def test_rewardless_datasets_and_filters(make_dataset: Callable[..., gear_data.Dataset]) -> None:
    ds = make_dataset([{"actions": np.arange(4.0)}])
    assert "returns" not in Page(ds._repr_html_()).text
    assert "left out (mode first)" in ds.filter_steps("actions > 1")._repr_html_()


def test_returns_that_are_not_finite_are_counted(make_dataset: Callable[..., gear_data.Dataset]) -> None:
    ds = make_dataset([{"actions": np.zeros(2), "rewards": np.array(values)} for values in ([1.0, 2.0], [np.inf, 0.0])])
    assert "min 3, 25 % 3, median 3, 75 % 3, max 3 (1 episode without a finite return)" in ds._repr_html_()


def test_cameras(filmed: Filmed) -> None:
    rows = {row[0]: row for row in Page(gear_data.open(filmed.path)._repr_html_()).rows}
    assert rows[FRONT] == [FRONT, "uint8", "48 x 64 x 3", "in video files", "video"]
