"""LeRobot sets in place in Google Cloud Storage and in Azure, beside the same set on this machine."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

import gear_data
from gear_data import SequenceLoader
from gear_data.errors import RemoteError
from gear_data.storage.remote import range_reader
from gear_data.storage.remote.range_reader import filesystem_of
from gear_data.storage.remote.range_requests import contents_name
from gear_data.storage.videos import file_parts, pages
from tests.support.makers.videos import lerobot_videos
from tests.support.remote import check_equal_batches
from tests.support.rollouts import make_rollouts
from tests.support.running.clouds import azure_server, google_server

pytestmark = pytest.mark.processes

CAMERAS = ("observations.images.front", "observations.images.wrist")


@pytest.fixture
def robot(tmp_path: Path) -> Path:
    """A LeRobot set with two cameras, of three episodes."""
    rollouts = [each for each in make_rollouts(20, seed=3, max_length=80) if len(each) > 40]
    lerobot_videos(tmp_path / "robot", rollouts[:3])
    return tmp_path / "robot"


@pytest.fixture(params=["google", "azure"])
def bucket(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The URL of a folder in a bucket."""
    (tmp_path / "server").mkdir()
    with google_server() if request.param == "google" else azure_server(tmp_path / "server") as url:
        yield f"{url}/robot"


@pytest.mark.parametrize(("protocol", "info"), [
    (("gs", "gcs"), {"generation": "1732741200000000"}),
    ("abfs", {"etag": '"0x8DD0F0C9E2B1C00"'}),
])  # fmt: skip
def test_two_files_of_one_moment_have_other_contents(protocol: Any, info: dict[str, str]) -> None:
    """Generations and the ETags of Azure are times, and pages in the cache are named by them."""
    filesystem = SimpleNamespace(protocol=protocol)
    names = [contents_name(filesystem, path, info) for path in ("bucket/a.mp4", "bucket/b.mp4")]
    assert all(names) and names[0] != names[1]
    assert not contents_name(filesystem, "bucket/a.mp4", {})


def test_a_set_with_videos_is_read_in_place(
    bucket: str, robot: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_parts, "_FRONT_BYTES", 4 << 10)
    monkeypatch.setattr(pages, "PAGE_BYTES", 4 << 10)
    filesystem, place = filesystem_of(bucket)
    filesystem.put(f"{robot}/", place, recursive=True)
    fetched, request = list[int](), range_reader.request_range

    def counted(filesystem: Any, path: str, first: int, last: int, contents: str = "") -> bytes:
        fetched.append(last - first if path.endswith(".mp4") else 0)
        return request(filesystem, path, first, last, contents)

    monkeypatch.setattr(range_reader, "request_range", counted)
    dataset, local = gear_data.open(bucket), gear_data.open(robot)
    assert 0 < sum(fetched) < sum(file.stat().st_size for file in robot.rglob("*.mp4")) * 0.8
    views = dataset[:2], local[:2]
    assert check_equal_batches(*views, columns=[*CAMERAS], preset="raw", framework="numpy", steps=4) == 4
    for camera in CAMERAS:
        np.testing.assert_array_equal(dataset[0][camera][:], local[0][camera][:])
    # A forked worker has file systems of its own.
    fresh = gear_data.open(bucket, cache_dir=tmp_path / "other")[1:2]
    fetched.clear()
    loaders = [
        SequenceLoader(each, batch_size=4, context=3, steps=2, columns=[*CAMERAS]) for each in (fresh, local[1:2])
    ]
    for batch, other in zip(DataLoader(loaders[0], batch_size=None, num_workers=1), loaders[1], strict=True):
        for camera in CAMERAS:
            assert torch.equal(batch[camera], other[camera])
    # A file of as many bytes takes the place of another.
    name = "videos/chunk-000/observation.images.front/episode_000002.mp4"
    changed = (robot / name).read_bytes()
    filesystem.pipe_file(f"{place}/{name}", changed[:500] + bytes(len(changed) - 500))
    with pytest.raises(RemoteError, match=r"episode_000002.mp4: was replaced since the dataset was made"):
        dataset[2][CAMERAS[0]][:]
    filesystem.rm(f"{place}/{name}")
    with pytest.raises(RemoteError, match=r"episode_000002.mp4: (the file no longer exists|was replaced)"):
        dataset[2][CAMERAS[0]][:]
