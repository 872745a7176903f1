"""Cameras as ordinary columns, against sequential decoding by PyAV."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from gear_data.errors import BadEpisodeError
from gear_data.ingest.location import SourceFile, locate
from gear_data.ingest.source import SourceOptions, source_videos
from gear_data.ingest.sources.registry import open_source
from gear_data.ingest.videos import decoded_videos
from gear_data.ingest.videos.decoded_videos import DecodedVideos, SourcePackets
from gear_data.ingest.videos.storage_options import FRAMES, JPEG, VideoMode, VideoStorage
from gear_data.storage.episode_block import BEGIN, END, EpisodeBlock, Position
from gear_data.video.index_tables import VideoIndex, index_tables
from gear_data.video.indexing.demux import index_file
from gear_data.video.segments import VideoSegments

av = pytest.importorskip("av")
WRIST = "observations.images.wrist"


class Segmented:
    """A source of LeRobot's whose blocks have frames instead of times."""

    def __init__(self, folder: Path) -> None:
        self._source, _, _ = open_source(locate(str(folder), None), "auto", SourceOptions(columns=("actions", WRIST)))
        self.videos = source_videos(self._source)
        files = [index_file(Path(file.path), file.name) for file in self.videos.files]
        self.index = VideoIndex(*index_tables(files), "index")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._source, name)

    def blocks(self, start: Position, stop: Position) -> Iterator[EpisodeBlock]:
        for block in self._source.blocks(start, stop):
            segments = {
                name: VideoSegments(times.file, np.round(times.start * 30).astype(np.int64))
                for name, times in block.video_times.items()
            }
            yield replace(block, videos=segments, video_times={})


def decoded(source: Segmented, mode: VideoMode, **options: Any) -> DecodedVideos:
    packets = SourcePackets(options.pop("files", source.videos.files))
    videos = VideoStorage(mode=mode, size=options.pop("size", None))
    chosen: dict[str, Any] = {"skip_bad": False, "threads": 2, **options}
    return DecodedVideos(source, source.index, packets, videos, **chosen)


def all_frames(path: str) -> np.ndarray[Any, Any]:
    with av.open(path) as container:
        return np.stack([frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)])


def blocks(source: DecodedVideos) -> list[EpisodeBlock]:
    source.resume_state.clear()
    source.findings.restore([])
    return list(source.blocks(BEGIN, END))


def test_frames_are_those_of_lerobot(shared_data: Path) -> None:
    """And those of sequential decoding. `golden_frames.json` has hashes of the frames t - 3 and t, without padding."""
    source = Segmented(shared_data / "lerobot_v30_video")
    whole = decoded(source, FRAMES)
    assert (whole.columns[-1].name, whole.columns[-1].dtype, whole.columns[-1].shape) == (WRIST, "uint8", (96, 96, 3))
    assert (source_videos(whole).columns, whole.columns[-1].source) == ((), "observation.images.wrist")
    pixels = np.concatenate([block.columns[WRIST] for block in blocks(whole)])
    np.testing.assert_array_equal(pixels, all_frames(source.videos.files[0].path))
    golden = json.loads((shared_data / "lerobot_v30_video/golden_frames.json").read_text())["pyav"]
    inner = [each for each in golden if not any(each["wrist_pad"])]
    assert len(inner) > 5
    for each in inner:
        frames = pixels[[each["index"] - 3, each["index"]]]
        assert sha256(frames.tobytes()).hexdigest() == each["wrist"]


def test_pieces_keep_their_position(shared_data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = Segmented(shared_data / "lerobot_v30_video")
    one = blocks(decoded(source, FRAMES))
    monkeypatch.setattr(decoded_videos, "_PIECE_BYTES", 1)
    many = blocks(decoded(source, FRAMES, threads=1))
    assert [len(block) for block in many] == [1] * 6
    assert [(block.position, block.first) for block in many][:3] == [(BEGIN, 0), (BEGIN, 1), (BEGIN, 2)]
    assert sum(block.source_rows for block in many) == sum(block.source_rows for block in one) == 665
    pixels = [np.concatenate([block.columns[WRIST] for block in found]) for found in (one, many)]
    np.testing.assert_array_equal(*pixels)


def test_a_size_is_of_the_decoders_scaler(shared_data: Path) -> None:
    source = Segmented(shared_data / "lerobot_v30_video")
    whole = decoded(source, FRAMES, size=(24, 40))
    assert whole.columns[-1].shape == (24, 40, 3)
    pixels = np.concatenate([block.columns[WRIST] for block in blocks(whole)])
    assert pixels.shape == (665, 24, 40, 3)
    full = all_frames(source.videos.files[0].path)
    assert abs(pixels.mean(axis=(0, 1, 2)) - full.mean(axis=(0, 1, 2))).max() < 2


def test_jpeg_files(shared_data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = Segmented(shared_data / "lerobot_v30_video")
    assert decoded(source, JPEG).columns[-1].dtype == "binary"
    found = [value for block in blocks(decoded(source, JPEG)) for value in block.columns[WRIST].to_pylist()]
    monkeypatch.setattr(decoded_videos, "_PIECE_BYTES", 100_000)  # pieces of three frames
    again = [value for block in blocks(decoded(source, JPEG, threads=1)) for value in block.columns[WRIST].to_pylist()]
    assert found == again
    pixels = np.stack([np.asarray(Image.open(io.BytesIO(value))) for value in found[::50]]).astype(np.int64)
    full = all_frames(source.videos.files[0].path)[::50]
    assert np.abs(pixels - full).mean() < 2


@pytest.mark.parametrize("mode", [FRAMES, JPEG])
def test_a_video_that_cannot_be_decoded(mode: str, shared_data: Path, tmp_path: Path) -> None:
    source = Segmented(shared_data / "lerobot_v30_video")
    (file,) = source.videos.files
    video = source.index.file(0)
    data = bytearray(Path(file.path).read_bytes())
    packet = video.frames[130]  # of episode 1
    position, size = int(video.packets.position[packet]), int(video.packets.size[packet])
    data[position : position + size] = bytes(size)
    (tmp_path / "damaged.mp4").write_bytes(data)
    # Frames of a file with the same checksum may be in the process's cache.
    source.index = VideoIndex(*index_tables([replace(video, checksum=mode)]), "index")
    damaged = (SourceFile(str(tmp_path / "damaged.mp4"), "damaged.mp4", len(data)),)
    with pytest.raises(BadEpisodeError) as error:
        blocks(decoded(source, mode, files=damaged))
    assert error.value.column == "observation.images.wrist"
    skipped = decoded(source, mode, files=damaged, skip_bad=True)
    found = blocks(skipped)
    assert [length for block in found for length in block.lengths.tolist()] == [120, 150, 64, 133, 101]
    assert [(block.position, block.first) for block in found] == [(BEGIN, 0), (BEGIN, 1), (found[-1].position, 0)]
    assert [finding.code for finding in skipped.findings if finding.column == "observation.images.wrist"] == [
        "bad-episode"
    ]
