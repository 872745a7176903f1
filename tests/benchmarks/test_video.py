"""benchmarks/video.py runs with all its options, and the data that it makes is what it says."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
import video
from filming.data import CODECS, FPS, Size, video_files, write_lerobot

import gear_data
from tests.support.benchmarks.results import Result, rows_of

RAN = {each.title for each in video.CONTENDERS if each.environment is None}


@pytest.mark.nightly
def test_contenders_are_raced(run: Any) -> None:
    result: Result = run("video")
    assert result.status == 0, result.errors
    assert [(each["codec"], each["resize"]) for each in result.record["tables"]] == [("av1", 0)]
    for found in result.record["tables"]:
        rows = {row["title"]: row for row in found["contenders"]}
        assert {title for title, row in rows.items() if "failure" not in row} == RAN
        # The tests have no network.
        assert "not installable" in rows["LeRobot, pyav, 2 workers"]["failure"]
        delivered = rows["gear, 1 thread, uint8"]["rounds"][0]["warm"]["delivers"]
        assert delivered["observations.images.front"] == [[4, 2, 64, 96, 3], "uint8"]
        assert delivered["actions"] == [[4, 16, 14], "float32"]
        float32 = rows["gear, 2 threads, float32"]["rounds"][0]["cold"]["delivers"]
        assert [[4, 2, 3, 64, 96], "float32"] in float32.values()
        ratios = {each["what"]: each for each in found["ratios"]}
        assert ratios["1 thread, uint8, to LeRobot's best in process"] == {
            "what": "1 thread, uint8, to LeRobot's best in process", "value": None, "target": 10,
        }  # fmt: skip
        assert ratios["1 thread, uint8: frames/s to plain decoding"]["value"] > 0
        assert ratios["1 thread, uint8: frames/s to plain decoding"]["target"] == 0.7
    assert len(rows_of(result.printed, "contender")) == len(video.CONTENDERS)


def test_memory_is_measured(run: Any) -> None:
    result: Result = run("memory of video")
    assert result.status == 0, result.errors
    (found,) = result.record["tables"]
    assert [mark["batches"] for mark in found["memory"]] == [1, 4, 8]
    assert "most resident memory: " in result.printed


def test_ratios_are_of_the_same_round() -> None:
    assert video.ratio([10.0, 30.0, 8.0], [1.0, 2.0, 1.0]) == 10
    assert video.ratio([], [1.0]) is None
    rows = [
        {"name": name, "rounds": [{"warm": warm(a)}, {"warm": warm(b)}]} for name, a, b in (("x", 1, 4), ("y", 2, 3))
    ]
    assert video.best([*rows, {"name": "z", "failure": "gone"}], ["x", "y", "z"], "warm") == [2, 4]


def warm(rate: int) -> dict[str, int]:
    return {"batches": rate, "samples": 1, "seconds": 1}


@pytest.mark.parametrize("name", CODECS)
def test_the_data_is_as_described(name: str, tmp_path: Path) -> None:
    codec = CODECS[name]
    folder = write_lerobot(tmp_path / "source", codec, Size(40, 15, 64, 96), 3)
    (path,) = video_files(folder)
    with av.open(str(path)) as container:
        stream = container.streams.video[0]
        assert (stream.codec_context.codec.canonical_name, stream.average_rate) == (name, FPS)
        keys = [number for number, packet in enumerate(container.demux(stream)) if packet.is_keyframe and packet.size]
    assert keys == list(range(0, 40, codec.group))
    frames = decoded(path)
    assert all((a != b).any() for a, b in pairwise(frames))
    gear_data.convert(folder, tmp_path / "dataset", progress=False)
    ds = gear_data.open(tmp_path / "dataset")
    assert ds.lengths.tolist() == [15, 15, 10]
    np.testing.assert_array_equal(np.asarray(ds[1]["observations.images.front"]), frames[15:30])


def decoded(path: Path) -> Any:
    with av.open(str(path)) as container:
        return np.stack([frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)])
