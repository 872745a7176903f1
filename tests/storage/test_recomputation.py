"""`verify(deep=True)`: wrong values with right checksums."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import gear_data
from gear_data.cli import main
from gear_data.ingest.engine import tasks
from gear_data.ingest.sources.tables import read_units
from gear_data.storage import content_hash, recomputation
from gear_data.storage.dataset_files import open_files
from gear_data.storage.episode_tables import with_values
from gear_data.storage.manifest import Manifest, fingerprint
from gear_data.storage.recomputation import MOST_ROWS, Difference
from gear_data.storage.verify import episode_block, read_shard
from tests.support.manifests import edited_manifest, read_ipc, replace_table, sign_file

EPISODES = "episodes.arrow"


@pytest.fixture
def dataset(rollouts_path: Path, tmp_path: Path) -> Path:
    shutil.copytree(rollouts_path, tmp_path / "d")
    return tmp_path / "d"


def _deep(path: Path) -> list[Difference]:
    """Returns the differences of a dataset whose files are intact."""
    report = gear_data.verify(path, deep=True)
    assert all(check.ok for check in report.shards)
    assert report.ok is not bool(report.differences)
    return list(report.differences)


def test_a_sound_dataset(dataset: Path) -> None:
    assert _deep(dataset) == []
    assert gear_data.verify(dataset).differences == ()


@pytest.mark.parametrize("short_bytes, at_once", [(0, 1), (1 << 30, 1), (1 << 30, 1 << 30)])
def test_hashes_do_not_depend_on_how_they_are_computed(
    short_bytes: int, at_once: int, dataset: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(content_hash, "_SHORT_BYTES", short_bytes)
    monkeypatch.setattr(content_hash, "_JOINED_EPISODES", at_once)
    assert _deep(dataset) == []


@pytest.mark.processes
@pytest.mark.parametrize("jobs", [1, 2])
@pytest.mark.parametrize("non_finite", [False, True])
def test_statistics_are_computed_as_at_conversion(
    jobs: int, non_finite: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are equal, bit for bit: for several files, tasks, shards and types."""
    monkeypatch.setattr(recomputation, "_TOLERANCE", 0.0)
    monkeypatch.setattr(tasks, "UNIT_BYTES", 1)
    monkeypatch.setattr(read_units, "UNIT_BYTES", 1)
    rng = np.random.default_rng(7)
    (tmp_path / "in").mkdir()
    for file in range(6):
        episodes: dict[str, list[Any]] = {"observations": [], "actions": [], "rewards": []}
        for length in rng.integers(1, 30, 20).tolist():
            observations = rng.standard_normal((length, 4)) * 1e3 + 1e6
            rewards = rng.standard_normal(length)
            if non_finite:
                observations[rng.random(length) < 0.3, 1] = np.nan
                rewards[rng.random(length) < 0.5] = np.inf
            episodes["observations"].append(observations.tolist())
            episodes["actions"].append(rng.integers(-5, 5, length).tolist())
            episodes["rewards"].append(rewards.tolist())
        pq.write_table(pa.table(episodes), tmp_path / f"in/{file}.parquet")
    gear_data.convert(tmp_path / "in", tmp_path / "out", jobs=jobs, shard_bytes=4096, progress=False)
    manifest = Manifest.load(tmp_path / "out")
    assert len(manifest.shards) > len(manifest.provenance["tasks"]) > 1
    assert _deep(tmp_path / "out") == []


def test_a_dataset_without_tasks_is_one_task(dataset: Path) -> None:
    for wrong in (None, "x", [[0, 0, 99]], []):
        with edited_manifest(dataset) as manifest:
            manifest["provenance"]["tasks"] = wrong
        assert _deep(dataset) == []


@pytest.mark.parametrize("name", ["mean", "std", "min", "max", "count"])
def test_wrong_statistics(name: str, dataset: Path) -> None:
    with edited_manifest(dataset) as manifest:
        values = manifest["statistics"]["observations"][name]
        right = values[1]
        values[1] = wrong = right + 1 if name == "count" else right * (1 + 1e-6) + 1e-6
    (found,) = _deep(dataset)
    assert (found.file, found.column, found.row, found.value) == ("manifest.json", "observations", None, f"{name}[1]")
    assert (found.stored, found.computed) == (wrong, pytest.approx(right, rel=1e-12))
    assert f"manifest.json, column 'observations': {name}[1] is {wrong}, but the shards give" in str(found)


def test_statistics_of_no_values(dataset: Path) -> None:
    with edited_manifest(dataset) as manifest:
        manifest["statistics"]["rewards"]["mean"] = [None]
    (found,) = _deep(dataset)
    assert (found.value, found.stored) == ("mean[0]", "nan")
    assert json.loads(json.dumps(gear_data.verify(dataset, deep=True).to_json(), allow_nan=False))["ok"] is False


def _set(name: str, row: int, change: Callable[[Any], Any]) -> Callable[[pa.Table], pa.Table]:
    def replace(table: pa.Table) -> pa.Table:
        index = table.schema.get_field_index(name)
        values = table.column(name).to_pylist()
        values[row] = change(values[row])
        return table.set_column(index, name, pa.array(values, table.schema.field(index).type))

    return replace


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("return", lambda value: value + 1e-3),
        ("return", lambda value: None),
        ("terminated", lambda value: not value),
        ("truncated", lambda value: not value),
    ],
)
def test_a_wrong_value_of_the_episode_table(name: str, change: Callable[[Any], Any], dataset: Path) -> None:
    table = read_ipc(dataset / EPISODES)
    right = table.column(name).to_pylist()[5]
    replace_table(dataset, EPISODES, _set(name, 5, change)(table))
    assert gear_data.verify(dataset).ok
    (found,) = _deep(dataset)
    assert (found.file, found.column, found.row, found.value) == (EPISODES, name, 5, None)
    assert found.computed == pytest.approx(right)
    assert f"episodes.arrow, column '{name}', row 5: is " in str(found)


def test_an_infinite_return(tmp_path: Path) -> None:
    """No finite value is near to it."""
    episodes = [{"observations": np.zeros(2, np.float32), "rewards": np.array([1.0, np.inf])} for _ in range(3)]
    gear_data.convert(episodes, tmp_path / "d", progress=False)
    assert _deep(tmp_path / "d") == []
    replace_table(tmp_path / "d", EPISODES, _set("return", 1, lambda value: 5.0)(read_ipc(tmp_path / "d" / EPISODES)))
    (found,) = _deep(tmp_path / "d")
    assert (found.row, found.stored, found.computed) == (1, 5.0, "inf")


@pytest.mark.filterwarnings("ignore:.* encountered in:RuntimeWarning")
@pytest.mark.parametrize("value", [1.7e308, -1.7e308])
def test_large_rewards_whose_mean_is_infinite(value: float, tmp_path: Path) -> None:
    """The manifest has null for an infinite mean, as for all values that JSON lacks."""
    episodes = [{"observations": np.zeros(2, np.float32), "rewards": np.full(2, value)} for _ in range(3)]
    gear_data.convert(episodes, tmp_path / "d", progress=False)
    assert json.loads((tmp_path / "d" / "manifest.json").read_text())["statistics"]["rewards"]["mean"] == [None]
    assert _deep(tmp_path / "d") == []


def test_a_wrong_content_hash(dataset: Path) -> None:
    """The fingerprint fits the wrong hash, as if an attacker had made both."""
    table = _set("content", 2, lambda value: bytes(16))(read_ipc(dataset / EPISODES))
    right = Manifest.load(dataset).fingerprint
    replace_table(dataset, EPISODES, table)
    with edited_manifest(dataset) as manifest:
        schema = Manifest.load(dataset).schema
        manifest["fingerprint"] = fingerprint(schema, b"".join(table.column("content").to_pylist()))
    report = gear_data.verify(dataset, deep=True)
    assert [check.ok for check in report.shards].count(False) == 1
    content, whole = report.differences
    assert (content.file, content.column, content.row, content.stored) == (EPISODES, "content", 2, "00" * 16)
    assert (whole.file, whole.value, whole.computed) == ("manifest.json", "fingerprint", right)
    assert "manifest.json: fingerprint is " in str(whole)


def test_wrong_returns_to_go(dataset: Path) -> None:
    """No content hash has derived columns."""
    shard = Manifest.load(dataset).shards[1]
    data = bytearray((dataset / shard.entry.file).read_bytes())
    place = shard.buffers["returns_to_go"]
    values = np.frombuffer(data, np.float32, shard.steps, place).copy()
    right = float(values[3])
    values[3] += 1
    data[place : place + values.nbytes] = values.tobytes()
    (dataset / shard.entry.file).write_bytes(data)
    sign_file(dataset, shard.entry.file)
    assert gear_data.verify(dataset).ok
    found = _deep(dataset)
    assert (found[0].file, found[0].column, found[0].row) == (shard.entry.file, "returns_to_go", 3)
    assert (found[0].stored, found[0].computed) == (pytest.approx(right + 1), pytest.approx(right))
    assert {difference.column for difference in found[1:]} == {"returns_to_go"}
    assert {difference.file for difference in found[1:]} == {"manifest.json"}


def test_rows_of_one_column_are_limited(tmp_path: Path) -> None:
    count = MOST_ROWS + 500
    episodes = [{"observations": np.zeros(1, np.float32), "rewards": np.ones(1)} for _ in range(count)]
    gear_data.convert(episodes, tmp_path / "d", progress=False)
    table = read_ipc(tmp_path / "d" / EPISODES)
    index = table.schema.get_field_index("return")
    replace_table(tmp_path / "d", EPISODES, table.set_column(index, "return", pa.array(np.full(count, 2.0))))
    found = _deep(tmp_path / "d")
    assert [difference.row for difference in found] == list(range(MOST_ROWS))


def test_rewards_that_have_no_return(tmp_path: Path) -> None:
    """`return` must be null without rewards, and with several per step."""
    for name, rewards in (("none", {}), ("vector", {"rewards": np.ones((4, 2))})):
        folder = tmp_path / name
        gear_data.convert([{"observations": np.ones(4, np.float32), **rewards}] * 3, folder, progress=False)
        assert _deep(folder) == []
        table = _set("return", 1, lambda value: 1.0)(read_ipc(folder / EPISODES))
        replace_table(folder, EPISODES, table)
        (found,) = _deep(folder)
        assert (found.column, found.row, found.stored, found.computed) == ("return", 1, 1.0, None)


def test_a_damaged_shard_is_reported_once(dataset: Path) -> None:
    """Values that need all shards are not compared."""
    (dataset / "shards/000001.arrow").write_bytes(b"x" * (dataset / "shards/000001.arrow").stat().st_size)
    report = gear_data.verify(dataset, deep=True)
    assert not report.ok
    assert report.differences == ()


def test_the_command(dataset: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", str(dataset), "--deep"]) == 0
    replace_table(dataset, EPISODES, _set("return", 0, lambda value: 1e6)(read_ipc(dataset / EPISODES)))
    capsys.readouterr()
    assert main(["verify", str(dataset)]) == 0
    assert main(["verify", str(dataset), "--deep"]) == 1
    assert "BAD episodes.arrow, column 'return', row 0: is 1000000.0, but the shards give" in capsys.readouterr().out
    assert main(["verify", str(dataset), "--deep", "--json"]) == 1
    (found,) = json.loads(capsys.readouterr().out)["differences"]
    assert (found["file"], found["column"], found["row"], found["stored"]) == (EPISODES, "return", 0, 1e6)


def test_rows_are_no_ids(dataset: Path) -> None:
    """After an eviction, the ids of episodes have gaps."""
    manifest = Manifest.load(dataset)
    (first, second, *_) = manifest.shards
    table = _set("terminated", first.episodes, lambda value: not value)(read_ipc(dataset / EPISODES))
    table = with_values(table, "episode_id", table.column("episode_id").to_numpy() + 7)
    rows = table.slice(first.episodes, second.episodes)
    block = episode_block(read_shard(open_files(dataset).local, manifest.schema, second), manifest, rows, None)
    computed = recomputation.Recomputation(manifest)
    computed.add(1, block, rows.column("content").to_pylist(), rows)
    (found,) = computed.finish()
    assert (found.column, found.row) == ("terminated", first.episodes)
