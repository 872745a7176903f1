"""`gear-data feed` and `export`, with --where and --where-steps."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
import termios
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gear_data
from gear_data.cli import main
from gear_data.exports.batches import BATCHES_MANIFEST
from gear_data.exports.destination import LISTING
from tests.support.command_line import run_json


def test_feed_json(rollouts_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--batch-size", 8, "--context", 5, "--preset", "decision_transformer", "--steps", 30]
    facts = run_json(capsys, "feed", rollouts_path, *options)
    assert facts["batches"] == 30
    for name in ("windows_per_s", "padded_bytes_per_s", "valid_bytes_per_s"):
        assert facts[name] > 0
    assert 0 < facts["pad_fraction"] < 1
    assert facts["valid_bytes_per_s"] == pytest.approx(facts["padded_bytes_per_s"] * (1 - facts["pad_fraction"]))
    assert 0 <= facts["wait_fraction"] <= 1


def test_feed_packs_rows(rollouts_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    dataset = gear_data.open(rollouts_path)
    for context in (None, 3):
        options = [] if context is None else ["--context", context]
        facts = run_json(capsys, "feed", rollouts_path, "--batch-size", 4, "--pack", 64, "--steps", 9, *options)
        batches = list(gear_data.SequenceLoader(dataset, 4, context=context, pack=64, preset="raw", seed=0, steps=9))
        masks = np.concatenate([batch["mask"].numpy() for batch in batches])
        assert masks.shape == (36, 64)
        assert facts["pad_fraction"] == pytest.approx(1 - masks.mean())
    assert main(["feed", str(rollouts_path), "--pack", "1"]) == 2
    assert "larger pack, context=" in capsys.readouterr().err


def on_a_terminal(*arguments: object) -> str:
    """Runs `gear-data` with standard error on a terminal, and returns what the terminal got."""
    leader, follower = pty.openpty()
    termios.tcsetwinsize(follower, (24, 130))
    command = [sys.executable, "-m", "gear_data.cli", *map(str, arguments)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=follower) as process:
        os.close(follower)
        found = b""
        while data := _read(leader):
            found += data
        assert process.wait() == 0
    os.close(leader)
    return found.decode()


def _read(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, 1 << 16)
    except OSError:  # the other end is closed
        return b""


@pytest.mark.processes
def test_feed_shows_rates_on_a_terminal(rollouts_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    shown = on_a_terminal("feed", rollouts_path, "--batch-size", 2048, "--steps", 4000)
    lines = re.findall(r"feed: .*, ([\d,]+) windows/s, (\d+\.\d\d) GB/s, (\d+)% waiting", shown)
    assert lines
    assert all(int(windows.replace(",", "")) > 0 and int(share) <= 100 for windows, _, share in lines)
    main(["feed", str(rollouts_path), "--steps", "30"])
    assert capfd.readouterr().err == ""


def test_export_dataset_and_batches(rollouts_path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    facts = run_json(capsys, "export", rollouts_path, tmp_path / "parquet")
    assert facts["episodes"] == gear_data.open(rollouts_path).num_episodes
    again = run_json(capsys, "convert", tmp_path / "parquet", tmp_path / "again")
    assert again["fingerprint"] == gear_data.open(rollouts_path).fingerprint
    options = ["--batches", 3, "--batch-size", 4, "--context", 5, "--preset", "raw", "--seed", 9, "--format", "npz"]
    facts = run_json(capsys, "export", rollouts_path, tmp_path / "batches", *options)
    assert facts["batches"] == 3
    assert facts["seed"] == 9
    assert sorted(path.name for path in (tmp_path / "batches").iterdir()) == sorted([*facts["files"], LISTING])


@pytest.mark.parametrize(("preset", "context"), [("raw", 20), ("transitions", 1)])
def test_without_context_windows_have_the_steps_of_the_preset(
    preset: str, context: int, rollouts_path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As in Python: a preset of one step refuses another number, and its advice is to leave the context out."""
    options = ["--batches", 1, "--batch-size", 4, "--preset", preset]
    run_json(capsys, "export", rollouts_path, tmp_path / "out", *options)
    assert json.loads((tmp_path / "out" / BATCHES_MANIFEST).read_text())["context"] == context
    assert run_json(capsys, "feed", rollouts_path, "--steps", 2, *options[2:])["windows"] == 8


def test_where_chooses_episodes(
    rollouts: list[Any], rollouts_path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    where = ["--where", "return > 0 AND terminated"]
    kept = [i for i, r in enumerate(rollouts) if i % 2 == 0 and r.columns["rewards"].astype(float).sum() > 0]
    facts = run_json(capsys, "inspect", rollouts_path, *where)
    assert facts["episodes"] == len(kept)
    assert facts["steps"] == sum(len(rollouts[i]) for i in kept)
    assert facts["return"]["min"] > 0
    printed = run_json(capsys, "export", rollouts_path, tmp_path / "out", *where)
    assert printed["episodes"] == len(kept)
    again = run_json(capsys, "convert", tmp_path / "out", tmp_path / "again")
    assert again["fingerprint"] == facts["fingerprint"]


def test_where_steps_chooses_windows(
    rollouts: list[Any], rollouts_path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--where", "length > 4", "--where-steps", "rewards > 0", "--batch-size", 16, "--context", 3]
    run_json(capsys, "export", rollouts_path, tmp_path / "out", *options, "--batches", 4, "--format", "npz")
    expected = {
        r.columns["actions"][t].tobytes()
        for r in rollouts
        for t in range(len(r))
        if len(r) > 4 and r.columns["rewards"][t] > 0
    }
    for file in (tmp_path / "out").glob("*.npz"):
        with np.load(file, allow_pickle=False) as batch:
            assert {action[0].tobytes() for action in batch["actions"]} <= expected
    assert run_json(capsys, "feed", rollouts_path, *options, "--steps", 5)["batches"] == 5


def test_ranges_and_idle_steps(rollouts_path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "ranges.json"
    ds = gear_data.open(rollouts_path)
    file.write_text(json.dumps({str(number): [[0, length]] for number, length in enumerate(ds.lengths.tolist())}))
    idle = ds.drop_idle("actions", threshold=0.8, seconds=0.2, fps=10)
    assert 0 < idle.steps_left_out < ds.num_steps
    options = ["--keep-ranges", str(file), "--drop-idle", "actions:0.8:0.2:10"]
    assert main(["feed", str(rollouts_path), *options, "--steps", "2", "--batch-size", "4"]) == 0
    line = f"leaves out {idle.steps_left_out} of {ds.num_steps} steps"
    assert line in capsys.readouterr().out
    assert run_json(capsys, "feed", rollouts_path, *options, "--steps", 2)["batches"] == 2
    assert main(["filter", str(rollouts_path), str(tmp_path / "busy"), *options]) == 0
    assert line in capsys.readouterr().out
    assert gear_data.open(tmp_path / "busy").fingerprint == idle.fingerprint
    report = run_json(capsys, "filter", rollouts_path, tmp_path / "out", *options[2:], "--dry-run")
    assert (report["steps_left_out"], report["kept_steps"]) == (idle.steps_left_out, ds.num_steps)


@pytest.mark.parametrize("text", ["actions:0.1", "actions:0.1:x", ":0.1:0.2"])
def test_invalid_drop_idle(text: str, rollouts_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["feed", str(rollouts_path), "--drop-idle", text])
    assert "COLUMN:THRESHOLD:SECONDS" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "status", "words"),
    [
        (["--drop-idle", "actions:0.1:0.2"], 2, "fps=15"),
        (["--keep-ranges", "nowhere.json"], 2, "nowhere.json"),
        (["--where", "lengt > 3"], 2, "did you mean 'length'"),
        (["--where", "length >"], 2, "not a valid SQL expression"),
        (["--where", "length > 100"], 1, "length is 1 to 12"),
        (["--where-steps", "reward > 3"], 2, "did you mean 'rewards'"),
        (["--where-steps", "rewards > 0"], 2, "--batches"),
    ],
)
def test_invalid_where(
    options: list[str], status: int, words: str, rollouts_path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["export", str(rollouts_path), str(tmp_path / "out"), *options]) == status
    assert words in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
