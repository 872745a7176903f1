"""Tests how decoded images are cut into blocks, pieces and units."""

from __future__ import annotations

import tracemalloc
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import gear_data
from gear_data.ingest.location import locate
from gear_data.ingest.pipeline import images
from gear_data.ingest.pipeline.images import decode_images
from gear_data.ingest.source import EpisodeSource, SourceOptions
from gear_data.ingest.sources.registry import open_source
from gear_data.storage.episode_block import BEGIN, END, EpisodeBlock
from tests.support.encoded_images import (
    IMAGE_COLUMN,
    IMAGE_FILE,
    cut_image,
    encode_episodes,
    encode_image,
    make_images,
    write_episode_images,
)
from tests.support.interrupted import convert_until


def _opened(path: Path, *, skip_bad: bool = False, threads: int = 3) -> EpisodeSource:
    source, _, _ = open_source(
        locate(str(path), None), "episode-rows", SourceOptions(on_bad_episode="skip" if skip_bad else "error")
    )
    return decode_images(source, skip_bad=skip_bad, threads=threads)


def _rows(blocks: Sequence[EpisodeBlock]) -> list[tuple[int, bytes]]:
    """Returns (source row, pixels) of every episode."""
    rows = []
    for block in blocks:
        ends = np.cumsum(block.lengths)
        pixels = np.split(block.columns[IMAGE_COLUMN], ends[:-1])
        rows += [(int(row), each.tobytes()) for row, each in zip(block.rows, pixels, strict=True)]
    return rows


@pytest.fixture
def flawed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, list[int]]:
    """Writes a source of several blocks of several pieces, with bad episodes.

    The bad episodes are a whole block, the last ones of a block, the first ones of a block, and the very last one.
    """
    monkeypatch.setattr(images, "_PIECE_BYTES", 6 * 72)
    monkeypatch.setattr(images, "_THREADED", 0)
    frames = encode_episodes(make_images(40))
    bad = [3, 5, 6, 7, 8, 9, 13, 14, 15, 22, 30, 39]
    for i in bad:
        frames[i][-1] = cut_image(frames[i][-1])
    return write_episode_images(tmp_path / "s.parquet", frames, group=5), bad


def test_blocks_are_bounded(flawed: Any) -> None:
    path, bad = flawed
    whole = list(_opened(path, skip_bad=True).blocks(BEGIN, END))
    assert [row for row, _ in _rows(whole)] == [i for i in range(40) if i not in bad]
    assert all(block.columns[IMAGE_COLUMN].nbytes <= 6 * 72 or len(block) == 1 for block in whole)
    assert any(len(block) > 1 for block in whole)
    assert sum(block.source_rows for block in whole) == 39  # the last one is bad: no block follows it
    assert all(block.columns.keys() == block.arrays.keys() for block in whole)
    assert _rows(list(_opened(path, skip_bad=True, threads=1).blocks(BEGIN, END))) == _rows(whole)


def test_memory_does_not_grow_with_the_pixels_of_a_block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(images, "_PIECE_BYTES", 2 << 20)
    frame = encode_image(np.zeros((128, 128, 3), np.uint8))  # a few hundred bytes
    source = _opened(write_episode_images(tmp_path / "s.parquet", [[frame] * 10] * 80, group=1000))
    tracemalloc.start()
    try:
        total = sum(block.columns[IMAGE_COLUMN].nbytes for block in source.blocks(BEGIN, END))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert total == 800 * 128 * 128 * 3
    assert peak < 4 * (2 << 20) < total / 4


def test_a_piece_can_be_read_again_from_its_position(flawed: Any) -> None:
    path, bad = flawed
    source = _opened(path, skip_bad=True)
    blocks, states = [], []
    before = source.findings.to_json()
    state = before
    for block in source.blocks(BEGIN, END):
        # The state of a block holds the findings before its position.
        state = state if block.first else before
        before = source.findings.to_json()
        blocks.append(block)
        states.append(state)
    assert any(block.first for block in blocks)
    findings = source.findings.to_json()
    assert [finding["count"] for finding in findings if finding["code"] == "bad-episode"] == [len(bad)]
    for i, block in enumerate(blocks):
        again = _opened(path, skip_bad=True)
        again.findings.restore(states[i])
        rest = list(again.blocks(block.position, END))
        assert _rows(rest)[block.first :] == _rows(blocks[i:])
        assert again.findings.to_json() == findings


def test_units_are_the_units_of_the_source(flawed: Any) -> None:
    path, _ = flawed
    source = _opened(path, skip_bad=True)
    units = source.units()
    stops = [unit.position for unit in units[1:]] + [END]
    parts = [list(source.blocks(unit.position, stop)) for unit, stop in zip(units, stops, strict=True)]
    assert _rows([block for part in parts for block in part]) == _rows(list(source.blocks(BEGIN, END)))


def test_reading_the_first_block_changes_no_state(tmp_path: Path) -> None:
    frames = encode_episodes(make_images())
    source = write_episode_images(tmp_path / "s.parquet", frames)
    table = pq.read_table(source)
    files = [[{"bytes": frame, "path": "x.png"} for frame in row] for row in frames]
    pq.write_table(table.set_column(1, IMAGE_COLUMN, pa.array(files, pa.list_(IMAGE_FILE))), source)
    assert _opened(source).findings.to_json() == []
    report = gear_data.convert(source, tmp_path / "d")
    (warning,) = [warning for warning in report.warnings if warning.startswith("paths-left-out")]
    assert f"({sum(map(len, frames))}x" in warning


def test_resumes_in_the_middle_of_a_block(flawed: Any, sources: Any, tmp_path: Path, monkeypatch: Any) -> None:
    path, bad = flawed
    options: dict[str, Any] = {"on_bad_episode": "skip", "shard_bytes": 1024}
    shards = gear_data.convert(path, tmp_path / "whole", **options).shards
    assert shards > 5
    (finding,) = [f for f in gear_data.open(tmp_path / "whole").manifest.findings if f["code"] == "bad-episode"]
    assert finding["count"] == len(bad)
    for stop in range(1, shards):
        convert_until(path, tmp_path / f"d{stop}", stop, options, monkeypatch)
        gear_data.convert(path, tmp_path / f"d{stop}", **options, resume=True)
        assert sources.folder_contents(tmp_path / f"d{stop}") == sources.folder_contents(tmp_path / "whole")
