"""LeRobot sets in a bucket: their video files are not read when they are opened."""

from __future__ import annotations

import json
import os
import pickle
import re
import shutil
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import av
import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

import gear_data
from gear_data.cluster.addresses import Address
from gear_data.cluster.credentials import ServerCredentials
from gear_data.cluster.flight.server import FlightServer
from gear_data.cluster.server.shard_server import ShardServer
from gear_data.dataset.stores.remote import RemoteDatasetFiles
from gear_data.errors import CorruptShardError, GearError, RemoteError, VersionError
from gear_data.storage import manifest as manifests
from gear_data.storage.dataset_files import FolderFiles
from gear_data.storage.remote import range_reader
from gear_data.storage.videos import file_parts, pages
from tests.ingest.sources.lerobot import test_cameras as lerobot
from tests.storage.videos.test_file_parts import remuxed
from tests.support.cameras.encoded import ENCODINGS, decoded, encode
from tests.support.makers.videos import lerobot_videos
from tests.support.remote import check_equal_batches
from tests.support.rollouts import make_rollouts
from tests.support.running.hub_server import TOKEN, Hub, running_hub
from tests.support.running.warm_python import python
from tests.support.s3.server import S3Server, s3_server

pytestmark = pytest.mark.processes

_NAMES = ("front", "wrist")
CAMERAS = tuple(f"observations.images.{name}" for name in _NAMES)
URL = "s3://bucket/robot"
_SKIP = gear_data.ConvertOptions(on_bad_episode="skip")
_EPISODES = "meta/episodes.jsonl"


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Server]:
    monkeypatch.setattr(file_parts, "_FRONT_BYTES", 16 << 10)
    monkeypatch.setattr(pages, "PAGE_BYTES", 4 << 10)
    with s3_server() as server:
        yield server


@pytest.fixture
def fetched(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """The name and the bytes of each range of a video file that is requested."""
    found: list[tuple[str, int]] = []
    request = range_reader.request_range

    def counted(filesystem: Any, path: str, first: int, last: int, contents: str = "") -> bytes:
        if path.endswith(".mp4"):
            found.append((path, last - first))
        return request(filesystem, path, first, last, contents)

    monkeypatch.setattr(range_reader, "request_range", counted)
    return found


@pytest.fixture
def robot(unlisted: Path) -> Path:
    """A LeRobot set whose metadata lists the episodes. So which frames they have is known without the videos."""
    lengths = [len(pq.read_table(path)) for path in sorted((unlisted / "data").rglob("*.parquet"))]
    rows = [{"episode_index": i, "tasks": ["reach"], "length": length} for i, length in enumerate(lengths)]
    (unlisted / _EPISODES).write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return unlisted


@pytest.fixture
def unlisted(filmed: Path, tmp_path: Path) -> Path:
    """A LeRobot set with two cameras, of four episodes of 40 steps and more."""
    shutil.copytree(filmed, tmp_path / "robot")
    return tmp_path / "robot"


@pytest.fixture(scope="module")
def filmed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    robot = tmp_path_factory.mktemp("filmed") / "robot"
    rollouts = [each for each in make_rollouts(20, seed=3, max_length=80) if len(each) > 40]
    lerobot_videos(robot, rollouts[:4])
    for number, path in enumerate(sorted(robot.rglob("*.mp4"))):
        codec = ("h264 with B frames", "h264, open groups", "hevc, open groups", "av1", "mpeg4")[number % 5]
        frames = len(rollouts[int(path.stem[-1])])
        encode(path, ENCODINGS[codec], frames=frames, height=192, width=256, seed=number)
    return robot


def upload(folder: Path) -> Any:
    import s3fs

    filesystem = s3fs.S3FileSystem(skip_instance_cache=True)
    if filesystem.exists("bucket/robot"):  # of an earlier test
        filesystem.rm("bucket/robot", recursive=True)
    filesystem.put(f"{folder}/", "bucket/robot", recursive=True)
    return filesystem


def check_frames(dataset: Any, other: Any) -> None:
    for episode in range(len(other)):
        for camera in CAMERAS:
            np.testing.assert_array_equal(dataset[episode][camera][:], other[episode][camera][:])


def test_only_the_indexes_of_videos_are_read(
    server: S3Server, unlisted: Path, fetched: list[tuple[str, int]], tmp_path: Path
) -> None:
    upload(unlisted)
    dataset, local = gear_data.open(URL), gear_data.open(unlisted)
    files = list(unlisted.rglob("*.mp4"))
    assert len({name for name, _ in fetched}) == len(files)
    assert sum(size for _, size in fetched) < sum(file.stat().st_size for file in files) / 2
    fetched.clear()
    check_frames(dataset, local)
    used = sum(file.stat().st_size for file in files)
    assert 0 < sum(size for _, size in fetched) < used
    assert check_equal_batches(dataset, local, columns=[*CAMERAS], preset="raw", framework="numpy", steps=4) == 4
    fetched.clear()
    check_frames(gear_data.open(URL), local)
    assert not fetched
    assert json.loads((Path(dataset.path) / "manifest.json").read_text())["version"] == 4
    assert "statistics" in str(dataset.manifest.findings) and not {*CAMERAS} & {*dataset.manifest.statistics}
    assert gear_data.verify(dataset.path).ok
    dataset[:2].save(tmp_path / "saved")
    check_frames(gear_data.open(tmp_path / "saved"), local[:2])
    assert json.loads((tmp_path / "saved" / "manifest.json").read_text())["version"] == 4


def test_indexes_are_read_when_frames_are_wanted(
    server: S3Server, robot: Path, fetched: list[tuple[str, int]], tmp_path: Path
) -> None:
    upload(robot)
    dataset, local = gear_data.open(URL), gear_data.open(robot)
    first = {f"bucket/robot/videos/chunk-000/observation.images.{name}/episode_000000.mp4" for name in _NAMES}
    assert {name for name, _ in fetched} == first
    assert json.loads((Path(dataset.path) / "manifest.json").read_text())["version"] == 6
    fetched.clear()
    np.testing.assert_array_equal(dataset[2][CAMERAS[0]][3:5], local[2][CAMERAS[0]][3:5])
    assert len({name for name, _ in fetched}) == 1
    assert check_equal_batches(dataset, local, columns=[*CAMERAS], preset="raw", framework="numpy", steps=4) == 4
    check_frames(dataset, local)
    assert len({name for name, _ in fetched}) == 8
    fetched.clear()
    for again in (gear_data.open(URL), pickle.loads(pickle.dumps(gear_data.open(URL)))):
        check_frames(again, local)
    assert not fetched
    report = gear_data.verify(dataset.path, deep=True, decode=True)
    assert report.ok, report


def test_datasets_of_files_that_are_not_indexed(server: S3Server, robot: Path, tmp_path: Path) -> None:
    """Views, merges and edits of such a dataset, and its export."""
    upload(robot)
    dataset, local = gear_data.open(URL), gear_data.open(robot)
    dataset[1:].save(tmp_path / "saved")
    saved = gear_data.open(tmp_path / "saved")
    assert saved.manifest.provenance["videos"]["unindexed"] == 6
    check_frames(saved, local[1:])
    gear_data.merge([dataset.path, tmp_path / "saved"], tmp_path / "merged", progress=False)
    merged = gear_data.open(tmp_path / "merged")
    check_frames(merged[:4], local)
    check_frames(merged[4:], local[1:])
    assert gear_data.verify(merged.path, deep=True).ok
    edited = dataset.with_column("reward2", lambda episode: np.zeros(episode.length, np.float32))
    edited.save(tmp_path / "edited")
    check_frames(gear_data.open(tmp_path / "edited"), local)
    gear_data.export(dataset, tmp_path / "exported", "lerobot")
    check_frames(gear_data.open(tmp_path / "exported"), local)


@pytest.mark.parametrize("exact", [True, False])
def test_indexes_of_files_with_several_episodes(
    server: S3Server, fetched: list[tuple[str, int]], tmp_path: Path, exact: bool
) -> None:
    """They are read late if the times of the episodes are those of their numbers of frames."""
    names = [f"videos/{key}/chunk-000/file-00{n}.mp4" for key in (lerobot.FRONT, lerobot.WRIST) for n in range(2)]
    first = (0, 0, 7 if exact else 7.2)
    places = {
        episode: {
            "chunk_index": 0,
            "file_index": int(episode > 0),
            "from_timestamp": first[episode] / 30,
            "to_timestamp": (first[episode] + length) / 30,
        }
        for episode, length in enumerate(lerobot.LENGTHS)
    }
    robot = lerobot.write(tmp_path / "robot", "v3.0", names, video_path=lerobot.V3_PATH, places=places)
    for number, name in enumerate(names):
        frames = lerobot.LENGTHS[0] if "file-000" in name else sum(lerobot.LENGTHS[1:])
        encode(robot / name, ENCODINGS["h264 with B frames"], frames=frames, seed=number)
    upload(robot)
    dataset = gear_data.open(URL)
    assert {name.removeprefix("bucket/robot/") for name, _ in fetched} == {*(names[::2] if exact else names)}
    check_frames(dataset, gear_data.open(robot))
    for number, camera in ((1, CAMERAS[0]), (3, CAMERAS[1])):
        frames = decoded(robot / names[number])
        np.testing.assert_array_equal(dataset[1][camera][:], frames[:7])
        np.testing.assert_array_equal(dataset[2][camera][:], frames[7:])


def test_clients_of_nodes_read_indexes_late(
    server: S3Server, robot: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By way of the node, which may use the same cache: a client needs no access to the bucket."""
    local = gear_data.open(robot)
    wanted = [local[episode][CAMERAS[1]][:] for episode in range(3)]
    bad = robot / "videos/chunk-000/observation.images.wrist/episode_000003.mp4"
    bad.write_bytes(b"no video, and long enough to be taken for one")
    upload(robot)
    opened: list[int] = []
    open_video = RemoteDatasetFiles.open_video

    def counted(files: RemoteDatasetFiles, number: int, *arguments: Any) -> Any:
        opened.append(number)
        return open_video(files, number, *arguments)

    monkeypatch.setattr(RemoteDatasetFiles, "open_video", counted)
    served = ShardServer(FolderFiles(Path(gear_data.open(URL).path)))
    node = FlightServer(served, Address("127.0.0.1", 0), ServerCredentials())
    try:
        remote = gear_data.open(f"gear://127.0.0.1:{node.port}")
        for episode, frames in enumerate(wanted):
            np.testing.assert_array_equal(remote[episode][CAMERAS[1]][:], frames)
        assert len(opened) == 2
        with pytest.raises(CorruptShardError, match=r"s3://bucket/\S+wrist/episode_000003.mp4: FFmpeg cannot read it"):
            remote[3][CAMERAS[1]][:]
    finally:
        node.shutdown()


@pytest.mark.parametrize("context", ["fork", "spawn"])
def test_workers_read_indexes_late(server: S3Server, robot: Path, context: str) -> None:
    upload(robot)
    options: dict[str, Any] = {"context": 2, "preset": "raw", "columns": [CAMERAS[0]]}
    windows, same = (gear_data.WindowDataset(gear_data.open(source), **options) for source in (URL, robot))
    loader = torch.utils.data.DataLoader(windows, batch_size=16, num_workers=2, multiprocessing_context=context)
    for batch, wanted in zip(loader, torch.utils.data.DataLoader(same, batch_size=16), strict=True):
        np.testing.assert_array_equal(batch[CAMERAS[0]], wanted[CAMERAS[0]])


def test_a_late_index_of_another_video_is_an_error(server: S3Server, robot: Path, cache: Path, tmp_path: Path) -> None:
    """It is found when a frame is wanted. The other episodes can be read."""
    local = gear_data.open(robot)
    frames = [decoded(path) for path in sorted((robot / "videos/chunk-000/observation.images.front").iterdir())]
    folder, length = robot / "videos/chunk-000/observation.images.wrist", len(frames[1])
    encode(folder / "episode_000001.mp4", ENCODINGS["h264"], frames=length - 1, height=192, width=256)
    encode(folder / "episode_000002.mp4", ENCODINGS["h264"], frames=len(frames[2]), height=96, width=128)
    (folder / "episode_000003.mp4").write_bytes(b"no video, and long enough to be taken for one")
    upload(robot)
    dataset = gear_data.open(URL)
    for episode, message in (
        (1, rf"episode_000001.mp4: has {length - 1} frames, and its episodes have {length} steps"),
        (2, r"episode_000002.mp4: has frames of 96 x 128, and its camera has 192 x 256"),
        (3, r"episode_000003.mp4: FFmpeg cannot read it"),
    ):
        for _ in range(2):
            with pytest.raises(CorruptShardError, match=message) as caught:
                dataset[episode][CAMERAS[1]][:]
        assert "dataset[[...]]" in str(caught.value)
        np.testing.assert_array_equal(dataset[episode][CAMERAS[0]][:], local[episode][CAMERAS[0]][:])
    np.testing.assert_array_equal(dataset[[0]][0][CAMERAS[1]][:], decoded(folder / "episode_000000.mp4"))
    report = gear_data.verify(dataset.path)
    assert [check.file.rpartition("/")[2] for check in report.shards if not check.ok] == [
        f"episode_00000{number}.mp4" for number in (1, 2, 3)
    ]


def test_a_later_batch_of_a_bad_video_does_not_fail_earlier_ones(server: S3Server, robot: Path) -> None:
    path = sorted((robot / "videos/chunk-000/observation.images.wrist").iterdir())[-1]
    local = gear_data.open(robot)
    encode(path, ENCODINGS["h264"], frames=3, height=192, width=256)
    upload(robot)
    options: dict[str, Any] = {"batch_size": 8, "columns": [CAMERAS[1]], "preset": "raw", "framework": "numpy"}
    options |= {"context": 1, "sampler": "fifo", "steps": 40}
    loaders = [gear_data.SequenceLoader(dataset, **options) for dataset in (gear_data.open(URL), local)]
    checked = 0
    with pytest.raises(CorruptShardError, match=r"episode_000003.mp4: has 3 frames"):
        for batch, wanted in zip(*loaders, strict=True):
            checked += 1
            np.testing.assert_array_equal(batch[CAMERAS[1]], wanted[CAMERAS[1]])
    assert checked == sum(local[episode].length for episode in range(3)) // 8


def test_bad_videos_are_left_out_when_the_dataset_is_opened(server: S3Server, robot: Path) -> None:
    paths = sorted((robot / "videos/chunk-000/observation.images.wrist").iterdir())
    encode(paths[1], ENCODINGS["h264"], frames=3, height=192, width=256)
    upload(robot)
    dataset = gear_data.open(URL, convert=_SKIP)
    assert len(dataset) == 3 and "unindexed" not in dataset.manifest.provenance["videos"]
    np.testing.assert_array_equal(dataset[1][CAMERAS[1]][:], decoded(paths[2]))


def test_statistics_are_left_out_of_a_saved_view_with_a_bad_video(
    server: S3Server, robot: Path, tmp_path: Path
) -> None:
    path = sorted((robot / "videos/chunk-000/observation.images.wrist").iterdir())[-1]
    encode(path, ENCODINGS["h264"], frames=3, height=192, width=256)
    upload(robot)
    gear_data.open(URL)[1:].save(tmp_path / "saved")
    saved = gear_data.open(tmp_path / "saved")
    found = [each for each in saved.manifest.findings if each["code"] == "video-statistics-left-out"]
    assert any("has 3 frames" in each["message"] for each in found), saved.manifest.findings
    np.testing.assert_array_equal(saved[0][CAMERAS[0]][:], gear_data.open(robot, convert=_SKIP)[1][CAMERAS[0]][:])


def test_local_and_remote_sets_together(server: S3Server, robot: Path, tmp_path: Path) -> None:
    """A camera of one name in a local set and in one in a bucket, whose other frames have another size."""
    shutil.copytree(robot, tmp_path / "local")
    upload(robot)
    before = {path: path.read_bytes() for path in (tmp_path / "local").rglob("*.mp4")}
    both, local = gear_data.open([tmp_path / "local", URL]), gear_data.open(robot)
    check_frames(both[4:], local)
    check_frames(both[:4], local)
    assert both.manifest.provenance["videos"]["unindexed"] == 6
    assert {path: path.read_bytes() for path in before} == before


def test_an_index_that_was_damaged_in_the_cache_is_read_again(
    server: S3Server, robot: Path, cache: Path, fetched: list[tuple[str, int]]
) -> None:
    upload(robot)
    check_frames(gear_data.open(URL), local := gear_data.open(robot))
    fetched.clear()
    kept = [path for path in (cache / "files").iterdir() if b"time_base" in path.read_bytes()]
    assert len(kept) == 6
    for number, path in enumerate(kept):
        data = path.read_bytes()
        path.write_bytes(data[: len(data) // 2] if number % 2 else data[:-40] + b"\1" + data[-39:])
    check_frames(gear_data.open(URL), local)
    assert len({name for name, _ in fetched}) == 6


def test_only_files_of_the_wanted_episodes_are_read(
    server: S3Server, robot: Path, fetched: list[tuple[str, int]]
) -> None:
    upload(robot)
    wanted = gear_data.ConvertOptions(episodes=gear_data.EpisodeBoundaries(only_episodes=(1, 3)))
    server.requests.clear()
    dataset = gear_data.open(URL, convert=wanted)
    names = {path.rpartition("/")[2].partition("?")[0] for _, path in server.requests}
    read = {name.partition(".")[0] for name in names if name.startswith("episode_")}
    assert read == {"episode_000001", "episode_000003"}
    check_frames(dataset, gear_data.open(robot)[[1, 3]])
    assert {name.rpartition("/")[2] for name, _ in fetched} == {"episode_000001.mp4", "episode_000003.mp4"}


def test_an_older_version_refuses_files_without_checksums(
    server: S3Server, robot: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    filesystem = upload(robot)
    late = gear_data.open(URL).path
    filesystem.rm(f"bucket/robot/{_EPISODES}")
    indexed = gear_data.open(URL).path
    for path, version in ((late, 6), (indexed, 4)):
        monkeypatch.setattr(manifests, "FORMAT_VERSION", version - 1)
        with pytest.raises(VersionError, match=f"version {version} is newer than {version - 1}"):
            gear_data.open(path)


def test_a_file_that_was_replaced_is_an_error(server: S3Server, robot: Path, cache: Path) -> None:
    # Frames that no other test has decoded.
    names = [f"videos/chunk-000/observation.images.wrist/episode_00000{number}.mp4" for number in range(2)]
    for number, name in enumerate(names):
        encode(robot / name, ENCODINGS["h264"], frames=80, height=192, width=256, seed=98 + number)
    filesystem = upload(robot)
    limit = (robot / names[0]).stat().st_size // 2
    dataset = pickle.loads(pickle.dumps(gear_data.open(URL, cache_bytes=limit)))
    frames = dataset[0][CAMERAS[1]][:]
    np.testing.assert_array_equal(frames, decoded(robot / names[0])[: len(frames)])
    assert 0 < sum(path.stat().st_size for path in (cache / "files").iterdir()) <= limit
    content = (robot / names[1]).read_bytes()
    for other in (content[:-100], content[:500] + b"\1" + content[501:]):
        filesystem.pipe_file(f"bucket/robot/{names[1]}", other)
        with pytest.raises(RemoteError, match=r"episode_000001.mp4: was replaced since the dataset was made"):
            dataset[1][CAMERAS[1]][:]


def test_files_without_one_index_are_read_whole(
    server: S3Server, robot: Path, fetched: list[tuple[str, int]], tmp_path: Path
) -> None:
    folder = robot / "videos/chunk-000/observation.images.front"
    first = folder / "episode_000000.mp4"
    remuxed(first, tmp_path / "fragmented.mp4", "frag_keyframe+empty_moov").replace(first)
    upload(robot)
    dataset = gear_data.open(URL)
    check_frames(dataset, gear_data.open(robot))
    sizes = {f"bucket/{file.relative_to(robot.parent)}": file.stat().st_size for file in folder.iterdir()}
    assert [name.rpartition("/")[2] for name, size in sizes.items() if (name, size) in fetched] == [first.name]


def test_frames_at_which_decoding_cannot_begin_are_an_error(server: S3Server, robot: Path) -> None:
    """With periodic intra refresh, a file says of incomplete pictures that they are key frames."""
    path = robot / "videos/chunk-000/observation.images.front/episode_000000.mp4"
    with av.open(str(path)) as container:
        frames = [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", 30, options={"x264-params": "intra-refresh=1:keyint=8:bframes=0"})
        stream.height, stream.width, stream.pix_fmt = *frames[0].shape[:2], "yuv420p"
        for frame in frames:
            container.mux(stream.encode(av.VideoFrame.from_ndarray(frame, format="rgb24")))
        container.mux(stream.encode())
    upload(robot)
    dataset, local = gear_data.open(URL), gear_data.open(robot)
    last = len(frames) - 1
    with pytest.raises(CorruptShardError, match="no whole picture, and its file says so"):
        dataset[0][CAMERAS[0]][last]
    whole = gear_data.open(URL, convert=gear_data.ConvertOptions(videos="frames"))
    np.testing.assert_array_equal(whole[0][CAMERAS[0]][last], local[0][CAMERAS[0]][last])


HUB = """
import sys
import numpy as np
import gear_data
from gear_data.errors import GearError
from gear_data.storage.videos import file_parts
from gear_data.storage.videos import pages

file_parts._FRONT_BYTES, pages.PAGE_BYTES = 16 << 10, 4 << 10
names, folder = sys.argv[1].split(","), sys.argv[2]
try:
    datasets = [gear_data.open(name) for name in names]
    local = gear_data.open(folder)
    if sys.stdin.readline().strip() == "read":
        for dataset in datasets:
            for episode in range(len(local)):
                for camera in local.schema.videos:
                    name = camera.name
                    np.testing.assert_array_equal(dataset[episode][name][:], local[episode][name][:])
            assert dataset.episodes["task"].to_list() == local.episodes["task"].to_list()
    print("equal", len(datasets[0]))
except GearError as error:
    print(type(error).__name__, error)
"""


@pytest.fixture
def hub() -> Iterator[Hub]:
    with running_hub() as hub:
        yield hub


def test_a_dataset_of_the_hub_is_read_at_one_commit(hub: Hub, robot: Path, tmp_path: Path, cache: Path) -> None:
    """The library reads HF_ENDPOINT when it is imported, so each client is a process."""
    files = {str(path.relative_to(robot)): path.read_bytes() for path in robot.rglob("*") if path.is_file()}
    videos = [name for name in files if name.endswith(".mp4")]

    def answer(names: str, text: str = "read", **environment: str) -> str:
        hub.requests.clear()
        known = {**os.environ, **hub.environment(), "HF_HOME": str(tmp_path / "home"), **environment}
        command = [python(), "-c", HUB, names, str(robot)]
        done = subprocess.run(
            command, env=known, cwd=tmp_path, text=True, input=f"{text}\n", capture_output=True, timeout=240
        )
        return done.stdout + done.stderr

    def video_requests() -> list[str]:
        return [line for line in hub.requests if ".mp4" in line]

    hub.add("me/robot", files)
    hub.repositories["me/robot"].private = True
    commit = hub.repositories["me/robot"].branches["main"][-1]
    opened = answer("me/robot", "open")
    assert "equal 4" in opened, opened
    assert len(video_requests()) <= 6  # of the first file of each camera
    tables = [name for name in files if name.endswith(".parquet")]
    assert sorted(line.partition(commit)[2][1:] for line in hub.requests if ".parquet" in line) == sorted(tables)
    assert all(f"/resolve/{commit}/" in line for line in video_requests())
    # The revision moves while a client reads.
    hub.on_request = lambda line: _move(hub, videos) if ".mp4" in line else None
    moved = answer("me/robot")
    assert "equal 4" in moved, moved
    assert all(f"/resolve/{commit}/" in line for line in video_requests())
    offline = answer("me/robot", HF_HUB_OFFLINE="1")
    assert "equal 4" in offline and "cannot reach the hub; using the conversion of" in offline
    assert not hub.requests
    assert "equal 4" in answer(f"me/robot@{commit},hf://datasets/me/robot@{commit}")
    for lost in ({"HF_HUB_OFFLINE": "1"}, {"HF_ENDPOINT": "http://127.0.0.1:9"}):  # nothing listens there
        gone = answer(f"me/robot,hf://datasets/me/robot@{commit}", "open", **lost)
        assert "equal 4" in gone and gone.count("cannot reach the hub; using the conversion of") == 2, gone
    hidden = {"HF_TOKEN": f"{TOKEN}x"}
    for name, environment in (("me/absent", {}), ("me/robot@v9", {}), ("me/robot", hidden)):
        failed = answer(name, **environment)
        assert f"SourceNotFoundError {name}: no such file or folder, and it cannot be read as a hub" in failed, failed


def test_a_hub_that_limits_requests_is_an_error(hub: Hub, robot: Path, tmp_path: Path, cache: Path) -> None:
    files = {str(path.relative_to(robot)): path.read_bytes() for path in robot.rglob("*") if path.is_file()}
    hub.add("me/robot", files)
    hub.on_request = lambda line: 429 if ".mp4" in line else None
    known = {**os.environ, **hub.environment(), "HF_HOME": str(tmp_path / "home")}
    command = [python(), "-c", HUB, "hf://datasets/me/robot", str(robot)]
    done = subprocess.run(command, env=known, cwd=tmp_path, text=True, capture_output=True, timeout=240)
    assert "the server limits how often it is asked (429); waiting" in done.stderr
    assert "RemoteError videos/" in done.stdout and "log in (the hub allows more requests then)" in done.stdout


def _move(hub: Hub, videos: list[str]) -> None:
    """Adds a commit in which every video file is another one."""
    hub.on_request = lambda line: None
    repository = hub.repositories["me/robot"]
    repository.commits["f" * 40] = {**repository.files(), **dict.fromkeys(videos, b"another file")}
    repository.branches["main"].append("f" * 40)


class _WebServer(SimpleHTTPRequestHandler):
    """Lists folders as HTML, and sends ranges if the class says so."""

    ranges = True

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_GET(self) -> None:
        path = Path(self.translate_path(self.path))
        wanted = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        if wanted is None or not self.ranges or not path.is_file():
            return super().do_GET()
        data = path.read_bytes()[int(wanted[1]) : int(wanted[2]) + 1]
        self.send_response(206)
        self.send_header("Content-Length", str(len(data)))
        self.send_header("Content-Range", f"bytes {wanted[1]}-{int(wanted[1]) + len(data) - 1}/{path.stat().st_size}")
        self.end_headers()
        self.wfile.write(data)


@contextmanager
def web_server(folder: Path, *, ranges: bool) -> Iterator[str]:
    handler = type("Handler", (_WebServer,), {"ranges": ranges})
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(handler, directory=str(folder)))
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/robot/"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def test_a_web_server_with_ranges(robot: Path, cache: Path) -> None:
    local = gear_data.open(robot)
    with web_server(robot.parent, ranges=True) as url:
        check_frames(gear_data.open(url), local)


def test_a_web_server_without_ranges_is_an_error(robot: Path, cache: Path) -> None:
    with web_server(robot.parent, ranges=False) as url:
        dataset = gear_data.open(url)
        with pytest.raises(RemoteError, match=r"does not support range requests[\s\S]*download the file first"):
            dataset[0][CAMERAS[0]][:]
        with pytest.raises(GearError, match="absent"):
            gear_data.open(url.replace("robot", "absent"))


def test_files_of_a_dataset_at_a_web_server_need_sizes(robot: Path, cache: Path, tmp_path: Path) -> None:
    gear_data.convert(robot, tmp_path / "web" / "robot", videos="link", progress=False)
    with web_server(tmp_path / "web", ranges=True) as url, pytest.raises(RemoteError, match="does not list sizes"):
        gear_data.open(url)
