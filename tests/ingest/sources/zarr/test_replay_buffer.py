"""Tests of replay buffers, which `zarr` itself writes and reads."""

from __future__ import annotations

import json
import sys
import tracemalloc
import zipfile
from pathlib import Path
from typing import Any

import imagecodecs
import numpy as np
import numpy.typing as npt
import pytest
import zarr
from imagecodecs.numcodecs import Jpegxl, register_codecs

import gear_data
from gear_data.errors import (
    BadEpisodeError,
    CorruptSourceError,
    MissingExtraError,
    UnknownFormatError,
    UnsupportedColumnError,
)
from gear_data.ingest.location import locate
from gear_data.ingest.source import SourceOptions
from gear_data.ingest.sources.registry import open_source
from gear_data.ingest.videos.storage_options import VideoStorage
from gear_data.storage.episode_block import BEGIN, END
from tests.support.checks import warning_codes

Arrays = dict[str, npt.NDArray[Any]]
_LENGTHS = (5, 1, 9, 3)


def pusht(lengths: tuple[int, ...] = _LENGTHS, seed: int = 0) -> Arrays:
    """Returns arrays as in `pusht_cchi_v7_replay.zarr`, of smaller images."""
    rng = np.random.default_rng(seed)
    rows = sum(lengths)
    return {
        "action": rng.normal(size=(rows, 2)).astype(np.float32),
        "img": rng.integers(0, 255, (rows, 12, 10, 3)).astype(np.float32),
        "keypoint": rng.normal(size=(rows, 9, 2)).astype(np.float32),
        "n_contacts": rng.integers(0, 3, (rows, 1)).astype(np.float32),
        "state": rng.normal(size=(rows, 5)).astype(np.float32),
    }


def umi(lengths: tuple[int, ...] = _LENGTHS) -> Arrays:
    """Returns the arrays of UMI's `07_generate_replay_buffer.py` for one gripper."""
    rng = np.random.default_rng(0)
    rows = sum(lengths)
    y, x = np.mgrid[:24, :32]
    frames = [np.stack([x * 7 + t, y * 9, x + y + t], -1) % 256 for t in range(rows)]
    return {
        "camera0_rgb": np.stack(frames).astype(np.uint8),
        "robot0_demo_start_pose": rng.normal(size=(rows, 6)),
        "robot0_eef_pos": rng.normal(size=(rows, 3)).astype(np.float32),
        "robot0_gripper_width": rng.normal(size=(rows, 1)).astype(np.float32),
    }


register_codecs(verbose=False)


def write(path: Path, arrays: Arrays, lengths: tuple[int, ...] = _LENGTHS, version: int = 2) -> Path:
    """Writes a replay buffer: a folder, or an archive if the path ends with `.zip`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    store: Any = zarr.storage.ZipStore(path, mode="w") if path.suffix == ".zip" else path
    group = zarr.open_group(store, mode="w", zarr_format=version)
    for name, values in arrays.items():
        is_video = name.startswith("camera")
        chunks = (1 if is_video else 7, *values.shape[1:])
        options: dict[str, Any] = {"compressors": Jpegxl(level=99, lossless=False, numthreads=1)} if is_video else {}
        group.create_array(f"data/{name}", shape=values.shape, chunks=chunks, dtype=values.dtype, **options)[...] = (
            values
        )
    ends = np.cumsum(lengths).astype(np.int64)
    group.create_array("meta/episode_ends", shape=ends.shape, dtype=ends.dtype)[...] = ends
    if path.suffix == ".zip":
        store.close()
    return path


def steps_of(dataset: gear_data.Dataset, name: str) -> npt.NDArray[Any]:
    return np.concatenate([np.asarray(dataset.episode(i)[name]) for i in range(dataset.num_episodes)])


_PUSHT_NAMES = {
    "action": "actions",
    "state": "observations",
    "img": "observations.img",
    "keypoint": "observations.keypoint",
    "n_contacts": "n_contacts",
}


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("name", ["pusht_cchi_v7_replay.zarr", "pusht.zarr.zip"])
def test_rows_are_those_of_zarr(name: str, version: int, tmp_path: Path) -> None:
    path = write(tmp_path / name, pusht(), version=version)
    report = gear_data.convert(path, tmp_path / "d")
    assert (report.format, report.episodes, report.steps) == ("zarr", len(_LENGTHS), sum(_LENGTHS))
    assert "episode_ends" in report.reason
    dataset = gear_data.open(tmp_path / "d")
    root = zarr.open_group(zarr.storage.ZipStore(path) if path.suffix == ".zip" else path, mode="r")
    ends = root["meta/episode_ends"][...]
    assert dataset.episodes["length"].to_list() == np.diff(ends, prepend=0).tolist()
    for source, column in _PUSHT_NAMES.items():
        expected = root[f"data/{source}"][...]
        assert dataset.schema[column].dtype == expected.dtype.name
        np.testing.assert_array_equal(steps_of(dataset, column), expected, column)
    np.testing.assert_array_equal(np.flatnonzero(steps_of(dataset, "truncated")), ends - 1)
    assert not steps_of(dataset, "terminated").any()


def test_batches_are_rows_of_zarr(tmp_path: Path) -> None:
    path = write(tmp_path / "pusht.zarr", pusht())
    gear_data.convert(path, tmp_path / "d")
    root = zarr.open_group(path, mode="r")
    number = {tuple(row): i for i, row in enumerate(root["data/action"][...].tolist())}
    names = ["observations", "observations.img", "actions"]
    loader = gear_data.SequenceLoader(gear_data.open(tmp_path / "d"), batch_size=4, context=3, columns=names, steps=30)
    seen = set()
    for batch in loader:
        mask = np.asarray(batch["mask"]).astype(bool)
        rows = [number[tuple(row)] for row in np.asarray(batch["actions"])[mask].tolist()]
        seen.update(rows)
        for source, column in (("state", "observations"), ("img", "observations.img")):
            np.testing.assert_array_equal(np.asarray(batch[column])[mask], root[f"data/{source}"][...][rows])
    assert len(seen) == sum(_LENGTHS)


def test_umis_images_are_what_its_codec_decodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "dataset.zarr.zip", umi())
    gear_data.convert(path, tmp_path / "d")
    dataset = gear_data.open(tmp_path / "d")
    root = zarr.open_group(zarr.storage.ZipStore(path), mode="r")
    for name in umi():
        np.testing.assert_array_equal(steps_of(dataset, f"observations.{name}"), root[f"data/{name}"][...], name)
    assert dataset.schema["observations.camera0_rgb"].shape == (24, 32, 3)
    monkeypatch.setitem(sys.modules, "imagecodecs", None)
    with pytest.raises(MissingExtraError, match=r"imagecodecs cannot be imported(.|\n)*gear-data\[umi\]"):
        gear_data.convert(path, tmp_path / "e")
    gear_data.convert(path, tmp_path / "e", columns=["robot0_eef_pos"])
    assert "observations.robot0_eef_pos" in gear_data.open(tmp_path / "e").schema.names


def test_an_image_of_another_shape_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "a.zarr", umi())
    frame = imagecodecs.jpegxl_encode(np.zeros((240, 32, 3), np.uint8))
    (path / "data/camera0_rgb/3.0.0.0").write_bytes(frame)
    with pytest.raises(CorruptSourceError, match=r"camera0_rgb/3\.0\.0\.0: cannot be decompressed"):
        gear_data.convert(path, tmp_path / "d")


def test_state_gives_way_to_another_observation(tmp_path: Path) -> None:
    arrays = pusht()
    arrays["obs"] = arrays["keypoint"].reshape(-1, 18)
    gear_data.convert(write(tmp_path / "a.zarr", arrays), tmp_path / "d")
    names = gear_data.open(tmp_path / "d").schema.names
    assert {"observations", "observations.state"} <= set(names)
    gear_data.convert(
        write(tmp_path / "b.zarr", pusht()), tmp_path / "e", rename={"keypoint": "observations", "state": "infos.state"}
    )
    dataset = gear_data.open(tmp_path / "e")
    np.testing.assert_array_equal(steps_of(dataset, "observations"), pusht()["keypoint"])
    np.testing.assert_array_equal(steps_of(dataset, "infos.state"), pusht()["state"])


def test_several_stores_are_one_dataset(tmp_path: Path) -> None:
    write(tmp_path / "in/a.zarr", pusht(seed=1))
    write(tmp_path / "in/b.zarr.zip", pusht((4, 2), seed=2), (4, 2))
    (tmp_path / "in/videos/0").mkdir(parents=True)
    (tmp_path / "in/videos/0/0.mp4").write_bytes(b"x")
    report = gear_data.convert(tmp_path / "in", tmp_path / "d")
    assert report.episodes == len(_LENGTHS) + 2
    assert "files-left-out" in warning_codes(report)
    options = SourceOptions(videos=VideoStorage(cameras={"observations.images.top": "videos/*/0.mp4"}))
    named, _, _ = open_source(locate(str(tmp_path / "in"), None), "auto", options)
    assert "files-left-out" not in {finding.code for finding in named.findings}
    dataset = gear_data.open(tmp_path / "d")
    assert set(dataset.episodes["source"]) == {"a.zarr", "b.zarr.zip"}
    expected = np.concatenate([pusht(seed=1)["action"], pusht((4, 2), seed=2)["action"]])
    np.testing.assert_array_equal(steps_of(dataset, "actions"), expected)
    other = zarr.open_group(tmp_path / "in/other.zarr", mode="w", zarr_format=2)
    other.create_array("x", shape=(3,), dtype="f4")
    with pytest.raises(UnknownFormatError, match=r"stores without data and meta/episode_ends: other\.zarr"):
        gear_data.convert(tmp_path / "in", tmp_path / "e")


@pytest.mark.parametrize("inside", ["", "pusht/a.zarr/"])
def test_a_store_beside_its_archive_is_refused(inside: str, tmp_path: Path) -> None:
    store = write(tmp_path / "in/pusht/a.zarr", pusht())
    archive = tmp_path / ("in/pusht.zip" if inside else "in/pusht/a.zarr.zip")
    with zipfile.ZipFile(archive, "w") as file:
        for path in store.rglob("*"):
            file.write(path, f"{inside}{path.relative_to(store)}")
    with pytest.raises(UnknownFormatError, match=r"would be read twice(.|\n)*convert one of the two: pusht/a\.zarr"):
        gear_data.convert(tmp_path / "in", tmp_path / "d")
    assert gear_data.convert(archive, tmp_path / "d").episodes == len(_LENGTHS)


def test_facts_of_episodes_and_of_the_store(tmp_path: Path) -> None:
    path = write(tmp_path / "a.zarr", pusht())
    group = zarr.open_group(path, mode="a")
    group.attrs["robot"] = "ur5"
    group.create_array("meta/success", shape=(4,), dtype="i8")[...] = [0, 1, 1, 0]
    group.create_array("meta/other", shape=(2, 2), dtype="i8")[...] = 1
    report = gear_data.convert(path, tmp_path / "d")
    dataset = gear_data.open(tmp_path / "d")
    assert dataset.episodes["success"].to_list() == [0, 1, 1, 0]
    assert dataset.manifest.provenance["metadata"]["robot"] == "ur5"
    assert "fact-left-out" in warning_codes(report)


@pytest.mark.parametrize(
    ("ends", "message"),
    [
        ([5, 4, 15, 18], "'meta/episode_ends', row 1: ends at row 4, but the episode before ends at row 5"),
        ([-1, 6, 15, 18], "'meta/episode_ends', row 0: ends at row -1"),
        ([5, 6, 15, 19], "'data/action', row 18: has 18 rows, but the last episode ends at row 19"),
        ([5, 5, 15, 18], "'meta/episode_ends', row 1: the episode has no steps"),
        ([5, 6, 15, 16], "row 16: rows follow the last episode"),
    ],
)
def test_ends_that_do_not_fit(ends: list[int], message: str, tmp_path: Path) -> None:
    path = write(tmp_path / "a.zarr", pusht())
    zarr.open_group(path, mode="a")["meta/episode_ends"][...] = ends
    with pytest.raises(BadEpisodeError, match=message):
        gear_data.convert(path, tmp_path / "d")
    if "no steps" in message or "follow" in message:
        report = gear_data.convert(path, tmp_path / "d", on_bad_episode="skip")
        assert (report.episodes, report.steps) == (3 if "no steps" in message else 4, ends[-1])
        np.testing.assert_array_equal(
            steps_of(gear_data.open(tmp_path / "d"), "actions"), pusht()["action"][: ends[-1]]
        )


def test_chunks_that_are_missing_are_reported(tmp_path: Path) -> None:
    path = write(tmp_path / "a.zarr", pusht())
    (path / "data/state/1.0").unlink()
    report = gear_data.convert(path, tmp_path / "d")
    assert "missing-chunks" in warning_codes(report)
    expected = pusht()["state"]
    expected[7:14] = 0
    np.testing.assert_array_equal(steps_of(gear_data.open(tmp_path / "d"), "observations"), expected)


def test_objects_are_refused_and_can_be_left_out(tmp_path: Path) -> None:
    path = write(tmp_path / "a.zarr", pusht())
    metadata = (path / "data/keypoint/.zarray").read_text()
    (path / "data/keypoint/.zarray").write_text(metadata.replace('"<f4"', '"|O"'))
    with pytest.raises(UnsupportedColumnError, match="'keypoint': holds object"):
        gear_data.convert(path, tmp_path / "d")
    gear_data.convert(path, tmp_path / "d", columns=["action", "state"])


def test_blocks_are_read_in_bounded_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gear_data.ingest.sources.arrays.source._BLOCK_BYTES", 1 << 20)
    lengths = (50,) * 40
    frames = np.broadcast_to(np.arange(2000, dtype=np.uint16)[:, None, None, None], (2000, 40, 40, 3))  # 19 MB
    path = write(tmp_path / "a.zarr", {"img": frames}, lengths)
    source, _, _ = open_source(locate(path, None), "auto", SourceOptions())
    row, peak = 0, 0
    tracemalloc.start()
    for block in source.blocks(BEGIN, END):
        peak = max(peak, tracemalloc.get_traced_memory()[1])
        images = block.columns["observations.img"]
        assert (images == frames[row : row + len(images)]).all()
        row += len(images)
        tracemalloc.reset_peak()
    tracemalloc.stop()
    assert row == 2000
    assert peak < 6 << 20


def test_more_axes_than_an_array_has_are_refused(tmp_path: Path) -> None:
    arrays = {"action": np.zeros((sum(_LENGTHS), 2), np.float32)}
    store = write(tmp_path / "a.zarr", arrays)
    described = json.loads((store / "data/action/.zarray").read_text())
    described |= {"shape": [described["shape"][0], *[1] * 70], "chunks": [7, *[1] * 70]}
    (store / "data/action/.zarray").write_text(json.dumps(described))
    (store / "data/.zmetadata").unlink(missing_ok=True)
    with pytest.raises(UnsupportedColumnError, match="has more than 62 axes"):
        gear_data.convert(store, tmp_path / "d")
