"""Tests of ALOHA's files. A plain loop over h5py is the independent reading."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image

import gear_data
from gear_data.errors import BadEpisodeError, CorruptSourceError, UnknownFormatError, UnsupportedColumnError
from tests.support.checks import warning_codes

_LENGTHS = (5, 1, 9, 3)
_CAMERAS = ("cam_high", "cam_left_wrist")


def jpeg(seed: int) -> bytes:
    """Returns a JPEG file whose length depends on the seed."""
    pixels = np.random.default_rng(seed).integers(0, 255, (16, 24, 3), np.uint8)
    pixels[:, : 3 * (seed % 7)] = 0
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "JPEG", quality=50)
    return file.getvalue()


def jpegs(camera: str, episode: int, steps: int) -> list[bytes]:
    return [jpeg(1000 * _CAMERAS.index(camera) + 20 * episode + t) for t in range(steps)]


def write(folder: Path, kind: str = "raw", lengths: tuple[int, ...] = _LENGTHS) -> Path:
    """Writes files as `record_episodes.py` does.

    The kinds are raw pixels, padded JPEG files, and JPEG files as text or bytes.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for i, steps in enumerate(lengths):
        rng = np.random.default_rng(i)
        with h5py.File(folder / f"episode_{i}.hdf5", "w") as file:
            file.attrs["sim"] = False
            file["action"] = rng.normal(size=(steps, 14)).astype(np.float32)
            file["base_action"] = rng.normal(size=(steps, 2)).astype(np.float32)
            for name in ("qpos", "qvel", "effort"):
                file[f"observations/{name}"] = rng.normal(size=(steps, 14)).astype(np.float32)
            if kind == "raw":
                for camera in _CAMERAS:
                    shape = (steps, 16, 24, 3)
                    pixels = rng.integers(0, 255, shape, np.uint8)
                    file.create_dataset(f"observations/images/{camera}", data=pixels, chunks=(1, *shape[1:]))
                continue
            file.attrs["compress"] = True
            for camera in _CAMERAS:
                write_encoded(file, f"observations/images/{camera}", jpegs(camera, i, steps), kind)
            # The order of the cameras in the task's configuration is not the order of their names.
            file["compress_len"] = [
                np.array(list(map(len, jpegs(camera, i, steps))), np.float32) for camera in reversed(_CAMERAS)
            ]
    return folder


def write_encoded(file: h5py.File, path: str, images: list[bytes], kind: str) -> None:
    width = max(map(len, images))
    if kind == "padded":
        padded = np.zeros((len(images), width + 5), np.uint8)
        for row, image in zip(padded, images, strict=True):
            row[: len(image)] = np.frombuffer(image, np.uint8)
        file.create_dataset(path, data=padded, chunks=(1, padded.shape[1]))
    elif kind == "text":  # RDT's files
        file.create_dataset(path, data=images, dtype=f"S{width}")
    else:
        file.create_dataset(path, (len(images),), dtype=h5py.vlen_dtype(np.uint8))
        for t, image in enumerate(images):
            file[path][t] = np.frombuffer(image, np.uint8)


def files_of(folder: Path) -> list[Path]:
    return [folder / f"episode_{i}.hdf5" for i in range(len(list(folder.iterdir())))]


def steps_of(dataset: gear_data.Dataset, name: str) -> npt.NDArray[Any]:
    return np.concatenate([np.asarray(dataset.episode(i)[name]) for i in range(dataset.num_episodes)])


def test_rows_are_those_of_h5py(tmp_path: Path) -> None:
    folder = write(tmp_path / "in", lengths=(*_LENGTHS, 2, 4, 6, 2, 1, 3, 2, 4))  # 12 files: 10 comes after 9
    report = gear_data.convert(folder, tmp_path / "d")
    assert report.format == "act"
    dataset = gear_data.open(tmp_path / "d")
    assert dataset.episodes["source"].to_list() == [path.name for path in files_of(folder)]
    assert dataset.episodes["sim"].to_list() == [False] * 12
    names = {"action": "actions", "base_action": "base_action"}
    names |= {f"observations/{name}": f"observations.{name}" for name in ("qpos", "qvel", "effort")}
    names |= {f"observations/images/{camera}": f"observations.images.{camera}" for camera in _CAMERAS}
    for source, column in names.items():
        expected = []
        for path in files_of(folder):
            with h5py.File(path) as file:
                expected += list(file[source][()])
        found = steps_of(dataset, column)
        assert found.dtype == expected[0].dtype
        np.testing.assert_array_equal(found, np.stack(expected), source)
    assert steps_of(dataset, "truncated").sum() == 12
    assert warning_codes(report) == ["no-end-flag"]


@pytest.mark.parametrize("kind", ["padded", "text", "bytes"])
def test_jpeg_files_lose_their_padding(kind: str, tmp_path: Path) -> None:
    folder = write(tmp_path / "in", kind)
    report = gear_data.convert(folder, tmp_path / "encoded", keep_encoded=True)
    assert "metadata-disagrees" not in warning_codes(report)
    assert "channel order" in report.reason
    encoded = gear_data.open(tmp_path / "encoded")
    gear_data.convert(folder, tmp_path / "decoded")
    decoded = gear_data.open(tmp_path / "decoded")
    for camera in _CAMERAS:
        expected = [image for i, steps in enumerate(_LENGTHS) for image in jpegs(camera, i, steps)]
        found = [image for i in range(len(_LENGTHS)) for image in encoded.episode(i)[f"observations.images.{camera}"]]
        assert found == expected
        pixels = np.stack([np.asarray(Image.open(io.BytesIO(image))) for image in expected])
        np.testing.assert_array_equal(steps_of(decoded, f"observations.images.{camera}"), pixels)
    assert decoded.episodes["compress"].to_list() == [True] * len(_LENGTHS)
    assert "compress_len" not in decoded.schema.names


def test_batches_are_rows_of_h5py(tmp_path: Path) -> None:
    folder = write(tmp_path / "in")
    gear_data.convert(folder, tmp_path / "d")
    rows = {}
    for path in files_of(folder):
        with h5py.File(path) as file:
            actions, images = file["action"][()], file["observations/images/cam_high"][()]
            rows |= {tuple(action): image for action, image in zip(actions.tolist(), images, strict=True)}
    columns = ["actions", "observations.images.cam_high"]
    dataset, seen = gear_data.open(tmp_path / "d"), set()
    for batch in gear_data.SequenceLoader(dataset, batch_size=8, context=2, columns=columns, steps=20):
        mask = np.asarray(batch["mask"]).astype(bool)
        keys = [tuple(action) for action in np.asarray(batch["actions"])[mask].tolist()]
        seen.update(keys)
        found = np.asarray(batch["observations.images.cam_high"])[mask]
        np.testing.assert_array_equal(found, np.stack([rows[key] for key in keys]))
    assert len(seen) == sum(_LENGTHS)


def test_lengths_that_are_wrong_or_absent(tmp_path: Path) -> None:
    folder = write(tmp_path / "in", "padded")
    with h5py.File(folder / "episode_0.hdf5", "r+") as file:
        file["compress_len"][1, 2] += 3
    with h5py.File(folder / "episode_2.hdf5", "r+") as file:
        del file["compress_len"]
    report = gear_data.convert(folder, tmp_path / "d", keep_encoded=True)
    assert "metadata-disagrees" in warning_codes(report)
    dataset = gear_data.open(tmp_path / "d")
    for i in (0, 2):
        assert list(dataset.episode(i)["observations.images.cam_high"]) == jpegs("cam_high", i, _LENGTHS[i])


def test_depth_and_rows_per_episode(tmp_path: Path) -> None:
    folder = write(tmp_path / "in", lengths=(1, 4, 3))
    for i, path in enumerate(files_of(folder)):
        with h5py.File(path, "r+") as file:
            steps = len(file["action"])
            file["observations/images_depth/cam_high"] = np.full((steps, 8, 8), i, np.uint16)
            file["success"] = np.array([i == 1])
            file["instruction"] = "fold the towel"
    report = gear_data.convert(folder, tmp_path / "d")
    dataset = gear_data.open(tmp_path / "d")
    assert "row-per-episode" in warning_codes(report)
    assert dataset.episodes["success"].to_list() == [False, True, False]
    assert dataset.episodes["instruction"].to_list() == ["fold the towel"] * 3
    np.testing.assert_array_equal(
        steps_of(dataset, "observations.images_depth.cam_high")[:, 0, 0], [0, *[1] * 4, *[2] * 3]
    )


def test_other_files_in_the_folder_are_listed(tmp_path: Path) -> None:
    folder = write(tmp_path / "in")
    with h5py.File(folder / "features.hdf5", "w") as file:
        file["features"] = np.zeros((4, 2))
    with pytest.raises(UnknownFormatError, match=r"1 of 5 files lack action(.|\n)*features\.hdf5"):
        gear_data.convert(folder, tmp_path / "d")
    report = gear_data.convert(folder, tmp_path / "d", on_bad_episode="skip")
    assert report.episodes == 4
    assert "bad-episode" in warning_codes(report)


def test_episodes_that_do_not_fit(tmp_path: Path) -> None:
    folder = write(tmp_path / "in")
    with h5py.File(folder / "episode_2.hdf5", "r+") as file:
        del file["observations/qvel"]
        file["observations/qvel"] = np.zeros((8, 14), np.float32)
    with pytest.raises(BadEpisodeError, match=r"episode_2\.hdf5, column 'observations/qvel', .*has 8 rows, where 9"):
        gear_data.convert(folder, tmp_path / "d")
    assert gear_data.convert(folder, tmp_path / "d", on_bad_episode="skip").episodes == 3
    (folder / "episode_3.hdf5").write_bytes((folder / "episode_3.hdf5").read_bytes()[:3000])
    with pytest.raises(CorruptSourceError, match=r"episode_3\.hdf5"):
        gear_data.convert(folder, tmp_path / "e", on_bad_episode="skip")


def test_links_are_not_followed(tmp_path: Path) -> None:
    folder = write(tmp_path / "in", lengths=(4,))
    with h5py.File(folder / "episode_0.hdf5", "r+") as file:
        file["observations/images/cam_high_2"] = h5py.ExternalLink("/etc/passwd", "x")
    with pytest.raises(UnsupportedColumnError, match="an external link, which is not followed"):
        gear_data.convert(folder, tmp_path / "d")
    gear_data.convert(folder, tmp_path / "d", columns=["action", "observations/qpos"])
