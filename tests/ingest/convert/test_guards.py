"""Tests guards against changing types, repeated ids and silently lost columns."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import datasets
import h5py
import numpy as np
import pyarrow as pa
import pytest

import gear_data
from gear_data.errors import (
    BadEpisodeError,
    CorruptSourceError,
    DestinationExistsError,
    InvalidArgumentError,
    ManifestError,
    UnknownFormatError,
    UnsupportedColumnError,
)
from gear_data.ingest.location import locate
from gear_data.ingest.pipeline.id_ranges import IdRanges
from gear_data.ingest.sources.tables import dataset_stream, file_stream
from gear_data.ingest.sources.tables.files.parquet import PARQUET
from gear_data.storage.atomic import swap_folders
from gear_data.storage.episode_block import BEGIN, END
from gear_data.storage.writing.shard_writer import ShardWriter
from tests.support.manifests import sign_file


def test_foreign_byte_order(sources: Any, rollouts: list[Any], tmp_path: Path) -> None:
    path = sources.write_d4rl(tmp_path / "a.hdf5", rollouts)
    with h5py.File(path, "r+") as file:
        for name in ("rewards", "observations", "next_observations"):
            values = file[name][:]
            del file[name]
            file.create_dataset(name, data=values.astype(">f4"))
    gear_data.convert(path, tmp_path / "out")
    sources.check_dataset(tmp_path / "out", rollouts, final=True)


def _with_next_observations(path: Path, change: Any) -> Path:
    with h5py.File(path, "r+") as file:
        values = change(file["next_observations"][:])
        del file["next_observations"]
        file.create_dataset("next_observations", data=values)
    return path


def test_next_observations_must_have_the_dtype_of_observations(
    sources: Any, rollouts: list[Any], tmp_path: Path
) -> None:
    path = _with_next_observations(sources.write_d4rl(tmp_path / "a.hdf5", rollouts), lambda x: x.astype(np.float64))
    with pytest.raises(UnsupportedColumnError) as error:
        gear_data.convert(path, tmp_path / "out")
    assert (error.value.file, error.value.column) == (str(path), "next_observations")
    assert not (tmp_path / "out").exists()


def test_next_observations_of_another_shape_stay_a_column(sources: Any, rollouts: list[Any], tmp_path: Path) -> None:
    path = _with_next_observations(sources.write_d4rl(tmp_path / "a.hdf5", rollouts), lambda x: x[:, :2])
    gear_data.convert(path, tmp_path / "out")
    ds = gear_data.open(tmp_path / "out")
    assert ds.final(0) is None
    for episode, rollout in zip(ds, rollouts, strict=True):
        np.testing.assert_array_equal(episode["next_observations"], rollout.next_observations[:, :2])


@pytest.mark.parametrize("batch_bytes", [1, 1 << 20])
def test_a_stream_whose_types_change_is_refused(
    batch_bytes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first rewards look like integers, within a batch and across batches."""
    monkeypatch.setattr(dataset_stream, "_BATCH_BYTES", batch_bytes)

    def stream() -> Any:
        for i in range(200):
            yield {"observations": [[0.5]] * 3, "rewards": [1, 0, 2] if i < 150 else [0.25, 0.5, 0.75]}

    with pytest.raises(CorruptSourceError, match=r"dataset\.map\("):
        gear_data.convert(datasets.IterableDataset.from_generator(stream), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_resumed_run_refuses_an_episode_that_continues(sources: Any, rollouts: list[Any], tmp_path: Path) -> None:
    ids = sources.episode_numbers(rollouts)
    ids[ids == len(rollouts) - 1] = 0
    table = sources.step_table([r.columns for r in rollouts], episode_index=ids)
    source = sources.write_parquet(tmp_path / "a.parquet", table, row_group=20)
    for resume in (False, True, True):
        with pytest.raises(BadEpisodeError, match="episode 0 continues here") as error:
            gear_data.convert(source, tmp_path / "out", shard_bytes=2048, resume=resume)
        assert error.value.row == int(np.flatnonzero(np.diff(ids) < 0)[0]) + 1


def test_id_ranges_equal_a_set() -> None:
    rng = np.random.default_rng(4)
    for high in (6, 30, 300):
        ranges, known = IdRanges(), set()
        for value in rng.integers(-3, high, 200).tolist():
            assert (value in ranges) == (value in known)
            ranges.add(value)
            known.add(value)
            pairs = ranges.to_json()
            assert [i for first, last in pairs for i in range(first, last + 1)] == sorted(known)
            assert all(after[0] > before[1] + 1 for before, after in pairwise(pairs))
            ranges = IdRanges(pairs)
    count_up = IdRanges()
    for value in range(10_000):
        count_up.add(value)
    assert count_up.to_json() == [[0, 9999]]


def test_rewards_of_several_parts(sources: Any, rollouts: list[Any], tmp_path: Path) -> None:
    """Multi-objective rewards are kept, without a return and without returns-to-go."""
    parts = [r.with_columns(rewards=np.stack([r.columns["rewards"]] * 2, axis=1)) for r in rollouts]
    gear_data.convert(sources.write_episodes(tmp_path / "a.parquet", parts), tmp_path / "out")
    ds = gear_data.open(tmp_path / "out")
    assert "returns_to_go" not in ds.schema
    assert ds.episodes["return"].null_count() == len(rollouts)
    np.testing.assert_array_equal(ds.episode(3)["rewards"], parts[3].columns["rewards"])


def test_end_flags_of_several_parts_are_refused(sources: Any, rollouts: list[Any], tmp_path: Path) -> None:
    wide = [{**r.columns, "terminated": np.stack([r.columns["terminated"]] * 2, axis=1)} for r in rollouts]
    source = sources.write_parquet(tmp_path / "a.parquet", sources.episode_table(wide))
    with pytest.raises(UnsupportedColumnError, match="end flag") as error:
        gear_data.convert(source, tmp_path / "out")
    assert error.value.column == "terminated"
    assert not (tmp_path / "out").exists()


def test_a_crash_leaves_no_partial_dataset(
    sources: Any, rollouts: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The exception is not a GearError: it is a bug of gear-data, or an interrupt."""

    def crash(*arguments: Any) -> None:
        raise RuntimeError("crash")

    monkeypatch.setattr(ShardWriter, "_fill", crash)
    with pytest.raises(RuntimeError):
        gear_data.convert(sources.write_episodes(tmp_path / "a.parquet", rollouts), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_replaced_column_is_reported(sources: Any, rollouts: list[Any], tmp_path: Path) -> None:
    own = [r.with_columns(returns_to_go=np.full(len(r), 9, np.float32)) for r in rollouts]
    source = sources.write_episodes(tmp_path / "a.parquet", own)
    report = gear_data.convert(source, tmp_path / "out")
    assert any("replaced-column" in warning for warning in report.warnings)
    sources.check_dataset(tmp_path / "out", rollouts)
    report = gear_data.convert(source, tmp_path / "kept", rename={"returns_to_go": "infos.rtg"})
    assert not any("replaced-column" in warning for warning in report.warnings)
    assert gear_data.open(tmp_path / "kept").episode(0)["infos.rtg"].tolist() == [9.0]


def test_returns_to_go_without_rewards_is_an_ordinary_column(sources: Any, rollouts: list[Any], tmp_path: Path) -> None:
    own = [{"observations": r.columns["observations"], "returns_to_go": r.columns["rewards"]} for r in rollouts]
    gear_data.convert(sources.write_parquet(tmp_path / "a.parquet", sources.episode_table(own)), tmp_path / "out")
    np.testing.assert_array_equal(gear_data.open(tmp_path / "out").episode(5)["returns_to_go"], own[5]["returns_to_go"])


def test_names_survive_an_export(sources: Any, rollouts: list[Any], tmp_path: Path) -> None:
    parts = [r.with_columns(final_reward=r.columns["rewards"] * 2) for r in rollouts]
    source = sources.write_episodes(tmp_path / "a.parquet", parts)
    first = gear_data.convert(source, tmp_path / "out")
    gear_data.export(gear_data.open(tmp_path / "out"), tmp_path / "again.parquet")
    assert gear_data.convert(tmp_path / "again.parquet", tmp_path / "again").fingerprint == first.fingerprint
    with pytest.raises(InvalidArgumentError, match="read back as 'rewards'"):
        gear_data.convert(source, tmp_path / "new", rename={"final_reward": "next.reward"})


def test_splits_are_not_ignored(sources: Any, rollouts: list[Any], tmp_path: Path) -> None:
    source = sources.write_episodes(tmp_path / "train.parquet", rollouts)
    loaded = datasets.Dataset(pa.table({"rewards": [[1.0]]}))
    for given in (source, loaded):
        with pytest.raises(InvalidArgumentError, match="split"):
            gear_data.convert(given, tmp_path / "out", split="test")


def test_a_broken_link(sources: Any, rollouts: list[Any], tmp_path: Path) -> None:
    sources.write_episodes(tmp_path / "in" / "a.parquet", rollouts)
    (tmp_path / "in" / "b.parquet").symlink_to(tmp_path / "gone")
    with pytest.raises(CorruptSourceError) as error:
        gear_data.convert(tmp_path / "in", tmp_path / "out")
    assert error.value.file == "b.parquet"


def test_a_batch_is_bounded_by_memory(sources: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Short episodes come first, and all compress well: rows do not predict bytes."""
    monkeypatch.setattr(file_stream, "_BATCH_BYTES", 100_000)
    lengths = [2] * 4 + [500] * 60
    table = pa.table({"observations": [[[0.0, 1.0]] * n for n in lengths], "rewards": [[1.0] * n for n in lengths]})
    source = sources.write_parquet(tmp_path / "a.parquet", table)
    files = file_stream.FileTables(locate(source, None).files, PARQUET)
    files.head(64)
    largest = max(part.table.nbytes for part in files.parts(BEGIN, END))
    assert largest < 3 * 100_000


def test_a_false_episode_table(sources: Any, rollouts: list[Any], tmp_path: Path) -> None:
    """The table has the right size, but names rows outside the shard."""
    gear_data.convert(sources.write_episodes(tmp_path / "a.parquet", rollouts), tmp_path / "out", shard_bytes=4096)
    path = tmp_path / "out" / "episodes.arrow"
    sound = path.read_bytes()
    with pa.memory_map(str(path)) as mapped:
        batch = pa.ipc.open_file(mapped).get_batch(0)
        mapped.seek(0)
        base = mapped.read_buffer().address
        places = {name: batch.column(name).buffers()[1].address - base for name in ("start", "length", "shard")}
    lies = {"start": np.int64(2**63 - 1), "length": np.int64(2**40), "shard": np.int32(99)}
    for name, lie in lies.items():
        data = bytearray(sound)
        data[places[name] : places[name] + lie.itemsize] = lie.tobytes()
        path.write_bytes(data)
        sign_file(tmp_path / "out", path.name)
        with pytest.raises(ManifestError):
            gear_data.open(tmp_path / "out").store.reader()
    # Lengths that fit their shards, with a sum that is too small.
    data = bytearray(sound)
    longest = int(np.argmax([len(r) for r in rollouts]))
    place = places["length"] + 8 * longest
    data[place : place + 8] = np.int64(len(rollouts[longest]) - 1).tobytes()
    path.write_bytes(data)
    sign_file(tmp_path / "out", path.name)
    with pytest.raises(ManifestError, match="add up"):
        gear_data.SequenceLoader(gear_data.open(tmp_path / "out"))


def test_folders_are_swapped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Folders are swapped in one step, and also without the system call."""
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text(name)
    swap_folders(tmp_path / "a", tmp_path / "b")
    assert ((tmp_path / "a" / "file").read_text(), (tmp_path / "b" / "file").read_text()) == ("b", "a")
    monkeypatch.setattr("ctypes.CDLL", lambda *arguments, **options: object())
    swap_folders(tmp_path / "a", tmp_path / "b")
    assert ((tmp_path / "a" / "file").read_text(), (tmp_path / "b" / "file").read_text()) == ("a", "b")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b"]


def test_a_swap_removes_what_a_killed_swap_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the system call, a killed process may leave the old folder: every later swap failed."""
    for name in ("a", "b", ".b.gear-old"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text(name)
    monkeypatch.setattr("ctypes.CDLL", lambda *arguments, **options: object())
    swap_folders(tmp_path / "a", tmp_path / "b")
    assert ((tmp_path / "a" / "file").read_text(), (tmp_path / "b" / "file").read_text()) == ("b", "a")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b"]


def test_a_linked_destination(sources: Any, rollouts: list[Any], tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    source = sources.write_episodes(tmp_path / "a.parquet", rollouts)
    for options in ({}, {"overwrite": True}):
        gear_data.convert(source, tmp_path / "link", **options)
        assert (tmp_path / "link").is_symlink()
        sources.check_dataset(tmp_path / "real", rollouts)


# Data that must not be lost or misread.


def test_source_and_destination_must_not_overlap(sources: Any, rollouts: list[Any], tmp_path: Path) -> None:
    source = sources.write_episodes(tmp_path / "in" / "a.parquet", rollouts)
    with pytest.raises(InvalidArgumentError, match="destination lies inside the source"):
        gear_data.convert(tmp_path / "in", tmp_path / "in" / "out")
    gear_data.convert(source, tmp_path / "out")
    inside = sources.write_episodes(tmp_path / "out" / "mine.parquet", rollouts)
    before = sources.folder_contents(tmp_path)
    with pytest.raises(InvalidArgumentError, match="source lies inside the destination"):
        gear_data.convert(inside, tmp_path / "out", resume=True)
    with pytest.raises(DestinationExistsError, match=r"would be lost: mine\.parquet"):
        gear_data.convert(source, tmp_path / "out", overwrite=True)
    assert sources.folder_contents(tmp_path) == before
    inside.unlink()
    gear_data.convert(source, f"file://{tmp_path / 'out'}", overwrite=True)
    sources.check_dataset(tmp_path / "out", rollouts)


def test_files_of_another_format_are_refused_or_reported(sources: Any, rollouts: list[Any], tmp_path: Path) -> None:
    sources.write_episodes(tmp_path / "in" / "a.parquet", rollouts)
    sources.write_d4rl(tmp_path / "in" / "b.hdf5", rollouts)
    with pytest.raises(UnknownFormatError, match=r"episode-rows, and 1 data files of other formats: b\.hdf5"):
        gear_data.convert(tmp_path / "in", tmp_path / "out")
    gear_data.convert(tmp_path / "in", tmp_path / "out", format="episode-rows")
    findings = {finding["code"]: finding for finding in gear_data.open(tmp_path / "out").manifest.findings}
    assert (findings["files-left-out"]["count"], findings["files-left-out"]["file"]) == (1, "b.hdf5")


def test_an_episode_that_crosses_files_is_reported(sources: Any, tmp_path: Path) -> None:
    """If every file numbers its episodes from 0, two would silently become one."""
    rollouts = sources.make_rollouts(3, short=False)
    for i, rollout in enumerate(rollouts):
        sources.write_steps(tmp_path / "in" / f"{i}.parquet", [rollout])
    assert gear_data.convert(tmp_path / "in", tmp_path / "out").episodes == 1
    findings = {finding["code"]: finding for finding in gear_data.open(tmp_path / "out").manifest.findings}
    assert (findings["episode-crosses-files"]["count"], findings["episode-crosses-files"]["file"]) == (2, "0.parquet")
    # If the step numbers continue in the next file, it is one episode.
    table = sources.step_table([rollouts[0].columns], episode_index=[0] * len(rollouts[0]))
    table = table.append_column("frame_index", pa.array(range(len(table))))
    for i, part in enumerate((table.slice(0, 1), table.slice(1))):
        sources.write_parquet(tmp_path / "parts" / f"{i}.parquet", part)
    assert gear_data.convert(tmp_path / "parts", tmp_path / "one").warnings == ()
    sources.check_dataset(tmp_path / "one", rollouts[:1])


@pytest.mark.parametrize("value", [0.3, 2.0, -1.0, float("nan")])
def test_a_flag_is_0_or_1(value: float, sources: Any, rollouts: list[Any], tmp_path: Path) -> None:
    flags = [r.with_columns(terminated=r.columns["terminated"].astype(np.float32)) for r in rollouts]
    gear_data.convert(sources.write_episodes(tmp_path / "a.parquet", flags), tmp_path / "good")
    sources.check_dataset(tmp_path / "good", rollouts)
    flags[4].columns["terminated"][0] = value
    with pytest.raises(BadEpisodeError, match="0 or 1") as error:
        gear_data.convert(sources.write_episodes(tmp_path / "b.parquet", flags), tmp_path / "bad")
    assert (error.value.file, error.value.column, error.value.row) == ("b.parquet", "terminated", 4)


def test_a_flag_of_any_end_that_disagrees_is_reported(sources: Any, rollouts: list[Any], tmp_path: Path) -> None:
    ends = [r.columns["terminated"] | r.columns["truncated"] for r in rollouts]
    agree = [r.with_columns(dones=end) for r, end in zip(rollouts, ends, strict=True)]
    source = sources.write_episodes(tmp_path / "a.parquet", agree)
    assert not any("flags-disagree" in warning for warning in gear_data.convert(source, tmp_path / "a").warnings)
    agree[3].columns["dones"][:] = False
    gear_data.convert(sources.write_episodes(tmp_path / "b.parquet", agree), tmp_path / "b")
    findings = {finding["code"]: finding for finding in gear_data.open(tmp_path / "b").manifest.findings}
    assert (findings["flags-disagree"]["count"], findings["flags-disagree"]["row"]) == (1, 3)
    sources.check_dataset(tmp_path / "b", rollouts)


def test_options_are_not_ignored(sources: Any, rollouts: list[Any], tmp_path: Path) -> None:
    hdf5 = sources.write_d4rl(tmp_path / "a.hdf5", rollouts)
    parquet = sources.write_episodes(tmp_path / "a.parquet", rollouts)
    with pytest.raises(InvalidArgumentError, match="d4rl does not support episode_column"):
        gear_data.convert(hdf5, tmp_path / "out", episodes=gear_data.EpisodeBoundaries(episode_column="x"))
    with pytest.raises(InvalidArgumentError, match="episode-rows does not support max_episode_steps"):
        gear_data.lint(parquet, episodes=gear_data.EpisodeBoundaries(max_episode_steps=5))
    with pytest.raises(InvalidArgumentError, match="at least 1"):
        gear_data.convert(hdf5, tmp_path / "out", episodes=gear_data.EpisodeBoundaries(max_episode_steps=0))
    assert not (tmp_path / "out").exists()
