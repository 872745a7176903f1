"""Saved filters of steps: the new dataset is opened with them."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.feather
import pytest

import gear_data
from gear_data.errors import (
    CorruptShardError,
    EmptySourceError,
    GearError,
    InvalidArgumentError,
    ResumeError,
    VersionError,
)
from tests.support.checks import folder_contents
from tests.support.feed.batches import same, take
from tests.support.manifests import sign_file
from tests.support.views import flags_of


def _saved(view: gear_data.Dataset, path: Path | str) -> gear_data.Dataset:
    view.save(path, progress=False)
    return gear_data.open(path)


@pytest.mark.parametrize("mode", ["first", "all"])
def test_a_saved_view_has_the_windows_of_the_view(ds: gear_data.Dataset, tmp_path: Path, mode: Any) -> None:
    view = ds.filter_steps("rewards > -0.5", mode=mode).drop_idle("actions", threshold=1e-3, seconds=0.3, mode=mode)
    report = view.save(tmp_path / "saved", progress=False)
    saved = gear_data.open(tmp_path / "saved")
    assert saved.fingerprint == view.fingerprint == report.fingerprint != ds.fingerprint
    assert flags_of(saved) == flags_of(view) and saved.step_mask_mode == mode
    assert saved.num_steps == ds.num_steps and saved.statistics["rewards"].count == ds.statistics["rewards"].count
    assert report.linked == len(ds.manifest.shards)
    options: dict[str, Any] = {"batch_size": 5, "context": 4, "seed": 3, "columns": ["actions", "rewards"]}
    for sampler in ("uniform", "shuffle"):
        loaders = [gear_data.SequenceLoader(each, sampler=sampler, **options) for each in (view, saved)]
        same(*(take(loader, 12) for loader in loaders))
        resumed = gear_data.SequenceLoader(saved, sampler=sampler, **options)
        resumed.load_state_dict(loaders[0].state_dict())
        same(take(resumed, 6), take(loaders[0], 6))
    assert pickle.loads(pickle.dumps(saved)).fingerprint == view.fingerprint
    assert gear_data.verify(tmp_path / "saved", deep=True).ok
    history = saved.manifest.provenance["view"]["history"]
    assert [line.split(":")[0] for line in history] == [
        f"rewards > -0.5, mode {mode}", f"drop_idle of actions, threshold 0.001, 3 steps, mode {mode}",
    ]  # fmt: skip


def test_a_view_of_some_episodes(ds: gear_data.Dataset, episodes: list[dict[str, Any]], tmp_path: Path) -> None:
    """The fingerprint is that of the filter of the saved episodes."""
    kept = [1, 3, 4, 7]
    view = ds.filter_steps("rewards > 0.3").select(kept)
    report = view.save(tmp_path / "some", progress=False)
    saved = gear_data.open(tmp_path / "some")
    expected = [reward > 0.3 for number in kept for reward in episodes[number]["rewards"]]
    assert flags_of(saved) == expected and saved.steps_left_out == expected.count(False)
    assert saved.all_steps().fingerprint == ds.select(kept).fingerprint
    again = saved.all_steps().filter_steps("rewards > 0.3")
    assert saved.fingerprint == again.fingerprint == report.fingerprint
    # Saved again, filtered further, and without the filter.
    twice = _saved(saved.filter_steps("rewards < 0.8").filter("length > 1"), tmp_path / "twice")
    assert flags_of(twice) == [0.3 < each < 0.8 for n in (1, 3, 7) for each in episodes[n]["rewards"]]
    plain = _saved(saved.all_steps(), tmp_path / "plain")
    assert plain.step_mask is None and plain.all_steps() is plain
    assert json.loads((tmp_path / "plain" / "manifest.json").read_text())["version"] == 1
    with pytest.raises(InvalidArgumentError, match="'first', not 'all'"):
        saved.filter_steps("rewards < 0.8", mode="all")
    with pytest.raises(EmptySourceError, match="leave out every step of these episodes"):
        ds.keep_ranges({0: [[0, 2]]}).select([1, 2]).save(tmp_path / "none", progress=False)
    assert not (tmp_path / "none").exists()


def test_the_table_is_as_documented(ds: gear_data.Dataset, tmp_path: Path) -> None:
    _saved(ds.filter_steps("rewards > 0", mode="all"), tmp_path / "saved")
    table = pyarrow.feather.read_table(tmp_path / "saved" / "step_mask.arrow")
    assert table.schema.names == ["words"] and table.schema.metadata == {b"gear.mode": b"all"}
    bits = np.unpackbits(table["words"].to_numpy().view(np.uint8), bitorder="little")
    assert bits[: ds.num_steps].tolist() == (ds.steps("rewards", 0, len(ds)) > 0).tolist()
    assert not bits[ds.num_steps :].any()


def test_interrupted_and_other_runs(ds: gear_data.Dataset, tmp_path: Path) -> None:
    view = ds.filter_steps("rewards > 0")
    out = tmp_path / "out"
    view.save(out, progress=False)
    before = folder_contents(out)
    assert view.save(out, resume=True, progress=False).fingerprint == view.fingerprint
    assert folder_contents(out) == before
    for other in (ds, ds.filter_steps("rewards > 0.1"), ds.filter_steps("rewards > 0", mode="all")):
        with pytest.raises(ResumeError):
            other.save(out, resume=True, progress=False)
    ds.save(out, overwrite=True, progress=False)
    assert gear_data.open(out).step_mask is None and not (out / "step_mask.arrow").exists()


def test_urls_and_bad_shards(ds: gear_data.Dataset, memory_url: str, tmp_path: Path) -> None:
    view = ds.keep_ranges({0: [[0, 5]], 3: [[2, 9]], 7: [[3, 40]]})
    remote = _saved(view, f"{memory_url}/saved")
    assert remote.fingerprint == view.fingerprint
    _saved(view, tmp_path / "saved")
    shard = tmp_path / "saved" / remote.manifest.shards[0].entry.file
    # A linked shard is the dataset's own.
    data = bytearray(shard.read_bytes())
    shard.unlink()
    shard.write_bytes(data[:-100])
    with pytest.warns(RuntimeWarning):
        sound = gear_data.open(tmp_path / "saved", on_bad_shard="skip")
    assert flags_of(sound) == flags_of(view) and sound.steps_left_out < view.steps_left_out


@pytest.mark.parametrize("damage", ["byte", "mode", "short", "tail", "empty", "type"])
def test_a_damaged_table(ds: gear_data.Dataset, tmp_path: Path, damage: str) -> None:
    folder = tmp_path / "saved"
    _saved(ds.filter_steps("rewards > 0"), folder)
    file = folder / "step_mask.arrow"
    if damage == "byte":
        data = bytearray(file.read_bytes())
        data[len(data) // 2] ^= 1
        file.write_bytes(data)
    else:
        words = pyarrow.feather.read_table(file)["words"].to_numpy().copy()
        if damage == "tail":
            words[-1] |= np.uint64(1 << 63)
        words = {"short": words[:-1], "empty": words * np.uint64(0), "type": words.view(np.int64)}.get(damage, words)
        field = pa.field("words", pa.from_numpy_dtype(words.dtype), nullable=False)
        schema = pa.schema([field], {"gear.mode": "last" if damage == "mode" else "first"})
        with pa.OSFile(str(file), "wb") as sink, pa.ipc.new_file(sink, schema) as writer:
            writer.write(pa.table([pa.array(words)], schema))
        sign_file(folder, "step_mask.arrow")
    with pytest.raises(CorruptShardError, match=r"step_mask\.arrow"):
        gear_data.open(folder)
    report = gear_data.verify(folder)
    assert [check.file for check in report.shards if not check.ok] == ["step_mask.arrow"]


def test_an_older_gear_data_refuses_it(ds: gear_data.Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would draw windows that the filter leaves out."""
    _saved(ds.filter_steps("rewards > 0"), tmp_path / "saved")
    monkeypatch.setattr("gear_data.storage.manifest.FORMAT_VERSION", 1)
    with pytest.raises(VersionError):
        gear_data.open(tmp_path / "saved")


def test_merges_recordings_and_exports_are_refused_with_a_remedy(ds: gear_data.Dataset, tmp_path: Path) -> None:
    saved = _saved(ds.filter_steps("rewards > 0"), tmp_path / "saved")

    def record(path: Path) -> None:
        with gear_data.Writer(path) as writer:
            writer.append(observations=np.zeros(3, np.float32))

    def merge(path: Path) -> None:
        gear_data.merge([path, ds.path], tmp_path / f"merged-{path.name}", progress=False)

    def export(path: Path) -> None:
        gear_data.export(gear_data.open(path), tmp_path / f"exported-{path.name}")

    for use in (record, merge, export):
        with pytest.raises(InvalidArgumentError, match=r"all_steps\(\)") as raised:
            use(tmp_path / "saved")
        assert "filter" in str(raised.value)
    assert gear_data.open(tmp_path / "saved").fingerprint == saved.fingerprint
    saved.all_steps().save(tmp_path / "whole", progress=False)
    merge(tmp_path / "whole")
    export(tmp_path / "whole")
    with pytest.raises(GearError) as raised_by_columns:
        record(tmp_path / "whole")
    assert "filter" not in str(raised_by_columns.value)
