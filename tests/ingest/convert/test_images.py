"""Tests the decoding of encoded images, and images that cannot be decoded."""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import datasets
import h5py
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

import gear_data
from gear_data import SequenceLoader
from gear_data.errors import BadEpisodeError, UnknownNameError, UnsupportedColumnError
from gear_data.ingest.location import locate
from gear_data.ingest.pipeline import images
from gear_data.ingest.pipeline.images import decode_images
from gear_data.ingest.source import EpisodeSource, SourceOptions
from gear_data.ingest.sources.registry import open_source
from gear_data.ingest.sources.tables import file_stream
from gear_data.ingest.sources.tree import source as tree_source
from gear_data.loaders.decoding.images import ImageDecoder
from gear_data.storage.episode_block import BEGIN, END
from tests.support.encoded_images import (
    IMAGE_COLUMN,
    IMAGE_FILE,
    Pixels,
    cut_image,
    encode_episodes,
    encode_image,
    make_images,
    rewards_of,
    write_episode_images,
)
from tests.support.interrupted import convert_until


def _step_table(frames: Sequence[Sequence[bytes]], image: pa.DataType = IMAGE_FILE) -> pa.Table:
    flat = [frame for row in frames for frame in row]
    values = [{"bytes": frame, "path": None} for frame in flat] if pa.types.is_struct(image) else flat
    lengths = [len(row) for row in frames]
    return pa.table(
        {
            "episode_index": np.repeat(np.arange(len(frames)), lengths),
            "rewards": np.repeat(np.arange(len(frames), dtype=np.float32), lengths),
            IMAGE_COLUMN: pa.array(values, image),
        }
    )


def _step_rows(path: Path, frames: Sequence[Sequence[bytes]], *, group: int = 7) -> Path:
    pq.write_table(_step_table(frames, pa.binary()), path, row_group_size=group)
    return path


def _in_memory(_: Path, frames: Sequence[Sequence[bytes]]) -> datasets.Dataset:
    names = {
        "episode_index": datasets.Value("int64"),
        "rewards": datasets.Value("float32"),
        IMAGE_COLUMN: datasets.Image(),
    }
    info = datasets.DatasetInfo(features=datasets.Features(names))
    return datasets.Dataset(_step_table(frames), info=info)


def _arrays(path: Path, episodes: Sequence[Pixels]) -> Path:
    """Returns the same episodes as lists of numbers."""
    table = pa.table(
        {
            "rewards": rewards_of(episodes),
            IMAGE_COLUMN: pa.array([e.tolist() for e in episodes], pa.list_(pa.list_(pa.list_(pa.list_(pa.uint8()))))),
        }
    )
    pq.write_table(table, path)
    return path


def _check(folder: Path, episodes: Sequence[Pixels]) -> None:
    ds = gear_data.open(folder)
    assert (ds.schema[IMAGE_COLUMN].dtype, ds.schema[IMAGE_COLUMN].shape) == ("uint8", episodes[0].shape[1:])
    assert ds.num_episodes == len(episodes)
    for i, expected in enumerate(episodes):
        np.testing.assert_array_equal(ds.episode(i)[IMAGE_COLUMN], expected)
    assert gear_data.verify(folder).ok


# Decoded columns.


@pytest.mark.parametrize("write", [write_episode_images, _step_rows, _in_memory])
def test_every_layout_gives_the_same_as_arrays(write: Any, tmp_path: Path) -> None:
    episodes = make_images()
    arrays = gear_data.convert(_arrays(tmp_path / "a.parquet", episodes), tmp_path / "a")
    report = gear_data.convert(write(tmp_path / "s.parquet", encode_episodes(episodes)), tmp_path / "d")
    _check(tmp_path / "d", episodes)
    assert (
        report.fingerprint == arrays.fingerprint or write is not write_episode_images
    )  # one more column, `episode_index`
    assert not any("image" in warning for warning in report.warnings)


@pytest.mark.parametrize(
    ("channels", "options"),
    [
        (1, {}),
        (2, {}),
        (3, {}),
        (4, {}),
        (3, {"kind": "BMP"}),
        (1, {"kind": "BMP"}),
        (3, {"kind": "WEBP", "lossless": True}),
        (4, {"kind": "WEBP", "lossless": True, "exact": True}),
    ],
    ids=str,
)
def test_lossless_kinds(channels: int, options: dict[str, Any], tmp_path: Path) -> None:
    episodes = make_images(shape=(4, 6, channels))
    gear_data.convert(
        write_episode_images(tmp_path / "s.parquet", encode_episodes(episodes, **options)), tmp_path / "d"
    )
    _check(tmp_path / "d", episodes)


def test_palettes_become_rgb_and_bits_grey(tmp_path: Path) -> None:
    colours = np.array([[9, 8, 7], [1, 2, 3], [250, 0, 40]], np.uint8)
    chosen = [np.random.default_rng(i).integers(0, 3, (i + 1, 3, 5)) for i in range(3)]

    def palette(image: npt.NDArray[Any], kind: str) -> bytes:
        picture, file = Image.fromarray(image.astype(np.uint8), "P"), io.BytesIO()
        picture.putpalette(colours.tobytes())
        picture.save(file, kind)
        return file.getvalue()

    for kind in ("PNG", "GIF"):
        source = write_episode_images(tmp_path / f"{kind}.parquet", [[palette(i, kind) for i in e] for e in chosen])
        gear_data.convert(source, tmp_path / kind)
        _check(tmp_path / kind, [colours[e] for e in chosen])
    bits = [(e[..., None] > 0).astype(np.uint8) * 255 for e in chosen]
    gear_data.convert(write_episode_images(tmp_path / "b.parquet", encode_episodes(bits, mode="1")), tmp_path / "b")
    _check(tmp_path / "b", bits)


def test_jpegs_are_as_datasets_decodes_them(tmp_path: Path) -> None:
    ramp = np.linspace(0, 255, 16 * 24 * 3).reshape(16, 24, 3).astype(np.uint8)
    frames = [[encode_image(np.roll(ramp, i + t, 0), "JPEG") for t in range(i + 1)] for i in range(4)]
    gear_data.convert(write_episode_images(tmp_path / "s.parquet", frames), tmp_path / "d")
    decode = datasets.Image().decode_example
    _check(tmp_path / "d", [np.stack([np.asarray(decode({"bytes": f, "path": None})) for f in row]) for row in frames])


def test_lerobot_images(sources: Any, tmp_path: Path) -> None:
    rollouts = sources.make_rollouts(4, seed=1)
    folder = sources.write_lerobot(tmp_path / "robot", rollouts)
    rng = np.random.default_rng(2)
    episodes = [rng.integers(0, 256, (len(rollout), 5, 4, 3), np.uint8) for rollout in rollouts]
    for episode, file in zip(episodes, sorted((folder / "data").rglob("*.parquet")), strict=True):
        files = [{"bytes": encode_image(image), "path": "frame.png"} for image in episode]
        table = pq.read_table(file)
        pq.write_table(table.append_column("observation.images.top", pa.array(files, IMAGE_FILE)), file)
    gear_data.convert(folder, tmp_path / "d")
    ds = gear_data.open(tmp_path / "d")
    assert ds.schema["observations.images.top"].source == "observation.images.top"
    for i, episode in enumerate(episodes):
        np.testing.assert_array_equal(ds.episode(i)["observations.images.top"], episode)


@pytest.mark.parametrize("preset", ["jat", "gato", "lerobot"])
def test_batches_equal_those_of_the_loaders_decoder(preset: str, tmp_path: Path) -> None:
    episodes = make_images()
    table = pa.table(
        {
            "rewards": rewards_of(episodes),
            "observations": pa.array(
                [[[0.5, t] for t in range(len(e))] for e in episodes], pa.list_(pa.list_(pa.float32()))
            ),
            "actions": pa.array(
                [[[float(t)] for t in range(len(e))] for e in episodes], pa.list_(pa.list_(pa.float32()))
            ),
            "image_observations": pa.array(encode_episodes(episodes), pa.list_(pa.binary())),
        }
    )
    pq.write_table(table, tmp_path / "s.parquet")
    for name in ("encoded", "decoded"):
        gear_data.convert(tmp_path / "s.parquet", tmp_path / name, keep_encoded=name == "encoded")
    options: dict[str, Any] = {"batch_size": 5, "context": 4, "preset": preset, "seed": 3}
    decoder = {IMAGE_COLUMN: ImageDecoder(mode=None, channels="last")}
    first = next(iter(SequenceLoader(gear_data.open(tmp_path / "encoded"), decoders=decoder, **options)))
    second = next(iter(SequenceLoader(gear_data.open(tmp_path / "decoded"), **options)))
    key = next(name for name in second if "image" in name and "pad" not in name)
    assert len(first[key]) == len(second[key]) == 5
    for count, mine, other in zip(second["valid_count"].tolist(), second[key], first[key], strict=True):
        # `lerobot` has one image. `gato` pads decoded images on the left, and makes lists of columns.
        rows = {"jat": slice(count), "gato": slice(-count, None), "lerobot": slice(None)}[preset]
        assert np.array_equal(np.asarray(mine)[rows], np.asarray(other)[rows])
    with pytest.raises(UnknownNameError, match="--keep-encoded"):
        SequenceLoader(gear_data.open(tmp_path / "decoded"), decoders=decoder, **options)


# Columns that stay encoded.


def _sixteen_bits(_: Pixels) -> bytes:
    file = io.BytesIO()
    Image.fromarray(np.full((4, 6), 3000, np.uint16)).save(file, "PNG")
    return file.getvalue()


def _animated(pixels: Pixels) -> bytes:
    return encode_image(pixels, "GIF", save_all=True, append_images=[Image.fromarray(255 - pixels)])


def _see_through(pixels: Pixels) -> bytes:
    return encode_image(pixels, transparency=(1, 2, 3))


@pytest.mark.parametrize(
    ("other", "reason"),
    [
        (lambda image: encode_image(image[:3]), "step 1 is 3 x 6 RGB, but the first image is 4 x 6 RGB"),
        (lambda image: encode_image(image[..., :1]), "step 1 is 4 x 6 L, but the first image is 4 x 6 RGB"),
        (lambda image: b"none", "step 1 is not an image"),
        (lambda image: b"", "step 1 is not an image"),
        (_sixteen_bits, "step 1 has Pillow's mode 'I;16'"),
        (lambda image: _claiming(6, 4, bits=16), "step 1 has 16 bits per channel"),
        (_animated, "step 1 has several frames"),
        (_see_through, "step 1 has a transparent colour"),
        (lambda image: encode_image(image, "JPEG", mode="CMYK"), "step 1 has Pillow's mode 'CMYK'"),
    ],
)
def test_different_images_stay_encoded(other: Callable[[Pixels], bytes], reason: str, tmp_path: Path) -> None:
    frames = encode_episodes(make_images(shape=(4, 6, 3)))
    image = make_images(1)[0][0]
    frames[3] = [frames[3][0], other(image), *frames[3][1:]]
    report = gear_data.convert(write_episode_images(tmp_path / "s.parquet", frames), tmp_path / "d")
    ds = gear_data.open(tmp_path / "d")
    assert [ds.episode(i)[IMAGE_COLUMN].tolist() for i in range(len(frames))] == frames
    (finding,) = [finding for finding in ds.manifest.findings if finding["code"] == "images-kept-encoded"]
    assert finding["message"].startswith(reason)
    assert (finding["file"], finding["row"], finding["column"]) == ("s.parquet", 3, IMAGE_COLUMN)
    assert any(warning.startswith("images-kept-encoded") for warning in report.warnings)


def test_bytes_that_are_not_images_do_not_change(tmp_path: Path) -> None:
    frames = [[b"BM and more", b"RIFF....WAVE"], [b"\xff\xd8", b""]]
    report = gear_data.convert(write_episode_images(tmp_path / "s.parquet", frames), tmp_path / "d")
    assert gear_data.open(tmp_path / "d").schema[IMAGE_COLUMN].dtype == "binary"
    assert not any("encoded" in warning for warning in report.warnings)


def test_keep_encoded(tmp_path: Path) -> None:
    frames = encode_episodes(make_images())
    report = gear_data.convert(write_episode_images(tmp_path / "s.parquet", frames), tmp_path / "d", keep_encoded=True)
    ds = gear_data.open(tmp_path / "d")
    assert [ds.episode(i)[IMAGE_COLUMN].tolist() for i in range(len(frames))] == frames
    assert not any("encoded" in warning for warning in report.warnings)


# Bad images.

_BAD, _BAD_STEP = 7, 1


def _flipped(image: bytes) -> bytes:
    return image[:50] + b"\xff" + image[51:]


def _claiming(width: int, height: int, bits: int = 8) -> bytes:
    """Returns a PNG of a few bytes that claims to have RGB pixels of a size."""
    header = struct.pack(">IIBBBBB", width, height, bits, 2, 0, 0, 0)

    def chunk(name: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"\0")) + chunk(b"IEND", b"")


@pytest.mark.parametrize(("write", "row"), [(write_episode_images, True), (_step_rows, False)])
@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (cut_image, "is damaged"),
        (_flipped, "is damaged"),
        (lambda image: b"", r"is no PNG, JPEG, WebP, BMP or GIF \(0 bytes\)"),
        (
            lambda image: encode_image(make_images(1, (5, 6, 3))[0][0]),
            "is 5 x 6 RGB, but the column began with 4 x 6 RGB",
        ),
        (lambda image: encode_image(make_images(1, (4, 6, 1))[0][0]), "is 4 x 6 L, but"),
        (lambda image: _claiming(8000, 8000), "is 8000 x 8000 RGB, but"),
        (lambda image: _claiming(1 << 30, 1 << 30), "is too large: Image size"),
    ],
)
def test_a_bad_image_is_a_bad_episode(
    write: Any, row: bool, spoil: Callable[[bytes], bytes], reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_stream, "_BATCH_BYTES", 1000)  # after the first block
    episodes = make_images()
    episodes[_BAD] = make_images(1, seed=9)[0][[0, 0, 0, 0]]
    frames = encode_episodes(episodes)
    frames[_BAD][_BAD_STEP] = spoil(frames[_BAD][_BAD_STEP])
    source = write(tmp_path / "s.parquet", frames)
    with pytest.raises(BadEpisodeError, match=f"step {_BAD_STEP} {reason}") as error:
        gear_data.convert(source, tmp_path / "d")
    assert (error.value.file, error.value.column) == ("s.parquet", IMAGE_COLUMN)
    assert error.value.row == (_BAD if row else sum(map(len, frames[:_BAD])))
    assert "--keep-encoded" in str(error.value.hint)
    assert not (tmp_path / "d").exists()
    report = gear_data.convert(source, tmp_path / "d", on_bad_episode="skip")
    _check(tmp_path / "d", [episode for i, episode in enumerate(episodes) if i != _BAD])
    assert any(warning.startswith("bad-episode") and "(1x" in warning for warning in report.warnings)


def test_a_damaged_first_image_does_not_decide(tmp_path: Path) -> None:
    episodes = make_images()
    frames = encode_episodes(episodes)
    frames[0][0] = frames[0][0][:20]
    source = write_episode_images(tmp_path / "s.parquet", frames)
    with pytest.raises(BadEpisodeError, match="step 0 is"):
        gear_data.convert(source, tmp_path / "d")
    gear_data.convert(source, tmp_path / "d", on_bad_episode="skip")
    _check(tmp_path / "d", episodes[1:])


@pytest.mark.parametrize("size", [(8200, 8200), (9000, 9900), (1 << 20, 1 << 20)])
def test_images_too_large_are_refused_before_they_are_decoded(size: tuple[int, int], tmp_path: Path) -> None:
    source = write_episode_images(tmp_path / "s.parquet", [[_claiming(*size)] * 2])
    with pytest.raises(UnsupportedColumnError, match="step 0 is too large") as error:
        gear_data.convert(source, tmp_path / "d")
    assert (error.value.file, error.value.column, error.value.row) == ("s.parquet", IMAGE_COLUMN, 0)
    assert "--keep-encoded" in str(error.value.hint)
    gear_data.convert(source, tmp_path / "d", keep_encoded=True)


# Final observations.


def _minari(path: Path, frames: Sequence[Sequence[bytes]]) -> Path:
    """Writes Minari HDF5. Each episode's last image is its final observation."""
    with h5py.File(path, "w") as file:
        for i, row in enumerate(frames):
            group, steps = file.create_group(f"episode_{i}"), len(row) - 1
            images = group.create_dataset(IMAGE_COLUMN.replace(".", "/"), len(row), h5py.vlen_dtype(np.uint8))
            for t, image in enumerate(row):
                images[t] = np.frombuffer(image, np.uint8)
            group["actions"], group["rewards"] = np.zeros(steps), np.full(steps, float(i))
            group["terminations"], group["truncations"] = np.arange(steps) == steps - 1, np.zeros(steps, bool)
    return path


def _with_final(count: int = 12) -> list[Pixels]:
    return [np.concatenate([episode, episode[:1] // 2]) for episode in make_images(count)]


def _check_finals(folder: Path, episodes: Sequence[Pixels]) -> None:
    _check(folder, [episode[:-1] for episode in episodes])
    ds = gear_data.open(folder)
    assert ds.schema[IMAGE_COLUMN].has_final
    for i, episode in enumerate(episodes):
        np.testing.assert_array_equal((ds.final(i) or {})[IMAGE_COLUMN], episode[-1])


@pytest.mark.parametrize("bad", [0, _BAD])
def test_a_bad_final_image_is_a_bad_episode(bad: int, tmp_path: Path) -> None:
    episodes = _with_final()
    frames = encode_episodes(episodes)
    frames[bad][-1] = cut_image(frames[bad][-1])
    source = _minari(tmp_path / "main_data.hdf5", frames)
    with pytest.raises(BadEpisodeError, match="the final observation is damaged") as error:
        gear_data.convert(source, tmp_path / "d")
    assert (error.value.file, error.value.column, error.value.row) == (source.name, "observations/image", bad)
    (warning,) = [
        warning
        for warning in gear_data.convert(source, tmp_path / "d", on_bad_episode="skip").warnings
        if warning.startswith("bad-episode")
    ]
    assert "the final observation is damaged" in warning
    _check_finals(tmp_path / "d", [episode for i, episode in enumerate(episodes) if i != bad])


def test_a_different_final_image_leaves_all_encoded(tmp_path: Path) -> None:
    frames = encode_episodes(_with_final())
    frames[2][-1] = encode_image(make_images(1, (5, 6, 3))[0][0])
    report = gear_data.convert(_minari(tmp_path / "main_data.hdf5", frames), tmp_path / "d")
    kept, left_out = sorted(w for w in report.warnings if w.startswith(("images-kept", "final-left")))[::-1]
    assert "the final observation is 5 x 6 RGB, but the first image is 4 x 6 RGB" in kept
    assert f"({len(frames)}x" in left_out
    ds = gear_data.open(tmp_path / "d")
    assert [ds.episode(i)[IMAGE_COLUMN].tolist() for i in range(len(frames))] == [row[:-1] for row in frames]
    assert ds.final(2) is None


def test_finals_stay_with_their_episodes_in_blocks_and_pieces(
    sources: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(images, "_PIECE_BYTES", 6 * 72)
    monkeypatch.setattr(tree_source, "_BLOCK_BYTES", 4000)
    monkeypatch.setattr(tree_source, "UNIT_BYTES", 1 << 15)
    episodes = _with_final(24)
    frames = encode_episodes(episodes)
    bad = [3, 5, 6, 7, 8, 9, 13, 23]
    for i in bad:
        place = -1 if i % 2 else 0
        frames[i][place] = cut_image(frames[i][place])
    path = _minari(tmp_path / "main_data.hdf5", frames)

    def opened() -> EpisodeSource:
        source, _, _ = open_source(locate(str(path), None), "minari", SourceOptions(on_bad_episode="skip"))
        return decode_images(source, skip_bad=True, threads=2)

    def read(start: Any, stop: Any) -> list[tuple[int, bytes]]:
        """Returns (episode, pixels) of every episode. The final pixels are last."""
        found = []
        for block in opened().blocks(start, stop):
            for i in range(len(block)):
                one = block.slice(i, i + 1)
                pixels = one.columns[IMAGE_COLUMN].tobytes() + one.finals[IMAGE_COLUMN].tobytes()
                found.append((int(one.rows[0]), pixels))
            assert len(block) == 1 or block.columns[IMAGE_COLUMN].nbytes + block.finals[IMAGE_COLUMN].nbytes <= 6 * 72
        return found

    whole = read(BEGIN, END)
    assert whole == [(i, episode.tobytes()) for i, episode in enumerate(episodes) if i not in bad]
    blocks = list(opened().blocks(BEGIN, END))
    assert len({block.position for block in blocks}) > 3
    assert any(block.first for block in blocks)
    done = np.cumsum([0, *map(len, blocks)])
    for block, before in list(zip(blocks, done[:-1], strict=True))[::3]:
        assert read(block.position, END)[block.first :] == whole[before:]
    assert sources.check_units(opened) > 1
    options: dict[str, Any] = {"on_bad_episode": "skip", "shard_bytes": 1024}
    shards = gear_data.convert(path, tmp_path / "whole", **options).shards
    _check_finals(tmp_path / "whole", [episode for i, episode in enumerate(episodes) if i not in bad])
    assert shards > 2
    for stop in (1, shards - 1):
        convert_until(path, tmp_path / f"d{stop}", stop, options, monkeypatch)
        gear_data.convert(path, tmp_path / f"d{stop}", **options, resume=True)
        assert sources.folder_contents(tmp_path / f"d{stop}") == sources.folder_contents(tmp_path / "whole")
