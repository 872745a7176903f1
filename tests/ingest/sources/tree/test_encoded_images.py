"""Encoded images in trees, as bytes of several lengths, or padded with zeros to one length.

tests/ingest/test_ideas.py has the images of one length without a mapping, in every format.
"""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from PIL import Image

import gear_data
from tests.support.checks import warning_codes

STEPS, EPISODES = 6, 2
#: Layout -> paths of actions and images of an episode.
LAYOUTS = {
    "tree": ("ep_{}/action", "ep_{}/observation/cam/rgb"),
    "datasets": ("actions_{}", "rgb_{}"),
    "robomimic": ("data/demo_{}/actions", "data/demo_{}/obs/rgb"),
}
MAPPINGS: dict[str, Any] = {
    "tree": {"episodes": {"groups": "ep_*"}, "columns": {"actions": "action", "rgb": "observation/cam/rgb"}},
    "datasets": {"episodes": {"datasets": "actions_*"}, "columns": {"actions": "actions_*", "rgb": "rgb_*"}},
    "robomimic": {"episodes": {"groups": "data/demo_*"}, "columns": {"actions": "actions", "rgb": "obs/rgb"}},
}


def frames(kind: str, episode: int) -> list[bytes]:
    found = []
    for t in range(STEPS):
        pixels = np.full((24, 32, 3), 40 + 10 * t + episode, np.uint8)
        pixels[: t + 1] = 255
        file = io.BytesIO()
        Image.fromarray(pixels).save(file, kind)
        found.append(file.getvalue())
    return found


def write(path: Path, layout: str, kind: str, form: str) -> list[list[bytes]]:
    action, image = LAYOUTS[layout]
    written = [frames(kind, i) for i in range(EPISODES)]
    with h5py.File(path, "w") as file:
        for i, files in enumerate(written):
            file[action.format(i)] = np.ones((STEPS, 2))
            width = max(map(len, files)) + 3
            if form == "text":
                file[image.format(i)] = np.array(files, f"S{width}")
            elif form == "rows":
                file[image.format(i)] = np.array([np.frombuffer(f.ljust(width, b"\0"), np.uint8) for f in files])
            else:
                file.create_dataset(image.format(i), (STEPS,), h5py.vlen_dtype(np.uint8))
                for t, data in enumerate(files):
                    file[image.format(i)][t] = np.frombuffer(data, np.uint8)
    return written


def images_of(dataset: gear_data.Dataset, episode: int) -> Any:
    (name,) = (name for name in dataset.schema.names if "rgb" in name)
    return dataset.episode(episode)[name]


@pytest.mark.parametrize(("form", "mapped"), [("text", True), ("rows", True), ("bytes", False), ("bytes", True)])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_images_are_decoded_in_every_layout(layout: str, form: str, mapped: bool, tmp_path: Path) -> None:
    written = write(tmp_path / "a.h5", layout, "JPEG", form)
    mapping = MAPPINGS[layout] if mapped else None
    gear_data.convert(tmp_path / "a.h5", tmp_path / "pixels", mapping=mapping, progress=False)
    gear_data.convert(tmp_path / "a.h5", tmp_path / "files", mapping=mapping, keep_encoded=True, progress=False)
    pixels, files = gear_data.open(tmp_path / "pixels"), gear_data.open(tmp_path / "files")
    for i in range(EPISODES):
        expected = np.stack([np.asarray(Image.open(io.BytesIO(data))) for data in written[i]])
        np.testing.assert_array_equal(images_of(pixels, i), expected)
        assert list(images_of(files, i)) == written[i]


def test_a_first_frame_that_was_lost_does_not_hide_the_images(tmp_path: Path) -> None:
    write(tmp_path / "a.h5", "tree", "JPEG", "rows")
    with h5py.File(tmp_path / "a.h5", "r+") as file:
        file["ep_0/observation/cam/rgb"][0] = 0
    report = gear_data.convert(tmp_path / "a.h5", tmp_path / "d", progress=False)
    assert "images-kept-encoded" in warning_codes(report)
    (column,) = (spec for spec in gear_data.open(tmp_path / "d").schema if "rgb" in spec.name)
    assert column.dtype == "binary"


def test_vectors_of_bytes_stay_numbers(tmp_path: Path) -> None:
    vectors = np.random.default_rng(0).integers(0, 255, (STEPS, 40), np.uint8)
    with h5py.File(tmp_path / "a.h5", "w") as file:
        for i in range(EPISODES):
            file[f"ep_{i}/action"], file[f"ep_{i}/tokens"] = np.ones((STEPS, 2)), vectors
            file[f"ep_{i}/note"] = np.array([b"left", b"right"] * 3)
    gear_data.convert(tmp_path / "a.h5", tmp_path / "d", progress=False)
    dataset = gear_data.open(tmp_path / "d")
    np.testing.assert_array_equal(dataset.episode(1)["tokens"], vectors)
    assert list(dataset.episode(0)["note"]) == ["left", "right"] * 3
