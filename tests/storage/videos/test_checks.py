"""`verify` of datasets with cameras."""

from __future__ import annotations

import shutil
from pathlib import Path

import fsspec
import numpy as np
import pyarrow as pa
import pytest

import gear_data
from gear_data.storage.verify import VerifyReport
from gear_data.video.indexing.demux import index_file
from tests.support.cameras.filmed import damage_a_frame
from tests.support.makers.videos import lerobot_videos
from tests.support.manifests import read_ipc, replace_table
from tests.support.rollouts import make_rollouts

pytestmark = pytest.mark.processes

WRIST = "videos/chunk-000/observation.images.wrist/episode_000003.mp4"


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cameras") / "source"
    lerobot_videos(folder, make_rollouts(4, seed=1, max_length=9))
    return folder


@pytest.fixture
def dataset(source: Path, tmp_path: Path) -> Path:
    """The files are copies: tests change them, and a conversion may keep hard links."""
    shutil.copytree(source, tmp_path / "source")
    gear_data.convert(tmp_path / "source", tmp_path / "dataset", jobs=1, progress=False)
    shutil.rmtree(tmp_path / "source")
    return tmp_path / "dataset"


def errors(report: VerifyReport) -> dict[str, str]:
    return {check.file: str(check.error) for check in report.shards if not check.ok}


def replace_column(folder: Path, file: str, name: str, values: pa.Array) -> None:
    table = read_ipc(folder / file)
    index = table.column_names.index(name)
    replace_table(folder, file, table.set_column(index, table.schema.field(index), values))


def test_intact_files_and_damaged_ones(dataset: Path) -> None:
    assert gear_data.verify(dataset, deep=True, decode=True, progress=False).ok
    content = bytearray((dataset / WRIST).read_bytes())
    content[len(content) // 2] ^= 1
    (dataset / WRIST).write_bytes(content)
    front = [f"videos/chunk-000/observation.images.front/episode_{i:06d}.mp4" for i in range(4)]
    (dataset / front[0]).unlink()
    (dataset / front[1]).write_bytes(b"short")
    (dataset / front[2]).write_bytes(bytes((dataset / front[2]).stat().st_size))
    found = errors(gear_data.verify(dataset, progress=False))
    assert {*found} == {WRIST, *front[:3]}
    assert "its checksum is" in found[WRIST]
    assert "missing" in found[front[0]]
    assert "5 bytes" in found[front[1]]
    assert "FFmpeg cannot read it" in found[front[2]]


def test_an_index_of_another_file(dataset: Path) -> None:
    """The tables' checksums fit: the index was wrong when it was written."""
    pts = read_ipc(dataset / "video_packets.arrow").column("pts").to_numpy().copy()
    pts[-1] += 1
    replace_column(dataset, "video_packets.arrow", "pts", pa.array(pts))
    found = errors(gear_data.verify(dataset, progress=False))
    assert {*found} == {WRIST}
    assert "pts" in found[WRIST]


def test_an_episode_outside_its_file(dataset: Path) -> None:
    column = "videos/observations.images.wrist/first_frame"
    first = np.zeros(4, np.int64)
    first[3] = 1
    replace_column(dataset, "episodes.arrow", column, pa.array(first))
    found = errors(gear_data.verify(dataset, progress=False))
    assert {*found} == {"shards/000000.arrow"}
    assert "episode 3 has frames outside its video file" in found["shards/000000.arrow"]


def test_a_path_outside_the_dataset(dataset: Path, tmp_path: Path) -> None:
    (dataset / WRIST).rename(tmp_path / "elsewhere.mp4")
    files = read_ipc(dataset / "videos.arrow").column("file").to_pylist()
    files[files.index(WRIST)] = "../elsewhere.mp4"
    replace_column(dataset, "videos.arrow", "file", pa.array(files, pa.large_string()))
    found = errors(gear_data.verify(dataset, progress=False))
    assert "../elsewhere.mp4" in found


def test_frames_that_do_not_decode(source: Path, tmp_path: Path) -> None:
    """A conversion decodes nothing, so such frames are found by `decode` only."""
    shutil.copytree(source, tmp_path / "source")
    packets = index_file(source / WRIST, WRIST).packets
    content = bytearray((tmp_path / "source" / WRIST).read_bytes())
    content[packets.position[2] : packets.position[2] + packets.size[2]] = b"\xff" * int(packets.size[2])
    (tmp_path / "source" / WRIST).write_bytes(content)
    gear_data.convert(tmp_path / "source", tmp_path / "dataset", jobs=1, progress=False)
    assert gear_data.verify(tmp_path / "dataset", progress=False).ok
    found = errors(gear_data.verify(tmp_path / "dataset", decode=True, progress=False))
    assert {*found} == {WRIST}
    assert "frame 2 cannot be decoded" in found[WRIST]


def test_frames_in_which_the_decoder_reports_damage(source: Path, tmp_path: Path) -> None:
    """FFmpeg conceals the damage, so batches have such frames. A reader of the same process may have cached them."""
    shutil.copytree(source, tmp_path / "source")
    frame = damage_a_frame(tmp_path / "source" / WRIST)
    gear_data.convert(tmp_path / "source", tmp_path / "dataset", jobs=1, progress=False)
    episode = gear_data.open(tmp_path / "dataset").episode(3)
    assert len(np.asarray(episode["observations.images.wrist"])) == episode.length
    found = errors(gear_data.verify(tmp_path / "dataset", decode=True, progress=False))
    assert {*found} == {WRIST}
    assert f"frame {frame} cannot be decoded: the decoder reports damage" in found[WRIST]


def test_linked_files(source: Path, tmp_path: Path) -> None:
    shutil.copytree(source, tmp_path / "source")
    gear_data.convert(tmp_path / "source", tmp_path / "linked", videos="link", jobs=1, progress=False)
    assert gear_data.verify(tmp_path / "linked", progress=False).ok
    (tmp_path / "source" / WRIST).unlink()
    found = errors(gear_data.verify(tmp_path / "linked", progress=False))
    assert {*found} == {str(tmp_path / "source" / WRIST)}


def test_files_linked_at_a_url(source: Path, tmp_path: Path) -> None:
    store = fsspec.filesystem("memory")
    store.put(str(source), "/linked", recursive=True)
    try:
        gear_data.convert("memory://linked", tmp_path / "linked", videos="link", jobs=1, progress=False)
        assert gear_data.verify(tmp_path / "linked", progress=False).ok
        store.rm(f"/linked/{WRIST}")
        (found,) = errors(gear_data.verify(tmp_path / "linked", progress=False)).items()
    finally:
        store.rm("/linked", recursive=True)
    assert WRIST in found[0]
    assert "missing" in found[1]
