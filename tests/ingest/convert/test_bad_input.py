"""Tests bad input: a typed error with its place, no files left, and skipping."""

from __future__ import annotations

import datetime
import decimal
import json
import time
from collections.abc import Callable
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
    EmptySourceError,
    GearError,
    InvalidArgumentError,
    NonFiniteError,
    RemoteError,
    SourceNotFoundError,
    SplitNeededError,
    UnknownNameError,
    UnsupportedColumnError,
)

LFS_POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n"

#: The episode that the tests damage. It is in the third row group, after other rows of the group.
BAD = 5


@pytest.fixture
def refuse(tmp_path: Path) -> Callable[..., GearError]:
    """Converts and expects an error of exactly one type.

    It also checks that nothing is left at the destination or in its parent folder.
    """

    def run(kind: type[GearError], source: Any, **options: Any) -> GearError:
        place = tmp_path / "place"
        place.mkdir(exist_ok=True)
        with pytest.raises(kind) as error:
            gear_data.convert(source, place / "out", **options)
        assert type(error.value) is kind
        assert list(place.iterdir()) == []
        return error.value

    return run


@pytest.fixture(scope="module")
def some(sources: Any) -> list[Any]:
    """Returns seven episodes of five to nine steps."""
    long = [r for r in sources.make_rollouts(40, seed=2) if 5 <= len(r) <= 9]
    return long[:7]


def _lists(rollouts: list[Any]) -> dict[str, list[Any]]:
    return {name: [r.columns[name].tolist() for r in rollouts] for name in rollouts[0].columns}


_EPISODE_TYPES = {
    "observations": pa.list_(pa.list_(pa.float32())),
    "actions": pa.list_(pa.list_(pa.float32())),
    "rewards": pa.list_(pa.float32()),
    "terminated": pa.list_(pa.bool_()),
    "truncated": pa.list_(pa.bool_()),
}


def _episode_parquet(sources: Any, path: Path, lists: dict[str, list[Any]]) -> Path:
    table = pa.table({name: pa.array(values, _EPISODE_TYPES[name]) for name, values in lists.items()})
    return sources.write_parquet(path, table, row_group=2)  # type: ignore[no-any-return]


def _step_parquet(sources: Any, path: Path, lists: dict[str, list[Any]]) -> Path:
    flat = {
        name: pa.array([step for episode in episodes for step in episode], _EPISODE_TYPES[name].value_type)
        for name, episodes in lists.items()
    }
    flat["episode"] = pa.array([i for i, episode in enumerate(lists["rewards"]) for _ in episode])
    return sources.write_parquet(path, pa.table(flat), row_group=7)  # type: ignore[no-any-return]


# Missing and unreadable sources.


@pytest.mark.parametrize("name", ["gone.parquet", "gone.hdf5", "a/b/c", "no-such-user/no-such-dataset"])
def test_missing_source(name: str, refuse: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    error = refuse(SourceNotFoundError, name)
    assert error.file == name
    assert isinstance(error, FileNotFoundError)


@pytest.mark.parametrize(
    ("url", "kind"),
    [
        ("memory://nothing/here", SourceNotFoundError),
        ("hf://datasets/no-such-user/no-such-dataset", RemoteError),  # tests have no network
        ("nope://x", InvalidArgumentError),
    ],
)
def test_missing_url(url: str, kind: type[GearError], refuse: Any) -> None:
    begin = time.monotonic()
    assert refuse(kind, url).file == url
    assert time.monotonic() - begin < 10  # there were no retries


def test_a_source_of_another_kind(refuse: Any) -> None:
    assert "not int" in str(refuse(InvalidArgumentError, 12))
    assert "an episode must be a mapping" in str(refuse(InvalidArgumentError, [1, 2]))


@pytest.mark.parametrize("suffix", [".parquet", ".hdf5"])
@pytest.mark.parametrize(
    ("content", "message"),
    [(b"", "empty"), (LFS_POINTER, "Git-LFS pointer"), (b"PAR1 not really", "may have been truncated")],
)
def test_unreadable_file(suffix: str, content: bytes, message: str, refuse: Any, tmp_path: Path) -> None:
    (tmp_path / f"data{suffix}").write_bytes(content)
    error = refuse(CorruptSourceError, tmp_path / f"data{suffix}")
    assert error.file == f"data{suffix}"
    assert message in str(error)


@pytest.mark.parametrize("content", [b"", LFS_POINTER, b"PAR1"])
def test_unreadable_file_after_a_good_one(
    content: bytes, refuse: Any, sources: Any, some: list[Any], tmp_path: Path
) -> None:
    sources.write_episodes(tmp_path / "s" / "part-0.parquet", some)
    (tmp_path / "s" / "part-1.parquet").write_bytes(content)
    assert refuse(CorruptSourceError, tmp_path / "s").file == "part-1.parquet"


@pytest.mark.parametrize("share", [0.01, 0.3, 0.6, 0.9, 0.999])
def test_truncated_file(share: float, refuse: Any, sources: Any, some: list[Any], tmp_path: Path) -> None:
    for path in (
        sources.write_episodes(tmp_path / "s.parquet", some, row_group=2),
        sources.write_d4rl(tmp_path / "s.hdf5", some),
    ):
        data = path.read_bytes()
        path.write_bytes(data[: max(1, int(len(data) * share))])
        assert refuse(CorruptSourceError, path).file == path.name


@pytest.mark.parametrize("format", ["parquet", "hdf5"])
def test_damage_in_the_middle(format: str, refuse: Any, sources: Any, some: list[Any], tmp_path: Path) -> None:
    """The file opens, but its contents do not decompress."""
    if format == "parquet":
        path = sources.write_episodes(tmp_path / "s.parquet", some, row_group=2)
        place = 4
    else:
        path = sources.write_d4rl(tmp_path / "s.hdf5", some, compression="gzip")
        with h5py.File(path) as file:
            place = file["actions"].id.get_chunk_info(0).byte_offset
    data = bytearray(path.read_bytes())
    data[place : place + 40] = bytes(byte ^ 0xFF for byte in data[place : place + 40])
    path.write_bytes(data)
    assert refuse(CorruptSourceError, path).file == path.name


def test_files_of_different_columns(refuse: Any, sources: Any, some: list[Any], tmp_path: Path) -> None:
    fewer = [sources.Rollout({k: v for k, v in r.columns.items() if k != "actions"}, r.final) for r in some]
    wider = [r.with_columns(actions=r.columns["actions"].astype(np.float64)) for r in some]
    more = [r.with_columns(extra=r.columns["rewards"]) for r in some]
    for name, others, column in (("fewer", fewer, "actions"), ("wider", wider, "actions"), ("more", more, "extra")):
        sources.write_episodes(tmp_path / name / "a.parquet", some)
        sources.write_episodes(tmp_path / name / "b.parquet", others)
        error = refuse(CorruptSourceError, tmp_path / name)
        assert (error.file, error.column) == ("b.parquet", column)


def test_d4rl_files_of_different_columns(refuse: Any, sources: Any, some: list[Any], tmp_path: Path) -> None:
    wider = [r.with_columns(actions=np.ones((len(r), 5), np.float32)) for r in some]
    sources.write_d4rl(tmp_path / "s" / "a.hdf5", some)
    sources.write_d4rl(tmp_path / "s" / "b.hdf5", wider)
    error = refuse(CorruptSourceError, tmp_path / "s")
    assert (error.file, error.column) == ("b.hdf5", "actions")
    with h5py.File(tmp_path / "s" / "b.hdf5", "r+") as file:
        del file["actions"]
    error = refuse(CorruptSourceError, tmp_path / "s")
    assert (error.file, error.column) == ("b.hdf5", "actions")


def test_lerobot_with_broken_json(refuse: Any, sources: Any, some: list[Any], tmp_path: Path) -> None:
    source = sources.write_lerobot(tmp_path / "robot", some)
    tasks, info = source / "meta/tasks.jsonl", source / "meta/info.json"
    for path, text in ((tasks, "{"), (tasks, '{"task": "no index"}'), (info, "{"), (info, "[]")):
        whole = path.read_text()
        path.write_text(text)
        assert refuse(CorruptSourceError, source).file == f"meta/{path.name}"
        path.write_text(whole)


# Malformed episodes.


def _unequal(lists: dict[str, list[Any]]) -> None:
    lists["actions"][BAD].pop()


def _ragged(lists: dict[str, list[Any]]) -> None:
    lists["observations"][BAD][1] = [1.0]


def _null_episode(lists: dict[str, list[Any]]) -> None:
    lists["actions"][BAD] = None


def _null_step(lists: dict[str, list[Any]]) -> None:
    lists["actions"][BAD][1] = None


def _null_element(lists: dict[str, list[Any]]) -> None:
    lists["actions"][BAD][1][0] = None


def _null_reward(lists: dict[str, list[Any]]) -> None:
    lists["rewards"][BAD][1] = None


def _empty(lists: dict[str, list[Any]]) -> None:
    for episodes in lists.values():
        episodes[BAD] = []


BAD_EPISODES = {
    "unequal": (_unequal, "actions", "steps, where 'observations' has"),
    "ragged": (_ragged, "observations", "step 1 has 1 elements"),
    "null-episode": (_null_episode, "actions", "is null"),
    "null-step": (_null_step, "actions", "step 1 holds a null"),
    "null-element": (_null_element, "actions", "step 1 holds a null"),
    "null-reward": (_null_reward, "rewards", "step 1 holds a null"),
    "empty": (_empty, "observations", "no steps"),
}
BAD_STEPS = {name: BAD_EPISODES[name] for name in ("ragged", "null-step", "null-element", "null-reward")}


@pytest.mark.parametrize("name", BAD_EPISODES)
def test_bad_episode_row(name: str, refuse: Any, sources: Any, some: list[Any], tmp_path: Path) -> None:
    spoil, column, message = BAD_EPISODES[name]
    lists = _lists(some)
    spoil(lists)
    source = _episode_parquet(sources, tmp_path / "s.parquet", lists)
    error = refuse(BadEpisodeError, source)
    assert (error.file, error.column, error.row) == ("s.parquet", column, BAD)
    assert message in str(error)
    report = gear_data.convert(source, tmp_path / "d", on_bad_episode="skip")
    sources.check_dataset(tmp_path / "d", [r for i, r in enumerate(some) if i != BAD])
    (warning,) = (w for w in report.warnings if w.startswith("bad-episode"))
    assert f"'{column}'" in warning
    assert f"(1x, first: s.parquet, row {BAD})" in warning


@pytest.mark.parametrize("name", BAD_STEPS)
def test_bad_step_row(name: str, refuse: Any, sources: Any, some: list[Any], tmp_path: Path) -> None:
    spoil, column, _ = BAD_STEPS[name]
    lists = _lists(some)
    spoil(lists)
    source = _step_parquet(sources, tmp_path / "s.parquet", lists)
    row = sum(len(r) for r in some[:BAD]) + 1
    error = refuse(BadEpisodeError, source)
    assert (error.file, error.column, error.row) == ("s.parquet", column, row)
    report = gear_data.convert(source, tmp_path / "d", on_bad_episode="skip")
    sources.check_dataset(tmp_path / "d", [r for i, r in enumerate(some) if i != BAD])
    assert any(w.startswith("bad-episode") and f"(1x, first: s.parquet, row {row})" in w for w in report.warnings)


@pytest.mark.parametrize("write", [_episode_parquet, _step_parquet])
@pytest.mark.parametrize("value", [None, [1.0]])
def test_the_very_first_step_is_bad(
    value: Any, write: Any, refuse: Any, sources: Any, some: list[Any], tmp_path: Path
) -> None:
    lists = _lists(some)
    lists["observations"][0][0] = value
    source = write(sources, tmp_path / "s.parquet", lists)
    assert refuse(BadEpisodeError, source).row == 0
    gear_data.convert(source, tmp_path / "d", on_bad_episode="skip")
    sources.check_dataset(tmp_path / "d", some[1:])


def test_several_bad_episodes_are_each_counted(sources: Any, some: list[Any], tmp_path: Path) -> None:
    lists = _lists(some)
    for i in (0, 1, 4):
        for episodes in lists.values():
            episodes[i] = []
    lists["actions"][6][0] = [1.0, None]
    source = _episode_parquet(sources, tmp_path / "s.parquet", lists)
    report = gear_data.convert(source, tmp_path / "d", on_bad_episode="skip")
    sources.check_dataset(tmp_path / "d", [some[i] for i in (2, 3, 5)])
    bad = [w for w in report.warnings if w.startswith("bad-episode")]
    assert [("(3x, first: s.parquet, row 0)" in w, "(1x, first: s.parquet, row 6)" in w) for w in bad] == [
        (True, False),
        (False, True),
    ]
    assert gear_data.open(tmp_path / "d").manifest.findings[0]["count"] == 3


def test_an_episode_damaged_in_one_part_is_left_out_entirely(sources: Any, some: list[Any], tmp_path: Path) -> None:
    """The other steps of the episode are in the row groups before and after."""
    lists = _lists(some)
    middle = len(some[3]) // 2
    lists["rewards"][3][middle] = None
    source = _step_parquet(sources, tmp_path / "s.parquet", lists)
    table = pa.parquet.read_table(source)
    sources.write_parquet(source, table, row_group=1)
    gear_data.convert(source, tmp_path / "d", on_bad_episode="skip")
    sources.check_dataset(tmp_path / "d", [r for i, r in enumerate(some) if i != 3])


def test_bad_final_observation(refuse: Any, sources: Any, some: list[Any], tmp_path: Path) -> None:
    finals = [r.final.tolist() for r in some]
    finals[BAD] = [1.0]
    facts = {"final_observations": pa.array(finals, pa.list_(pa.float32()))}
    source = sources.write_episodes(tmp_path / "s.parquet", some, row_group=2, **facts)
    error = refuse(BadEpisodeError, source)
    assert (error.file, error.column, error.row) == ("s.parquet", "final_observations", BAD)


def test_null_episode_number(refuse: Any, sources: Any, some: list[Any], tmp_path: Path) -> None:
    numbers = sources.episode_numbers(some).tolist()
    numbers[9] = None
    table = sources.step_table([r.columns for r in some], episode_index=pa.array(numbers, pa.int64()))
    error = refuse(BadEpisodeError, sources.write_parquet(tmp_path / "s.parquet", table, row_group=4))
    assert (error.file, error.column, error.row) == ("s.parquet", "episode_index", 9)


def test_scattered_episode(refuse: Any, sources: Any, some: list[Any], tmp_path: Path) -> None:
    numbers = sources.episode_numbers(some)
    numbers[-2:] = 1
    table = sources.step_table([r.columns for r in some], episode_index=numbers)
    error = refuse(BadEpisodeError, sources.write_parquet(tmp_path / "s.parquet", table, row_group=4))
    assert (error.column, error.row) == ("episode_index", len(numbers) - 2)
    assert "episode 1 continues here" in str(error)


def test_d4rl_unequal_datasets(refuse: Any, sources: Any, some: list[Any], tmp_path: Path) -> None:
    path = sources.write_d4rl(tmp_path / "s.hdf5", some)
    steps = sum(len(r) for r in some)
    with h5py.File(path, "r+") as file:
        del file["actions"]
        file["actions"] = np.ones((steps - 2, 2), np.float32)
    error = refuse(BadEpisodeError, path)
    assert (error.file, error.column, error.row) == ("s.hdf5", "actions", steps - 2)
    with h5py.File(path, "r+") as file:
        del file["actions"], file["timeouts"]
        file["actions"] = np.ones((steps, 2), np.float32)
        file["timeouts"] = np.zeros(steps - 3, np.bool_)
    error = refuse(BadEpisodeError, path, columns=["observations"])
    assert (error.column, error.row) == ("timeouts", steps - 3)


# Columns that a shard cannot hold.


@pytest.mark.parametrize(
    "values",
    [
        pa.array([[["text"]] * 3], pa.list_(pa.list_(pa.string()))),
        pa.array([[b"\x80\x04."] * 3], pa.list_(pa.binary(3))),
        pa.array([b"\x80\x04."]),
        pa.array([b"\x80\x04."], pa.large_binary()),
        pa.array([b"\x80\x04."], pa.binary(3)),
        pa.array([[{"a": 1.5}] * 3], pa.list_(pa.map_(pa.string(), pa.float64()))),
        pa.array([[datetime.date(2024, 1, 1)] * 3]),
        pa.array([[decimal.Decimal("1.5")] * 3]),
        pa.array([[1] * 3], pa.list_(pa.timestamp("s"))),
    ],
    ids=lambda values: str(values.type),
)
def test_object_columns_of_episodes(values: pa.Array, refuse: Any, sources: Any, tmp_path: Path) -> None:
    columns = [{"observations": np.ones((3, 2)), "rewards": np.ones(3)}]
    source = sources.write_parquet(tmp_path / "s.parquet", sources.episode_table(columns, infos=values))
    error = refuse(UnsupportedColumnError, source)
    assert error.column == "infos"
    assert str(error.file).endswith("s.parquet")
    gear_data.convert(source, tmp_path / "d", columns=["observations", "rewards"])
    assert "infos" not in gear_data.open(tmp_path / "d").schema


@pytest.mark.parametrize(
    "values",
    [[["text"]] * 3, [[b"\x80\x04."]] * 3, [datetime.date(2024, 1, 1)] * 3, [decimal.Decimal("1.5")] * 3],
    ids=str,
)
def test_object_columns_of_steps(values: list[Any], refuse: Any, sources: Any, tmp_path: Path) -> None:
    columns = [{"observations": np.ones((3, 2)), "rewards": np.ones(3)}]
    table = sources.step_table(columns, episode=[0, 0, 1], note=pa.array(values))
    source = sources.write_parquet(tmp_path / "s.parquet", table)
    error = refuse(UnsupportedColumnError, source)
    assert error.column == "note"
    gear_data.convert(source, tmp_path / "d", columns=["observations", "rewards"])
    assert gear_data.open(tmp_path / "d").num_episodes == 2


def test_text_columns_of_d4rl(sources: Any, some: list[Any], tmp_path: Path) -> None:
    steps = sum(len(r) for r in some)
    source = sources.write_d4rl(tmp_path / "s.hdf5", some, extra={"infos/text": ["a"] * steps})
    gear_data.convert(source, tmp_path / "d")
    dataset = gear_data.open(tmp_path / "d")
    texts = [text for i in range(len(some)) for text in dataset.episode(i)["infos.text"]]
    assert texts == ["a"] * steps


# NaN and Inf.


@pytest.mark.parametrize("write", ["write_episodes", "write_steps", "write_d4rl"])
def test_nan_is_kept_counted_and_refused_on_request(
    write: str, refuse: Any, sources: Any, some: list[Any], tmp_path: Path
) -> None:
    observations = some[BAD].columns["observations"].copy()
    observations[1, 0], observations[2, 1], observations[2, 2] = np.nan, np.inf, -np.inf
    rewards = some[1].columns["rewards"].copy()
    rewards[:] = np.nan
    holed = list(some)
    holed[BAD] = some[BAD].with_columns(observations=observations)
    holed[1] = some[1].with_columns(rewards=rewards)
    source = getattr(sources, write)(tmp_path / ("s.hdf5" if write == "write_d4rl" else "s.parquet"), holed)
    report = gear_data.convert(source, tmp_path / "d")
    ds = gear_data.open(tmp_path / "d")
    np.testing.assert_array_equal(ds.episode(BAD)["observations"], observations)
    by_column = {f["column"]: f for f in ds.manifest.findings if f["code"] == "non-finite"}
    assert {name: f["count"] for name, f in by_column.items()} == {"observations": 3, "rewards": len(some[1])}
    first = sum(len(r) for r in some[:BAD]) + 1 if write != "write_episodes" else BAD
    assert (by_column["observations"]["file"], by_column["observations"]["row"]) == (source.name, first)
    assert any("NaN or Inf" in w and "'observations'" in w for w in report.warnings)
    # The statistics ignore those values.
    whole = np.concatenate([r.columns["observations"] for r in holed]).astype(np.float64)
    finite = [column[np.isfinite(column)] for column in whole.T]
    found = ds.statistics["observations"]
    assert found.count.tolist() == [len(column) for column in finite]
    np.testing.assert_allclose(found.mean, [column.mean() for column in finite], rtol=1e-12)
    np.testing.assert_allclose(found.std, [column.std() for column in finite], rtol=1e-12)
    assert found.max.tolist() == [column.max() for column in finite]
    assert gear_data.verify(tmp_path / "d").ok
    error = refuse(NonFiniteError, source, strict=True)
    row = sum(len(r) for r in some[:1]) if write != "write_episodes" else 1
    assert (error.file, error.column, error.row) in (
        (source.name, "observations", first),
        (source.name, "rewards", row),
    )


def test_nan_in_a_final_observation(refuse: Any, sources: Any, some: list[Any], tmp_path: Path) -> None:
    holed = list(some)
    holed[2] = sources.Rollout(some[2].columns, np.array([0, np.nan, 0], np.float32))
    source = sources.write_d4rl(tmp_path / "s.hdf5", holed)
    report = gear_data.convert(source, tmp_path / "d")
    assert any(w.startswith("non-finite-final") and "(1x" in w for w in report.warnings)
    row = sum(len(r) for r in some[:2])
    error = refuse(NonFiniteError, source, strict=True)
    assert (error.file, error.column, error.row) == ("s.hdf5", "observations", row)


def test_a_column_of_only_nan_has_no_statistics(sources: Any, some: list[Any], tmp_path: Path) -> None:
    holed = [r.with_columns(rewards=np.full(len(r), np.nan, np.float32)) for r in some]
    gear_data.convert(sources.write_episodes(tmp_path / "s.parquet", holed), tmp_path / "d", shard_bytes=1024)
    found = gear_data.open(tmp_path / "d").statistics["rewards"]
    assert found.count.tolist() == [0]
    assert all(np.isnan(values).all() for values in (found.mean, found.std, found.min, found.max))


# Nothing to convert.


def test_zero_episodes(refuse: Any, sources: Any, some: list[Any], tmp_path: Path) -> None:
    lists = _lists(some)
    nothing: dict[str, list[Any]] = {name: [] for name in lists}
    all_empty = {name: [[] for _ in some] for name in lists}
    refuse(EmptySourceError, _episode_parquet(sources, tmp_path / "none.parquet", nothing))
    refuse(EmptySourceError, _step_parquet(sources, tmp_path / "none.parquet", nothing))
    refuse(BadEpisodeError, _episode_parquet(sources, tmp_path / "empty.parquet", all_empty))
    refuse(EmptySourceError, tmp_path / "empty.parquet", on_bad_episode="skip")
    features = datasets.Features({"rewards": datasets.List(datasets.Value("float32"))})
    refuse(EmptySourceError, datasets.Dataset.from_dict({"rewards": []}, features=features))


def test_empty_folder(refuse: Any, tmp_path: Path) -> None:
    (tmp_path / "s").mkdir()
    assert "holds no files" in str(refuse(gear_data.errors.UnknownFormatError, tmp_path / "s"))


# Destinations and arguments.


def test_destination_exists(sources: Any, some: list[Any], tmp_path: Path) -> None:
    source = sources.write_episodes(tmp_path / "s.parquet", some)
    (tmp_path / "file").write_text("mine")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "file").write_text("mine")
    gear_data.convert(source, tmp_path / "dataset")
    for name in ("file", "folder", "dataset"):
        before = sources.folder_contents(tmp_path)
        with pytest.raises(DestinationExistsError) as error:
            gear_data.convert(source, tmp_path / name)
        assert error.value.file == str(tmp_path / name)
        assert isinstance(error.value, FileExistsError)
        assert sources.folder_contents(tmp_path) == before
    for name in ("file", "folder"):
        with pytest.raises(DestinationExistsError):
            gear_data.convert(source, tmp_path / name, overwrite=True)
        assert sources.folder_contents(tmp_path) == before


def test_an_empty_folder_is_a_destination(sources: Any, some: list[Any], tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    gear_data.convert(sources.write_episodes(tmp_path / "s.parquet", some), tmp_path / "d")
    sources.check_dataset(tmp_path / "d", some)


def test_a_failure_leaves_an_empty_destination_folder_empty(sources: Any, some: list[Any], tmp_path: Path) -> None:
    lists = _lists(some)
    _ragged(lists)
    (tmp_path / "d").mkdir()
    with pytest.raises(BadEpisodeError):
        gear_data.convert(_episode_parquet(sources, tmp_path / "s.parquet", lists), tmp_path / "d")
    assert list((tmp_path / "d").iterdir()) == []


@pytest.mark.parametrize(
    "options",
    [
        {"shard_bytes": 0},
        {"shard_bytes": -5},
        {"on_bad_episode": "ignore"},
        {"overwrite": True, "resume": True},
        {"columns": "observations"},
        {"rename": {"actions": "observations"}},
    ],
    ids=str,
)
def test_arguments(options: dict[str, Any], refuse: Any, sources: Any, some: list[Any], tmp_path: Path) -> None:
    refuse(InvalidArgumentError, sources.write_episodes(tmp_path / "s.parquet", some), **options)


@pytest.mark.parametrize("options", [{"columns": ["observation"]}, {"rename": {"observation": "x"}}], ids=str)
@pytest.mark.parametrize("write", ["write_episodes", "write_steps", "write_d4rl"])
def test_unknown_column_lists_known_columns(
    write: str, options: dict[str, Any], refuse: Any, sources: Any, some: list[Any], tmp_path: Path
) -> None:
    source = getattr(sources, write)(tmp_path / ("s.hdf5" if write == "write_d4rl" else "s.parquet"), some)
    error = refuse(UnknownNameError, source, **options)
    assert error.column == "observation"
    assert "did you mean 'observations'" in str(error)
    assert "rewards" in str(error)


def test_splits(sources: Any, some: list[Any], tmp_path: Path) -> None:
    for name, first, last in (("train-00000-of-00002", 0, 2), ("train-00001-of-00002", 2, 4), ("test-0", 4, 7)):
        sources.write_episodes(tmp_path / "s" / "data" / f"{name}.parquet", some[first:last])
    with pytest.raises(InvalidArgumentError, match="several splits: test, train"):
        gear_data.convert(tmp_path / "s", tmp_path / "d")
    with pytest.raises(InvalidArgumentError, match="no split 'validation'") as error:
        gear_data.convert(tmp_path / "s", tmp_path / "d", split="validation")
    assert "test, train" in str(error.value)
    gear_data.convert(tmp_path / "s", tmp_path / "d", split="train")
    sources.check_dataset(tmp_path / "d", some[:4])


def test_dataset_dict_needs_a_split(refuse: Any, some: list[Any]) -> None:
    part = datasets.Dataset.from_dict({"rewards": [[1.0]], "observations": [[[1.0]]]})
    both = datasets.DatasetDict(train=part, test=part)
    assert "test, train" in str(refuse(SplitNeededError, both))
    assert "train, test" in str(refuse(InvalidArgumentError, both, split="validation"))


def test_report(sources: Any, some: list[Any], tmp_path: Path) -> None:
    source = sources.write_d4rl(tmp_path / "s.hdf5", some)
    report = gear_data.convert(source, tmp_path / "d", shard_bytes=2048)
    data = json.loads(json.dumps(report.to_json()))
    assert {"episodes", "steps", "shards", "bytes", "seconds", "warnings"} <= data.keys()
    assert data["bytes"] == sum(p.stat().st_size for p in (tmp_path / "d").rglob("*.arrow"))
    assert data["warnings"] == []
