"""Quantised depth videos of LeRobot, from their files to everything that reads frames."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

pytest.importorskip("av")
import gear_data
from gear_data.errors import CorruptSourceError, InvalidArgumentError, UnsupportedColumnError, VersionError
from gear_data.schema import DepthFormat
from gear_data.video.depth import depth_values
from tests.support.cameras.depth import DEPTH, FPS, KEY, SIDES, decode_numbers, write_depth
from tests.support.command_line import run_json

pytestmark = pytest.mark.processes

LENGTHS = (6, 8, 4)
DEFAULT = (0.01, 10.0, 3.5, True)


def metres(unit: Any = "m", form: tuple[float, float, float, bool] = DEFAULT) -> npt.NDArray[np.float32]:
    """Returns the depth of each number. `tests/video/test_depth.py` compares it with LeRobot's."""
    return depth_values(DepthFormat(*form, unit))


@pytest.fixture
def recorded(tmp_path: Path) -> tuple[Path, list[npt.NDArray[np.uint16]]]:
    return write_depth(tmp_path / "source", LENGTHS)


def shown(ds: gear_data.Dataset) -> list[npt.NDArray[np.float32]]:
    return [np.asarray(ds[position][DEPTH])[..., 0] for position in range(ds.num_episodes)]


def check(ds: gear_data.Dataset, numbers: list[npt.NDArray[np.uint16]], unit: Any = "mm") -> None:
    for found, expected in zip(shown(ds), numbers, strict=True):
        assert found.dtype == np.float32
        np.testing.assert_array_equal(found, metres(unit)[expected])


@pytest.mark.parametrize("unit", ["mm", "m"])
@pytest.mark.parametrize("mode", ["keep", "link", "frames"])
def test_episodes(recorded: Any, mode: Any, unit: Any, tmp_path: Path) -> None:
    folder, numbers = recorded
    report = gear_data.convert(folder, tmp_path / "d", videos=gear_data.VideoStorage(mode=mode, depth_unit=unit))
    ds = gear_data.open(tmp_path / "d")
    check(ds, numbers, unit)
    assert (ds.schema[DEPTH].dtype, ds.schema[DEPTH].shape) == ("float32", (*SIDES, 1))
    assert "depth-as-rgb" not in {finding["code"] for finding in ds.manifest.findings}
    assert gear_data.verify(tmp_path / "d", decode=mode != "frames").ok
    if mode == "frames":
        return
    manifest = json.loads((tmp_path / "d/manifest.json").read_text())
    assert manifest["version"] == 5
    frames = ds[1][DEPTH]
    assert (frames.dtype, frames.shape, frames.nbytes) == (np.float32, (8, *SIDES, 1), 8 * 4 * SIDES[0] * SIDES[1])
    np.testing.assert_array_equal(frames[2, ..., 0], metres(unit)[numbers[1][2]])
    values = metres(unit)[np.concatenate(numbers)].astype(np.float64)
    sample = ds.statistics[DEPTH]
    assert (sample.mean, sample.std) == (pytest.approx(values.mean()), pytest.approx(values.std()))
    assert (sample.min.item(), sample.max.item()) == (values.min(), values.max())
    assert report.fingerprint == ds.fingerprint


@pytest.mark.parametrize("form", [DEFAULT, (0.2, 4.0, 0.0, False)])
def test_batches(tmp_path: Path, form: tuple[float, float, float, bool]) -> None:
    names = ("video.depth_min", "video.depth_max", "video.shift", "video.use_log")
    folder, numbers = write_depth(tmp_path / "source", LENGTHS, **dict(zip(names, form, strict=True)))
    ds = gear_data.open(folder, convert=gear_data.ConvertOptions(videos=gear_data.VideoStorage(depth_unit="m")))
    expected = [metres("m", form)[each] for each in numbers]
    for prefetch in (0, 2):
        loader = gear_data.SequenceLoader(
            ds, preset="raw", batch_size=6, context=3, steps=4, seed=3, columns=[DEPTH, "timestamp"], prefetch=prefetch
        )
        for batch, windows in zip(loader, map(loader.windows, range(4)), strict=True):
            for row in range(6):
                episode, start, length = (int(windows[name][row]) for name in ("episode_id", "start", "length"))
                wanted = np.zeros((3, *SIDES, 1), np.float32)
                wanted[:length, ..., 0] = expected[episode][start : start + length]
                np.testing.assert_array_equal(batch[DEPTH][row].numpy(), wanted)
    policy = next(iter(gear_data.SequenceLoader(ds, preset="lerobot", batch_size=6, context=3, seed=3)))
    assert policy[KEY].shape == (6, 1, *SIDES)
    steps = np.concatenate([np.stack([np.full(n, i), np.arange(n)], 1) for i, n in enumerate(LENGTHS)])
    known = {expected[i][t].tobytes() for i, t in steps}
    assert all(row.numpy().tobytes() in known for row in policy[KEY])
    loader = gear_data.SequenceLoader(
        ds, preset="raw", batch_size=6, context=3, seed=3, columns=[DEPTH], normalize=[DEPTH]
    )
    plain = gear_data.SequenceLoader(ds, preset="raw", batch_size=6, context=3, seed=3, columns=[DEPTH])
    own, other = next(iter(loader))[DEPTH].numpy(), next(iter(plain))[DEPTH].numpy()
    mean, std = (getattr(ds.statistics[DEPTH], name).item() for name in ("mean", "std"))
    real = other.reshape(6, 3, -1).any(axis=2)
    close = (other.transpose(0, 1, 4, 2, 3)[real] - mean) / std
    np.testing.assert_allclose(own[real], close, rtol=1e-5, atol=1e-6)
    half = gear_data.SequenceLoader(
        ds,
        preset="raw",
        batch_size=6,
        context=3,
        seed=3,
        columns=[DEPTH],
        batch=gear_data.BatchOptions(dtype="float16"),
    )
    np.testing.assert_array_equal(next(iter(half))[DEPTH].numpy(), other.astype(np.float16))


def test_what_a_loader_refuses(recorded: Any, tmp_path: Path) -> None:
    gear_data.convert(recorded[0], tmp_path / "mm")
    gear_data.convert(recorded[0], tmp_path / "m", videos=gear_data.VideoStorage(depth_unit="m"))
    both = [gear_data.open(tmp_path / unit) for unit in ("mm", "m")]
    for resize in ((24, 35), {DEPTH: (24, 35)}):
        with pytest.raises(InvalidArgumentError, match="depth is not scaled") as error:
            gear_data.SequenceLoader(both[0], preset="raw", batch_size=2, context=2, resize=resize)
        assert (error.value.column, error.value.hint) == (DEPTH, "leave resize out")
    options = gear_data.BatchOptions(preset_options={"keys": {DEPTH: "image.base_0_rgb"}})
    with pytest.raises(InvalidArgumentError, match="depth is not scaled") as error:
        gear_data.SequenceLoader(both[0], preset="openpi", batch_size=2, batch=options)
    assert error.value.column == DEPTH and f"{{'keys': {{'{DEPTH}': ''}}}}" in str(error.value.hint)
    for join in (False, True):
        with pytest.raises(InvalidArgumentError, match="one dataset has depth in mm, and another in m"):
            mixture = gear_data.Mixture([(each, 0.5) for each in both], join=join)
            gear_data.SequenceLoader(mixture, preset="raw", batch_size=2, context=2)
    mixture = gear_data.Mixture([(both[0], 0.5), (both[0], 0.5)], join=True)
    batch = next(iter(gear_data.SequenceLoader(mixture, preset="raw", batch_size=2, context=2)))
    assert batch[DEPTH].shape == (2, 2, *SIDES, 1)


def test_edits_and_copies(recorded: Any, tmp_path: Path) -> None:
    folder, numbers = recorded
    gear_data.convert(folder, tmp_path / "d")
    ds = gear_data.open(tmp_path / "d")
    ds.select([0, 2]).save(tmp_path / "saved")
    check(gear_data.open(tmp_path / "saved"), [numbers[0], numbers[2]])
    ds.rename({DEPTH: "observations.far"}).save(tmp_path / "renamed")
    renamed = gear_data.open(tmp_path / "renamed")
    np.testing.assert_array_equal(renamed[1]["observations.far"][3, ..., 0], metres("mm")[numbers[1][3]])
    gear_data.merge([tmp_path / "d", tmp_path / "saved"], tmp_path / "merged")
    check(gear_data.open(tmp_path / "merged"), [*numbers, numbers[0], numbers[2]])
    gear_data.convert(folder, tmp_path / "m", videos=gear_data.VideoStorage(depth_unit="m"))
    with pytest.raises(UnsupportedColumnError, match=r"shifted by 3\.5 m, in m here, but .* in mm in") as error:
        gear_data.merge([tmp_path / "d", tmp_path / "m"], tmp_path / "no")
    assert (error.value.column, error.value.file) == (DEPTH, str(tmp_path / "m"))
    assert not (tmp_path / "no").exists()


@pytest.mark.parametrize("groups", [{}, {"g": "12", "bf": "3"}])
@pytest.mark.parametrize("codec", [None, "h264"])
def test_exports(tmp_path: Path, groups: dict[str, str], codec: Any) -> None:
    """Depth is the same after an export, also if frames must be encoded, and whatever the codec of other cameras is."""
    params = {"x265-params": "lossless=1:log-level=none:pools=1:" + ("bframes=3" if groups else "bframes=0")}
    folder, numbers = write_depth(tmp_path / "source", LENGTHS, encoding={**groups, **params})
    gear_data.convert(folder, tmp_path / "d")
    ds = gear_data.open(tmp_path / "d")
    report = gear_data.export(ds.select([1, 2]), tmp_path / "out", "lerobot", fps=FPS, video_codec=codec)
    assert bool(report.notes) == bool(groups)
    file = tmp_path / f"out/videos/{KEY}/chunk-000/file-000.mp4"
    np.testing.assert_array_equal(decode_numbers(file), np.concatenate(numbers[1:]))
    feature = json.loads((tmp_path / "out/meta/info.json").read_text())["features"][KEY]
    assert feature["shape"] == [*SIDES, 1]
    own = {name: feature["info"][name] for name in ("is_depth_map", "depth_unit", "video.pix_fmt", "video.codec")}
    assert own == {"is_depth_map": True, "depth_unit": "mm", "video.pix_fmt": "gray12le", "video.codec": "hevc"}
    stats = json.loads((tmp_path / "out/meta/stats.json").read_text())[KEY]
    assert np.shape(stats["mean"]) == (1, 1, 1)
    assert np.ravel(stats["max"]).tolist() == [10000.0]
    gear_data.convert(tmp_path / "out", tmp_path / "back")
    check(gear_data.open(tmp_path / "back"), numbers[1:])
    if codec is None:
        gear_data.export(ds, tmp_path / "whole", "lerobot", fps=FPS)
        copied, first = (each / f"videos/{KEY}/chunk-000/file-000.mp4" for each in (tmp_path / "whole", folder))
        assert copied.read_bytes() == first.read_bytes()


def test_commands(recorded: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, numbers = recorded
    run_json(capsys, "convert", folder, tmp_path / "d", "--depth-unit", "m")
    check(gear_data.open(tmp_path / "d"), numbers, "m")
    assert run_json(capsys, "inspect", tmp_path / "d")["cameras"][DEPTH]["shape"] == [*SIDES, 1]
    run_json(capsys, "report", tmp_path / "d", tmp_path / "report.html")
    assert "data:image/jpeg;base64," in (tmp_path / "report.html").read_text()
    assert "depth-as-rgb" not in {finding.code for finding in gear_data.lint(folder).findings}


def test_older_versions_refuse_it(recorded: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gear_data.convert(recorded[0], tmp_path / "d")
    monkeypatch.setattr("gear_data.storage.manifest.FORMAT_VERSION", 4)
    with pytest.raises(VersionError, match="format version 5"):
        gear_data.open(tmp_path / "d")


@pytest.mark.parametrize(
    "info, key, hint",
    [
        ({"video.shift": None}, "info.video.shift is missing", "LeRobot's default, and what LeRobot reads, is 3.5"),
        ({"video.use_log": 1}, "info.video.use_log is 1, no boolean", "true or false"),
        ({"video.depth_max": "far"}, "info.video.depth_max is 'far', not a number", "metres"),
        ({"video.depth_max": 0.01}, "info.video.depth_min is 0.01, with video.depth_max 0.01", "less than"),
        ({"video.depth_min": -3.5}, "info.video.depth_min is -3.5", "more than 0"),
        ({"video.depth_min": float("nan")}, "info.video.depth_min is nan", "less than"),
        ({"is_depth_map": None}, "info.is_depth_map is not true, and info.video.depth_min says", "set it to true"),
        ({"is_depth_map": "yes"}, "info.is_depth_map is 'yes', no boolean", "true or false"),
        ({"video.is_depth_map": False}, "info.video.is_depth_map is false, and info.is_depth_map is true", "both"),
        (
            dict.fromkeys(("video.depth_min", "video.depth_max", "video.shift", "video.use_log")),
            "info.video.depth_min is missing, and the video is quantised depth",
            "LeRobot's default, and what LeRobot reads, is 0.01",
        ),
    ],
)
def test_unclear_metadata(info: dict[str, Any], key: str, hint: str, tmp_path: Path) -> None:
    folder, _ = write_depth(tmp_path / "source", (3,), **info)
    for run in (lambda: gear_data.convert(folder, tmp_path / "d"), lambda: gear_data.lint(folder)):
        with pytest.raises(CorruptSourceError) as error:
            run()
        assert f"features.{KEY}.{key}" in error.value.message
        assert (error.value.file, error.value.column) == ("meta/info.json", KEY)
        assert hint in str(error.value.hint)
    assert not (tmp_path / "d").exists()
    gear_data.convert(folder, tmp_path / "d", columns=["actions"])


@pytest.mark.parametrize("storage", [{"mode": "jpeg"}, {"mode": "frames", "size": (24, 35)}])
def test_depth_is_neither_jpeg_nor_scaled(recorded: Any, storage: Any, tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match="is quantised depth, which cannot") as error:
        gear_data.convert(recorded[0], tmp_path / "d", videos=gear_data.VideoStorage(**storage))
    assert error.value.column == KEY
