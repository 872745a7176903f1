"""Sources with different columns: zeros and masks for missing columns."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import gear_data
from gear_data.errors import FindingError, UnsupportedColumnError
from gear_data.ingest.several import sequence
from gear_data.storage import recomputation
from tests.support.rollouts import make_rollouts

OPTIONS: dict[str, Any] = {"shard_bytes": 2048, "progress": False}
Episodes = list[dict[str, npt.NDArray[Any]]]


def _episodes(count: int, seed: int, **columns: tuple[Any, tuple[int, ...]]) -> Episodes:
    """Returns episodes with random values that are never zero."""
    rng = np.random.default_rng(seed)
    lengths = [len(rollout) for rollout in make_rollouts(count, seed=seed)]
    return [
        {name: rng.integers(1, 100, (length, *shape)).astype(dtype) for name, (dtype, shape) in columns.items()}
        for length in lengths
    ]


COMMON = {"observations": (np.float32, (3,)), "actions": (np.float32, (2,))}
FIRST = {**COMMON, "rewards": (np.float64, ()), "observations.image": (np.uint8, (2, 2, 3))}
SECOND = {**COMMON, "infos.force": (np.float32, (6,))}


def _write(path: Path, episodes: Episodes, texts: bool = False) -> Path:
    """Writes episodes as Parquet, a row per step: nested lists of each column."""
    import datasets

    rows: list[dict[str, Any]] = []
    for index, episode in enumerate(episodes):
        length = len(episode["actions"])
        for step in range(length):
            row: dict[str, Any] = {name: values[step].tolist() for name, values in episode.items()}
            row |= {"episode_id": index, "truncated": step == length - 1, "terminated": False}
            rows.append({**row, "prompt": f"{index} {step}"} if texts else row)
    features: dict[str, Any] = {"episode_id": datasets.Value("int64")}
    features |= {name: datasets.Value("bool") for name in ("truncated", "terminated")}
    if texts:
        features["prompt"] = datasets.Value("string")
    for name, values in episodes[0].items():
        dtype, shape = values.dtype.name, values.shape[1:]
        features[name] = (
            datasets.Array3D(shape, dtype)
            if len(shape) == 3
            else datasets.Sequence(datasets.Value(dtype), shape[0])
            if shape
            else datasets.Value(dtype)
        )
    datasets.Dataset.from_list(rows, features=datasets.Features(features)).to_parquet(path)
    return path


@pytest.fixture
def parts() -> dict[str, Episodes]:
    return {"a": _episodes(9, 1, **FIRST), "b": _episodes(6, 2, **SECOND)}


@pytest.fixture
def files(parts: dict[str, Episodes], tmp_path: Path) -> list[Path]:
    return [_write(tmp_path / f"{name}.parquet", episodes, texts=name == "b") for name, episodes in parts.items()]


def _expected(parts: Mapping[str, Episodes]) -> Episodes:
    """The plain loop: zeros where a source lacks a column, and masks."""
    result = []
    for name, episodes in parts.items():
        lacks = {"a": {"infos.force": SECOND["infos.force"]}, "b": {k: FIRST[k] for k in FIRST if k not in SECOND}}[
            name
        ]
        for index, episode in enumerate(episodes):
            steps = len(episode["actions"])
            values = dict(episode)
            for column, (dtype, shape) in lacks.items():
                values[column] = np.zeros((steps, *shape), dtype)
            for column in ("rewards", "observations.image", "infos.force"):
                values[f"masks.{column}"] = np.full(steps, column in episode)
            values["masks.prompt"] = np.full(steps, name == "b")
            values["prompt"] = np.array([f"{index} {step}" if name == "b" else "" for step in range(steps)], object)
            result.append(values)
    return result


@pytest.fixture
def merged(files: list[Path], tmp_path: Path) -> gear_data.Dataset:
    gear_data.convert(files, tmp_path / "out", **OPTIONS)
    return gear_data.open(tmp_path / "out")


def test_episodes_equal_a_plain_loop(
    merged: gear_data.Dataset, parts: dict[str, Episodes], monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = _expected(parts)
    assert len(merged) == len(expected)
    for episode, values in zip(merged, expected, strict=True):
        for name, column in values.items():
            assert merged.schema[name].numpy_dtype == column.dtype
            np.testing.assert_array_equal(episode[name], column)
    returns = merged.episodes["return"].to_list()
    assert returns[9:] == [None] * 6
    assert returns[:9] == [float(episode["rewards"].sum()) for episode in parts["a"]]
    monkeypatch.setattr(recomputation, "_TOLERANCE", 0.0)
    verified = gear_data.verify(merged.path, deep=True)
    assert verified.ok, verified


def test_statistics_are_of_the_steps_that_have_the_column(
    merged: gear_data.Dataset, parts: dict[str, Episodes]
) -> None:
    view = merged.select(range(4, 12))
    for dataset, chosen in ((merged, slice(None)), (view, slice(4, 12))):
        episodes = [*parts["a"], *parts["b"]][chosen]
        for name in ("rewards", "observations.image", "infos.force", "observations"):
            values = np.concatenate([episode[name] for episode in episodes if name in episode]).astype(np.float64)
            flat = values.reshape(-1, values.shape[1]) if values.ndim == 2 else values.reshape(-1, 1)
            found = dataset.statistics[name]
            np.testing.assert_array_equal(found.count, [len(flat)] * flat.shape[1])
            np.testing.assert_allclose(found.mean, flat.mean(axis=0), rtol=1e-12)
            np.testing.assert_allclose(found.std, flat.std(axis=0), rtol=1e-9)
            np.testing.assert_array_equal(found.min, flat.min(axis=0))
            np.testing.assert_array_equal(found.max, flat.max(axis=0))
        steps = sum(len(episode["rewards"]) for episode in episodes if "rewards" in episode)
        assert dataset.statistics["returns_to_go"].count.tolist() == [steps]


def test_batches_have_zeros_and_masks(merged: gear_data.Dataset, parts: dict[str, Episodes]) -> None:
    names = ["infos.force", "masks.infos.force", "observations.image", "masks.observations.image", "rewards"]
    loader = gear_data.SequenceLoader(
        merged, batch_size=32, context=4, columns=names, preset="raw", prefetch=0, steps=6, seed=3
    )
    expected = _expected(parts)
    seen = set()
    for step, batch in enumerate(loader):
        windows = loader.windows(step)
        for row in range(32):
            episode, start, length = (int(windows[key][row]) for key in ("episode_id", "start", "length"))
            seen.add(merged.episodes["embodiment"][episode])
            valid = np.asarray(batch["mask"][row]).astype(bool)
            assert valid.sum() == length
            for name in names:
                np.testing.assert_array_equal(
                    np.asarray(batch[name][row])[valid], expected[episode][name][start : start + length]
                )
    assert seen == {"a", "b"}


def test_missing_columns_are_reported(files: list[Path], tmp_path: Path) -> None:
    report = gear_data.convert(files, tmp_path / "out", **OPTIONS)
    reported = [line for line in report.warnings if line.startswith("missing-column")]
    assert len(reported) == 4 and any("masks.infos.force is false" in line and "a.parquet" in line for line in reported)
    with pytest.raises(FindingError, match="missing-column"):
        gear_data.convert(files, tmp_path / "strict", strict=True, **OPTIONS)


def test_pieces_of_wide_missing_columns(
    files: list[Path], merged: gear_data.Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The dataset does not depend on the pieces, whose memory is bounded."""
    monkeypatch.setattr(sequence, "_PIECE_BYTES", 100)
    gear_data.convert(files, tmp_path / "pieces", **OPTIONS)
    again = gear_data.open(tmp_path / "pieces")
    assert again.manifest.shards == merged.manifest.shards
    assert again.manifest.tables == merged.manifest.tables


def test_returns_to_go_of_a_source_without_rewards(files: list[Path], tmp_path: Path) -> None:
    other = _write(tmp_path / "c.parquet", _episodes(3, 4, **COMMON, returns_to_go=(np.float32, ())))
    with pytest.raises(UnsupportedColumnError, match=r"c.parquet, column 'returns_to_go'(.|\n)*--rename"):
        gear_data.convert([files[0], other], tmp_path / "out", **OPTIONS)


def test_a_column_with_the_name_of_a_mask(files: list[Path], tmp_path: Path) -> None:
    wrong = {**COMMON, "rewards": (np.float64, ()), "masks.infos.force": (np.float32, (2,))}
    other = _write(tmp_path / "c.parquet", _episodes(3, 4, **wrong))
    with pytest.raises(UnsupportedColumnError, match=r"column 'masks.infos.force'.*float32 \[2\].*bool"):
        gear_data.convert([files[1], other], tmp_path / "out", **OPTIONS)
