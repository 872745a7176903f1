"""Exports: what other libraries read back, and what converts again to an equal dataset."""

from __future__ import annotations

import hashlib
import itertools
import json
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
import xxhash
from safetensors.torch import load_file

import gear_data
from gear_data.errors import (
    DestinationExistsError,
    EmptySourceError,
    InvalidArgumentError,
    UnknownNameError,
    UnsupportedColumnError,
)
from gear_data.exports.nested import nested_episodes, nested_rows

FORMATS = ("safetensors", "npz", "parquet")


def read_batch(path: Path, shapes: dict[str, list[int]]) -> dict[str, np.ndarray[Any, Any]]:
    """A batch file through its format's own library."""
    if path.suffix == ".safetensors":
        return {key: tensor.numpy() for key, tensor in load_file(path).items()}
    if path.suffix == ".npz":
        with np.load(path, allow_pickle=False) as file:
            return dict(file)
    table = pq.read_table(path)
    return {key: np.array(table.column(key).to_pylist()).reshape(shapes[key]) for key in table.column_names}


def test_parquet_is_read_by_datasets(rollouts: list[Any], rollouts_path: Path, tmp_path: Path) -> None:
    report = gear_data.export(gear_data.open(rollouts_path), tmp_path / "out")
    assert report.files == tuple(sorted(str(p.relative_to(tmp_path / "out")) for p in (tmp_path / "out").rglob("*.p*")))
    files = [str(tmp_path / "out" / name) for name in report.files]
    loaded = datasets.load_dataset("parquet", data_files=files, split="train", cache_dir=str(tmp_path / "cache"))
    assert len(loaded) == len(rollouts)
    assert "returns_to_go" not in loaded.column_names
    for row, rollout in zip(loaded, rollouts, strict=True):
        for name, values in rollout.columns.items():
            assert row[name] == values.tolist()
        assert row["final_observations"] == rollout.final.tolist()
    assert gear_data.convert(loaded, tmp_path / "again").fingerprint == gear_data.open(rollouts_path).fingerprint


def test_parquet_converts_to_an_equal_dataset(sources: Any, tmp_path: Path) -> None:
    """Wide and odd columns, episode facts, and only some final observations survive the way there and back."""
    rng = np.random.default_rng(5)
    rollouts = [
        r.with_columns(
            **{
                "observations.image": rng.integers(0, 256, (len(r), 2, 3, 1), dtype=np.uint8),
                "infos.flag": rng.random((len(r), 2)) < 0.5,
                "infos.half": rng.normal(size=len(r)).astype(np.float16),
                "infos.count": rng.integers(-(2**62), 2**62, len(r)),
            }
        )
        for r in sources.make_rollouts(20, seed=3)
    ]
    finals = [r.final.tolist() if i % 3 else None for i, r in enumerate(rollouts)]
    facts = {
        "final_observations": pa.array(finals, pa.list_(pa.float32())),
        "task": ["a", None] * 10,
        "level": list(range(20)),
    }
    source = sources.write_episodes(tmp_path / "source.parquet", rollouts, **facts)
    first = gear_data.convert(source, tmp_path / "first", shard_bytes=4096)
    assert first.shards > 1
    ds = gear_data.open(tmp_path / "first")
    for destination in (tmp_path / "folder", tmp_path / "one.parquet"):
        gear_data.export(ds, destination)
        again = tmp_path / f"again-{destination.name}"
        assert gear_data.convert(destination, again).fingerprint == first.fingerprint
        back = gear_data.open(again)
        assert back.episodes["level"].to_list() == list(range(20))
        assert back.episodes["task"].to_list() == ["a", None] * 10
        for i, final in enumerate(finals):
            found = back.final(i)
            assert (found is None) == (final is None)
            assert final is None or (found is not None and found["observations"].tolist() == final)


def test_export_refuses_what_is_there(rollouts_path: Path, tmp_path: Path) -> None:
    ds = gear_data.open(rollouts_path)
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine.txt").write_text("mine")
    with pytest.raises(DestinationExistsError):
        gear_data.export(ds, tmp_path / "out")
    with pytest.raises(DestinationExistsError):
        gear_data.export_batches(gear_data.SequenceLoader(ds, 2, context=2), tmp_path / "out", batches=1)
    with pytest.raises(UnknownNameError, match="parquet"):
        gear_data.export(ds, tmp_path / "new", format="xlsx")
    with pytest.raises(UnknownNameError, match="safetensors"):
        gear_data.export_batches(gear_data.SequenceLoader(ds, 2, context=2), tmp_path / "new", batches=1, format="csv")
    assert [path.name for path in tmp_path.rglob("*")] == ["out", "mine.txt"]


def test_export_into_a_linked_empty_folder(rollouts_path: Path, tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real", target_is_directory=True)
    ds = gear_data.open(rollouts_path)
    report = gear_data.export(ds, tmp_path / "link")
    assert (tmp_path / "link").is_symlink()
    assert all((tmp_path / "real" / name).is_file() for name in report.files)
    gear_data.convert(tmp_path / "link", tmp_path / "again")
    assert gear_data.open(tmp_path / "again").fingerprint == ds.fingerprint
    assert sorted(path.name for path in tmp_path.iterdir()) == ["again", "link", "real"]


def test_export_refuses_a_mount_point_before_any_work(
    rollouts_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "disk").mkdir()
    monkeypatch.setattr("os.path.ismount", lambda path: Path(path) == tmp_path / "disk")
    loader = gear_data.SequenceLoader(gear_data.open(rollouts_path), 2, context=2, transform=lambda batch, rng: 1 / 0)
    with pytest.raises(DestinationExistsError, match="a folder inside it"):
        gear_data.export_batches(loader, tmp_path / "disk", batches=1)
    assert list(tmp_path.rglob("*")) == [tmp_path / "disk"]


def test_lists_beyond_32_bit_offsets_are_refused() -> None:
    """Views of one number: nothing of that size is allocated, nor would be afterwards."""
    rows = np.broadcast_to(np.uint8(0), (1 << 16, 1 << 15))
    with pytest.raises(UnsupportedColumnError, match="2,147,483,648 elements") as error:
        nested_rows(rows, "pixels")
    assert error.value.column == "pixels"
    with pytest.raises(UnsupportedColumnError):
        nested_rows(np.broadcast_to(np.uint8(0), (1 << 11, 1 << 10, 1 << 10)))
    steps, offsets = np.broadcast_to(np.uint8(0), 1 << 31), np.array([0, 1 << 31])
    with pytest.raises(UnsupportedColumnError) as error:
        nested_episodes(steps, offsets, "rewards")
    assert error.value.column == "rewards"


@pytest.mark.parametrize("format", FORMATS)
def test_batches_hold_what_the_loader_gives(format: str, rollouts_path: Path, tmp_path: Path) -> None:
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
def test_batches_can_be_made_again_from_their_manifest(format: str, rollouts_path: Path, tmp_path: Path) -> None:
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
        dtype=m["dtype"],
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
        return gear_data.SequenceLoader(ds, 2, context=3, dtype="bfloat16")

    gear_data.export_batches(loader(), tmp_path / "out", batches=1)
    assert load_file(tmp_path / "out" / "batch-000000.safetensors")["observations"].dtype == torch.bfloat16
    for format in ("npz", "parquet"):
        with pytest.raises(InvalidArgumentError, match="bfloat16"):
            gear_data.export_batches(loader(), tmp_path / format, batches=1, format=format)
        assert not (tmp_path / format).exists()


def test_no_batches(rollouts_path: Path, tmp_path: Path) -> None:
    ds = gear_data.open(rollouts_path)
    with pytest.raises(InvalidArgumentError):
        gear_data.export_batches(gear_data.SequenceLoader(ds, 2, context=2), tmp_path / "out", batches=0)
    with pytest.raises(EmptySourceError):
        gear_data.export_batches(gear_data.SequenceLoader(ds, 2, context=2, steps=0), tmp_path / "out", batches=1)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("format", FORMATS)
def test_batches_of_lists(format: str, rollouts_path: Path, tmp_path: Path) -> None:
    """Gato's samples have each a length of their own."""
    loader = gear_data.SequenceLoader(gear_data.open(rollouts_path), batch_size=4, context=5, preset="gato", seed=3)
    gear_data.export_batches(loader, tmp_path / "out", batches=1, format=format)
    batch = next(iter(loader))
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
