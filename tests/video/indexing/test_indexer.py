from __future__ import annotations

import os
import signal
import struct
import subprocess
import sys
import threading
import time
from pathlib import Path

import av
import numpy as np
import psutil
import pytest

import gear_data
from gear_data.errors import CorruptSourceError, GearError
from gear_data.video.file_index import KEY, VideoFile
from gear_data.video.frame_groups import frame_groups
from gear_data.video.indexing import demux
from gear_data.video.indexing.demux import index_file
from gear_data.video.indexing.entry_points import entry_test, strict_entry_test
from gear_data.video.indexing.indexer import index_files
from gear_data.video.indexing.worker_process import WorkerProcess
from tests.support.cameras.encoded import ENCODINGS, Encoding, encode
from tests.support.cameras.filmed import FPS, decoded, moving_bar, write_video

FRAMES = 24


@pytest.fixture(scope="module")
def video(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("video") / "bar.mp4"
    write_video(path, moving_bar(FRAMES), g="6", bf="2")
    return path


def only(path: Path) -> VideoFile | GearError:
    (result,) = index_files([(path, "cameras/bar.mp4", "")], 1)
    return result


@pytest.mark.processes
def test_packets_are_those_of_the_file(video: Path) -> None:
    found = only(video)
    assert isinstance(found, VideoFile)
    content = video.read_bytes()
    with av.open(str(video)) as container:
        packets = [packet for packet in container.demux(video=0) if packet.size]
    for number, packet in enumerate(packets):
        first, size = int(found.packets.position[number]), int(found.packets.size[number])
        assert content[first : first + size] == bytes(packet)
        assert found.packets.pts[number] == packet.pts
        assert bool(found.packets.flags[number] & KEY) == packet.is_keyframe
    assert (len(found.packets), found.num_frames, found.fps) == (len(packets), FRAMES, FPS)
    assert (found.codec, found.pixel_format, found.height, found.width) == ("h264", "yuv420p", 48, 64)
    assert (found.file, found.size) == ("cameras/bar.mp4", len(content))
    assert (np.diff(found.packets.pts[found.frames]) > 0).all()
    groups = frame_groups(found)
    keys = [packet.pts for packet in packets if packet.is_keyframe]
    for frame, packet in enumerate(sorted(packets, key=lambda packet: packet.pts)):
        group = sum(each.is_keyframe for each in packets[: packets.index(packet) + 1]) - 1
        assert (groups.group[frame], groups.leading[frame]) == (group, packet.pts < keys[group])


@pytest.mark.processes
@pytest.mark.parametrize("codec, name", [("mpeg4", "mpeg4"), ("libx265", "hevc"), ("libsvtav1", "av1")])
def test_codecs(tmp_path: Path, codec: str, name: str) -> None:
    write_video(tmp_path / "bar.mp4", moving_bar(9, 64, 64), codec, g="3")
    found = only(tmp_path / "bar.mp4")
    assert isinstance(found, VideoFile)
    assert (found.codec, found.num_frames) == (name, 9)


@pytest.mark.processes
def test_results_are_in_order_and_errors_do_not_stop(video: Path, tmp_path: Path) -> None:
    (tmp_path / "text.mp4").write_text("no video at all")
    (tmp_path / "empty.mp4").touch()
    paths = [video, tmp_path / "text.mp4", video, tmp_path / "none.mp4", tmp_path / "empty.mp4", video]
    results = list(index_files([(path, str(number), "") for number, path in enumerate(paths)], 2))
    assert [isinstance(each, VideoFile) for each in results] == [True, False, True, False, False, True]
    for number, result in enumerate(results):
        assert result.file == str(number)
    assert "cannot read it" in str(results[1])
    assert "No such file" in str(results[3])
    assert "is empty" in str(results[4])


def test_truncated_files(video: Path, tmp_path: Path) -> None:
    """The index of an MP4 file is at its end; a file that lacks its last bytes has none."""
    content = video.read_bytes()
    for size in (1, 40, len(content) // 2, content.index(b"stts")):
        (tmp_path / "cut.mp4").write_bytes(content[:size])
        with pytest.raises(CorruptSourceError, match="cut"):
            index_file(tmp_path / "cut.mp4", "cut")


@pytest.mark.processes
def test_a_declared_size_beyond_reason(video: Path, tmp_path: Path) -> None:
    """The sample entry `avc1` has the width and height of frames, 16 bits each."""
    content = bytearray(video.read_bytes())
    entry = content.index(b"avc1", content.index(b"stsd"))
    content[entry + 28 : entry + 32] = struct.pack(">HH", 60_000, 60_000)
    (tmp_path / "bomb.mp4").write_bytes(content)
    result = only(tmp_path / "bomb.mp4")
    # FFmpeg may prefer the size in the stream, which is right.
    assert isinstance(result, CorruptSourceError) or (result.height, result.width) == (48, 64)


def test_key_frames_that_are_none(tmp_path: Path) -> None:
    """Without the table `stss`, an MP4 file says that every frame of MPEG-4 is a key frame."""
    write_video(tmp_path / "bar.mp4", moving_bar(9), "mpeg4", g="4")
    found = index_file(tmp_path / "bar.mp4", "bar.mp4")
    content = (tmp_path / "bar.mp4").read_bytes()
    (tmp_path / "none.mp4").write_bytes(content.replace(b"stss", b"free"))
    lying = index_file(tmp_path / "none.mp4", "none.mp4")
    assert np.flatnonzero(found.packets.flags & KEY).tolist() == [0, 4, 8]
    np.testing.assert_array_equal(lying.packets.flags, found.packets.flags)


def test_frames_that_are_too_large_are_refused_before_decoding(video: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demux, "MAX_PIXELS", 64 * 48)
    assert index_file(video, "bar").width == 64
    monkeypatch.setattr(demux, "MAX_PIXELS", 64 * 48 - 1)
    with pytest.raises(CorruptSourceError, match="bar: declares frames of 64 x 48 pixels, more than 3,071"):
        index_file(video, "bar")


REFRESH = {"x264-params": "intra-refresh=1:keyint=8"}


@pytest.mark.parametrize("suffix", [".mp4", ".avi"])
def test_periodic_intra_refresh_has_one_key_frame(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"bar{suffix}"
    write_video(path, moving_bar(FRAMES), **REFRESH)
    with av.open(str(path)) as container:
        assert sum(packet.is_keyframe for packet in container.demux(video=0)) > 1
    assert np.flatnonzero(index_file(path, "bar").packets.flags & KEY).tolist() == [0]


@pytest.mark.processes
def test_frames_of_periodic_intra_refresh_are_read_in_any_order(tmp_path: Path) -> None:
    write_video(tmp_path / "bar.mp4", moving_bar(FRAMES), **REFRESH)
    ends = np.arange(FRAMES) == FRAMES - 1
    np.savez(
        tmp_path / "steps.npz", observations=np.zeros((FRAMES, 2)), actions=np.zeros(FRAMES), terminals=ends,
        timeouts=~ends & False,
    )  # fmt: skip
    videos = gear_data.VideoStorage(cameras={"observations.top": str(tmp_path / "*.mp4")})
    gear_data.convert(tmp_path / "steps.npz", tmp_path / "d", videos=videos, jobs=1, progress=False)
    frames, expected = gear_data.open(tmp_path / "d")[0]["observations.top"], decoded(tmp_path / "bar.mp4")
    for number in (20, 3, 9, 8, 23, 0):
        np.testing.assert_array_equal(frames[number], expected[number])


@pytest.mark.parametrize("name", [*(each for each in ENCODINGS if not each.startswith(("av1", "vp9"))), "refresh"])
def test_the_strict_test_finds_the_key_frames_of_the_parsers(name: str, tmp_path: Path) -> None:
    path = tmp_path / "v.mp4"
    encode(path, Encoding("libx264", REFRESH) if name == "refresh" else ENCODINGS[name])
    found = index_file(path, "v.mp4")
    can_begin = strict_entry_test(found.codec, found.extradata)
    content = path.read_bytes()
    places = zip(found.packets.position.tolist(), found.packets.size.tolist(), strict=True)
    flags = [can_begin(content[first : first + size]) for first, size in places]
    assert flags == (found.packets.flags & KEY > 0).tolist()


@pytest.mark.parametrize(
    ("units", "can_begin"),
    [
        ([b"\x09\xf0", b"\x65IDR"], True),
        ([b"\x06\x06\x01\x80\x80", b"\x61I"], True),  # recovery_frame_cnt 0: an open group of pictures
        ([b"\x06\x06\x01\x48\x80", b"\x61P"], False),  # recovery_frame_cnt 1
        ([b"\x06\x05\x03abc\x06\x01\x24\x80", b"\x61P"], False),  # after another message
        ([b"\x06\x05\xff\x02" + b"\x00\x00\x03" + b"u" * 255 + b"\x06\x01\x24\x80", b"\x61P"], False),
        ([b"\x61P", b"\x06\x06\x01\x48\x80"], True),  # the message is of the next picture
        ([b"\x06\x06\xff"], True),  # damaged
        ([], True),
    ],
)
def test_recovery_points_of_h264(units: list[bytes], can_begin: bool) -> None:
    annex_b = b"".join(b"\0\0\0\1" + unit for unit in units)
    assert entry_test("h264", b"")(annex_b) == can_begin
    for size in (2, 4):
        lengths = b"".join(len(unit).to_bytes(size, "big") + unit for unit in units)
        assert entry_test("h264", bytes([1, 100, 0, 10, 0xFC | size - 1]))(lengths) == can_begin


def test_packets_that_are_the_same_bytes(video: Path, tmp_path: Path) -> None:
    """A table of sizes (`stsz`) may declare more bytes of packets than the file has."""
    content = bytearray(video.read_bytes())
    sizes = content.index(b"stsz") + 12
    count = int.from_bytes(content[sizes : sizes + 4], "big")
    content[sizes + 4 : sizes + 4 + 4 * count] = struct.pack(">I", len(content) // 2) * count
    (tmp_path / "bomb.mp4").write_bytes(content)
    with pytest.raises(CorruptSourceError, match="bomb"):
        index_file(tmp_path / "bomb.mp4", "bomb.mp4")


def test_several_streams_and_none(tmp_path: Path) -> None:
    with av.open(str(tmp_path / "two.mp4"), "w") as container:
        streams = [container.add_stream("mpeg4", FPS) for _ in range(2)]
        for stream in streams:
            stream.height, stream.width, stream.pix_fmt = 48, 64, "yuv420p"
        for stream in streams:
            for frame in moving_bar(3):
                container.mux(stream.encode(av.VideoFrame.from_ndarray(frame, format="rgb24")))
            container.mux(stream.encode())
    with pytest.raises(CorruptSourceError, match="has 2 video streams"):
        index_file(tmp_path / "two.mp4", "two.mp4")


def run(worker: WorkerProcess, path: Path, file: str, seconds: float = 60) -> VideoFile | GearError:
    return worker.run(index_file, path, file, file=file, seconds=seconds)


@pytest.mark.processes
def test_a_worker_that_crashes_is_replaced(video: Path) -> None:
    """The crash of a process that parses a file is an error of the file, and of no other file."""
    crashing = WorkerProcess()
    process, _ = crashing._started()
    process.send_signal(signal.SIGSEGV)
    results = [run(crashing, video, str(number)) for number in range(3)]
    crashing.close()
    assert [type(each) for each in results] == [CorruptSourceError, VideoFile, VideoFile]
    assert "status -11" in str(results[0])


@pytest.mark.processes
def test_a_worker_that_hangs_is_killed(video: Path) -> None:
    hanging = WorkerProcess()
    process, _ = hanging._started()
    process.send_signal(signal.SIGSTOP)
    result = run(hanging, video, "stopped.mp4", seconds=0.2)
    assert isinstance(result, CorruptSourceError)
    assert "did not finish" in str(result)
    assert process.poll() is not None
    assert isinstance(run(hanging, video, "next.mp4"), VideoFile)
    hanging.close()


@pytest.mark.processes
def test_no_process_is_left(video: Path) -> None:
    before = {child.pid for child in psutil.Process().children()}
    for _ in index_files([(video, "bar.mp4", "")] * 9, 2):
        break  # the generator is closed in the middle
    assert {child.pid for child in psutil.Process().children()} == before
    threads = [thread for thread in threading.enumerate() if thread.name.startswith("gear-index")]
    assert not threads


@pytest.mark.processes
def test_workers_end_with_a_killed_parent(video: Path) -> None:
    code = (
        "import sys, time, pathlib\n"
        "from gear_data.video.indexing.demux import index_file\n"
        "from gear_data.video.indexing.worker_process import WorkerProcess\n"
        "worker = WorkerProcess()\n"
        "worker.run(index_file, pathlib.Path(sys.argv[1]), 'bar', file='bar', seconds=60)\n"
        "print(worker._started()[0].pid, flush=True); time.sleep(60)"
    )
    parent = subprocess.Popen([sys.executable, "-c", code, str(video)], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    parent.kill()
    parent.wait()
    deadline = time.monotonic() + 30
    while psutil.pid_exists(child) and psutil.Process(child).status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < deadline, "the worker outlived its parent"
        time.sleep(0.05)
    parent.stdout.close()
    assert os.getpid() != child
