"""The peers of section (i) deliver windows of the steps. They run on the CPU."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
from gpu_sections import feeds, peers
from gpu_sections.peers import Steps
from gpu_sections.report import Section

from tests.support.benchmarks.gpu import left, small_feeds
from tests.support.cuda.gpu_stand_in import stand_in

EPISODE, CONTEXT, BATCH = 10, 4, 50


def test_a_feed_that_ends_leaves_the_others(tmp_path: Path, libraries: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def ends(steps: Steps) -> Iterator[peers.Batch]:
        yield {}
        raise OSError("no space\nleft")

    with stand_in(monkeypatch, libraries, order="all late") as found:
        small_feeds(monkeypatch, found.cupy.streams)
        monkeypatch.setattr(feeds, "WORKLOADS", feeds.WORKLOADS[:1])
        monkeypatch.setattr(feeds, "LOADERS", {})
        monkeypatch.setattr(feeds, "PEERS", {"ends": ends, peers.INDEXING: peers.on_device})
        section = feeds.feeds(tmp_path, {}, True, left)
    assert [row.name for row in section.rows] == [f"Hopper 256 x 20: {peers.INDEXING}"]
    assert section.notes[2:] == ["Hopper 256 x 20: ends: not run: OSError: no space"]


def test_feeds_are_compared_with_the_same_rounds() -> None:
    def costs(*seconds: float) -> list[feeds._Cost]:
        return [feeds._Cost(each, each) for each in seconds]

    section = Section([])
    steps = Steps({"rewards": np.arange(30.0)}, EPISODE, BATCH, CONTEXT)
    # The time is over in the last round, in which the machine is slower.
    seen = {peers.INDEXING: costs(10.0, 40.0), feeds.DEVICE_LOADER: costs(2.0)}
    feeds._report(section, feeds.WORKLOADS[0], steps, seen, {})
    row = section.rows[1]
    assert row.target == 5 and row.ratio == row.values["times torch indexing"] == 5


@pytest.mark.parametrize("title", peers.PEERS)
def test_a_peer_delivers_windows(title: str, libraries: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if title == peers.TORCHRL:
        pytest.importorskip("torchrl")
    monkeypatch.setattr(peers, "DEVICE", "cpu")
    monkeypatch.setattr(peers, "WORKERS", 0)
    count = 30 * EPISODE
    columns = {"observations": np.arange(3 * count, dtype=np.float32).reshape(count, 3), "rewards": np.arange(count)}
    with stand_in(monkeypatch, libraries, order="all late"):
        feed = peers.PEERS[title](Steps(columns, EPISODE, BATCH, CONTEXT))
        first, second = islice(feed, 2)
        feed.close()  # type: ignore[attr-defined]
    rows = first["rewards"]
    assert rows.shape == (BATCH, CONTEXT)
    assert (rows == rows[:, :1] + np.arange(CONTEXT)).all()
    assert (first["observations"].numpy() == columns["observations"][rows.numpy()]).all()
    if title == peers.TORCHRL:
        # Its slices are whole.
        assert (rows // EPISODE == rows[:, :1] // EPISODE).all()
    else:
        assert (first["mask"] == (rows // EPISODE == rows[:, :1] // EPISODE)).all()
        assert not first["mask"].all()
    assert not np.array_equal(second["rewards"], rows)
