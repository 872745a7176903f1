"""Tests damaged shards: left out by `open`, or rebuilt by `repair`."""

from __future__ import annotations

import json
import pickle
import shutil
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

import gear_data
from gear_data.cli import main
from gear_data.errors import (
    CorruptShardError,
    DatasetReplacedError,
    DestinationExistsError,
    EmptySourceError,
    InvalidArgumentError,
    ManifestError,
    SourceChangedError,
)
from gear_data.storage.writing.file_store import LocalFileStore
from gear_data.storage.writing.progress_files import PROGRESS
from tests.support.manifests import edited_manifest
from tests.support.running.warm_python import python


def _flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0xFF
    path.write_bytes(data)


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


def _remove(path: Path) -> None:
    path.unlink()


DAMAGES: list[Callable[[Path], None]] = [_flip, _cut, _remove]


@pytest.fixture(params=["one task", "a task a file"])
def source(request: pytest.FixtureRequest, sources: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Writes three files with final observations."""
    gear_data.convert  # noqa: B018  # modules are loaded when first used
    if request.param == "a task a file":
        for name, module in list(sys.modules.items()):
            if name.startswith("gear_data.ingest.") and hasattr(module, "UNIT_BYTES"):
                monkeypatch.setattr(module, "UNIT_BYTES", 1)
    rollouts = sources.make_rollouts(40, seed=3)
    for i in range(3):
        sources.write_d4rl(tmp_path / "source" / f"{i}.hdf5", rollouts[i * 13 : i * 13 + 13 + (i == 2)])
    return tmp_path / "source"


@pytest.fixture
def dataset(source: Path, tmp_path: Path) -> Path:
    assert gear_data.convert(source, tmp_path / "d", shard_bytes=1024).shards > 4
    return tmp_path / "d"


@pytest.mark.parametrize("damage", DAMAGES)
def test_repair_restores_the_bytes(damage: Callable[[Path], None], source: Path, dataset: Path, sources: Any) -> None:
    before = sources.folder_contents(dataset)
    files = sorted((dataset / "shards").iterdir())
    for file in (files[1], files[2], files[-1]):
        damage(file)
    assert not gear_data.verify(dataset).ok
    report = gear_data.repair(dataset, source)
    assert report.shards == tuple(f"shards/{file.name}" for file in (files[1], files[2], files[-1]))
    table = gear_data.open(dataset).episodes
    assert report.episodes == table["shard"].is_in([1, 2, len(files) - 1]).sum()
    assert sources.folder_contents(dataset) == before


def test_a_rebuilt_shard_of_other_bytes_is_not_read_by_the_old_manifest(
    source: Path, dataset: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another version of Arrow may place the columns elsewhere in the file."""
    shard = sorted((dataset / "shards").iterdir())[1]
    data = shard.read_bytes()
    ds = gear_data.open(dataset)
    episode = next(i for i in range(len(ds)) if ds.episodes["shard"][i] == 1)
    before = {name: values.copy() for name, values in gear_data.open(dataset).episode(episode).items()}
    _flip(shard)
    from gear_data.ingest import repair as repair_module

    write = repair_module.write_ipc

    def with_a_longer_header(path: Path, batch: Any) -> None:
        write(path, batch.replace_schema_metadata({"padding": "x" * 1000}))

    monkeypatch.setattr(repair_module, "write_ipc", with_a_longer_header)
    put = repair_module.put_text

    def killed_after_the_manifest(*arguments: Any) -> None:
        put(*arguments)
        raise KeyboardInterrupt

    monkeypatch.setattr(repair_module, "put_text", killed_after_the_manifest)
    with pytest.raises(KeyboardInterrupt):
        gear_data.repair(dataset, source)
    assert len(shard.read_bytes()) == len(data)  # the shard follows the manifest
    monkeypatch.setattr(repair_module, "put_text", put)
    assert len(gear_data.repair(dataset, source).shards) == 1
    assert len(shard.read_bytes()) > len(data)
    with pytest.raises(DatasetReplacedError):
        ds.episode(episode)["observations"].sum()
    assert gear_data.verify(dataset).ok
    for name, values in gear_data.open(dataset).episode(episode).items():
        np.testing.assert_array_equal(values, before[name])


def test_repair_does_not_change_an_intact_dataset(dataset: Path, source: Path, sources: Any) -> None:
    before = sources.folder_contents(dataset)
    stamps = {path: path.stat().st_mtime_ns for path in dataset.rglob("*")}
    assert gear_data.repair(dataset, source) == gear_data.RepairReport((), 0)
    assert sources.folder_contents(dataset) == before
    assert {path: path.stat().st_mtime_ns for path in dataset.rglob("*")} == stamps


def test_repair_from_another_source(dataset: Path, source: Path, sources: Any) -> None:
    _flip(sorted((dataset / "shards").iterdir())[0])
    before = sources.folder_contents(dataset)
    for rollouts in (sources.make_rollouts(13, seed=9), sources.make_rollouts(2, seed=3)):
        sources.write_d4rl(source / "0.hdf5", rollouts)
        with pytest.raises(SourceChangedError, match="differ from the episodes of shards/") as error:
            gear_data.repair(dataset, source)
        assert error.value.file == "0.hdf5"
        assert sources.folder_contents(dataset) == before
    for i in range(3):
        sources.write_d4rl(source / f"{i}.hdf5", sources.make_rollouts(13, states=4))
    with pytest.raises(SourceChangedError, match="columns"):
        gear_data.repair(dataset, source)
    assert sources.folder_contents(dataset) == before


def test_repair_needs_intact_tables(dataset: Path, source: Path) -> None:
    _flip(dataset / "episodes.arrow")
    with pytest.raises(CorruptShardError, match="convert the source again") as error:
        gear_data.repair(dataset, source)
    assert str(error.value.file).endswith("episodes.arrow")


@pytest.mark.parametrize(
    "provenance",
    [{}, {"options": {}}, {"tasks": [[0, 0, 99]]}, {"tasks": "x"}, {"tasks": [[0]]}, {"options": {"columns": 1}}],
    ids=str,
)
def test_repair_needs_provenance(provenance: dict[str, Any], dataset: Path, source: Path) -> None:
    with edited_manifest(dataset) as data:
        data["provenance"] = {**data["provenance"], **provenance} if provenance else {}
    _flip(sorted((dataset / "shards").iterdir())[1])
    with pytest.raises(ManifestError, match="provenance"):
        gear_data.repair(dataset, source)


def test_repair_command(dataset: Path, source: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _flip(sorted((dataset / "shards").iterdir())[0])
    assert main(["repair", str(dataset), "--source", str(source), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["shards"][0].startswith("shards/")
    assert main(["repair", str(dataset), "--source", str(source)]) == 0
    assert "sound" in capsys.readouterr().out
    assert main(["verify", str(dataset)]) == 0


# Opening a damaged dataset.


@pytest.mark.parametrize("residency", ["mmap", "host"])
@pytest.mark.parametrize("damage", DAMAGES)
def test_open_without_the_bad_shards(
    damage: Callable[[Path], None], residency: str, dataset: Path, sources: Any, tmp_path: Path
) -> None:
    whole = gear_data.open(dataset)
    shard = whole.episodes["shard"].to_numpy()
    kept = np.flatnonzero(~np.isin(shard, [1, 3]))
    columns = {i: {name: values.copy() for name, values in whole.episode(i).items()} for i in kept.tolist()}
    files = sorted((dataset / "shards").iterdir())
    for i in (1, 3):
        damage(files[i])
    with pytest.warns(RuntimeWarning, match=rf"{files[1].name}.*left out") as warned:
        ds = gear_data.open(dataset, residency, on_bad_shard="skip")
    assert sum("left out" in str(warning.message) for warning in warned) == 2
    assert ds.episodes["episode_id"].to_list() == kept.tolist()
    assert ds.fingerprint == whole.filter(~pl.col("shard").is_in([1, 3])).fingerprint != whole.fingerprint
    for copy in (ds, pickle.loads(pickle.dumps(ds))):
        for i in kept.tolist():
            for name, values in columns[i].items():
                np.testing.assert_array_equal(copy.episode(i)[name], values)
    loader = gear_data.SequenceLoader(ds, batch_size=8, context=4, steps=20)
    seen = {int(i) for step in range(20) for i in loader.windows(step)["episode_id"]}
    assert seen <= set(kept.tolist())
    assert len(list(loader)) == 20
    with pytest.raises(CorruptShardError, match="repair"):
        ds.with_discount(0.9)


def test_a_damaged_shard_of_a_recording(tmp_path: Path) -> None:
    """`repair` has no source for it: the advice names it for converted datasets only."""
    with gear_data.Writer(tmp_path / "live", shard_bytes=1024) as writer:
        for i in range(2):
            for _ in range(6):
                writer.append(observations=np.full(100, i), actions=np.zeros(1), rewards=1.0)
            writer.end_episode(terminated=True)
    file = max((tmp_path / "live/shards").iterdir())
    content = file.read_bytes()
    file.write_bytes(content[:-8])
    advice = "restore it from a copy; of a converted dataset, 'gear-data repair' writes it again"
    with pytest.raises(CorruptShardError, match=f"{advice}; or open the dataset without its episodes"):
        list(gear_data.open(tmp_path / "live"))
    with pytest.warns(RuntimeWarning, match=f"left out(.|\n)*{advice}"):
        assert len(gear_data.open(tmp_path / "live", on_bad_shard="skip")) == 1
    file.write_bytes(content)
    assert len(list(gear_data.open(tmp_path / "live"))) == 2


def test_open_an_intact_dataset_with_skip(dataset: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert gear_data.open(dataset, on_bad_shard="skip").fingerprint == gear_data.open(dataset).fingerprint
    with pytest.raises(InvalidArgumentError, match="on_bad_shard"):
        gear_data.open(dataset, on_bad_shard="ignore")  # type: ignore[arg-type]


def test_all_shards_damaged(dataset: Path) -> None:
    for file in (dataset / "shards").iterdir():
        file.unlink()
    with (
        pytest.warns(RuntimeWarning),
        pytest.raises(EmptySourceError, match=r"every episode is in one of \d+ damaged files"),
    ):
        gear_data.open(dataset, on_bad_shard="skip")


_RANK = """
import json, os, sys, warnings
import torch
import torch.distributed.nn  # imported after the process group is made, it would keep it, and Gloo's threads, at exit
import gear_data
warnings.simplefilter("ignore")
torch.distributed.init_process_group("gloo")
rank = torch.distributed.get_rank()
ds = gear_data.open(sys.argv[1 + rank], on_bad_shard="skip")
loader = gear_data.SequenceLoader(ds, batch_size=8, context=4, steps=5)
seen = [ds.fingerprint, ds.episode_ids.tolist(), loader.windows(3)["episode_id"].tolist()]
print("RANK", json.dumps(seen), flush=True)
torch.distributed.destroy_process_group()
"""


@pytest.mark.processes
def test_ranks_agree_on_what_is_left_out(dataset: Path, tmp_path: Path) -> None:
    """Two nodes have separate copies, and different shards of each are damaged."""
    other = tmp_path / "other"
    shutil.copytree(dataset, other)
    _flip(sorted((dataset / "shards").iterdir())[1])
    _cut(sorted((other / "shards").iterdir())[2])
    script = tmp_path / "rank.py"
    script.write_text(_RANK)
    launch = [python(), "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = subprocess.run(
        [*launch, str(script), str(dataset), str(other)], capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stderr
    ranks = [json.loads(line.split("RANK ")[1]) for line in done.stdout.splitlines() if "RANK " in line]
    assert len(ranks) == 2
    assert ranks[0] == ranks[1]
    shard = gear_data.open(dataset).episodes["shard"].to_numpy()
    assert ranks[0][1] == np.flatnonzero(~np.isin(shard, [1, 2])).tolist()


def test_files_of_a_killed_repair_are_removed(source: Path, dataset: Path, sources: Any) -> None:
    before = sources.folder_contents(dataset)
    _flip(min((dataset / "shards").iterdir()))
    (dataset / "shards/.000000.arrow.123.tmp").write_bytes(b"half")
    (dataset / ".manifest.json.123.tmp").write_bytes(b"half")
    gear_data.repair(dataset, source)
    assert sources.folder_contents(dataset) == before


def test_two_repairs_at_once_are_refused(source: Path, dataset: Path) -> None:
    _flip(min((dataset / "shards").iterdir()))
    with LocalFileStore(dataset).locked(PROGRESS), pytest.raises(DestinationExistsError, match="writing here: process"):
        gear_data.repair(dataset, source)
    assert len(gear_data.repair(dataset, source).shards) == 1
    assert not (dataset / PROGRESS).exists()


def test_the_lock_of_a_killed_repair_is_removed(source: Path, dataset: Path, sources: Any) -> None:
    before = sources.folder_contents(dataset)
    (dataset / ".progress").mkdir()
    (dataset / ".progress/.lock").touch()
    assert gear_data.repair(dataset, source).shards == ()
    assert sources.folder_contents(dataset) == before
    assert not (dataset / ".progress").exists()
