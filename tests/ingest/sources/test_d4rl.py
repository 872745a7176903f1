"""Tests of D4RL HDF5: ends of episodes, and files that must be refused.

The usual cases are in tests/ingest/convert/test_formats.py.
"""

from __future__ import annotations

import gc
import io
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
import h5py
import numpy as np
import pytest
import yaml
from PIL import Image

import gear_data
from gear_data.errors import CorruptSourceError, GearError, UnknownFormatError, UnsupportedColumnError
from gear_data.ingest.episode_boundaries import EpisodeBoundaries
from gear_data.ingest.lint import suggest_mapping
from gear_data.ingest.location import locate
from gear_data.ingest.source import SourceOptions
from gear_data.ingest.sources import d4rl
from gear_data.ingest.sources.arrays import boundaries
from gear_data.ingest.sources.hdf5 import chunk_reader
from gear_data.ingest.sources.hdf5.open_file import open_hdf5
from gear_data.ingest.sources.tree import source as tree
from gear_data.storage.episode_block import BEGIN, END

Rollouts = list[Any]


def read(source: Path, max_episode_steps: int | None = None) -> tuple[list[int], dict[str, int], Any]:
    """Returns the lengths of episodes, the findings' counts by code, and the source."""
    opened = d4rl.open_(
        locate(str(source), None), SourceOptions(episodes=EpisodeBoundaries(max_episode_steps=max_episode_steps))
    )
    lengths = [int(length) for block in opened.blocks(BEGIN, END) for length in block.lengths]
    return lengths, {finding.code: finding.count for finding in opened.findings}, opened


def write_flat(path: Path, terminals: list[int], **datasets: Any) -> Path:
    """Writes 30 numbered steps that terminate at the given rows."""
    flags = np.zeros(30, np.bool_)
    flags[terminals] = True
    steps = np.arange(30, dtype=np.float32)
    with h5py.File(path, "w") as file:
        given = {"observations": steps[:, None], "actions": steps[:, None], "rewards": steps, "terminals": flags}
        for name, values in {**given, **datasets}.items():
            file[name] = values
    return path


def expected_lengths(terminals: list[int], longest: int) -> list[int]:
    """Counts the lengths step by step."""
    lengths, age = [], 0
    for row in range(30):
        age += 1
        if row in terminals or age == longest or row == 29:
            lengths.append(age)
            age = 0
    return lengths


@pytest.mark.parametrize("terminals", [[], [3, 4, 17], [6, 13, 29]])
@pytest.mark.parametrize("longest", [3, 7, 100])
@pytest.mark.parametrize("at_once", [4, 150, 1 << 20])
def test_ends_by_stated_length(
    terminals: list[int], longest: int, at_once: int, sources: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tree, "_BLOCK_BYTES", at_once)
    monkeypatch.setattr(boundaries, "_SCAN_BYTES", 10)
    monkeypatch.setattr(d4rl, "UNIT_BYTES", 4 if at_once < 1000 else at_once)
    source = write_flat(tmp_path / "s.hdf5", terminals)
    lengths, findings, _ = read(source, max_episode_steps=longest)
    assert lengths == expected_lengths(terminals, longest)
    assert findings["ends-by-length"] == 1
    options, location = SourceOptions(episodes=EpisodeBoundaries(max_episode_steps=longest)), locate(str(source), None)
    units = sources.check_units(lambda: d4rl.open_(location, options))
    assert units == (len(lengths) if at_once < 1000 else 1)


@pytest.mark.parametrize("place", ["metadata", "attribute"])
def test_length_stated_by_the_file(place: str, tmp_path: Path) -> None:
    source = write_flat(tmp_path / "s.hdf5", [3])
    with h5py.File(source, "r+") as file:
        if place == "attribute":
            file.attrs["max_episode_steps"] = 10
        else:
            file["metadata/max_episode_steps"] = 10
    assert read(source)[0] == expected_lengths([3], 10)
    assert read(source, max_episode_steps=5)[0] == expected_lengths([3], 5)


def test_stated_length_is_ignored_if_the_data_has_ends(sources: Any, tmp_path: Path) -> None:
    rollouts = sources.make_rollouts(9, seed=3)
    lengths = [len(rollout) for rollout in rollouts]
    for name, options in {"timeouts": {"next_observations": False}, "next": {"timeouts": False}}.items():
        source = sources.write_d4rl(tmp_path / f"{name}.hdf5", rollouts, **options)
        assert read(source, max_episode_steps=2)[0] == lengths


def test_nothing_says_where_episodes_end(tmp_path: Path) -> None:
    with pytest.raises(UnknownFormatError) as error:
        read(write_flat(tmp_path / "s.hdf5", [3]))
    assert "--max-episode-steps N" in str(error.value)


@pytest.mark.parametrize("flag", ["terminals", "timeouts"])
@pytest.mark.parametrize("values", [np.zeros((30, 2), np.bool_), ["no"] * 30], ids=["two", "text"])
def test_flags_that_are_no_flags(flag: str, values: Any, tmp_path: Path) -> None:
    source = write_flat(tmp_path / "s.hdf5", [3], timeouts=np.zeros(30, np.bool_))
    with h5py.File(source, "r+") as file:
        del file[flag]
        file[flag] = values
    with pytest.raises(UnsupportedColumnError, match=flag):
        gear_data.convert(source, tmp_path / "d", progress=False)


@pytest.mark.parametrize("stated", [0, -3, 2.5])
def test_invalid_length(stated: float, tmp_path: Path) -> None:
    source = write_flat(tmp_path / "s.hdf5", [3], **{"metadata/max_episode_steps": stated})
    with pytest.raises(CorruptSourceError, match="not a number of steps"):
        read(source)


@pytest.mark.parametrize(
    "options", [{}, {"next_observations": False}, {"timeouts": False}], ids=["both", "flags", "next"]
)
def test_units_are_the_whole(options: Any, sources: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tree, "_BLOCK_BYTES", 200)
    monkeypatch.setattr(d4rl, "UNIT_BYTES", 900)
    rollouts = sources.make_rollouts(40, seed=5)
    folder = tmp_path / "s"
    for i, part in enumerate((rollouts[:15], rollouts[15:16], rollouts[16:])):
        sources.write_d4rl(folder / "deep" / f"part{i * 9}.hdf5", part, chunks=True, **options)
    with h5py.File(folder / "deep" / "part5.hdf5", "w") as file:
        for name in ("observations", "actions", "rewards", "terminals", "timeouts", "next_observations"):
            file[name] = np.zeros(0, np.float32)
    location = locate(str(folder), None)
    units = sources.check_units(lambda: d4rl.open_(location, SourceOptions()))
    assert units > 5 if options.get("timeouts", True) else units == 3
    assert read(folder)[0] == [len(rollout) for rollout in rollouts]


def test_chunks_are_read_once(sources: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A chunk that is read in pieces would be decompressed once for each piece."""
    rollouts = sources.make_rollouts(30, seed=6)
    source = sources.write_d4rl(tmp_path / "s.hdf5", rollouts, next_observations=False)
    with h5py.File(source, "r+") as file:
        values = file["observations"][...]
        del file["observations"]
        file.create_dataset("observations", data=values, chunks=(20, 1), compression="gzip")
    unpacked: list[tuple[int, ...]] = []
    unpack = chunk_reader.unpack_chunk

    def recorded(dataset: Any, offset: tuple[int, ...], *others: Any) -> bytes:
        unpacked.append(offset)
        return unpack(dataset, offset, *others)

    monkeypatch.setattr(chunk_reader, "unpack_chunk", recorded)
    monkeypatch.setattr(tree, "_BLOCK_BYTES", 1)  # a block for each episode
    assert read(source)[0] == [len(rollout) for rollout in rollouts]
    assert unpacked == [(row, column) for row in range(0, len(values), 20) for column in range(values.shape[1])]


def test_a_dataset_that_only_a_later_file_has(sources: Any, tmp_path: Path) -> None:
    rollouts = sources.make_rollouts(6, seed=6)
    sources.write_d4rl(tmp_path / "s" / "a.hdf5", rollouts[:3])
    extra = {"infos/goal": np.zeros(sum(map(len, rollouts[3:])))}
    sources.write_d4rl(tmp_path / "s" / "b.hdf5", rollouts[3:], extra=extra)
    lengths, findings, _ = read(tmp_path / "s")
    assert lengths == [len(rollout) for rollout in rollouts]
    assert findings == {"column-left-out": 1}


def test_next_observations_that_contradict(sources: Any, tmp_path: Path) -> None:
    rollouts = sources.make_rollouts(12, seed=8, max_length=30)
    source = sources.write_d4rl(tmp_path / "s.hdf5", rollouts)
    assert read(source)[1] == {}
    row = len(rollouts[0]) + 1  # inside the second episode
    assert len(rollouts[1]) > 3
    with h5py.File(source, "r+") as file:
        file["next_observations"][row] += 1
    assert read(source)[0] == [len(rollout) for rollout in rollouts]
    gear_data.convert(source, tmp_path / "d", progress=False)
    findings = gear_data.open(tmp_path / "d").manifest.findings
    (found,) = [each for each in findings if each["code"] == "next-observation-differs"]
    assert (found["count"], found["row"]) == (1, row)


@pytest.mark.parametrize("next_names", [("observations",), ("observations", "next_observations")])
def test_another_dtype(next_names: tuple[str, ...], sources: Any, tmp_path: Path) -> None:
    """Final observations, which are rows of `next_observations`, get the dtype of the observations."""
    rollouts = sources.make_rollouts(5)
    source = sources.write_d4rl(tmp_path / "s.hdf5", rollouts)
    dtypes = dict.fromkeys(next_names, "float64")
    gear_data.convert(source, tmp_path / "d", tables=gear_data.TableOptions(dtype=dtypes))
    ds = gear_data.open(tmp_path / "d")
    assert (ds.schema["observations"].dtype, ds.schema["actions"].dtype) == ("float64", "float32")
    for i, rollout in enumerate(rollouts):
        np.testing.assert_array_equal(ds[i]["observations"], rollout.columns["observations"].astype(np.float64))
        assert ds[i].final["observations"].dtype == np.float64
        np.testing.assert_array_equal(ds[i].final["observations"], rollout.final)
    gear_data.convert(source, tmp_path / "plain")
    with pytest.raises(UnsupportedColumnError, match=r"again with --dtype observations=float64 \(tables") as error:
        gear_data.merge([tmp_path / "d", tmp_path / "plain"], tmp_path / "both")
    assert "is float32 [" in str(error.value)
    gear_data.convert(
        source, tmp_path / "plain", tables=gear_data.TableOptions(dtype={"observations": "float64"}), overwrite=True
    )
    assert gear_data.merge([tmp_path / "d", tmp_path / "plain"], tmp_path / "both").episodes == 10


def test_infos_and_float64_keep_their_dtype(sources: Any, tmp_path: Path) -> None:
    rollouts = [
        r.with_columns(observations=r.columns["observations"].astype(np.float64)) for r in sources.make_rollouts(5)
    ]
    rollouts = [sources.Rollout(r.columns, r.final.astype(np.float64)) for r in rollouts]
    steps = sum(map(len, rollouts))
    goals = np.random.default_rng(0).normal(size=(steps, 2))
    extra = {"infos/goal": goals, "metadata/policy/weights": np.zeros((9, 9)), "metadata/algorithm": "SAC"}
    source = sources.write_d4rl(tmp_path / "s.hdf5", rollouts, extra=extra)
    gear_data.convert(source, tmp_path / "d")
    ds = gear_data.open(tmp_path / "d")
    assert ds.schema["observations"].dtype == "float64"
    assert "infos.goal" in ds.schema
    assert not any("weights" in name for name in ds.schema.names)
    assert ds.manifest.provenance["metadata"] == {"algorithm": "SAC"}
    np.testing.assert_array_equal(np.concatenate([ds.episode(i)["infos.goal"] for i in range(5)]), goals)
    for i, rollout in enumerate(rollouts):
        np.testing.assert_array_equal((ds.final(i) or {})["observations"], rollout.final)


@pytest.mark.parametrize("form", ["text", "rows"])
@pytest.mark.parametrize("mapped", [False, True])
def test_encoded_images(form: str, mapped: bool, tmp_path: Path) -> None:
    frames = [png(i) for i in range(30)]
    padded = [frame.ljust(max(map(len, frames)), b"\0") for frame in frames]
    rows = np.array(padded) if form == "text" else np.array([np.frombuffer(frame, np.uint8) for frame in padded])
    path = write_flat(tmp_path / "a.hdf5", [9, 29], timeouts=np.zeros(30, bool), rgb=rows)
    mapping = yaml.safe_load(suggest_mapping(path)) if mapped else None
    gear_data.convert(path, tmp_path / "d", mapping=mapping, progress=False)
    dataset = gear_data.open(tmp_path / "d")
    assert dataset.lengths.tolist() == [10, 20]
    expected = np.stack([np.asarray(Image.open(io.BytesIO(frame))) for frame in frames])
    np.testing.assert_array_equal(np.concatenate([dataset.episode(i)["rgb"] for i in range(2)]), expected)


def png(seed: int) -> bytes:
    file = io.BytesIO()
    Image.fromarray(np.full((6, 5, 3), 8 * seed, np.uint8)).save(file, "PNG")
    return file.getvalue()


def test_soccer_with_its_empty_files(shared_data: Path, tmp_path: Path) -> None:
    report = gear_data.convert(shared_data / "robot_soccer_d4rl", tmp_path / "d")
    assert (report.format, report.steps) == ("d4rl", 20_000)
    with h5py.File(shared_data / "robot_soccer_d4rl" / "trajectories.hdf5", "r") as file:
        flat = {name: file[name][...] for name in file}
    ends = [
        row
        for row in range(20_000)
        if row == 19_999
        or flat["terminals"][row]
        or not np.array_equal(flat["next_observations"][row], flat["observations"][row + 1])
    ]
    ds = gear_data.open(tmp_path / "d")
    assert ds.num_episodes == len(ends)
    assert np.cumsum(ds.episodes["length"].to_numpy()).tolist() == [end + 1 for end in ends]
    for i, end in enumerate(ends):
        np.testing.assert_array_equal((ds.final(i) or {})["observations"], flat["next_observations"][end])


# Files that must be refused.


@pytest.fixture
def spoil(sources: Any, tmp_path: Path) -> Callable[[Callable[[h5py.File, int], None]], Path]:
    def spoilt(change: Callable[[h5py.File, int], None]) -> Path:
        source = sources.write_d4rl(tmp_path / "s.hdf5", sources.make_rollouts(4))
        with h5py.File(source, "r+") as file:
            rows = len(file["rewards"])
            del file["actions"]
            change(file, rows)
        return Path(source)

    return spoilt


def test_links_to_elsewhere(spoil: Any, tmp_path: Path) -> None:
    with h5py.File(tmp_path / "other.hdf5", "w") as other:
        other["x"] = np.zeros((99, 2), np.float32)
    source = spoil(lambda file, rows: file.__setitem__("actions", h5py.ExternalLink(tmp_path / "other.hdf5", "x")))
    with pytest.raises(UnsupportedColumnError, match=r"actions.*is an external link, which is not followed"):
        d4rl.open_(locate(str(source), None), SourceOptions())
    source = spoil(lambda file, rows: file.__setitem__("actions", h5py.SoftLink("/observations")))
    with pytest.raises(UnsupportedColumnError, match="is a soft link"):
        d4rl.open_(locate(str(source), None), SourceOptions())


def test_data_in_other_files(spoil: Any, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(bytes(1 << 12))

    def external(file: h5py.File, rows: int) -> None:
        file.create_dataset("actions", (rows, 2), np.float32, external=[(str(secret), 0, rows * 8)])

    def virtual(file: h5py.File, rows: int) -> None:
        layout = h5py.VirtualLayout((rows, 2), np.float32)
        layout[:] = h5py.VirtualSource(tmp_path / "other.hdf5", "x", (rows, 2))
        file.create_virtual_dataset("actions", layout)

    for change in (external, virtual):
        with pytest.raises(CorruptSourceError, match=r"actions.*keeps its data in other files"):
            read(spoil(change))


@pytest.mark.parametrize(
    "options",
    [
        {"shape": (1 << 44,)},
        {"shape": (1 << 44,), "chunks": (1 << 16,), "compression": "gzip"},
        {"shape": (2, 1 << 31)},
        {"shape": (2,), "maxshape": (None,), "chunks": (1 << 29,)},
    ],
    ids=["absurd", "bomb", "row", "chunk"],
)
def test_absurd_sizes_are_not_allocated(options: Any, spoil: Any) -> None:
    with pytest.raises(CorruptSourceError, match="actions"):
        read(spoil(lambda file, rows: file.create_dataset("actions", dtype=np.float32, **options)))


@pytest.mark.parametrize("packing", [None, "gzip"])
def test_chunks_that_are_too_short(packing: str | None, spoil: Any) -> None:
    """libhdf5 reads past the end of such chunks, and may crash."""

    def short(file: h5py.File, rows: int) -> None:
        shapes = {"shape": (rows, 2), "maxshape": (None, 2), "chunks": (1 << 12, 2)}
        actions = file.create_dataset("actions", dtype=np.float32, compression=packing, **shapes)
        actions.id.write_direct_chunk((0, 0), b"x" * 20 if packing is None else zlib.compress(b""))

    with pytest.raises(CorruptSourceError, match=r"actions.*a chunk of 32768 bytes, at its row 0, has \d+ in the file"):
        read(spoil(short))


@pytest.mark.parametrize("filters", [{"compression": "lzf"}, {"shuffle": True, "fletcher32": True}])
def test_chunks_of_checked_filters_are_read(filters: Any, sources: Any, tmp_path: Path) -> None:
    rollouts = sources.make_rollouts(4)
    values = np.arange(sum(map(len, rollouts)), dtype=np.float64)
    source = sources.write_d4rl(tmp_path / "s.hdf5", rollouts)
    with h5py.File(source, "r+") as file:
        file.create_dataset("infos/count", data=values, chunks=(7,), **filters)
    gear_data.convert(source, tmp_path / "d", progress=False)
    ds = gear_data.open(tmp_path / "d")
    counts = np.concatenate([ds.episode(i)["infos.count"] for i in range(ds.num_episodes)])
    np.testing.assert_array_equal(counts, values)


def test_mutated_files_give_typed_errors(sources: Any, tmp_path: Path) -> None:
    source = sources.write_d4rl(tmp_path / "s.hdf5", sources.make_rollouts(9), compression="gzip")
    good = source.read_bytes()
    rng = np.random.default_rng(4)
    refused = 0
    for i in range(120):
        bad = bytearray(good)
        for at in rng.integers(0, len(bad) if i % 2 else 2048, 1 + i % 7):
            bad[at] = rng.integers(256)
        source.write_bytes(bad[: rng.integers(1, len(bad))] if i % 10 == 0 else bad)
        try:
            d4rl.probe(locate(str(source), None))
            opened = d4rl.open_(locate(str(source), None), SourceOptions())
            opened.units()
            for _ in opened.blocks(BEGIN, END):
                pass
        except GearError:
            refused += 1
    assert refused > 30


def test_no_garbage_is_collected_while_a_remote_file_is_open(sources: Any, memory_url: str, tmp_path: Path) -> None:
    """A collection in fsspec's thread would wait for h5py's lock, and h5py for this thread."""
    path = sources.write_d4rl(tmp_path / "a.hdf5", sources.make_rollouts(3, seed=1))
    with fsspec.open(f"{memory_url}/a.hdf5", "wb") as copy:
        copy.write(path.read_bytes())
    (remote,), (local,) = (locate(str(place), None).files for place in (f"{memory_url}/a.hdf5", path))
    with open_hdf5(local):
        assert gc.isenabled()
    with open_hdf5(remote) as first:
        with open_hdf5(remote):
            assert not gc.isenabled()
        assert not gc.isenabled() and "actions" in first
    assert gc.isenabled()
    gc.disable()
    try:
        with open_hdf5(remote):
            pass
        assert not gc.isenabled()  # as before
    finally:
        gc.enable()
