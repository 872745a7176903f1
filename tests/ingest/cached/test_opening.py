"""Sources that are opened: converted once, and again when they change."""

from __future__ import annotations

import errno
import itertools
import logging
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import datasets
import numpy as np
import polars as pl
import pytest
import torch

import gear_data
from gear_data import ConvertOptions, EpisodeBoundaries, TableOptions, VideoStorage
from gear_data.common import retry
from gear_data.errors import (
    BadEpisodeError,
    DatasetNotFoundError,
    GearError,
    InvalidArgumentError,
    RemoteError,
    SourceChangedError,
    SourceNotFoundError,
    StorageFullError,
    UnknownArgumentError,
    UnwritableError,
)
from gear_data.ingest import convert as conversions
from gear_data.ingest import location
from gear_data.ingest.cached.entries import HEADER, list_entries
from gear_data.storage import atomic
from gear_data.storage.remote.range_reader import filesystem_of
from tests.support.interrupted import convert_until
from tests.support.makers.videos import lerobot_videos
from tests.support.rollouts import Rollout, episode_numbers, step_table, write_d4rl, write_episodes, write_steps


def check(dataset: gear_data.Dataset, rollouts: list[Rollout]) -> None:
    """Compares a dataset with the episodes of which the source was made."""
    assert dataset.num_episodes == len(rollouts)
    for episode, rollout in zip(dataset, rollouts, strict=True):
        for name in ("observations", "actions", "rewards"):
            np.testing.assert_array_equal(episode[name], rollout.columns[name])


def hops(rollouts: list[Rollout]) -> list[dict[str, Any]]:
    return [rollout.columns for rollout in rollouts]


def test_a_file_is_converted_once(source: Path, rollouts: list[Rollout], runs: list[str], cache: Path) -> None:
    dataset = gear_data.open(source)
    check(dataset, rollouts)
    assert Path(dataset.path).is_relative_to(cache)
    assert Path(dataset.path).name == "hops.hdf5"
    check(gear_data.open(str(source)), rollouts)
    assert len(runs) == 1
    direct = gear_data.convert(source, cache.parent / "direct")
    assert dataset.fingerprint == direct.fingerprint


def test_a_relative_path_is_the_same_source(
    source: Path, runs: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = gear_data.open(source)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "link").symlink_to(tmp_path)
    for path in ("hops.hdf5", "./hops.hdf5", Path("hops.hdf5"), "link/hops.hdf5", f"file://{source}"):
        assert gear_data.open(path).path == first.path
    assert len(runs) == 1


def test_a_changed_source_is_converted_again_and_says_so(
    source: Path, rollouts: list[Rollout], runs: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    first = gear_data.open(source)
    assert not caplog.records
    write_d4rl(source, rollouts[:7])
    with caplog.at_level(logging.WARNING):
        check(gear_data.open(source), rollouts[:7])
    assert [record.getMessage().partition(",")[0] for record in caplog.records] == [
        f"{source}: changed since it was converted"
    ]
    check(first, rollouts)
    os.utime(source, ns=(1, 1))  # the size is the same
    check(gear_data.open(source), rollouts[:7])
    assert len(runs) == 3


def test_a_folder(tmp_path: Path, rollouts: list[Rollout], runs: list[str]) -> None:
    for number in range(3):
        write_d4rl(tmp_path / f"hops/{number}.hdf5", rollouts[number * 9 : number * 9 + 9])
    check(gear_data.open(tmp_path / "hops"), rollouts[:27])
    check(gear_data.open(f"{tmp_path}/hops/"), rollouts[:27])
    assert len(runs) == 1
    (tmp_path / "hops/1.hdf5").unlink()
    check(gear_data.open(tmp_path / "hops"), rollouts[:9] + rollouts[18:27])


def test_several_sources(tmp_path: Path, rollouts: list[Rollout], runs: list[str]) -> None:
    paths = [write_d4rl(tmp_path / f"{name}.hdf5", rollouts) for name in ("hop", "walk")]
    for _ in range(2):
        dataset = gear_data.open(paths)
        assert dataset.episodes["embodiment"].unique(maintain_order=True).to_list() == ["hop", "walk"]
    assert len(runs) == 1
    write_d4rl(paths[1], rollouts[:3])
    assert gear_data.open(paths).num_episodes == len(rollouts) + 3


OBJECTS: dict[str, Callable[[list[Rollout]], Any]] = {
    "episodes": hops,
    "arrays": lambda rollouts: {
        name: np.concatenate([each[name] for each in hops(rollouts)]) for name in rollouts[0].columns
    },
    "transitions": lambda rollouts: [
        (
            each.columns["observations"][t],
            each.columns["actions"][t],
            each.columns["rewards"][t],
            each.next_observations[t],
            bool(each.ends[t]),
        )
        for each in rollouts
        for t in range(len(each))
    ],
    "pandas": lambda rollouts: table(rollouts).to_pandas(),
    "polars": lambda rollouts: pl.from_arrow(table(rollouts)),
    "polars lazy": lambda rollouts: pl.DataFrame(pl.from_arrow(table(rollouts))).lazy(),
    "arrow": lambda rollouts: table(rollouts),
    "arrow stream": lambda rollouts: table(rollouts).to_reader(),
    "datasets": lambda rollouts: datasets.Dataset.from_dict(table(rollouts).to_pydict()),
}


def table(rollouts: list[Rollout]) -> Any:
    return step_table(hops(rollouts), episode_index=episode_numbers(rollouts))


@pytest.mark.parametrize("kind", OBJECTS)
def test_objects_in_memory_are_known_by_their_contents(kind: str, rollouts: list[Rollout], runs: list[str]) -> None:
    first = gear_data.open(OBJECTS[kind](rollouts))
    assert first.num_episodes == len(rollouts)
    np.testing.assert_allclose(first[5]["actions"], rollouts[5].columns["actions"])
    assert gear_data.open(OBJECTS[kind](rollouts)).path == first.path
    assert len(runs) == 1
    changed = [rollout.with_columns(rewards=rollout.columns["rewards"] + 1) for rollout in rollouts]
    np.testing.assert_allclose(gear_data.open(OBJECTS[kind](changed))[5]["rewards"], changed[5].columns["rewards"])
    assert len(runs) == 2


def test_arrays_that_the_conversion_refuses(rollouts: list[Rollout], cache: Path) -> None:
    """With a mask, an array has the same bytes as without. NumPy cannot hold a tensor with a gradient."""
    arrays = OBJECTS["arrays"](rollouts)
    gear_data.open(arrays)
    rewards = arrays["rewards"]
    for refused, message in (
        (np.ma.masked_array(rewards, np.arange(len(rewards)) == 3), "holds masked values"),
        (torch.from_numpy(rewards).requires_grad_(), "cannot be converted to an array"),
    ):
        with pytest.raises(BadEpisodeError, match=message):
            gear_data.open({**arrays, "rewards": refused})
    assert len(list_entries(cache)) == 1


def test_iterators_and_functions_are_converted_each_time(rollouts: list[Rollout], runs: list[str], cache: Path) -> None:
    dataset = gear_data.open(iter(hops(rollouts)))
    check(dataset, rollouts)
    assert gear_data.open(iter(hops(rollouts))).path == dataset.path
    check(gear_data.open(lambda: iter(hops(rollouts[:4]))), rollouts[:4])
    assert len(runs) == 3
    assert len(list_entries(cache)) == 2
    facts = [{**each, "task": "hop"} for each in hops(rollouts)]
    assert gear_data.open(iter(facts)).episodes["task"].to_list() == ["hop"] * len(rollouts)  # the steps are the same


def test_options_are_part_of_the_key(tmp_path: Path, rollouts: list[Rollout], runs: list[str]) -> None:
    path = write_steps(tmp_path / "steps.parquet", rollouts)
    plain = gear_data.open(path)
    some = ConvertOptions(columns=["actions", "rewards"], tables=TableOptions(dtype={"actions": "float64"}))
    dataset = gear_data.open(path, convert=some)
    assert "observations" not in dataset.schema.names
    assert dataset[3]["actions"].dtype == np.float64
    assert gear_data.open(path).path == plain.path
    again = ConvertOptions(columns=("actions", "rewards"), tables=TableOptions(dtype={"actions": "float64"}))
    assert gear_data.open(path, convert=again).path == dataset.path
    # How a conversion runs is no part of the key.
    assert gear_data.open(path, convert=ConvertOptions(jobs=1, progress=False)).path == plain.path
    assert len(runs) == 2


def test_a_mapping_file_is_read_for_the_key(tmp_path: Path) -> None:
    (tmp_path / "map.yaml").write_text("episodes: {files: '*'}\ncolumns: {actions: a}\n")
    first = ConvertOptions(mapping=tmp_path / "map.yaml").to_json()
    assert first == ConvertOptions(mapping={"episodes": {"files": "*"}, "columns": {"actions": "a"}}).to_json()
    (tmp_path / "map.yaml").write_text("episodes: {files: '*'}\ncolumns: {actions: b}\n")
    assert first != ConvertOptions(mapping=tmp_path / "map.yaml").to_json()


def test_wrong_options(source: Path) -> None:
    with pytest.raises(UnknownArgumentError, match="columns"):
        ConvertOptions(colums=["actions"])  # type: ignore[call-arg]
    with pytest.raises(InvalidArgumentError, match=r"convert must be ConvertOptions"):
        gear_data.open(source, convert={"split": "train"})  # type: ignore[arg-type]
    with pytest.raises(GearError, match="no split 'train'"):
        gear_data.open(source, convert=ConvertOptions(split="train"))


def test_a_dataset_opens_as_it_is(rollouts_path: Path, runs: list[str], cache: Path) -> None:
    assert Path(gear_data.open(rollouts_path).path) == rollouts_path
    assert not cache.exists()
    with pytest.raises(InvalidArgumentError, match="is a dataset"):
        gear_data.open(rollouts_path, convert=ConvertOptions())
    assert not runs


def test_what_is_not_there_is_an_error_about_the_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rollouts_path: Path
) -> None:
    def asked(*_: Any) -> Any:
        pytest.fail("the hub was asked")

    monkeypatch.setattr(location, "with_retries", asked)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").mkdir()
    name = rollouts_path.name
    for number in range(12):
        shutil.copytree(rollouts_path, tmp_path / f"parts/{number:02}")
    names = ", ".join(f"{number:02}" for number in range(10))
    with pytest.raises(DatasetNotFoundError, match=f"datasets inside: {names}, and 2 more$"):
        gear_data.open(tmp_path / "parts")
    (tmp_path / "empty").mkdir()
    for path in ("missing", "missing/", "runs/missing", "a/b/c", Path("user/name"), "./user/name", "user/x.hdf5"):
        with pytest.raises(DatasetNotFoundError, match="no such file or folder"):
            gear_data.open(path)
    with pytest.raises(DatasetNotFoundError, match=f"did you mean {tmp_path / 'parts'}\\?"):
        gear_data.open("./part/00")
    with pytest.raises(DatasetNotFoundError, match=f"there is no missing in {tmp_path / 'runs'}"):
        gear_data.open("runs/missing")
    with pytest.raises(DatasetNotFoundError, match="only the shell expands '~'"):
        gear_data.open("~/runs")
    with pytest.raises(DatasetNotFoundError, match="no gear dataset here"):
        gear_data.open(tmp_path / "empty")
    with pytest.raises(SourceNotFoundError, match=r"missing\.hdf5"):
        gear_data.open(["missing.hdf5", "empty"])
    # A folder whose manifest is missing is no source of Arrow files, and neither is a folder of datasets.
    with pytest.raises(
        DatasetNotFoundError, match=f"no gear dataset here.*\n  open one of the datasets inside: {name}$"
    ):
        gear_data.open(rollouts_path.parent)
    (rollouts_path / "manifest.json").unlink()
    with pytest.raises(DatasetNotFoundError, match="no gear dataset here"):
        gear_data.open(rollouts_path)


def test_a_source_that_changes_while_it_is_converted(
    source: Path, rollouts: list[Rollout], monkeypatch: pytest.MonkeyPatch, cache: Path
) -> None:
    run = conversions.run_conversion

    def changing(*arguments: Any, **options: Any) -> Any:
        result = run(*arguments, **options)
        write_d4rl(source, rollouts[:3])
        return result

    def shrinking(*arguments: Any, **options: Any) -> Any:
        os.truncate(source, 3000)
        return run(*arguments, **options)

    for change in (changing, shrinking):
        with monkeypatch.context() as patch:
            patch.setattr(conversions, "run_conversion", change)
            with pytest.raises(SourceChangedError, match="changed while it was converted"):
                gear_data.open(source)
        assert list_entries(cache) == []
        write_d4rl(source, rollouts)
    check(gear_data.open(source), rollouts)


def test_a_full_disk_and_the_next_try(source: Path, rollouts: list[Rollout], monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> Any:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(atomic.os, "replace", full)
        with pytest.raises(StorageFullError, match=r"gear-data cache prune"):
            gear_data.open(source)
    check(gear_data.open(source), rollouts)


def test_a_cache_that_cannot_be_written(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("GEAR_DATA_CACHE", str(tmp_path / "file"))
    with pytest.raises(UnwritableError, match=r"\$GEAR_DATA_CACHE"):
        gear_data.open(source)
    assert gear_data.open(source, cache_dir=tmp_path / "other").num_episodes == 40


def test_an_unfinished_conversion_is_continued(
    source: Path, rollouts: list[Rollout], cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = ConvertOptions(shard_bytes=2048)
    convert = gear_data.convert

    def open_instead(path: Path, _: Path, **__: Any) -> Any:
        return gear_data.open(path, convert=options)

    monkeypatch.setattr(gear_data, "convert", open_instead, raising=False)
    convert_until(source, cache, 2, {}, monkeypatch)
    monkeypatch.setattr(gear_data, "convert", convert)
    (entry,) = list_entries(cache)
    assert entry.source is None
    first = next(entry.folder.glob("*/shards/*"))
    before = first.stat().st_mtime_ns
    dataset = gear_data.open(source, convert=options)
    check(dataset, rollouts)
    assert first.stat().st_mtime_ns == before
    assert len(list_entries(cache)) == 1


@pytest.mark.parametrize("damage", ["other version", "damaged progress", "no header"])
def test_what_another_run_left_is_not_trusted(
    damage: str, source: Path, rollouts: list[Rollout], runs: list[str], cache: Path
) -> None:
    folder = Path(gear_data.open(source).path)
    (folder.parent / HEADER).unlink()
    if damage == "other version":  # of an unfinished conversion
        (folder / "manifest.json").unlink()
        (folder / ".progress").mkdir()
        (folder / ".progress/options.json").write_text('{"checksum": "x", "new": 1}')
    elif damage == "damaged progress":
        (folder / "manifest.json").unlink()
        (folder / ".progress").mkdir()
        (folder / ".progress/options.json").write_text("\0")
    check(gear_data.open(source), rollouts)
    assert len(list_entries(cache)) == 1
    assert len(runs) == {"no header": 2}.get(damage, 3)


def test_two_versions_share_a_cache(
    source: Path, rollouts: list[Rollout], runs: list[str], monkeypatch: pytest.MonkeyPatch, cache: Path
) -> None:
    first = gear_data.open(source)
    monkeypatch.setattr("gear_data.ingest.cached.source_state.VERSION", "9.0")
    second = gear_data.open(source)
    assert first.path != second.path
    assert len(list_entries(cache)) == len(runs) == 2


def test_memory_urls_without_stamps_are_known_by_their_contents(
    memory_url: str, source: Path, rollouts: list[Rollout], runs: list[str]
) -> None:
    filesystem, place = filesystem_of(memory_url)
    filesystem.put_file(str(source), f"{place}/hops.hdf5")
    url = f"{memory_url}/hops.hdf5"
    for _ in range(2):
        check(gear_data.open(url), rollouts)
    assert len(runs) == 1
    data = bytearray(source.read_bytes())
    at = data.index(np.float32(rollouts[5].columns["rewards"][0]).tobytes())
    data[at : at + 4] = np.float32(77).tobytes()
    filesystem.pipe_file(f"{place}/hops.hdf5", bytes(data))  # the size is the same
    gear_data.open(url)
    assert len(runs) == 2


def test_a_url_whose_server_is_gone_opens_as_it_was(
    memory_url: str,
    source: Path,
    rollouts: list[Rollout],
    runs: list[str],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    filesystem, place = filesystem_of(memory_url)
    filesystem.put_file(str(source), f"{place}/hops.hdf5")
    urls = (memory_url, f"{memory_url}/hops.hdf5")
    for url in urls:
        check(gear_data.open(url), rollouts)
    limited = OSError("answered")
    limited.status = 429  # type: ignore[attr-defined]
    failures = [OSError(errno.ECONNREFUSED, os.strerror(errno.ECONNREFUSED))]
    asked: list[Any] = []

    def fail(*arguments: Any, **_: Any) -> Any:
        asked.append(arguments)
        raise failures[-1]

    given: tuple[dict[str, Any], ...] = ({}, {"convert": ConvertOptions()})
    with monkeypatch.context() as patch:
        for name in ("info", "find"):
            patch.setattr(type(filesystem), name, fail)
        patch.setattr(retry, "MAX_SECONDS", 0.0)  # one attempt
        for url, options in itertools.product(urls, given):
            asked.clear()
            caplog.clear()
            check(gear_data.open(url, **options), rollouts)
            assert [record.getMessage().rpartition(" of ")[0] for record in caplog.records] == [
                f"{url}: cannot reach its server; using the conversion"
            ]
            assert len(asked) == 1  # a server that does not answer costs its time limit each time
        with pytest.raises(RemoteError, match="Connection refused"):
            gear_data.open(f"{memory_url}/other")
        failures.append(limited)  # the server is there
        with pytest.raises(RemoteError, match="answered"):
            gear_data.open(memory_url)
    assert len(runs) == 2


def test_the_first_request_to_the_hub_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    limited = Exception("answered")
    limited.response = SimpleNamespace(status_code=429, headers={"retry-after": "3"})  # type: ignore[attr-defined]
    failures: list[Exception] = [limited]
    waits: list[float] = []

    def info(*_: Any) -> Any:
        if failures:
            raise failures.pop()
        return SimpleNamespace(sha="f" * 40)

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(location, "_dataset_info", info)
    monkeypatch.setattr(retry.time, "sleep", waits.append)
    assert location.hub_commit("me/robot") == "f" * 40
    assert waits == [3.0]
    assert "me/robot: the server limits how often it is asked (429); waiting 3.0 s" in caplog.messages
    failures.extend([limited] * retry.MAX_ATTEMPTS)
    with pytest.raises(RemoteError, match=r"me/robot: cannot be looked up on the hub .*tried 5 times"):
        gear_data.open("me/robot")
    assert not failures


def test_a_dataset_at_a_url_is_not_converted(rollouts_path: Path, memory_url: str, runs: list[str]) -> None:
    filesystem, place = filesystem_of(memory_url)
    filesystem.put(f"{rollouts_path}/", place, recursive=True)
    assert str(gear_data.open(memory_url).path) == memory_url
    assert not runs
    filesystem.rm(f"{place}/manifest.json")
    with pytest.raises(DatasetNotFoundError, match="no gear dataset here"):
        gear_data.open(memory_url)


@pytest.mark.processes
def test_videos_stay_where_they_are(tmp_path: Path, rollouts: list[Rollout], cache: Path) -> None:
    pytest.importorskip("av")
    lerobot_videos(tmp_path / "robot", rollouts[:4])
    videos = sorted((tmp_path / "robot").rglob("*.mp4"))
    before = [(path.stat().st_nlink, path.stat().st_mtime_ns) for path in videos]
    for storage in ("keep", VideoStorage(mode="keep"), "link"):
        dataset = gear_data.open(tmp_path / "robot", convert=ConvertOptions(videos=storage))  # type: ignore[arg-type]
    assert len(list_entries(cache)) == 1
    assert not list(cache.rglob("*.mp4"))
    assert [(path.stat().st_nlink, path.stat().st_mtime_ns) for path in videos] == before
    direct = gear_data.convert(tmp_path / "robot", tmp_path / "direct")
    assert dataset.fingerprint == direct.fingerprint
    batch = next(iter(gear_data.SequenceLoader(dataset, batch_size=2, context=2)))
    assert any("images" in name for name in batch)


def test_options_that_a_file_holds_are_read_back() -> None:
    options = ConvertOptions(
        split=("train", "val"),
        columns=("actions",),
        rename={"a": "b"},
        episodes=EpisodeBoundaries(episode_column=("seed", "n"), max_episode_steps=3),
        videos=VideoStorage(mode="jpeg", size=(8, 8)),
        tables=TableOptions(fill_null={"x": float("nan")}),
        stack={"observations": ["p", "v"]},
        keep_encoded=True,
        strict=True,
    )
    assert ConvertOptions.parse(options.to_json()).to_json() == options.to_json()
    assert ConvertOptions().to_json() == {}
    with pytest.raises(UnknownArgumentError, match="did you mean 'split'"):
        ConvertOptions.parse({"splits": "train"})
    with pytest.raises(UnknownArgumentError, match="EpisodeBoundaries has no argument 'episode'"):
        ConvertOptions.parse({"episodes": {"episode": "n"}})
    with pytest.raises(InvalidArgumentError, match="not a mapping"):
        ConvertOptions.parse(["split"])


def test_episodes_tables_in_a_row_an_episode(tmp_path: Path, rollouts: list[Rollout]) -> None:
    path = write_episodes(tmp_path / "hops.parquet", rollouts)
    check(gear_data.open(path, residency="host"), rollouts)
