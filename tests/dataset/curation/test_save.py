"""`Dataset.save`: views become datasets of their own."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gear_data
from gear_data.errors import (
    CorruptShardError,
    DatasetNotFoundError,
    DestinationExistsError,
    InvalidArgumentError,
    ResumeError,
)
from gear_data.storage import atomic, recomputation
from tests.support.checks import folder_contents
from tests.support.rollouts import Rollout, make_rollouts

SHARD_BYTES = 1024


def _converted(folder: Path, rollouts: Sequence[Rollout], **options: Any) -> gear_data.Dataset:
    """Converts rollouts with final observations, tasks and texts."""
    episodes = [
        {
            **rollout.columns,
            "observations": np.concatenate([rollout.columns["observations"], rollout.final[None]]),
            "prompt": [f"{len(rollout)} {step}" for step in range(len(rollout))],
            "task": f"task {len(rollout) % 3}",
        }
        for rollout in rollouts
    ]
    gear_data.convert(episodes, folder, shard_bytes=SHARD_BYTES, progress=False, **options)
    return gear_data.open(folder)


@pytest.fixture
def rollouts() -> list[Rollout]:
    return make_rollouts(40, seed=3)


@pytest.fixture
def whole(rollouts: list[Rollout], tmp_path: Path) -> gear_data.Dataset:
    dataset = _converted(tmp_path / "whole", rollouts)
    assert len(dataset.manifest.shards) > 5
    return dataset


def _check(path: Path, rollouts: Sequence[Rollout], golden: gear_data.Dataset) -> None:
    """Checks a saved dataset against rollouts, and against a conversion of only these rollouts."""
    saved = gear_data.open(path)
    assert saved.fingerprint == golden.fingerprint
    assert saved.episodes.drop("shard", "start", "source").equals(golden.episodes.drop("shard", "start", "source"))
    for index, rollout in enumerate(rollouts):
        for name, values in rollout.columns.items():
            np.testing.assert_array_equal(saved[index][name], values)
        np.testing.assert_array_equal((saved.final(index) or {})["observations"], rollout.final)
        assert saved.values("prompt", index, index + 1).to_pylist() == [
            f"{len(rollout)} {step}" for step in range(len(rollout))
        ]
    for name, expected in golden.statistics.items():
        for kind in ("count", "mean", "std", "min", "max"):
            np.testing.assert_allclose(getattr(saved.statistics[name], kind), getattr(expected, kind), rtol=1e-9)
    assert [f["code"] for f in saved.manifest.findings] == [f["code"] for f in golden.manifest.findings]
    assert {f["code"]: f["count"] for f in saved.manifest.findings} == {
        f["code"]: f["count"] for f in golden.manifest.findings
    }
    report = gear_data.verify(path, deep=True)
    assert report.ok, report


@pytest.mark.parametrize("chosen", [
    range(40), range(5, 31), range(0, 40, 2), [0], [39], [1, 2, 3, 20, 21, 39],
])  # fmt: skip
def test_a_saved_view_is_a_conversion_of_its_episodes(
    chosen: Sequence[int], rollouts: list[Rollout], whole: gear_data.Dataset, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    kept = [rollouts[i] for i in chosen]
    golden = _converted(tmp_path / "golden", kept)
    monkeypatch.setattr(recomputation, "_TOLERANCE", 0.0)
    view = whole.select(list(chosen))
    report = view.save(tmp_path / "out", progress=False)
    _check(tmp_path / "out", kept, golden)
    assert report.fingerprint == view.fingerprint
    assert (report.episodes, report.steps) == (len(kept), sum(map(len, kept)))
    for name, expected in view.statistics.items():
        np.testing.assert_array_equal(gear_data.open(tmp_path / "out").statistics[name].mean, expected.mean)
    files = (tmp_path / "out").rglob("*.arrow")
    assert report.bytes == sum(path.stat().st_size for path in files)


def test_whole_shards_become_links(whole: gear_data.Dataset, tmp_path: Path) -> None:
    shards = whole.episodes["shard"].to_numpy()
    chosen = np.flatnonzero((shards >= 2) | (np.arange(len(shards)) == 0))
    report = whole.select(chosen).save(tmp_path / "out", progress=False)
    assert report.whole == report.linked == len(whole.manifest.shards) - 2
    assert report.shards == report.whole + 1
    saved = gear_data.open(tmp_path / "out")
    for old, new in zip(whole.manifest.shards[2:], saved.manifest.shards[1:], strict=True):
        places = [Path(each.path) / file.entry.file for each, file in ((whole, old), (saved, new))]
        assert os.path.samefile(*places) and new.entry.checksum == old.entry.checksum
    shutil.rmtree(whole.path)
    assert gear_data.verify(tmp_path / "out", deep=True).ok


def test_small_rests_of_shards_are_written_together(whole: gear_data.Dataset, tmp_path: Path) -> None:
    """One episode of each shard: fewer shards than before, none larger than before."""
    first = np.unique(whole.episodes["shard"].to_numpy(), return_index=True)[1]
    report = whole.select(first).save(tmp_path / "out", progress=False)
    assert report.shards < len(first) and report.whole == 0
    largest = max(shard.entry.bytes for shard in whole.manifest.shards)
    assert all(shard.entry.bytes <= 2 * largest for shard in gear_data.open(tmp_path / "out").manifest.shards)


def test_copies_where_links_are_impossible(
    whole: gear_data.Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*args: object) -> None:
        raise OSError(18, os.strerror(18))

    monkeypatch.setattr(atomic.os, "link", refuse)
    report = whole[3:].save(tmp_path / "out", progress=False)
    assert report.linked == 0 < report.whole
    assert gear_data.verify(tmp_path / "out", deep=True).ok


def test_the_provenance_says_how_the_episodes_were_chosen(whole: gear_data.Dataset, tmp_path: Path) -> None:
    view = whole.filter("length > 2").split({"a": 0.5, "b": 0.5}, seed=4)["b"]
    view.save(tmp_path / "out", progress=False)
    provenance = gear_data.open(tmp_path / "out").manifest.provenance
    assert provenance["source"] == str(whole.path)
    assert provenance["view"]["fingerprint"] == whole.fingerprint
    assert provenance["view"]["history"] == ["filter length > 2", "split b of {'a': 0.5, 'b': 0.5}, seed 4"]
    assert provenance["view"]["provenance"] == dict(whole.manifest.provenance)
    card = (tmp_path / "out/README.md").read_text()
    assert "filter length > 2" in card
    gear_data.open(tmp_path / "out")[2:].save(tmp_path / "again", progress=False)
    assert gear_data.verify(tmp_path / "again", deep=True).ok


def test_findings_of_episodes_that_left_are_gone(tmp_path: Path) -> None:
    rollouts = make_rollouts(6, seed=1, short=False)
    bad = rollouts[2].with_columns(rewards=np.full(len(rollouts[2]), np.nan, np.float32))
    whole = _converted(tmp_path / "whole", [*rollouts, bad, rollouts[0]])
    codes = {finding["code"] for finding in whole.manifest.findings}
    assert {"non-finite", "duplicate-episode"} <= codes
    whole[:6].save(tmp_path / "out", progress=False)
    left = {finding["code"] for finding in gear_data.open(tmp_path / "out").manifest.findings}
    assert left == codes - {"non-finite", "duplicate-episode"}


def test_a_damaged_shard_is_refused_and_nothing_stays(whole: gear_data.Dataset, tmp_path: Path) -> None:
    shard = Path(whole.path) / whole.manifest.shards[-1].entry.file
    content = bytearray(shard.read_bytes())
    content[len(content) // 2] ^= 1
    shard.unlink()
    shard.write_bytes(content)
    with pytest.raises(CorruptShardError, match="checksum"):
        gear_data.open(whole.path).save(tmp_path / "out", progress=False)
    assert not (tmp_path / "out").exists()
    gear_data.open(whole.path)[:2].save(tmp_path / "out", progress=False)  # does not read the damaged shard


def test_destinations(whole: gear_data.Dataset, tmp_path: Path) -> None:
    out = tmp_path / "out"
    whole[:9].save(out, progress=False)
    with pytest.raises(DestinationExistsError):
        whole[:9].save(out, progress=False)
    before = folder_contents(out)
    assert whole[:9].save(out, resume=True, progress=False).episodes == 9
    assert folder_contents(out) == before
    with pytest.raises(ResumeError, match="rows"):
        whole[:8].save(out, resume=True, progress=False)
    assert whole[:8].save(out, overwrite=True, progress=False).episodes == 8
    assert len(gear_data.open(out)) == 8
    for wrong in (Path(whole.path) / "out", Path(whole.path).parent):
        with pytest.raises((InvalidArgumentError, DestinationExistsError)):
            whole.save(wrong, overwrite=True, progress=False)
    with pytest.raises(InvalidArgumentError, match="overwrite and resume"):
        whole.save(tmp_path / "new", overwrite=True, resume=True)


def test_views_that_cannot_be_saved(whole: gear_data.Dataset, tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match=r"discount 0\.5"):
        whole.with_discount(0.5).save(tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_urls(whole: gear_data.Dataset, rollouts: list[Rollout], memory_url: str, tmp_path: Path) -> None:
    whole[4:].save(f"{memory_url}/first", progress=False)
    remote = gear_data.open(f"{memory_url}/first")
    remote[:20].save(tmp_path / "out", progress=False)
    _check(tmp_path / "out", rollouts[4:24], _converted(tmp_path / "golden", rollouts[4:24]))


_KILLED = """
import importlib, os, signal, sys
import gear_data
module, name = sys.argv[3].rsplit(".", 1)
module = importlib.import_module("gear_data." + module)
call, left = getattr(module, name), [int(sys.argv[4])]
def killed(*args, **options):
    left[0] -= 1
    if not left[0]:
        os.kill(os.getpid(), signal.SIGKILL)
    return call(*args, **options)
setattr(module, name, killed)
gear_data.open(sys.argv[1])[3:30].save(sys.argv[2], progress=False)
"""


@pytest.mark.processes
@pytest.mark.parametrize(("function", "call"), [
    ("ingest.saving.shards.write_ipc", 1), ("ingest.saving.shards.place_shard", 3),
    ("ingest.saving.save.write_table", 2), ("ingest.merging.linked_dataset.put_text", 1),
    ("storage.writing.staging.put_text", 1),
])  # fmt: skip
def test_a_killed_save_starts_again(
    function: str, call: int, whole: gear_data.Dataset, rollouts: list[Rollout], tmp_path: Path
) -> None:
    command = [sys.executable, "-c", _KILLED, str(whole.path), str(tmp_path / "out"), function, str(call)]
    assert subprocess.run(command, check=False).returncode == -signal.SIGKILL
    with pytest.raises(DatasetNotFoundError):
        gear_data.open(tmp_path / "out")
    with pytest.raises(ResumeError, match="rows"):
        whole[3:29].save(tmp_path / "out", resume=True, progress=False)
    whole[3:30].save(tmp_path / "out", resume=True, progress=False)
    _check(tmp_path / "out", rollouts[3:30], _converted(tmp_path / "golden", rollouts[3:30]))
    assert not any((tmp_path / "out").rglob("*.tmp"))


def test_the_sound_episodes_of_a_damaged_dataset(
    whole: gear_data.Dataset, rollouts: list[Rollout], tmp_path: Path
) -> None:
    gone = 2
    (Path(whole.path) / whole.manifest.shards[gone].entry.file).unlink()
    with pytest.warns(RuntimeWarning, match="left out"):
        sound = gear_data.open(whole.path, on_bad_shard="skip")
    kept = [rollouts[i] for i in np.flatnonzero(whole.episodes["shard"].to_numpy() != gone).tolist()]
    sound.save(tmp_path / "out", progress=False)
    _check(tmp_path / "out", kept, _converted(tmp_path / "golden", kept))


def test_repair_names_the_dataset_to_repair(whole: gear_data.Dataset, tmp_path: Path) -> None:
    whole[2:].save(tmp_path / "out", progress=False)
    sorted((tmp_path / "out/shards").iterdir())[0].unlink()
    with pytest.raises(InvalidArgumentError, match=r"episodes of .*whole"):
        gear_data.repair(tmp_path / "out", tmp_path / "x.hdf5")


def test_a_dataset_that_grew(tmp_path: Path) -> None:
    """Ids have gaps after an eviction; the saved dataset has none."""
    rollouts = make_rollouts(12, seed=5, short=False)
    with gear_data.Writer(tmp_path / "live", max_steps=30) as writer:
        for rollout in rollouts:
            for step in range(len(rollout)):
                writer.append(**{name: rollout.columns[name][step] for name in ("observations", "actions", "rewards")})
            writer.end_episode(truncated=True, final=rollout.final)
            writer.seal()
    live = gear_data.open(tmp_path / "live")
    ids = live.episode_ids
    assert ids is not None and ids[0] > 0
    live.select(range(1, len(live))).save(tmp_path / "out", progress=False)
    saved = gear_data.open(tmp_path / "out")
    assert saved.episode_ids is None and saved.generation == 0
    for index, old in enumerate(ids[1:].tolist()):
        np.testing.assert_array_equal(saved[index]["actions"], rollouts[old].columns["actions"])
        np.testing.assert_array_equal((saved.final(index) or {})["observations"], rollouts[old].final)
    assert gear_data.verify(tmp_path / "out", deep=True).ok
