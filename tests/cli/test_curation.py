"""`gear-data filter`, `split` and `dedupe`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gear_data
from gear_data.cli import curation, main
from tests.support.rollouts import make_rollouts


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """30 episodes, of which the last 10 repeat the first 10, except for noise in 5 of them."""
    rng = np.random.default_rng(0)
    episodes: list[dict[str, Any]] = [dict(rollout.columns) for rollout in make_rollouts(20, seed=1)]
    for index in range(10):
        noise = 1e-4 * (index % 2) * rng.uniform(0.5, 1, episodes[index]["observations"].shape).astype(np.float32)
        episodes.append({**episodes[index], "observations": episodes[index]["observations"] + noise})
    episodes = [{**episode, "task": f"lift/{index % 3}"} for index, episode in enumerate(episodes)]
    gear_data.convert(episodes, tmp_path / "data", shard_bytes=1024, progress=False)
    return tmp_path / "data"


def _json(capsys: pytest.CaptureFixture[str], *arguments: Any, status: int = 0) -> dict[str, Any]:
    assert main([*map(str, arguments), "--json"]) == status
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_filter(path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    lengths = gear_data.open(path).lengths
    arguments = ("filter", path, out, "--where", "length > 3", "--drop-outliers", "return:1.5")
    dry = _json(capsys, *arguments, "--dry-run")
    assert dry["dry_run"] is True and not out.exists()
    where, outliers = dry["dropped"]
    short = np.flatnonzero(lengths <= 3)
    assert where == {
        "reason": "where not length > 3", "episodes": len(short), "of": 30, "first_ids": short[:10].tolist(),
    }  # fmt: skip
    assert outliers["of"] == 30 - len(short) and outliers["episodes"] > 0
    done = _json(capsys, *arguments)
    saved = gear_data.open(out)
    assert done["kept"] == done["episodes"] == len(saved) == outliers["of"] - outliers["episodes"]
    assert saved.lengths.min() > 3 and done["fingerprint"] == saved.fingerprint
    assert main(list(map(str, arguments))) == 1
    assert main([*map(str, arguments), "--overwrite"]) == 0
    text = capsys.readouterr().out
    assert f"drops {len(short)} of 30 episodes (where not length > 3): ids {short[0]}, " in text
    assert "whole" in text


def test_filter_needs_a_condition(path: Path, tmp_path: Path) -> None:
    assert main(["filter", str(path), str(tmp_path / "out")]) == 2
    with pytest.raises(SystemExit):
        main(["filter", str(path), str(tmp_path / "out"), "--drop-outliers", "return"])


def test_filter_takes_one_limit_of_a_column(path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    limits = ["--drop-outliers", "return:1.5", "--drop-outliers", "return:9"]
    assert main(["filter", str(path), str(tmp_path / "out"), *limits]) == 2
    assert "--drop-outliers names 'return' twice" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_repeated_filters_all_hold(path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    long = gear_data.open(path).filter("length > 3")
    arguments = ("filter", path, tmp_path / "out", "--dry-run")
    found = _json(capsys, *arguments, "--where", "length > 3", "--where", "episode_id >= 10")
    assert found["kept"] == len(long.filter("episode_id >= 10"))
    assert [each["of"] for each in found["dropped"]] == [30, len(long)]
    steps = gear_data.open(path).filter_steps("rewards > 0")
    found = _json(capsys, *arguments, "--where-steps", "rewards > 0", "--where-steps", "rewards < 100")
    assert found["steps_left_out"] == steps.steps_left_out > 0


def test_filter_drops_the_worst_fifth(path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    done = _json(capsys, "filter", path, tmp_path / "out", "--where", "return > quantile(return, 0.2)")
    returns = gear_data.open(path).episodes["return"].to_numpy()
    kept = returns[returns > np.quantile(returns, 0.2)]
    assert 0 < done["kept"] == len(kept) < 30
    np.testing.assert_array_equal(gear_data.open(tmp_path / "out").episodes["return"].to_numpy(), kept)


def test_dedupe(path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    exact = _json(capsys, "dedupe", path, tmp_path / "exact")
    assert exact["episodes"] == 25 and exact["dropped"][0]["first_ids"] == [20, 22, 24, 26, 28]
    near = _json(capsys, "dedupe", path, tmp_path / "near", "--near", "observations,actions", "--tolerance", "1e-4")
    assert near["episodes"] == 20
    assert gear_data.open(tmp_path / "near").fingerprint == gear_data.open(path)[:20].fingerprint
    assert main(["dedupe", str(path), str(tmp_path / "x"), "--near", "nothing"]) == 2


def test_split_by_fractions(path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    arguments = ("split", path, out, "--fractions", "train=0.8,val=0.2", "--seed", 3, "--where", "length > 1")
    found = _json(capsys, *arguments)["parts"]
    views = gear_data.open(path).filter("length > 1").split({"train": 0.8, "val": 0.2}, seed=3)
    assert found.keys() == views.keys() == {each.name for each in out.iterdir()}
    for name, view in views.items():
        assert found[name]["fingerprint"] == view.fingerprint == gear_data.open(out / name).fingerprint
    assert main(list(map(str, arguments))) == 1
    assert main([*map(str, arguments), "--resume"]) == 0


def test_split_by_a_column(path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = _json(capsys, "split", path, tmp_path / "out", "--by", "task")["parts"]
    assert {name: part["value"] for name, part in found.items()} == {f"lift-{i}": f"lift/{i}" for i in range(3)}
    assert [part["episodes"] for part in found.values()] == [10, 10, 10]
    assert gear_data.open(tmp_path / "out/lift-1").episodes["task"].unique().to_list() == ["lift/1"]


def test_a_part_without_a_step_is_refused_before_the_first_part(
    path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    gear_data.open(path).keep_ranges({0: [[0, 1]]}).save(tmp_path / "steps", progress=False)
    assert main(["split", str(tmp_path / "steps"), str(tmp_path / "out"), "--by", "task"]) != 0
    printed = capsys.readouterr().err
    assert "every step of 2 parts" in printed and "lift-1" in printed and "--where" in printed
    assert not (tmp_path / "out").exists()
    arguments = ["split", str(tmp_path / "steps"), str(tmp_path / "out"), "--by", "task", "--where", "task = 'lift/0'"]
    assert main(arguments) == 0
    assert [each.name for each in (tmp_path / "out").iterdir()] == ["lift-0"]


def test_parts_have_different_names() -> None:
    names = curation._folder_names(["a/b", "a b", "A-B", None, "..", "", "null", True, "x" * 300])
    assert names == ["a-b", "a-b-2", "A-B-3", "null", "part", "part-2", "null-2", "True", "x" * 100]


@pytest.mark.parametrize("arguments", [
    ["--fractions", "a=0.5,../b=0.5"], ["--fractions", "a=0.5,b=0.6"], ["--by", "nothing"],
    ["--by", "task", "--seed", "1"], ["--fractions", "a=0.5,b=0.5", "--stratify", "return"],
    ["--fractions", "a=0.3,a=0.5,b=0.5"],
])  # fmt: skip
def test_wrong_splits(arguments: list[str], path: Path, tmp_path: Path) -> None:
    assert main(["split", str(path), str(tmp_path / "out"), *arguments]) == 2
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "arguments", [[], ["--fractions", "a"], ["--fractions", "a=b"], ["--by", "task", "--fractions", "a=1"]]
)
def test_splits_that_cannot_be_parsed(arguments: list[str], path: Path, tmp_path: Path) -> None:
    with pytest.raises(SystemExit):
        main(["split", str(path), str(tmp_path / "out"), *arguments])
