"""Files beside the data that nothing is read from: named, unless they describe the dataset in words."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

import gear_data
from gear_data.storage.manifest import Manifest
from tests.support.rollouts import make_rollouts, write_lerobot

STEPS = {"observations": np.arange(6.0)[:, None], "actions": np.ones((6, 1)), "rewards": np.arange(6.0)}
ENDS = np.array([0, 0, 1, 0, 0, 1], bool)
TABLE = {"episode": [0, 0, 0, 1, 1, 1], "obs": np.arange(6.0), "actions": np.ones(6)}


def npz(folder: Path) -> None:
    np.savez(folder / "data.npz", **STEPS, timeouts=ENDS)


def npy(folder: Path) -> None:
    for name, values in {**STEPS, "timeouts": ENDS}.items():
        np.save(folder / f"{name}.npy", values)


def d4rl(folder: Path) -> None:
    with h5py.File(folder / "data.hdf5", "w") as file:
        for name, values in {**STEPS, "timeouts": ENDS, "terminals": np.zeros(6, bool)}.items():
            file[name] = values


def parquet(folder: Path) -> None:
    pq.write_table(pa.table(TABLE), folder / "data.parquet")


def lerobot(folder: Path) -> None:
    write_lerobot(folder, make_rollouts(2, seed=1))
    (folder / "meta/stats.json").write_text("{}")


FORMATS: dict[str, Callable[[Path], None]] = {
    "npz": npz, "npy": npy, "d4rl": d4rl, "parquet": parquet, "lerobot": lerobot
}  # fmt: skip


def left_out(source: Path, target: Path) -> list[str]:
    gear_data.convert(source, target, progress=False)
    manifest: Manifest = gear_data.open(target).manifest
    return [f"{each['count']}: {each['message']}" for each in manifest.findings if each["code"] == "files-left-out"]


@pytest.mark.parametrize("format", FORMATS)
def test_facts_that_nobody_reads_are_named(format: str, tmp_path: Path) -> None:
    source = tmp_path / "s"
    source.mkdir()
    FORMATS[format](source)
    for name in ("README.md", "LICENSE", "LICENSE.txt", "requirements.txt", "dataset_infos.json", "plot.py"):
        (source / name).write_text("{}")
    assert left_out(source, tmp_path / "a") == []
    (source / "notes").mkdir()
    names = ["episodes.json", "labels.csv", "notes/splits.yaml", "tasks.txt"]
    for name in names:
        (source / name).write_text(json.dumps([1]))
    assert left_out(source, tmp_path / "b") == [f"4: no column or fact is read from {', '.join(names)}; left out"]


def test_tables_of_text_are_the_data(tmp_path: Path) -> None:
    """Beside CSV files, other files are facts."""
    (tmp_path / "s").mkdir()
    pa.csv.write_csv(pa.table(TABLE), tmp_path / "s/data.csv")
    assert left_out(tmp_path / "s", tmp_path / "a") == []
    (tmp_path / "s/metadata.json").write_text("{}")
    (found,) = left_out(tmp_path / "s", tmp_path / "b")
    assert "metadata.json" in found and "data.csv" not in found


def test_data_of_another_format_is_named_first(tmp_path: Path) -> None:
    (tmp_path / "s").mkdir()
    npz(tmp_path / "s")
    parquet(tmp_path / "s")
    (tmp_path / "s/facts.json").write_text("{}")
    report = gear_data.convert(tmp_path / "s", tmp_path / "d", format="npz", progress=False)
    (found,) = (each for each in report.warnings if each.startswith("files-left-out"))
    assert "files of another format than npz" in found and "data.parquet, facts.json (2x" in found
