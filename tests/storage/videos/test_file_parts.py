"""Indexes of video files at URLs, without their packets."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import av
import fsspec
import numpy as np
import pytest

from gear_data.storage.remote.range_reader import RangeReader
from gear_data.storage.videos import file_parts
from gear_data.storage.videos.file_parts import fetch_index
from gear_data.video.file_index import KEY, Packets, VideoFile
from gear_data.video.indexing.demux import index_file
from tests.support.cameras.encoded import ENCODINGS, encode

NAME = 's3 "an etag"'


@pytest.fixture
def ranges(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[int, int]]]:
    """The ranges that are requested."""
    monkeypatch.setattr(file_parts, "_FRONT_BYTES", 4096)
    monkeypatch.setattr(file_parts, "_AHEAD_BYTES", 4096)
    filesystem, found = fsspec.filesystem("memory"), []
    read = filesystem.cat_file

    def cat_file(path: str, start: int | None = None, end: int | None = None, **options: Any) -> bytes:
        assert start is not None and end is not None, "the whole file was read"
        found.append((start, end))
        return read(path, start=start, end=end, **options)  # type: ignore[no-any-return]

    monkeypatch.setattr(type(filesystem), "cat_file", staticmethod(cat_file))
    yield found
    filesystem.store.pop("/parts/video.mp4", None)


def remote(path: Path) -> RangeReader:
    """Returns what reads a file at a memory:// URL with the bytes of a file."""
    filesystem = fsspec.filesystem("memory")
    filesystem.pipe_file("/parts/video.mp4", path.read_bytes())
    return RangeReader(filesystem, "/parts/video.mp4", path.stat().st_size, "video.mp4")


def remuxed(path: Path, new: Path, flags: str) -> Path:
    """Writes the packets of a file again, with other options of the muxer."""
    options = {"movflags": flags}
    with av.open(str(path)) as old, av.open(str(new), "w", options=options) as container:
        (stream,) = old.streams.video
        copied = container.add_stream_from_template(stream, opaque=True)
        for packet in old.demux(stream):
            if packet.size:
                packet.stream = copied
                container.mux(packet)
    return new


def check_equal(found: VideoFile, whole: VideoFile) -> None:
    """Checks that a file that was fetched in parts has the index of the whole file."""
    for field in fields(VideoFile):
        if field.name not in ("checksum", "packets"):
            assert getattr(found, field.name) == getattr(whole, field.name), field.name
    for field in fields(Packets):
        if field.name != "digest":
            np.testing.assert_array_equal(
                getattr(found.packets, field.name), getattr(whole.packets, field.name), err_msg=field.name
            )


@pytest.mark.parametrize("place", ["behind", "before"])
@pytest.mark.parametrize("name", ENCODINGS)
def test_the_index_is_that_of_the_whole_file(
    name: str, place: str, ranges: list[tuple[int, int]], tmp_path: Path
) -> None:
    path = tmp_path / "v.mp4"
    encode(path, ENCODINGS[name], frames=60, height=96, width=128)
    if place == "before":
        path = remuxed(path, tmp_path / "faststart.mp4", "faststart")
    file = remote(path)
    assert fetch_index(file, tmp_path / "parts.mp4")
    assert sum(last - first for first, last in ranges) < path.stat().st_size - 1024
    assert len(ranges) <= 4
    found, whole = index_file(tmp_path / "parts.mp4", "v.mp4", NAME), index_file(path, "v.mp4")
    check_equal(found, whole)
    assert found.checksum == NAME and not found.was_read and whole.was_read
    assert len(np.unique(found.packets.digest)) == len(found.packets)
    assert found.packets.flags[0] & KEY


def test_other_contents_have_other_digests(ranges: list[tuple[int, int]], tmp_path: Path) -> None:
    encode(tmp_path / "v.mp4", ENCODINGS["h264"])
    fetch_index(remote(tmp_path / "v.mp4"), tmp_path / "parts.mp4")
    one, other = (index_file(tmp_path / "parts.mp4", "v.mp4", name) for name in ("s3 1", "s3 2"))
    assert not (one.packets.digest == other.packets.digest).any()


def test_files_without_one_index_are_read_whole(ranges: list[tuple[int, int]], tmp_path: Path) -> None:
    path, parts = tmp_path / "v.mp4", tmp_path / "parts.mp4"
    encode(path, ENCODINGS["h264"], frames=60)
    content = path.read_bytes()
    fragmented = remuxed(path, tmp_path / "fragmented.mp4", "frag_keyframe+empty_moov")
    assert not fetch_index(remote(fragmented), parts)
    matroska = remuxed(path, tmp_path / "v.mkv", "faststart")
    assert not fetch_index(remote(matroska), parts)
    at = content.index(b"moov")
    for damaged in (
        content[: at - 4],  # no index
        content[: at + 20],  # an index that is cut off
        content[:4] + b"ftyq" + content[8:],
        content[: at - 4] + (1).to_bytes(4, "big") + content[at : at + 4] + b"\xff" * 8 + content[at + 12 :],
        b"\0" * 4096,
        b"short",
    ):
        path.write_bytes(damaged)
        assert not fetch_index(remote(path), parts)
    assert not parts.exists()
