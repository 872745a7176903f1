"""`gear-data inspect` and `verify`: JSON and text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gear_data
from gear_data.cli import main
from tests.support.cameras.filmed import FRONT, WRIST, film
from tests.support.command_line import run_json


def test_inspect_json(rollouts: list[Any], rollouts_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    facts = run_json(capsys, "inspect", rollouts_path)
    returns = [float(r.columns["rewards"].astype(np.float64).sum()) for r in rollouts]
    lengths = [len(r) for r in rollouts]
    assert facts["episodes"] == len(rollouts)
    assert facts["steps"] == sum(lengths)
    assert facts["columns"]["observations"] == {"dtype": "float32", "shape": [3]}
    assert facts["columns"]["terminated"] == {"dtype": "bool", "shape": []}
    for name, values in (("return", returns), ("length", lengths)):
        expected = {"min": min(values), "mean": sum(values) / len(values), "max": max(values)}
        assert facts[name] == pytest.approx(expected)
    assert facts["fingerprint"] == gear_data.open(rollouts_path).fingerprint
    assert facts["source"].endswith("source.hdf5")


def test_inspect_text_counts_every_episode(
    rollouts: list[Any], rollouts_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["inspect", str(rollouts_path)]) == 0
    printed = capsys.readouterr().out
    for part in ("return of an episode", "length of an episode"):
        bars = printed.split(part)[1].split("\n\n")[0].strip().splitlines()
        assert sum(int(line.split()[-1]) for line in bars) == len(rollouts)


def test_inspect_without_rewards(
    sources: Any, rollouts: list[Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = sources.write_episodes(tmp_path / "source.parquet", rollouts)
    gear_data.convert(source, tmp_path / "out", columns=["observations", "actions"])
    assert run_json(capsys, "inspect", tmp_path / "out")["return"] is None
    assert main(["inspect", str(tmp_path / "out")]) == 0
    assert "return of an episode" not in capsys.readouterr().out


@pytest.mark.parametrize("finite", [0, 2])
def test_inspect_leaves_infinite_returns_out(
    finite: int, sources: Any, rollouts: list[Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bad = [np.inf, -np.inf, np.nan]
    columns = [
        r.with_columns(rewards=np.full(len(r), bad[i % 3] if i >= finite else i + 1, np.float32))
        for i, r in enumerate(rollouts)
    ]
    gear_data.convert(sources.write_episodes(tmp_path / "source.parquet", columns), tmp_path / "out")
    found = run_json(capsys, "inspect", tmp_path / "out")["return"]
    totals = [(i + 1) * len(r) for i, r in enumerate(rollouts[:finite])]
    assert found == ({"min": min(totals), "mean": sum(totals) / 2, "max": max(totals)} if finite else None)
    assert main(["inspect", str(tmp_path / "out")]) == 0
    assert ("return of an episode" in capsys.readouterr().out) == bool(finite)


def test_verify(sources: Any, rollouts: list[Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    gear_data.convert(sources.write_episodes(tmp_path / "s.parquet", rollouts), tmp_path / "out", shard_bytes=2048)
    facts = run_json(capsys, "verify", tmp_path / "out")
    assert facts["ok"] is True
    assert all(check["ok"] and check["error"] is None for check in facts["shards"])
    shard = tmp_path / "out" / "shards" / "000001.arrow"
    data = bytearray(shard.read_bytes())
    data[len(data) // 2] ^= 1
    shard.write_bytes(data)
    facts = run_json(capsys, "verify", tmp_path / "out", status=1)
    assert facts["ok"] is False
    assert [check["file"] for check in facts["shards"] if not check["ok"]] == ["shards/000001.arrow"]
    assert main(["verify", str(tmp_path / "out")]) == 1
    assert "BAD shards/000001.arrow" in capsys.readouterr().out


@pytest.mark.parametrize("manifest", [None, "{", '{"version": 999}'])
def test_verify_without_a_usable_manifest_has_the_same_keys(
    manifest: str | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if manifest is not None:
        (tmp_path / "manifest.json").write_text(manifest)
    facts = run_json(capsys, "verify", tmp_path, status=1)
    assert (facts["ok"], facts["shards"]) == (False, [])
    assert facts["error"].endswith("Error")
    assert str(tmp_path) in facts["message"]


def test_inspect_shows_cameras(rollouts: list[Any], rollouts_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    film(rollouts_path, [len(rollout) for rollout in rollouts])
    files = sorted((rollouts_path / "videos" / "wrist").iterdir())
    found = run_json(capsys, "inspect", rollouts_path)
    steps = sum(map(len, rollouts))
    assert found["cameras"][WRIST] == {
        "shape": [32, 48, 3],
        "fps": None,
        "codecs": ["mpeg4"],
        "frames": steps,
        "statistics": None,
        "files": 40,
        "bytes": sum(file.stat().st_size for file in files),
    }
    assert WRIST not in found["columns"]
    assert main(["inspect", str(rollouts_path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    (line,) = [line for line in lines if line.startswith(FRONT)]
    assert line.split()[:6] == [FRONT, "48x64x3", "unknown", "h264", f"{steps:,}", "1"]
    # A view has the files of its episodes.
    view = run_json(capsys, "inspect", rollouts_path, "--where", "episode_id < 3")
    assert (view["cameras"][WRIST]["files"], view["cameras"][FRONT]["files"]) == (3, 1)
