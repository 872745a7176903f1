"""Properties of all export formats."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import gear_data
from gear_data.errors import (
    DestinationExistsError,
    InvalidArgumentError,
    MissingColumnError,
    StorageFullError,
    UnsupportedColumnError,
)
from tests.support.exports import FORMATS, concatenated, convert_again, convert_rollouts, export_to, wide_rollouts


@pytest.mark.parametrize("format", FORMATS)
def test_export_converts_to_an_equal_dataset(format: str, sources: Any, tmp_path: Path) -> None:
    ds = convert_rollouts(tmp_path, sources, wide_rollouts(sources))
    assert len(ds.manifest.shards) > 1
    back = convert_again(export_to(ds, tmp_path, format), tmp_path)
    assert back.schema.source_columns and back.fingerprint == ds.fingerprint
    for i in range(ds.num_episodes):
        assert (back.final(i) or {})["observations"].tolist() == (ds.final(i) or {})["observations"].tolist()


@pytest.mark.parametrize("format", FORMATS)
def test_export_of_a_view(format: str, rollouts_path: Path, tmp_path: Path) -> None:
    view = gear_data.open(rollouts_path).filter("length > 4 AND terminated")
    assert 2 < view.num_episodes < 40
    assert convert_again(export_to(view, tmp_path, format), tmp_path).fingerprint == view.fingerprint


@pytest.mark.parametrize("format", FORMATS)
def test_small_blocks_write_the_same(
    format: str, sources: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Blocks of one episode; in LeRobot several row groups per episode and many files."""
    ds = convert_rollouts(tmp_path, sources, wide_rollouts(sources))
    monkeypatch.setattr("gear_data.exports.exporter.BLOCK_BYTES", 100)
    monkeypatch.setattr("gear_data.exports.lerobot.data_files.BLOCK_BYTES", 10)
    monkeypatch.setattr("gear_data.exports.lerobot.data_files.DATA_MB", 0)
    path = export_to(ds, tmp_path, format)
    assert convert_again(path, tmp_path).fingerprint == ds.fingerprint
    if format == "lerobot":
        files = sorted((path / "data").rglob("*.parquet"))
        assert len(files) > 2
        assert pq.read_metadata(files[0]).num_row_groups > 1
        table = pq.read_table(path / "meta/episodes/chunk-000/file-000.parquet").to_pylist()
        for row in table:
            name = f"chunk-{row['data/chunk_index']:03d}/file-{row['data/file_index']:03d}.parquet"
            indices = pq.read_table(path / "data" / name, columns=["episode_index", "index"]).to_pydict()
            mine = [i for e, i in zip(*indices.values(), strict=True) if e == row["episode_index"]]
            assert mine == list(range(row["dataset_from_index"], row["dataset_to_index"]))


@pytest.mark.parametrize("format", ["minari", "lerobot", "parquet"])
def test_unusual_end_flags_are_kept(format: str, sources: Any, tmp_path: Path) -> None:
    rollouts = sources.make_rollouts(5, short=False, seed=8)
    rollouts[3].columns["terminated"][-1] = rollouts[3].columns["truncated"][-1] = True
    next(rollout for rollout in rollouts if len(rollout) > 2).columns["terminated"][1] = True
    ds = convert_rollouts(tmp_path, sources, rollouts)
    back = convert_again(export_to(ds, tmp_path, format), tmp_path)
    for name in ("terminated", "truncated"):
        found = np.concatenate([back.episode(i)[name] for i in range(5)])
        assert found.tolist() == concatenated(rollouts, name).tolist()
    assert back.fingerprint == ds.fingerprint


@pytest.mark.parametrize("format", ["d4rl", "npz", "minari"])
def test_missing_final_observations_are_refused(format: str, sources: Any, tmp_path: Path) -> None:
    rollouts = sources.make_rollouts(5)
    finals = [None if i == 3 else rollout.final.tolist() for i, rollout in enumerate(rollouts)]
    metadata = {"final_observations": pa.array(finals, pa.list_(pa.float32()))}
    ds = convert_rollouts(tmp_path, sources, rollouts, final=False, **metadata)
    with pytest.raises(UnsupportedColumnError, match="episode 3 has n") as error:
        export_to(ds, tmp_path, format)
    assert error.value.column == "observations"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["dataset", "source.parquet"]
    back = convert_again(export_to(ds, tmp_path, "lerobot"), tmp_path)
    assert back.fingerprint == ds.fingerprint
    assert [back.final(i) is None for i in range(5)] == [False, False, False, True, False]


def test_columns_that_a_format_cannot_store(sources: Any, tmp_path: Path) -> None:
    def numbers(rng: Any, count: int) -> Any:
        return rng.integers(0, 5, count)

    cases = {
        "next_observations": ("d4rl", "npz", "minari"),
        "metadata": ("d4rl", "npz", "minari"),
        "observations.image": ("minari",),
        "level": ("minari",),
        "step_index": ("minari", "lerobot"),
        "task_index": ("minari",),
    }
    for number, (name, formats) in enumerate(cases.items()):
        folder = tmp_path / str(number)
        folder.mkdir()
        ds = convert_rollouts(folder, sources, wide_rollouts(sources, **{name: numbers}))
        for format in FORMATS:
            if format not in formats:
                gear_data.export(ds, folder / format / FORMATS[format][0], format, **FORMATS[format][1])
                continue
            with pytest.raises(UnsupportedColumnError) as error:
                export_to(ds, folder, format)
            assert error.value.column == name
            assert error.value.hint


@pytest.mark.parametrize("format", ["d4rl", "npz", "minari"])
def test_columns_that_a_format_needs(format: str, sources: Any, tmp_path: Path) -> None:
    table = pa.table({"observations": [[[1.0]], [[2.0], [3.0]]], "rewards": [[0.0], [1.0, 2.0]]})
    gear_data.convert(sources.write_parquet(tmp_path / "s.parquet", table), tmp_path / "d", format="episode-rows")
    with pytest.raises(MissingColumnError, match="actions") as error:
        export_to(gear_data.open(tmp_path / "d"), tmp_path, format)
    assert error.value.column == "actions"


def test_text(sources: Any, tmp_path: Path) -> None:
    """LeRobot and Minari's infos store text; flat arrays do not."""
    rollouts = sources.make_rollouts(4, short=False)
    texts = [[f"ä{i}" * j for j in range(len(rollout))] for i, rollout in enumerate(rollouts)]
    ds = convert_rollouts(tmp_path, sources, rollouts, **{"infos.text": texts})
    assert ds.schema["infos.text"].dtype == "string"
    for format in ("d4rl", "npz"):
        with pytest.raises(UnsupportedColumnError) as error:
            export_to(ds, tmp_path, format)
        assert error.value.column == "infos.text"
    for format in ("lerobot", "minari"):
        gear_data.convert(export_to(ds, tmp_path, format), tmp_path / f"again-{format}")
        assert gear_data.open(tmp_path / f"again-{format}").fingerprint == ds.fingerprint


def test_invalid_arguments_are_refused(rollouts_path: Path, tmp_path: Path) -> None:
    ds = gear_data.open(rollouts_path)
    with pytest.raises(InvalidArgumentError, match="fps=30"):
        gear_data.export(ds, tmp_path / "out", "lerobot")
    with pytest.raises(InvalidArgumentError, match="fps="):
        gear_data.export(ds, tmp_path / "out", "d4rl", fps=30)
    rates: tuple[Any, ...] = (0, float("nan"), "30", True)
    for fps in rates:
        with pytest.raises(InvalidArgumentError, match="fps="):
            gear_data.export(ds, tmp_path / "out", "lerobot", fps=fps)
    with pytest.raises(InvalidArgumentError, match="out-v0"):
        gear_data.export(ds, tmp_path / "out", "minari")
    assert list(tmp_path.iterdir()) == []
    for format, (name, arguments) in FORMATS.items():
        (tmp_path / format / name).mkdir(parents=True)
        (tmp_path / format / name / "mine.txt").write_text("mine")
        with pytest.raises(DestinationExistsError):
            gear_data.export(ds, tmp_path / format / name, format, **arguments)
        assert [path.name for path in (tmp_path / format).iterdir()] == [name]


@pytest.mark.parametrize("format", FORMATS)
def test_a_failed_export_leaves_no_files(
    format: str, rollouts_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gear_data.exports.exporter.BLOCK_BYTES", 100)
    ds = gear_data.open(rollouts_path)
    steps = type(ds).steps

    def fails(self: Any, name: str, first: int, last: int) -> Any:
        if name == "observations" and first > 20:
            raise OSError(28, "No space left on device")
        return steps(self, name, first, last)

    monkeypatch.setattr(type(ds), "steps", fails)
    with pytest.raises(StorageFullError):
        export_to(ds, tmp_path, format)
    assert list(tmp_path.iterdir()) == []
