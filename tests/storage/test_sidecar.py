"""Sidecars: `returns_to_go` with other discounts, computed once per dataset."""

from __future__ import annotations

import json
import multiprocessing
import os
import pickle
import random
import shutil
import subprocess
import sys
import tempfile
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl
import pytest

import gear_data
from gear_data.errors import CorruptShardError, InvalidArgumentError, ManifestError, MissingColumnError
from gear_data.storage import sidecar
from tests.support.hangs import SPECIAL_FILES, no_hang
from tests.support.manifests import edited_manifest, signed
from tests.support.stopped_process import Stop, stoppable


@pytest.fixture
def path(rollouts_path: Path, tmp_path: Path) -> Path:
    """Returns a copy of `rollouts`, to which tests add sidecars."""
    shutil.copytree(rollouts_path, tmp_path / "dataset")
    return tmp_path / "dataset"


def expected(rewards: npt.NDArray[Any], discount: float) -> npt.NDArray[np.float32]:
    total, result = 0.0, []
    for reward in reversed(rewards.tolist()):
        total = reward + discount * total
        result.append(total)
    return np.array(result[::-1], np.float32)


def check_returns(ds: Any, rollouts: list[Any], discount: float) -> None:
    """Checks every part of the dataset of these rollouts with this discount."""
    values = [expected(rollout.columns["rewards"], discount) for rollout in rollouts]
    for i, rollout in enumerate(rollouts):
        episode = ds.episode(i)
        np.testing.assert_array_equal(episode["returns_to_go"], values[i])
        assert episode["returns_to_go"].dtype == np.float32
        for name in ("observations", "rewards", "terminated"):
            np.testing.assert_array_equal(episode[name], rollout.columns[name])
    assert ds.schema["returns_to_go"].derived
    assert ds.discount == discount
    flat, known = np.concatenate(values).astype(np.float64), ds.statistics["returns_to_go"]
    for name in ("mean", "std", "min", "max"):
        np.testing.assert_allclose(getattr(known, name), [getattr(flat, name)()], rtol=1e-12)


@pytest.mark.parametrize("residency", ["mmap", "host"])
@pytest.mark.parametrize("discount", [0.99, 0, 0.5, 1])
def test_every_discount(path: Path, rollouts: list[Any], residency: str, discount: float) -> None:
    ds = gear_data.open(path, residency=residency)
    other = ds.with_discount(discount)
    assert (other is ds) == (discount == 1)
    check_returns(other, rollouts, discount)
    assert other.fingerprint == ds.fingerprint
    check_returns(pickle.loads(pickle.dumps(other)), rollouts, discount)
    check_returns(ds, rollouts, 1)
    check_returns(other.with_discount(0.25), rollouts, 0.25)
    check_returns(other.with_discount(1), rollouts, 1)
    assert other.with_discount(discount) is other


def test_equal_discounts_share_a_sidecar(path: Path) -> None:
    ds = gear_data.open(path)
    for same in (0.0, -0.0, 0, np.float64(0)):
        ds.with_discount(same)
    assert os.listdir(path / "sidecars") == ["returns_to_go-0.0"]


@pytest.mark.parametrize("discount", [-0.01, 1.01, float("nan"), float("inf"), "0.9", None, True, 0.5j, [0.9]])
def test_invalid_discounts_are_refused(path: Path, discount: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="0 to 1"):
        gear_data.open(path).with_discount(discount)


def _without(rollouts: list[Any], *names: str) -> list[dict[str, Any]]:
    return [{name: v for name, v in r.columns.items() if name not in names} for r in rollouts]


def test_a_dataset_without_rewards_is_refused(tmp_path: Path, rollouts: list[Any], sources: Any) -> None:
    sources.write_parquet(tmp_path / "s.parquet", sources.episode_table(_without(rollouts, "rewards")))
    gear_data.convert(tmp_path / "s.parquet", tmp_path / "dataset")
    for discount in (0.9, 1):
        with pytest.raises(MissingColumnError, match=r"column 'rewards'.*observations"):
            gear_data.open(tmp_path / "dataset").with_discount(discount)
    assert not (tmp_path / "dataset/sidecars").exists()


def test_several_rewards_per_step_are_refused(tmp_path: Path, rollouts: list[Any], sources: Any) -> None:
    columns = [{**r.columns, "rewards": np.ones((len(r), 2), np.float32)} for r in rollouts]
    sources.write_parquet(tmp_path / "s.parquet", sources.episode_table(columns))
    gear_data.convert(tmp_path / "s.parquet", tmp_path / "dataset")
    with pytest.raises(MissingColumnError, match="one reward per step"):
        gear_data.open(tmp_path / "dataset").with_discount(0.9)


@pytest.mark.parametrize("discount", [0.9, 1])
def test_the_column_is_added_if_missing(path: Path, rollouts: list[Any], discount: float) -> None:
    """Datasets of other writers may have no derived column."""
    with edited_manifest(path) as manifest:
        manifest["schema"] = [column for column in manifest["schema"] if column["name"] != "returns_to_go"]
    ds = gear_data.open(path)
    assert "returns_to_go" not in ds.schema
    check_returns(ds.with_discount(discount), rollouts, discount)


def files(path: Path) -> dict[str, tuple[int, int]]:
    return {p.name: (p.stat().st_ino, p.stat().st_mtime_ns) for p in (path / "sidecars/returns_to_go-0.9").iterdir()}


def test_a_sidecar_is_computed_once_and_is_not_part_of_the_dataset(path: Path, rollouts: list[Any]) -> None:
    before = gear_data.open(path)
    before.with_discount(0.9)
    found = files(path)
    shards = {f"{i:06d}.arrow" for i in range(len(before.manifest.shards))}
    assert {name.rpartition("-")[2] for name in found} == {"sidecar.json", ".lock", *shards}
    check_returns(gear_data.open(path).with_discount(0.9), rollouts, 0.9)
    assert files(path) == found
    assert gear_data.verify(path).ok
    assert gear_data.open(path).fingerprint == before.fingerprint
    # Any Arrow reader opens the file.
    first = pl.read_ipc(next((path / "sidecars/returns_to_go-0.9").glob("*-000000.arrow")))["returns_to_go"]
    whole = np.concatenate([expected(r.columns["rewards"], 0.9) for r in rollouts])
    np.testing.assert_array_equal(first.to_numpy(), whole[: len(first)])


def _other_layout(path: Path, rollouts: list[Any], sources: Any) -> list[Any]:
    """Converts the same episodes with another layout."""
    source = sources.write_d4rl(path.parent / "other.hdf5", rollouts)
    gear_data.convert(source, path.parent / "other", shard_bytes=4096)
    return rollouts


def _other_rewards(path: Path, rollouts: list[Any], sources: Any) -> list[Any]:
    """Converts other episodes with the same layout."""
    rollouts = [r.with_columns(rewards=r.columns["rewards"] * 2) for r in rollouts]
    gear_data.convert(sources.write_d4rl(path.parent / "o.hdf5", rollouts), path.parent / "other", shard_bytes=2048)
    return rollouts


@pytest.mark.parametrize("change", [_other_layout, _other_rewards])
def test_a_sidecar_is_not_used_for_other_contents(path: Path, rollouts: list[Any], sources: Any, change: Any) -> None:
    gear_data.open(path).with_discount(0.9)
    now = change(path, rollouts, sources)
    shutil.copytree(path / "sidecars", path.parent / "other/sidecars")
    check_returns(gear_data.open(path.parent / "other").with_discount(0.9), now, 0.9)


def _edit(key: str, value: Any) -> Any:
    def damage(folder: Path) -> None:
        note = json.loads((folder / "sidecar.json").read_text())
        place: Any = note
        *first, last = key.split(".")
        for part in first:
            place = place[int(part)] if isinstance(place, list) else place[part]
        place[last] = value
        (folder / "sidecar.json").write_text(signed(note))

    return damage


@pytest.mark.parametrize(
    "damage",
    [
        lambda folder: (folder / "sidecar.json").unlink(),
        lambda folder: (folder / "sidecar.json").write_text("{"),
        lambda folder: (folder / "sidecar.json").write_bytes(b"\xff\xfe"),
        lambda folder: (folder / "sidecar.json").write_text("[]"),
        lambda folder: next(folder.glob("*-000001.arrow")).unlink(),
        lambda folder: os.truncate(next(folder.glob("*-000001.arrow")), 100),
        _edit("version", 2),
        _edit("shards", []),
        _edit("shards.1.file", "../../shards/000000.arrow"),
        _edit("shards.1.steps", 1),
        _edit("shards.1.buffers", {}),
        _edit("shards.1.buffers", {"returns_to_go": 1 << 40}),
        _edit("shards.1.buffers", {"returns_to_go": -8}),
        _edit("statistics.mean", [0.0, 0.0]),
        _edit("statistics", None),
    ],
)
def test_a_damaged_sidecar_is_computed_again(path: Path, rollouts: list[Any], damage: Any) -> None:
    gear_data.open(path).with_discount(0.9)
    before = files(path)
    damage(path / "sidecars/returns_to_go-0.9")
    check_returns(gear_data.open(path).with_discount(0.9), rollouts, 0.9)
    assert files(path)["sidecar.json"] != before["sidecar.json"]


@pytest.fixture
def unwritable(path: Path) -> Path:
    """Puts a file in place of the folder, which even root cannot write into."""
    (path / "sidecars").touch()
    return path


def test_a_folder_that_cannot_be_written(
    unwritable: Path, rollouts: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    sidecar._temporary_folder.cache_clear()
    for _ in range(2):
        check_returns(gear_data.open(unwritable).with_discount(0.9), rollouts, 0.9)
    (folder,) = temporary.iterdir()
    assert folder.stat().st_mode & 0o777 == 0o700
    sidecar._temporary_folder.cache_clear()


def _returns(path: Path, pipe: Any) -> None:
    pipe.send(gear_data.open(path).with_discount(0.9).episode(3)["returns_to_go"].tolist())


@pytest.mark.processes
def test_temporary_sidecars_are_removed_with_their_process(unwritable: Path, tmp_path: Path) -> None:
    code = "import sys, gear_data; print(gear_data.open(sys.argv[1]).with_discount(0.9).discount)"
    (tmp_path / "temporary").mkdir()
    environment = {**os.environ, "TMPDIR": str(tmp_path / "temporary")}
    done = subprocess.run(
        [sys.executable, "-c", code, str(unwritable)], env=environment, check=True, text=True, capture_output=True
    )
    assert done.stdout == "0.9\n"
    assert os.listdir(tmp_path / "temporary") == []


@pytest.mark.processes
def test_concurrent_processes_compute_one_sidecar(path: Path, rollouts: list[Any]) -> None:
    context = multiprocessing.get_context("fork")
    pipes, children = [], []
    for _ in range(4):
        received, sent = context.Pipe(duplex=False)
        children.append(context.Process(target=_returns, args=(path, sent)))
        children[-1].start()
        pipes.append(received)
    for pipe, child in zip(pipes, children, strict=True):
        assert pipe.poll(60)
        assert pipe.recv() == expected(rollouts[3].columns["rewards"], 0.9).tolist()
        child.join()
    check_returns(gear_data.open(path).with_discount(0.9), rollouts, 0.9)


def test_sidecars_of_views(path: Path, rollouts: list[Any]) -> None:
    ds = gear_data.open(path)
    for view in (
        ds.filter(pl.col("length") >= 6).with_discount(0.9),
        ds.with_discount(0.9).filter(pl.col("length") >= 6),
        pickle.loads(pickle.dumps(ds.filter(pl.col("length") >= 6).with_discount(0.9))),
    ):
        ids = [i for i, rollout in enumerate(rollouts) if len(rollout) >= 6]
        assert view.episodes["episode_id"].to_list() == ids
        values = [expected(rollouts[i].columns["rewards"], 0.9) for i in ids]
        for i, wanted in zip(ids, values, strict=True):
            np.testing.assert_array_equal(view.episode(i)["returns_to_go"], wanted)
        np.testing.assert_allclose(view.statistics["returns_to_go"].mean, [np.concatenate(values).mean(dtype="f8")])
        assert view.fingerprint == ds.filter(pl.col("length") >= 6).fingerprint
    # A step filter uses the column of its dataset.
    whole = np.concatenate([expected(rollout.columns["rewards"], 0.9) for rollout in rollouts])
    view = ds.with_discount(0.9).filter_steps(pl.col("returns_to_go") > 0.5)
    assert view.step_mask is not None
    assert view.step_mask.count == int((whole > 0.5).sum())


def test_batches_use_the_sidecar(path: Path, rollouts: list[Any]) -> None:
    options: dict[str, Any] = {"batch_size": 8, "context": 4, "preset": "raw", "seed": 5, "steps": 4, "prefetch": 0}
    plain = gear_data.open(path)
    batches = zip(
        gear_data.SequenceLoader(plain, **options),
        gear_data.SequenceLoader(plain.with_discount(0.5), **options),
        strict=True,
    )
    # All rewards differ, so that a reward identifies its window.
    steps = [(float(r), i, t) for i, rollout in enumerate(rollouts) for t, r in enumerate(rollout.columns["rewards"])]
    places = {reward: (episode, step) for reward, episode, step in steps}
    assert len(places) == len(steps)
    values = [expected(rollout.columns["rewards"], 0.5) for rollout in rollouts]
    for batch, other in batches:
        for name in batch.keys() - {"returns_to_go"}:
            np.testing.assert_array_equal(batch[name].numpy(), other[name].numpy())
        for rewards, found in zip(other["rewards"].numpy(), other["returns_to_go"].numpy(), strict=True):
            episode, first = places[float(rewards.ravel()[0])]
            wanted = values[episode][first : first + 4]
            np.testing.assert_array_equal(found.ravel()[: len(wanted)], wanted)


def test_an_episode_table_that_does_not_fit_the_shards(path: Path) -> None:
    with edited_manifest(path) as manifest:
        first, second = manifest["shards"][:2]
        first["episodes"], second["episodes"] = second["episodes"] + 1, first["episodes"] - 1
    with pytest.raises(ManifestError, match="does not fit shard"):
        gear_data.open(path).with_discount(0.9)


def test_a_truncated_shard(path: Path) -> None:
    ds = gear_data.open(path)
    os.truncate(path / "shards/000001.arrow", 100)
    with pytest.raises(CorruptShardError, match=r"000001\.arrow"):
        ds.with_discount(0.9)
    assert not (path / "sidecars/returns_to_go-0.9/sidecar.json").exists()


@pytest.mark.processes
def test_a_sidecar_of_a_replaced_dataset(sources: Any, rollouts: list[Any], tmp_path: Path) -> None:
    """A process that opened the old dataset writes its sidecar beside the sidecar of the new dataset."""
    changed = [rollout.with_columns(rewards=rollout.columns["rewards"] + 1) for rollout in rollouts]
    path = tmp_path / "dataset"
    gear_data.convert(sources.write_episodes(tmp_path / "a.parquet", rollouts), path)
    source = sources.write_episodes(tmp_path / "b.parquet", changed)
    with stoppable(_write_sidecar, path, stop=Stop("gear_data.storage.sidecar:write_ipc")) as old:
        old.expect("stopped")
        gear_data.convert(source, path, overwrite=True)
        with stoppable(_write_sidecar, path, stop=Stop("gear_data.storage.sidecar:put_single_text")) as new:
            new.expect("stopped")
            old.end()
            assert new.end()[0] == "done"
    check_returns(gear_data.open(path).with_discount(0.9), changed, 0.9)


@pytest.mark.processes
def test_two_processes_write_one_sidecar(path: Path, rollouts: list[Any]) -> None:
    with stoppable(_write_sidecar, path, stop=Stop("gear_data.storage.sidecar:put_single_text")) as first:
        first.expect("stopped")
        with stoppable(_write_sidecar, path) as second:
            assert first.end()[0] == "done"
            second.expect("done")
    check_returns(gear_data.open(path).with_discount(0.9), rollouts, 0.9)


def test_processes_without_a_lock_write_different_files(
    path: Path, rollouts: list[Any], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Another process, as on another machine, computes the sidecar when this one has written its first file."""
    monkeypatch.setattr(sidecar, "locked", lambda _: nullcontext())
    folder, write, written = path / "sidecars/returns_to_go-0.9", sidecar.write_ipc, list[Path]()

    def meanwhile(temporary: Path, batch: Any) -> None:
        write(temporary, batch)
        written.append(temporary)
        if len(written) == 1:
            with monkeypatch.context() as other:
                other.setattr(os, "getpid", lambda: 1 << 22)
                check_returns(gear_data.open(path).with_discount(0.9), rollouts, 0.9)

    monkeypatch.setattr(sidecar, "write_ipc", meanwhile)
    check_returns(gear_data.open(path).with_discount(0.9), rollouts, 0.9)
    assert written[0].parent == folder
    assert "only this process" not in caplog.text
    assert {file.suffix for file in folder.iterdir()} == {".json", ".arrow"}


def _write_sidecar(path: Path) -> None:
    gear_data.open(path).with_discount(0.9).episode(0)


@pytest.mark.parametrize("kind", SPECIAL_FILES)
@pytest.mark.parametrize("name", ["sidecar.json", "*-000000.arrow"])
def test_special_files_are_computed_again(kind: str, name: str, path: Path, rollouts: list[Any]) -> None:
    gear_data.open(path).with_discount(0.9)
    (file,) = (path / "sidecars/returns_to_go-0.9").glob(name)
    file.unlink()
    SPECIAL_FILES[kind](file)
    with no_hang():
        check_returns(gear_data.open(path).with_discount(0.9), rollouts, 0.9)


def test_a_flipped_bit_of_the_statistics_is_never_served(path: Path) -> None:
    """The sidecar is computed again."""
    right = gear_data.open(path).with_discount(0.9).statistics["returns_to_go"]
    description = path / "sidecars/returns_to_go-0.9/sidecar.json"
    whole = description.read_bytes()
    rng = random.Random(8)
    for place in rng.sample(range(len(whole)), 40) + list(range(whole.index(b'"mean"'), whole.index(b'"max"'), 7)):
        data = bytearray(whole)
        data[place] ^= 1 << rng.randrange(8)
        description.write_bytes(data)
        found = gear_data.open(path).with_discount(0.9).statistics["returns_to_go"]
        for name in ("count", "mean", "std", "min", "max"):
            np.testing.assert_array_equal(getattr(found, name), getattr(right, name))
