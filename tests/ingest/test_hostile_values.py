"""Tests values of sources that text files, tables or memory cannot hold."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import gear_data
from gear_data.cli import main
from gear_data.errors import CorruptSourceError, GearError, HostMemoryError
from gear_data.ingest.location import SourceFile
from gear_data.ingest.sources.json_files import json_object
from gear_data.ingest.sources.minari.episode_table import read_table
from gear_data.loaders.presets.registry import PRESETS

_HALF = "half \ud83d of a pair"
_SHOWN = "half \\ud83d of a pair"


def _episode(**more: Any) -> dict[str, Any]:
    return {
        "observations": np.arange(12, dtype=np.float32).reshape(6, 2),
        "actions": np.arange(6, dtype=np.float32).reshape(6, 1),
        "rewards": np.ones(6, np.float32),
        "terminated": np.arange(6) == 5,
        "truncated": np.zeros(6, np.bool_),
        **more,
    }


def test_halves_of_surrogate_pairs_in_json() -> None:
    pair = json.dumps({"a": "\U0001f600"})
    assert json_object(pair, "f") == {"a": "\U0001f600"}
    text = json.dumps({_HALF: [1.5, {"b": _HALF}, None]})
    assert json_object(text, "f") == {_SHOWN: [1.5, {"b": _SHOWN}, None]}
    # The same half as bytes of UTF-8 that are not escaped.
    assert json_object(b'{"a": "\xed\xa0\xbd"}', "f") == {"a": "\\ud83d"}


def _edit_json(file: Path, change: Any) -> None:
    data = json.loads(file.read_text())
    change(data)
    file.write_text(json.dumps(data))


def _lerobot(sources: Any, rollouts: list[Any], folder: Path) -> Path:
    source = sources.write_lerobot(folder / "s", rollouts)
    _edit_json(source / "meta/info.json", lambda info: info.update({"robot_type": _HALF, _HALF: 1}))
    lines = (source / "meta/tasks.jsonl").read_text().splitlines()
    tasks = [json.dumps({**json.loads(line), "task": _HALF}) for line in lines]
    (source / "meta/tasks.jsonl").write_text("\n".join(tasks))
    return source  # type: ignore[no-any-return]


def _hdf5(sources: Any, rollouts: list[Any], folder: Path) -> Path:
    source = sources.write_d4rl(folder / "s.hdf5", rollouts)
    with h5py.File(source, "r+") as file:
        file.attrs["note"] = np.array(b"\xed\xa0\xbd", h5py.string_dtype())
    return source  # type: ignore[no-any-return]


@pytest.mark.parametrize("write", [_lerobot, _hdf5])
def test_halves_of_surrogate_pairs_in_a_source(
    write: Any, sources: Any, rollouts: list[Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = write(sources, rollouts, tmp_path)
    assert main(["convert", str(source), str(tmp_path / "d")]) == 0
    assert gear_data.verify(tmp_path / "d").ok
    (tmp_path / "d/manifest.json").read_text().encode()
    (tmp_path / "d/README.md").read_text().encode()
    for command in (["lint", str(source)], ["lint", str(source), "--json"]):
        assert main(command) in (0, 1)
    for command in (["inspect", str(tmp_path / "d")], ["inspect", str(tmp_path / "d"), "--json"]):
        assert main(command) == 0
    assert "Traceback" not in capsys.readouterr().err


@pytest.mark.parametrize("place", ["fact", "column", "name"])
def test_halves_of_surrogate_pairs_in_memory(place: str, tmp_path: Path) -> None:
    more: dict[str, Any] = {"fact": {"note": _HALF}, "column": {"text": [_HALF] * 6}, "name": {_HALF: np.ones(6)}}[
        place
    ]
    try:
        gear_data.convert([_episode(**more)], tmp_path / "d")
    except GearError:
        assert not (tmp_path / "d").exists()
    else:
        assert gear_data.verify(tmp_path / "d").ok


@pytest.mark.processes
def test_a_terminal_without_the_characters(sources: Any, rollouts: list[Any], tmp_path: Path) -> None:
    source = sources.write_lerobot(tmp_path / "s", rollouts)
    _edit_json(source / "meta/info.json", lambda info: info["features"].update({"gr\u00f6\u00dfe \U0001f600": {}}))
    done = subprocess.run(
        [sys.executable, "-m", "gear_data.cli", "convert", str(source), str(tmp_path / "d")],
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "gr\\xf6\\xdfe \\U0001f600" in done.stdout


def test_a_sparse_table_larger_than_memory(tmp_path: Path) -> None:
    size = 1 << 43
    path = tmp_path / "0" / "part-0.arrow"
    path.parent.mkdir()
    path.write_bytes(b"ARROW1")
    os.truncate(path, size)
    with pytest.raises(CorruptSourceError, match=f"is {size} bytes, and the memory of this machine"):
        read_table(SourceFile(str(path), "0/part-0.arrow", size))


def test_memory_errors_of_readers_are_typed(
    sources: Any, rollouts: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = sources.write_episodes(tmp_path / "s.parquet", rollouts)

    def too_much(*arguments: Any) -> Any:
        return np.empty(1 << 60, np.uint8)

    monkeypatch.setattr("gear_data.ingest.sources.tables.episode_rows.EpisodeRowSource._read", too_much)
    for call in (lambda: gear_data.convert(source, tmp_path / "d"), lambda: gear_data.lint(source)):
        with pytest.raises(HostMemoryError, match="more memory"):
            call()
    assert not (tmp_path / "d").exists()


@pytest.mark.parametrize("values", [["x", "y"], [0.5, 1.5]])
def test_lerobot_episode_numbers_that_are_no_integers(
    values: list[Any], sources: Any, rollouts: list[Any], tmp_path: Path
) -> None:
    source = sources.write_lerobot(tmp_path / "s", rollouts[:2])
    for file, value in zip(sorted(source.rglob("*.parquet")), values, strict=True):
        table = pq.read_table(file)
        index = table.column_names.index("episode_index")
        sources.write_parquet(file, table.set_column(index, "episode_index", pa.array([value] * len(table))))
    with pytest.raises(GearError, match="integer") as error:
        gear_data.convert(source, tmp_path / "d")
    assert error.value.column == "episode_index"


def _keys() -> list[str]:
    """Returns all keys that a preset's batches have beside columns."""
    dataset = [_episode()] * 3
    names = set()
    for batch_format in PRESETS.values():
        # A source's `observation.X` is the column `observations.X`.
        keys = [
            key for key in batch_format.keys.values() if not (batch_format.mapped and key.startswith("observation."))
        ]
        names |= {batch_format.mask_key, batch_format.timesteps_key, *keys}
    names |= {"valid_count", "loss_weight", "n_step_returns", "tokens", "target_mask", "action_is_pad", "actions_mask"}
    return sorted(name for name in names if name is not None and name not in dataset[0])


@pytest.mark.parametrize("key", _keys())
def test_every_preset_feeds_a_column_or_a_finding_names_the_column(key: str, tmp_path: Path) -> None:
    try:
        report = gear_data.convert([_episode(**{key: np.ones(6, np.float32)})] * 3, tmp_path / "d", progress=False)
    except GearError:
        return  # another name of a column that is there
    dataset = gear_data.open(tmp_path / "d")
    reported = [warning for warning in report.warnings if warning.startswith("reserved-name")]
    refused, contexts = [], {"transitions": 1}
    for preset in PRESETS:
        try:
            next(iter(gear_data.SequenceLoader(dataset, 2, context=contexts.get(preset, 3), preset=preset, steps=1)))
        except GearError:
            refused.append(preset)
        columns = (*([] if preset == "raw" else dataset.schema.names[:1]), key)
        try:
            next(
                iter(
                    gear_data.SequenceLoader(
                        dataset, 2, context=contexts.get(preset, 3), preset=preset, steps=1, columns=columns
                    )
                )
            )
        except GearError as error:
            assert "--rename" in str(error) or "name each column once" in str(error)
    assert bool(refused) == bool(reported)
    for preset in refused:
        assert f"'{preset}'" in reported[0]
        assert f"--rename {key}=NAME" in reported[0]


def test_a_renamed_column_is_fed(tmp_path: Path) -> None:
    options = {"rename": {"mask": "infos.mask"}, "progress": False}
    report = gear_data.convert([_episode(mask=np.ones(6, np.float32))] * 3, tmp_path / "d", **options)
    assert not [warning for warning in report.warnings if "reserved-name" in warning]
    batch = next(iter(gear_data.SequenceLoader(gear_data.open(tmp_path / "d"), 2, context=3, steps=1)))
    assert {"mask", "infos.mask"} <= batch.keys()
