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


def test_inspect_of_returns_that_differ_by_their_rounding(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Rewards that sum to 1 have a few returns beside it, between which there are no numbers for bins."""
    returns = [1.0, 1 - 2**-53, 1.0, 1 - 2**-52]
    episodes = [{"actions": np.zeros((2, 2)), "rewards": np.array([each, 0.0])} for each in returns]
    gear_data.convert(episodes, tmp_path / "d", progress=False)
    assert gear_data.open(tmp_path / "d").episodes["return"].to_list() == returns
    assert main(["inspect", str(tmp_path / "d")]) == 0
    (bar,) = capsys.readouterr().out.split("return of an episode")[1].split("\n\n")[0].strip().splitlines()
    assert bar.split()[-1] == "4"


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


def test_inspect_full(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rng = np.random.default_rng(4)
    lengths, tasks = [5, 9, 2, 7], ["a", "b", None, "a"]
    episodes: list[dict[str, Any]] = [
        {"observations": rng.normal(size=(n, 2)), "actions": rng.integers(0, 9, n), "rewards": rng.normal(size=n),
         "prompt": ["x"] * n, "task": task}
        for n, task in zip(lengths, tasks, strict=True)
    ]  # fmt: skip
    episodes[1]["observations"][3:5, 1] = [np.nan, np.inf]
    gear_data.convert(episodes, tmp_path / "data", progress=False)
    found = run_json(capsys, "inspect", tmp_path / "data", "--full", "--by", "task", "--quantiles", "0.25,1")
    assert (found["episodes"], found["by"]) == (4, "task")
    assert [(group["value"], group["episodes"], group["steps"]) for group in found["groups"]] == [
        ("a", 2, 12), ("b", 1, 9), (None, 1, 2)
    ]  # fmt: skip
    for group, chosen in zip(found["groups"], ([0, 3], [1], [2]), strict=True):
        rows = {(row["column"], row["element"]): row for row in group["rows"]}
        assert ("prompt", None) not in rows
        every = {name: np.concatenate([episodes[i][name] for i in chosen]).astype(np.float64)
                 for name in ("observations", "actions", "rewards")}  # fmt: skip
        for key, values in (
            (("observations", 0), every["observations"][:, 0]),
            (("observations", 1), every["observations"][:, 1]),
            (("actions", None), every["actions"]),
            (("rewards", None), every["rewards"]),
            (("episodes.length", None), np.array([lengths[i] for i in chosen], np.float64)),
            (("episodes.return", None), np.array([episodes[i]["rewards"].sum() for i in chosen])),
        ):
            row, finite = rows[key], values[np.isfinite(values)]
            assert (row["count"], row["not_finite"]) == (len(finite), len(values) - len(finite))
            moments = [finite.mean(), finite.std(), finite.min(), finite.max()]
            np.testing.assert_allclose([row[kind] for kind in ("mean", "std", "min", "max")], moments, atol=1e-12)
            expected = np.quantile(finite, [0.25, 1])
            np.testing.assert_allclose([row["quantiles"]["0.25"], row["quantiles"]["1"]], expected, rtol=1e-12)
    assert (
        main(["inspect", str(tmp_path / "data"), "--full", "--columns", "observations", "--where", "length = 9"]) == 0
    )
    line = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("observations[1]"))
    assert line.split()[1:3] == ["7", "2"]
    for wrong in (["--columns", "prompt"], ["--columns", "nothing"], ["--quantiles", "2"], ["--by", "return"]):
        assert main(["inspect", str(tmp_path / "data"), "--full", *wrong]) in (1, 2)
    for option in ("columns", "quantiles", "by"):
        assert main(["inspect", str(tmp_path / "data"), f"--{option}", "1"]) == 2
        assert f"--{option} is for --full" in capsys.readouterr().err
