"""Frames of any codec, in any order, equal sequential decoding."""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import pickle
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import av
import numpy as np
import numpy.typing as npt
import pyarrow.parquet as pq
import pytest
import xxhash

from gear_data.errors import CorruptShardError, InvalidArgumentError, MissingExtraError
from gear_data.video.decoding import process_state
from gear_data.video.decoding.backends import decoder_version
from gear_data.video.decoding.decoder import EncodedPacket, Picture
from gear_data.video.decoding.frame_reader import FrameReader
from gear_data.video.decoding.options import DecodeOptions
from gear_data.video.decoding.pyav import PyavDecoder
from gear_data.video.file_index import DISCARD, ColorProperties
from gear_data.video.index_tables import VideoIndex, index_tables
from gear_data.video.packet_bytes import ByteRange
from tests.support.cameras.encoded import (
    ENCODINGS,
    Frames,
    decoded,
    encode,
    index_of,
    local_packets,
    needs_colours,
    video_index,
)
from tests.support.cameras.filmed import damage_a_frame

Int64Array = npt.NDArray[np.int64]


def _torchcodec_loads() -> bool:
    try:
        return bool(decoder_version("torchcodec"))
    except MissingExtraError:
        return False


needs_torchcodec = pytest.mark.skipif(not _torchcodec_loads(), reason="torchcodec does not load")


def read(reader: FrameReader, file: Int64Array, frame: Int64Array, size: tuple[int, int] = (48, 64)) -> Frames:
    out = np.full((len(file), *size, 3), 77, np.uint8)
    reader.read(file, frame, out)
    return out


class CountingPackets:
    """Packets of local files that counts the bytes it reads."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self._packets = local_packets(paths)
        self.ranges: list[ByteRange] = []

    def read(self, ranges: Sequence[ByteRange]) -> list[memoryview]:
        self.ranges += ranges
        return self._packets.read(ranges)


@pytest.mark.parametrize(
    "options",
    [
        DecodeOptions(threads=1, cache_bytes=0),
        DecodeOptions(threads=4),
        pytest.param(DecodeOptions(threads=4, backend="torchcodec", cache_bytes=0), marks=needs_torchcodec),
    ],
    ids=["pyav", "pyav, cached, 4 threads", "torchcodec"],
)
def test_every_frame_equals_sequential_decoding(
    paths: dict[str, Path], expected: dict[str, Frames], options: DecodeOptions
) -> None:
    reader = FrameReader(video_index(list(paths.values())), local_packets(list(paths.values())), options)
    for number, (name, frames) in enumerate(expected.items()):
        if options.backend == "torchcodec" and name == "av1, 10 bits":
            # torchcodec converts 10 bits to RGB in another way, also when it decodes the whole file.
            continue
        assert len(frames) == reader.index.frame_counts[number] == 26, name
        for frame in range(len(frames)):
            alone = read(reader, np.array([number]), np.array([frame]))
            assert np.array_equal(alone[0], frames[frame]), f"{name}, frame {frame}"
        numbers = np.arange(len(frames))
        assert np.array_equal(read(reader, np.full(len(frames), number), numbers), frames), name


@pytest.mark.parametrize("cache_bytes", [0, 50_000, 1 << 28])
@pytest.mark.parametrize("threads", [1, 4])
def test_random_requests_of_all_files_equal_sequential_decoding(
    paths: dict[str, Path], expected: dict[str, Frames], threads: int, cache_bytes: int
) -> None:
    options = DecodeOptions(threads=threads, cache_bytes=cache_bytes)
    reader = FrameReader(video_index(list(paths.values())), local_packets(list(paths.values())), options)
    frames = np.stack(list(expected.values()))
    generator = np.random.default_rng(threads)
    for _ in range(6):
        file, frame = generator.integers(0, len(paths), 60), generator.integers(0, 26, 60)
        later = generator.integers(0, len(paths), 60), generator.integers(0, 26, 60)
        rows = generator.permutation(80)[:60]
        out = np.full((80, 48, 64, 3), 77, np.uint8)
        reader.read(file, frame, out, rows, later)
        assert np.array_equal(out[rows], frames[file, frame])
        assert (out[np.setdiff1d(np.arange(80), rows)] == 77).all()
        assert process_state.process_state().cache.bytes <= cache_bytes


def test_concurrent_reads_of_the_same_groups_decode_each_once(
    paths: dict[str, Path], expected: dict[str, Frames], monkeypatch: pytest.MonkeyPatch
) -> None:
    path, frames = paths["h264 with B frames"], expected["h264 with B frames"]
    reader = FrameReader(video_index([path]), local_packets([path]), DecodeOptions(threads=2))
    decodings: list[int] = []
    decode = FrameReader._decode_missing

    def counted(self: FrameReader, *arguments: object) -> None:
        decodings.append(1)
        decode(self, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(FrameReader, "_decode_missing", counted)
    results: list[Frames] = []
    threads = [
        threading.Thread(target=lambda: results.append(read(reader, np.zeros(26, np.int64), np.arange(26))))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 4
    assert all(np.array_equal(result, frames) for result in results)
    assert len(decodings) == 5


def test_frames_of_coming_calls_stay_when_their_group_is_decoded(paths: dict[str, Path]) -> None:
    path = paths["mpeg4"]
    packets = CountingPackets([path])
    # Three frames of 64 x 48 fit.
    reader = FrameReader(video_index([path]), packets, DecodeOptions(threads=1, cache_bytes=25_000))
    file = np.zeros(1, np.int64)
    coming = np.zeros(2, np.int64), np.array([1, 14])
    reader.read(file, np.array([8]), np.empty((1, 48, 64, 3), np.uint8), ahead=coming)
    assert len(packets.ranges) == 1
    read(reader, file, np.array([1]))
    assert len(packets.ranges) == 1
    read(reader, file, np.array([14]))
    assert len(packets.ranges) == 2


def test_frames_that_an_edit_list_hides_are_not_taken_for_others(
    paths: dict[str, Path], expected: dict[str, Frames]
) -> None:
    """A file of two parts. The second one begins within a group, whose hidden frames have times of the first part."""
    video = index_of(paths["h264"])
    pts, flags = video.packets.pts.copy(), video.packets.flags.copy()
    pts[6:] -= 3 * (pts[1] - pts[0])
    flags[6:9] |= DISCARD
    edited = replace(video, packets=replace(video.packets, pts=pts, flags=flags))
    index = VideoIndex(*index_tables([edited]), "dataset")
    reader = FrameReader(index, local_packets([paths["h264"]]), DecodeOptions(threads=1))
    shown = [*range(6), *range(9, 26)]
    for frame in (6, 5, 3, 22):
        found = read(reader, np.zeros(1, np.int64), np.array([frame]))
        assert np.array_equal(found[0], expected["h264"][shown[frame]]), frame


def test_only_packets_up_to_the_last_needed_are_read(paths: dict[str, Path]) -> None:
    path = paths["mpeg4"]
    packets = CountingPackets([path])
    reader = FrameReader(video_index([path]), packets, DecodeOptions(threads=1))
    video = reader.index.file(0)
    read(reader, np.zeros(2, np.int64), np.array([14, 13]))
    first, last = video.packets.position[12], video.packets.position[14] + video.packets.size[14]
    assert packets.ranges == [(0, int(first), int(last))]


def test_reading_frame_after_frame_decodes_a_group_at_most_twice(paths: dict[str, Path]) -> None:
    path = paths["mpeg4"]
    packets = CountingPackets([path])
    reader = FrameReader(video_index([path]), packets, DecodeOptions(threads=1))
    for frame in range(12):
        read(reader, np.zeros(1, np.int64), np.array([frame]))
    assert len(packets.ranges) == 2


@pytest.mark.parametrize("name", ["h264 with B frames", "h264, open groups"])
def test_packets_that_no_wanted_frame_needs_are_not_decoded(
    paths: dict[str, Path], expected: dict[str, Frames], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = video_index([paths[name]])
    video, given = index.file(0), []
    decode = PyavDecoder.decode

    def counted(self: PyavDecoder, packets: Sequence[EncodedPacket], since: int) -> Iterator[Picture]:
        given.append({each.pts for each in packets})
        return decode(self, packets, since)

    monkeypatch.setattr(PyavDecoder, "decode", counted)
    # FFmpeg's own decoder says which frames no other frame needs.
    with av.open(str(paths[name])) as container:
        container.streams.video[0].codec_context.skip_frame = "NONREF"
        references = {frame.pts for frame in container.decode(video=0)}
    assert 8 <= len(references) <= 20
    reader = FrameReader(index, local_packets([paths[name]]), DecodeOptions(threads=1, cache_bytes=0))
    for frame, packet in enumerate(video.frames.tolist()):
        given.clear()
        assert np.array_equal(read(reader, np.zeros(1, np.int64), np.array([frame]))[0], expected[name][frame])
        assert given[0] <= references | {int(video.packets.pts[packet])}
    # A cache that keeps all frames gets all of a group.
    given.clear()
    reader = FrameReader(index, local_packets([paths[name]]), DecodeOptions(threads=1))
    last = int(np.argmax(video.frames[:6]))
    read(reader, np.zeros(1, np.int64), np.array([last]))
    assert not given[0] <= references | {int(video.packets.pts[video.frames[last]])}


def test_calls_at_once_share_the_threads(
    paths: dict[str, Path], expected: dict[str, Frames], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two batches that were built at once had four threads on two cores, and took longer."""
    idents: set[int] = set()
    decode = PyavDecoder.decode

    def seen(self: PyavDecoder, packets: Sequence[EncodedPacket], since: int) -> Iterator[Picture]:
        idents.add(threading.get_ident())
        return decode(self, packets, since)

    monkeypatch.setattr(PyavDecoder, "decode", seen)
    path, numbers = paths["av1"], np.arange(26)
    reader = FrameReader(video_index([path]), local_packets([path]), DecodeOptions(threads=2, cache_bytes=0))
    begun, ends = threading.Event(), threading.Event()

    def another_call() -> None:
        with process_state.process_state().decoding():
            begun.set()
            ends.wait(60)

    with ThreadPoolExecutor(1) as thread:
        thread.submit(another_call)
        assert begun.wait(60)
        for _ in range(20):
            assert np.array_equal(read(reader, 0 * numbers, numbers), expected["av1"])
        ends.set()
    assert idents == {threading.get_ident()}
    while len(idents) < 2:  # a helper may come too late for a call
        read(reader, 0 * numbers, numbers)


def test_frames_equal_what_lerobot_reads(shared_data: Path) -> None:
    source = shared_data / "lerobot_v30_video"
    cameras = {"front": (240, 320), "wrist": (96, 96)}
    files = [source / f"videos/observation.images.{name}/chunk-000/file-000.mp4" for name in cameras]
    reader = FrameReader(video_index(files), local_packets(files), DecodeOptions(threads=2))
    episodes = pq.read_table(source / "meta/episodes/chunk-000/file-000.parquet").to_pylist()
    golden = json.loads((source / "golden_frames.json").read_text())
    for number, (name, size) in enumerate(cameras.items()):
        everything = decoded(files[number])
        numbers = np.arange(len(everything))
        assert np.array_equal(read(reader, np.full(len(numbers), number), numbers, size), everything)
        for row in [*golden["pyav"], *golden["torchcodec"]]:
            start = episodes[row["episode_index"]][f"videos/observation.images.{name}/from_timestamp"]
            # LeRobot's offsets of -3 and 0 frames; it repeats the first frame.
            steps = np.maximum(0, row["frame_index"] + np.array([-3, 0]))
            frames = read(reader, np.full(2, number), round(30 * start) + steps, size)
            assert hashlib.sha256(frames.tobytes()).hexdigest() == row[name], row


@needs_colours
def test_colours_come_from_the_container_where_the_stream_is_silent(
    paths: dict[str, Path], expected: dict[str, Frames]
) -> None:
    path = paths["mpeg4"]
    video = replace(index_of(path), colors=ColorProperties(range=2, space=1))
    reader = FrameReader(VideoIndex(*index_tables([video]), "dataset"), local_packets([path]), DecodeOptions())
    with av.open(str(path)) as container:
        context = container.streams.video[0].codec_context
        context.color_range, context.colorspace = 2, 1
        frames = np.stack([frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)])
    assert not np.array_equal(frames, expected["mpeg4"])
    assert np.array_equal(read(reader, np.zeros(26, np.int64), np.arange(26)), frames)


def test_resized_frames_are_scaled_by_bilinear_interpolation(paths: dict[str, Path]) -> None:
    path = paths["h264"]
    reader = FrameReader(video_index([path]), local_packets([path]), DecodeOptions(size=(22, 30)))
    with av.open(str(path)) as container:
        frames = np.stack(
            [
                frame.to_ndarray(format="rgb24", height=22, width=30, interpolation="BILINEAR")
                for frame in container.decode(video=0)
            ]
        )
    assert np.array_equal(read(reader, np.zeros(26, np.int64), np.arange(26), (22, 30)), frames)


def _read_in_child(reader: FrameReader, expected: Frames, results: multiprocessing.SimpleQueue[bool]) -> None:
    results.put(np.array_equal(read(reader, np.zeros(26, np.int64), np.arange(26)), expected))


@pytest.mark.processes
@pytest.mark.usefixtures("quick_spawn")
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_reader_works_in_a_child_while_the_parent_decodes(
    paths: dict[str, Path], expected: dict[str, Frames], method: str
) -> None:
    path, frames = paths["av1"], expected["av1"]
    reader = FrameReader(video_index([path]), local_packets([path]), DecodeOptions(threads=2))
    uncached = FrameReader(reader.index, reader.packets, DecodeOptions(threads=2, cache_bytes=0))
    stop = threading.Event()

    def keep_reading() -> None:
        while not stop.is_set():
            read(uncached, np.zeros(26, np.int64), np.arange(26))

    busy = threading.Thread(target=keep_reading)
    busy.start()
    try:
        context = multiprocessing.get_context(method)
        results = context.SimpleQueue()
        arguments = (pickle.loads(pickle.dumps(reader)) if method == "spawn" else reader, frames, results)
        children = [
            context.Process(target=_read_in_child, args=arguments) for _ in range(1 if method == "spawn" else 4)
        ]
        for child in children:
            child.start()
        for child in children:
            child.join(60)
            assert child.exitcode == 0
            assert results.get()
    finally:
        stop.set()
        busy.join()
    assert np.array_equal(read(reader, np.zeros(26, np.int64), np.arange(26)), frames)


@pytest.mark.parametrize("name", ["h264 with B frames", "mpeg4", "hevc", "av1", "vp9"])
@pytest.mark.parametrize("threads", [1, 4])
def test_changed_packet_is_an_error_that_names_the_file_and_frame(
    paths: dict[str, Path], expected: dict[str, Frames], tmp_path: Path, name: str, threads: int
) -> None:
    index = video_index([paths[name]])
    damaged = tmp_path / "damaged.mp4"
    data = bytearray(paths[name].read_bytes())
    packets = index.file(0).packets
    number = int(index.file(0).frames[14])
    data[packets.position[number] + packets.size[number] // 2] ^= 0x40
    damaged.write_bytes(data)
    reader = FrameReader(index, local_packets([damaged]), DecodeOptions(threads=threads))
    with pytest.raises(CorruptShardError, match=rf"packet {number} at byte \d+ has changed") as caught:
        read(reader, np.zeros(26, np.int64), np.arange(26))
    assert caught.value.file == str(paths[name])
    assert "frame " in str(caught.value)
    assert "gear-data verify" in str(caught.value)
    # Other groups can be read.
    assert np.array_equal(read(reader, np.zeros(2, np.int64), np.array([1, 2])), expected[name][1:3])


def test_packets_that_do_not_decode_are_an_error(paths: dict[str, Path]) -> None:
    path = paths["av1"]
    video = index_of(path)
    garbage = np.full_like(video.packets.digest, 0)
    data = bytearray(path.read_bytes())
    start, stop = int(video.packets.position[0]), int(video.packets.position[0] + video.packets.size[0])
    data[start:stop] = bytes(stop - start)
    garbage[:] = video.packets.digest
    garbage[0] = xxhash.xxh3_64_intdigest(bytes(data[start:stop]))
    changed = path.with_name("garbage.mp4")
    changed.write_bytes(data)
    index = VideoIndex(*index_tables([replace(video, packets=replace(video.packets, digest=garbage))]), "dataset")
    reader = FrameReader(index, local_packets([changed]), DecodeOptions(threads=1))
    for frame in (0, 5):
        with pytest.raises(CorruptShardError, match=f"frame {frame} cannot be decoded"):
            read(reader, np.zeros(1, np.int64), np.array([frame]))


def test_strict_readers_refuse_damage_in_a_frame_that_is_cached(tmp_path: Path) -> None:
    """FFmpeg conceals the damage. Another reader, or an earlier call, decoded the frame."""
    path = tmp_path / "damaged.mp4"
    encode(path, ENCODINGS["h264"])
    number = damage_a_frame(path)
    index, packets = video_index([path]), local_packets([path])
    read(FrameReader(index, packets, DecodeOptions(threads=1)), np.zeros(26, np.int64), np.arange(26))
    strict = FrameReader(index, packets, DecodeOptions(threads=1, strict=True))
    for _ in range(2):
        with pytest.raises(CorruptShardError, match=f"frame {number} cannot be decoded: the decoder reports damage"):
            read(strict, np.zeros(1, np.int64), np.array([number]))


def test_frames_of_another_size_than_the_index_says_are_an_error(paths: dict[str, Path]) -> None:
    path = paths["mpeg4"]
    video = replace(index_of(path), height=32)
    reader = FrameReader(VideoIndex(*index_tables([video]), "dataset"), local_packets([path]), DecodeOptions())
    with pytest.raises(CorruptShardError, match="48 x 64 pixels, and the index says 32 x 64"):
        read(reader, np.zeros(1, np.int64), np.zeros(1, np.int64), (32, 64))


def test_unknown_codec_is_an_error(paths: dict[str, Path]) -> None:
    path = paths["mpeg4"]
    video = replace(index_of(path), codec="divx9")
    reader = FrameReader(VideoIndex(*index_tables([video]), "dataset"), local_packets([path]), DecodeOptions())
    with pytest.raises(CorruptShardError, match="codec 'divx9'"):
        read(reader, np.zeros(1, np.int64), np.zeros(1, np.int64))


@pytest.mark.parametrize(
    ("file", "frame", "shape", "problem"),
    [
        ([1], [0], (1, 48, 64, 3), "file 1 does not exist"),
        ([-1], [0], (1, 48, 64, 3), "file -1 does not exist"),
        ([0], [26], (1, 48, 64, 3), "frame 26 does not exist"),
        ([0], [-1], (1, 48, 64, 3), "frame -1 does not exist"),
        ([0, 0], [0], (2, 48, 64, 3), "two int64 arrays of one length"),
        ([0], [0], (1, 64, 48, 3), "cannot hold frames"),
    ],
)
def test_wrong_requests_are_errors(
    paths: dict[str, Path], file: list[int], frame: list[int], shape: tuple[int, ...], problem: str
) -> None:
    reader = FrameReader(video_index([paths["h264"]]), local_packets([paths["h264"]]), DecodeOptions())
    with pytest.raises(InvalidArgumentError, match=problem):
        reader.read(np.array(file), np.array(frame), np.empty(shape, np.uint8))


def test_no_request_reads_nothing(paths: dict[str, Path]) -> None:
    reader = FrameReader(video_index([paths["h264"]]), local_packets([paths["h264"]]), DecodeOptions())
    nothing = np.zeros(0, np.int64)
    reader.read(nothing, nothing, np.empty((0, 48, 64, 3), np.uint8))
