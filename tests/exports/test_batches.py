"""Exported batches: their contents, and their reproduction from the manifest."""

from __future__ import annotations

import hashlib
import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
import xxhash
from safetensors.torch import load_file

import gear_data
from gear_data.errors import (
    EmptySourceError,
    InvalidArgumentError,
)
from tests.support.cameras.filmed import WRIST, film

FORMATS = ("safetensors", "npz", "parquet")


def read_batch(path: Path, shapes: dict[str, list[int]]) -> dict[str, np.ndarray[Any, Any]]:
    """Reads a batch file with its format's own library."""
    if path.suffix == ".safetensors":
        return {key: tensor.numpy() for key, tensor in load_file(path).items()}
    if path.suffix == ".npz":
        with np.load(path, allow_pickle=False) as file:
            return dict(file)
    table = pq.read_table(path)
    return {key: np.array(table.column(key).to_pylist()).reshape(shapes[key]) for key in table.column_names}


@pytest.mark.parametrize("format", FORMATS)
def test_files_hold_the_loader_s_batches(format: str, rollouts_path: Path, tmp_path: Path) -> None:
    ds = gear_data.open(rollouts_path)

    def loader() -> Any:
        return gear_data.SequenceLoader(
            ds, 7, context=4, preset="raw", sampler="shuffle", seed=3, normalize=True, epochs=1
        )

    count = len(loader())
    report = gear_data.export_batches(loader(), tmp_path / "out", batches=count + 5, format=format)
    assert report.batches == count
    manifest = json.loads((tmp_path / "out" / "batches.json").read_text())
    for entry, batch in zip(manifest["files"], loader(), strict=True):
        shapes = {key: tensor["shape"] for key, tensor in entry["tensors"].items()}
        found = read_batch(tmp_path / "out" / entry["file"], shapes)
        assert found.keys() == batch.keys()
        for key, tensor in batch.items():
            np.testing.assert_array_equal(found[key], tensor.numpy())
            assert entry["tensors"][key]["dtype"] == str(tensor.dtype).removeprefix("torch.")
    assert manifest["files"][-1]["windows"] == ds.num_steps - 7 * (count - 1)


@pytest.mark.parametrize("format", FORMATS)
def test_columns_may_have_any_name(format: str, rollouts_path: Path, tmp_path: Path) -> None:
    ds = gear_data.open(rollouts_path).rename({"observations": "file", "actions": "allow_pickle"})
    loader = gear_data.SequenceLoader(ds, 3, context=4, preset="raw", framework="numpy")
    report = gear_data.export_batches(loader, tmp_path / "out", batches=1, format=format)
    [entry] = json.loads((tmp_path / "out" / "batches.json").read_text())["files"]
    shapes = {key: tensor["shape"] for key, tensor in entry["tensors"].items()}
    found, batch = read_batch(tmp_path / "out" / report.files[0], shapes), loader.batch(0)
    for name in ("file", "allow_pickle"):
        np.testing.assert_array_equal(found[name], batch[name])


@pytest.mark.parametrize("format", FORMATS)
def test_batches_are_reproducible_from_the_manifest(format: str, rollouts_path: Path, tmp_path: Path) -> None:
    ds = gear_data.open(rollouts_path)
    loader = gear_data.SequenceLoader(
        ds,
        batch_size=6,
        context=5,
        preset="decision_transformer",
        seed=11,
        normalize=True,
        columns=["truncated"],
        offsets={"actions": (-1, 3)},
    )
    loader.load_state_dict({**loader.state_dict(), "step": 40})
    gear_data.export_batches(loader, tmp_path / "first", batches=3, format=format)
    m = json.loads((tmp_path / "first" / "batches.json").read_text())
    assert m["fingerprint"] == ds.fingerprint
    assert [entry["step"] for entry in m["files"]] == [40, 41, 42]
    again = gear_data.SequenceLoader(
        ds,
        batch_size=m["batch_size"],
        context=m["context"],
        preset=m["preset"],
        sampler=m["sampler"],
        seed=m["seed"],
        columns=m["columns"],
        offsets={name: tuple(span) for name, span in m["offsets"].items()},
        normalize={name: tuple(pair) for name, pair in m["normalize"].items()},
        batch=gear_data.BatchOptions(dtype=m["dtype"]),
    )
    again.load_state_dict({**again.state_dict(), "step": m["files"][0]["step"]})
    gear_data.export_batches(again, tmp_path / "second", batches=3, format=format)
    for entry in m["files"]:
        data = (tmp_path / "second" / entry["file"]).read_bytes()
        assert f"xxh3-128:{xxhash.xxh3_128(data).hexdigest()}" == entry["checksum"]
        assert len(data) == entry["bytes"]
        first = (tmp_path / "first" / entry["file"]).read_bytes()
        assert hashlib.sha256(first).digest() == hashlib.sha256(data).digest()


def test_half_precision_needs_safetensors(rollouts_path: Path, tmp_path: Path) -> None:
    ds = gear_data.open(rollouts_path)

    def loader() -> Any:
        return gear_data.SequenceLoader(ds, 2, context=3, batch=gear_data.BatchOptions(dtype="bfloat16"))

    gear_data.export_batches(loader(), tmp_path / "out", batches=1)
    assert load_file(tmp_path / "out" / "batch-000000.safetensors")["observations"].dtype == torch.bfloat16
    for format in ("npz", "parquet"):
        with pytest.raises(InvalidArgumentError, match="bfloat16"):
            gear_data.export_batches(loader(), tmp_path / format, batches=1, format=format)
        assert not (tmp_path / format).exists()


def test_exports_without_batches_are_refused(rollouts_path: Path, tmp_path: Path) -> None:
    ds = gear_data.open(rollouts_path)
    with pytest.raises(InvalidArgumentError):
        gear_data.export_batches(gear_data.SequenceLoader(ds, 2, context=2), tmp_path / "out", batches=0)
    with pytest.raises(EmptySourceError):
        gear_data.export_batches(gear_data.SequenceLoader(ds, 2, context=2, steps=0), tmp_path / "out", batches=1)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("format", FORMATS)
def test_batches_of_lists(format: str, rollouts_path: Path, tmp_path: Path) -> None:
    """Gato's samples have different lengths."""
    loader = gear_data.SequenceLoader(gear_data.open(rollouts_path), batch_size=4, context=5, preset="gato", seed=3)
    gear_data.export_batches(loader, tmp_path / "out", batches=1, format=format)
    batch = loader.batch(0)
    lists = {key: [each.tolist() for each in value] for key, value in batch.items() if isinstance(value, list)}
    assert len({len(each) for each in next(iter(lists.values()))}) > 1
    (file,) = (tmp_path / "out").glob(f"*.{format}")
    if format == "parquet":
        table = pq.read_table(file)
        assert {key: table[key].to_pylist() for key in lists} == lists
        return
    from safetensors.numpy import load_file

    arrays = load_file(file) if format == "safetensors" else np.load(file)
    for key, value in lists.items():
        values, offsets = arrays[f"{key}.values"], arrays[f"{key}.offsets"]
        assert [values[a:b].tolist() for a, b in itertools.pairwise(offsets)] == value


@pytest.mark.parametrize("format", FORMATS)
def test_batches_of_text(format: str, tmp_path: Path) -> None:
    texts = [["go", "", "left"], ["stop"], ["ä", "b"]]
    rewards = [[0.0] * len(each) for each in texts]
    pq.write_table(pa.table({"texts": texts, "rewards": rewards}), tmp_path / "source.parquet")
    gear_data.convert(tmp_path / "source.parquet", tmp_path / "dataset", format="episode-rows", progress=False)
    loader = gear_data.SequenceLoader(gear_data.open(tmp_path / "dataset"), batch_size=6, context=2, seed=1)
    if format != "parquet":
        with pytest.raises(InvalidArgumentError, match="only Parquet"):
            gear_data.export_batches(loader, tmp_path / "out", batches=1, format=format)
        assert not (tmp_path / "out").exists()
        return
    gear_data.export_batches(loader, tmp_path / "out", batches=1, format=format)
    windows = loader.windows(0)
    spans = zip(windows["episode_id"], windows["start"], windows["length"], strict=True)
    expected = [texts[episode][start : start + length] for episode, start, length in spans]
    (file,) = (tmp_path / "out").glob("*.parquet")
    assert pq.read_table(file)["texts"].to_pylist() == expected


@pytest.mark.parametrize("format", FORMATS)
def test_batches_of_cameras(format: str, rollouts: list[Any], rollouts_path: Path, tmp_path: Path) -> None:
    film(rollouts_path, [len(rollout) for rollout in rollouts])
    ds = gear_data.open(rollouts_path)

    def loader() -> Any:
        return gear_data.SequenceLoader(ds, 2, context=2, columns=[WRIST, "rewards"], seed=1, steps=1)

    gear_data.export_batches(loader(), tmp_path / "out", batches=1, format=format)
    (entry,) = json.loads((tmp_path / "out" / "batches.json").read_text())["files"]
    assert entry["tensors"][WRIST] == {"dtype": "uint8", "shape": [2, 2, 32, 48, 3]}
    shapes = {key: tensor["shape"] for key, tensor in entry["tensors"].items()}
    found = read_batch(tmp_path / "out" / entry["file"], shapes)
    for key, tensor in next(iter(loader())).items():
        np.testing.assert_array_equal(found[key], tensor.numpy())


def test_a_batch_without_its_count_of_windows_is_refused(rollouts_path: Path, tmp_path: Path) -> None:
    def drop(batch: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
        return {key: value for key, value in batch.items() if key != "valid_count"}

    loader = gear_data.SequenceLoader(gear_data.open(rollouts_path), 7, context=4, transform=drop)
    with pytest.raises(InvalidArgumentError, match=r"step 0 has no 'valid_count'.*\n.*let transform keep this key"):
        gear_data.export_batches(loader, tmp_path / "out", batches=2)
    assert not (tmp_path / "out").exists()
