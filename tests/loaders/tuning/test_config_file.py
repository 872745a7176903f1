"""loader.json: what it holds, what it refuses, and the loaders that are made from it."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import torch

import gear_data
from gear_data import BatchOptions, ExecutionOptions, RandomShift, Seconds, SequenceLoader, WindowOptions
from gear_data.errors import DestinationExistsError, InvalidArgumentError, LoaderConfigError
from gear_data.loaders.arguments.config import LoaderConfig
from gear_data.loaders.tuning.config_file import BATCH_ARGUMENTS, columns_of, write_config
from gear_data.loaders.tuning.setting import EXECUTION_FIELDS, Setting

SETTING = Setting(residency="host", num_workers=1, prefetch=3, batches_at_once=2)
ARGUMENTS = {"batch_size": 8, "context": 5, "preset": "corl", "offsets": None, "seed": 4}


@pytest.fixture
def written(rollouts_path: Path, tmp_path: Path) -> Path:
    path = tmp_path / "loader.json"
    write_config(path, SETTING, ARGUMENTS, columns_of(gear_data.open(rollouts_path)), {"cores": 2})
    return path


def batches(loader: Any, count: int = 7) -> list[dict[str, torch.Tensor]]:
    return [{key: value.clone() for key, value in batch.items()} for batch in itertools.islice(loader, count)]


def same(got: list[dict[str, torch.Tensor]], expected: list[dict[str, torch.Tensor]]) -> None:
    assert len(got) == len(expected) > 0
    for one, other in zip(got, expected, strict=True):
        assert one.keys() == other.keys()
        assert all(torch.equal(one[key], other[key]) for key in other)


@pytest.mark.processes
def test_a_loader_of_a_file(rollouts_path: Path, written: Path) -> None:
    ds = gear_data.open(rollouts_path)
    loader = SequenceLoader.from_config(ds, written)
    plain = SequenceLoader(ds, **ARGUMENTS, prefetch=0)
    assert (loader.dataset.residency, loader.batch_size, loader.context, loader.preset) == ("host", 8, 5, "corl")
    assert (loader._config.prefetch, loader._config.execution.batches_at_once) == (3, 2)
    assert loader.dataloader().num_workers == 1 and loader.dataloader(num_workers=0).num_workers == 0
    assert plain.dataloader().num_workers == 0
    expected = batches(plain)
    same(batches(loader), expected)
    same(batches(SequenceLoader.from_config(ds, written).dataloader()), expected)


def test_offsets_keep_their_kind(rollouts_path: Path, tmp_path: Path) -> None:
    ds, path = gear_data.open(rollouts_path), tmp_path / "loader.json"
    times = Seconds([0, 0.05, 0.1], fill="interpolate", fps=10)
    arguments = {**ARGUMENTS, "offsets": {"actions": (-1, 3), "observations": [-2, 0], "returns_to_go": times}}
    write_config(path, SETTING, arguments, columns_of(ds), {})
    same(batches(SequenceLoader.from_config(ds, path)), batches(SequenceLoader(ds, **arguments)))


def test_given_arguments_replace_those_of_the_file(rollouts_path: Path, written: Path) -> None:
    view = gear_data.open(rollouts_path).filter("length > 4").with_discount(0.9)
    loader = SequenceLoader.from_config(
        view, str(written), residency="mmap", num_workers=2, prefetch=0, batch_size=6, rank=1, world_size=2, steps=3
    )
    assert loader.dataset is view and len(loader) == 3
    assert (loader.local_batch_size, loader._config.prefetch) == (3, 0)
    assert loader.dataloader().num_workers == 2
    # The view and the discount stay when the dataset is opened again.
    again = SequenceLoader.from_config(view, written)
    assert isinstance(again.dataset, gear_data.Dataset) and isinstance(plain := loader.dataset, gear_data.Dataset)
    assert again.dataset.residency == "host"
    assert (again.dataset.fingerprint, again.dataset.discount) == (plain.fingerprint, 0.9)


def test_a_file_tunes_nothing_that_changes_batches() -> None:
    of_a_run = {"rank", "world_size", "steps", "epochs", "passes"}
    assert BATCH_ARGUMENTS | {"prefetch"} | of_a_run == {each.name for each in fields(LoaderConfig) if each.init} - {
        "dataset",
        "rename",
        "embodiment",
        "fps",
    }
    assert {*EXECUTION_FIELDS} < {each.name for each in fields(ExecutionOptions)}


def test_groups_keep_their_fields(rollouts_path: Path, tmp_path: Path) -> None:
    ds, path = gear_data.open(rollouts_path), tmp_path / "loader.json"
    groups = {
        "windows": WindowOptions(stride=2, anchor="end"),
        "batch": BatchOptions(dtype="float64", window_ids=True),
        "execution": ExecutionOptions(pin_memory=False, batches_at_once=7),
    }
    write_config(path, SETTING, {**ARGUMENTS, **groups}, columns_of(ds), {})
    stored = json.loads(path.read_text())["arguments"]
    assert stored["windows"] == {"stride": 2, "anchor": "end"}
    loader = SequenceLoader.from_config(ds, path)
    assert (loader._config.windows, loader._config.batch) == (groups["windows"], groups["batch"])
    # The tuned fields are in the setting.
    assert loader._config.execution == ExecutionOptions(pin_memory=False, batches_at_once=2)
    same(batches(loader), batches(SequenceLoader(ds, **ARGUMENTS, **groups, prefetch=0)))
    augmented = BatchOptions(augment={"observations.image": RandomShift()})
    write_config(path, SETTING, {**ARGUMENTS, "batch": augmented}, columns_of(ds), {})
    with pytest.raises(LoaderConfigError, match=r"tuned with batch=.*\n.*the argument batch= too"):
        SequenceLoader.from_config(ds, path)


def test_arguments_that_json_cannot_hold(rollouts_path: Path, tmp_path: Path) -> None:
    ds, path = gear_data.open(rollouts_path), tmp_path / "loader.json"
    write_config(path, Setting(), {"batch_size": 4, "transform": print, "rank": 1}, columns_of(ds), {})
    assert json.loads(path.read_text())["arguments"] == {"batch_size": 4}
    with pytest.raises(LoaderConfigError, match=r"tuned with transform=.*\n.*the argument transform= too"):
        SequenceLoader.from_config(ds, path)
    assert SequenceLoader.from_config(ds, path, transform=None).batch_size == 4


def edited(change: Callable[[dict[str, Any]], Any]) -> Callable[[str], str]:
    def edit(text: str) -> str:
        data = json.loads(text)
        change(data)
        return json.dumps(data)

    return edit


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        (lambda text: text[:-9], "not a JSON document"),
        (lambda text: "[]", r"malformed: Expected `object`"),
        (edited(lambda data: data.update(format="other")), "the format is 'other'"),
        (edited(lambda data: data.update(version=1)), "has version 1; this gear-data reads version 2"),
        (edited(lambda data: data.pop("columns")), "required field `columns`"),
        (edited(lambda data: data.update(extra=1)), "unknown field `extra`"),
        (edited(lambda data: data["tuned"].update(prefech=2)), r"unknown field `prefech` - at `\$.tuned`"),
        (edited(lambda data: data["tuned"].update(prefetch=-1)), r">= 0 - at `\$.tuned.prefetch`"),
        (edited(lambda data: data["tuned"].update(num_workers="two")), r"\$.tuned.num_workers"),
        (edited(lambda data: data["arguments"].update(steps=9)), "unknown argument 'steps'"),
        (edited(lambda data: data["arguments"].update(windows={"strid": 2})), "has wrong windows: .*'strid'"),
        (edited(lambda data: data["arguments"].update(windows={"stride": 0})), "has wrong windows: stride must be"),
        (edited(lambda data: data["columns"].append({})), "tuned for 2 datasets, and the loader has 1"),
        (
            edited(lambda data: data["columns"][0].update(actions="float32[7]")),
            r"other columns: 'actions' was float32\[7\], and is float32\[2\]",
        ),
        (edited(lambda data: data["columns"][0].pop("rewards")), "'rewards' was absent, and is float32"),
    ],
)
def test_files_that_are_refused(rollouts_path: Path, written: Path, edit: Callable[[str], str], words: str) -> None:
    written.write_text(edit(written.read_text()))
    with pytest.raises(LoaderConfigError, match=words) as raised:
        SequenceLoader.from_config(gear_data.open(rollouts_path), written)
    assert raised.value.file == str(written) and "gear-data" in str(raised.value.hint)


def test_places_that_are_refused(rollouts_path: Path, written: Path, tmp_path: Path) -> None:
    ds = gear_data.open(rollouts_path)
    with pytest.raises(LoaderConfigError, match=r"cannot be read: No such file"):
        SequenceLoader.from_config(ds, tmp_path / "absent.json")
    columns = columns_of(ds)
    write_config(written, Setting(residency="tiered"), {}, columns, {})  # an older file is replaced
    with pytest.raises(InvalidArgumentError, match=r"cannot be changed to tiered here\n.*Dataset.place"):
        SequenceLoader.from_config(ds, written)
    write_config(written, Setting(queue_pairs=2), {}, columns, {})
    with pytest.raises(InvalidArgumentError, match="queue_pairs=2 is for a dataset at a gear:// URL"):
        SequenceLoader.from_config(ds, written)
    for text in ('{"format": "other", "version": 1}', "no JSON"):
        written.write_text(text)
        with pytest.raises(DestinationExistsError, match="is no file of gear-data tune"):
            write_config(written, Setting(), {}, columns, {})
        assert written.read_text() == text


def test_batches_at_once_is_checked(rollouts_path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match="batches_at_once must be an integer of at least 1, not 0"):
        SequenceLoader(gear_data.open(rollouts_path), execution=ExecutionOptions(batches_at_once=0))
