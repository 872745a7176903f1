"""The command line: output, JSON and exit statuses."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import gear_data
from gear_data.cli import main

COMMANDS = ("convert", "inspect", "verify", "feed", "export", "doctor", "demo")


def no_json(name: str) -> None:
    raise AssertionError(f"{name} is not JSON")


def run_json(capsys: pytest.CaptureFixture[str], *arguments: Any, status: int = 0) -> dict[str, Any]:
    """Runs a command with --json and checks its exit status.

    The command must print one JSON object and nothing else.
    """
    assert main([str(argument) for argument in arguments] + ["--json"]) == status
    result: dict[str, Any] = json.loads(capsys.readouterr().out, parse_constant=no_json)
    return result


@pytest.mark.parametrize("command", COMMANDS)
def test_help_has_an_example(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        main([command, "--help"])
    assert exit_.value.code == 0
    assert f"example:\n  gear-data {command}" in capsys.readouterr().out


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["no-such-command"],
        ["convert", "only-one"],
        ["convert", "a", "b", "--rename", "no-equals-sign"],
        ["convert", "a", "b", "--shard-bytes", "many"],
        ["convert", "a", "b", "--columns", "a,,b"],
        ["feed", "a", "--steps", "x"],
    ],
)
def test_bad_usage_is_status_2(arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        main(arguments)
    assert exit_.value.code == 2


def test_unknown_names_and_bad_values_are_status_2(rollouts_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (
        ["feed", rollouts_path, "--preset", "decision_transformr"],
        ["feed", rollouts_path, "--sampler", "unform"],
        ["feed", rollouts_path, "--context", "0"],
        ["feed", rollouts_path, "--batch-size", "0"],
        ["feed", rollouts_path, "--steps", "0"],
        ["export", rollouts_path, rollouts_path.parent / "nothing", "--format", "xlsx"],
    ):
        assert main([str(argument) for argument in arguments]) == 2, arguments
    assert "did you mean 'decision_transformer'?" in capsys.readouterr().err


def test_failed_work_is_status_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(tmp_path)]) == 1
    assert main(["convert", str(tmp_path / "absent.parquet"), str(tmp_path / "out")]) == 1
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "absent.parquet" in printed.err
    error = run_json(capsys, "verify", tmp_path, status=1)
    assert error["error"] == "DatasetNotFoundError"


def test_exit_status_of_the_process(tmp_path: Path) -> None:
    """A process with its output in a pipe prints only the message, no progress bar."""
    ran = subprocess.run(
        [sys.executable, "-m", "gear_data.cli", "inspect", str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert ran.returncode == 1
    assert ran.stdout == ""
    assert ran.stderr.startswith("gear-data: ")


def test_convert_json(sources: Any, rollouts: list[Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = sources.write_episodes(tmp_path / "source.parquet", rollouts)
    facts = run_json(capsys, "convert", source, tmp_path / "out", "--shard-bytes", "2K")
    ds = gear_data.open(tmp_path / "out")
    assert facts["episodes"] == len(rollouts) == ds.num_episodes
    assert facts["steps"] == sum(len(rollout) for rollout in rollouts)
    assert facts["shards"] == len(list((tmp_path / "out" / "shards").iterdir())) > 1
    sizes = sum(path.stat().st_size for path in (tmp_path / "out").rglob("*.arrow"))
    assert facts["bytes"] == sizes
    assert facts["seconds"] > 0
    assert [warning.partition(":")[0] for warning in facts["warnings"]] == ["one-step-episode"]
    assert capsys.readouterr().err == ""


def test_convert_options_reach_the_conversion(
    sources: Any, rollouts: list[Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = sources.write_episodes(tmp_path / "source.parquet", rollouts)
    options = ["--rename", "observations=states", "--columns", "states,rewards"]
    run_json(capsys, "convert", source, tmp_path / "out", *options)
    assert gear_data.open(tmp_path / "out").schema.names == (
        "states", "rewards", "terminated", "truncated", "returns_to_go"
    )  # fmt: skip
    assert main(["convert", str(source), str(tmp_path / "out")]) == 1
    assert "--overwrite" in capsys.readouterr().err
    run_json(capsys, "convert", source, tmp_path / "out", "--overwrite")
    assert "observations" in gear_data.open(tmp_path / "out").schema


def test_convert_prints_format_and_findings(
    sources: Any, rollouts: list[Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    columns = [{**r.columns, "dones": r.columns["terminated"] | r.columns["truncated"]} for r in rollouts]
    for episode in columns:
        del episode["terminated"], episode["truncated"]
    source = sources.write_parquet(tmp_path / "source.parquet", sources.episode_table(columns))
    assert main(["convert", str(source), str(tmp_path / "out")]) == 0
    printed = capsys.readouterr().out
    assert "format episode-rows: a row is an episode" in printed
    assert "warning: no-truncation-flag" in printed


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


def test_numbers_that_json_lacks_are_null(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    report = {"loss": [0.5, float("nan")], "rates": {"a": float("-inf"), "b": (1, float("inf"))}}
    monkeypatch.setattr("gear_data.cli.doctor.examine", lambda: [SimpleNamespace(to_json=lambda: report)])
    assert run_json(capsys, "doctor")["checks"] == [{"loss": [0.5, None], "rates": {"a": None, "b": [1, None]}}]


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


def test_errors_of_the_system_are_status_1(
    rollouts_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(path: Any) -> None:
        raise PermissionError(13, "Permission denied", "manifest.json")

    monkeypatch.setattr(gear_data, "verify", refuse)
    monkeypatch.setattr(gear_data, "open", refuse)
    assert main(["inspect", str(rollouts_path)]) == 1
    printed = capsys.readouterr()
    assert (printed.out, printed.err) == ("", "gear-data: [Errno 13] Permission denied: 'manifest.json'\n")
    error = {"error": "PermissionError", "message": "[Errno 13] Permission denied: 'manifest.json'"}
    assert run_json(capsys, "inspect", rollouts_path, status=1) == error
    assert run_json(capsys, "verify", rollouts_path, status=1) == {"ok": False, "shards": [], **error}


def test_feed_json(rollouts_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--batch-size", 8, "--context", 5, "--preset", "decision_transformer", "--steps", 30]
    facts = run_json(capsys, "feed", rollouts_path, *options)
    assert facts["batches"] == 30
    for name in ("windows_per_s", "padded_bytes_per_s", "valid_bytes_per_s"):
        assert facts[name] > 0
    assert 0 < facts["pad_fraction"] < 1
    assert facts["valid_bytes_per_s"] == pytest.approx(facts["padded_bytes_per_s"] * (1 - facts["pad_fraction"]))
    assert 0 <= facts["wait_fraction"] <= 1


def test_export_dataset_and_batches(rollouts_path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    facts = run_json(capsys, "export", rollouts_path, tmp_path / "parquet")
    assert facts["episodes"] == gear_data.open(rollouts_path).num_episodes
    again = run_json(capsys, "convert", tmp_path / "parquet", tmp_path / "again")
    assert again["fingerprint"] == gear_data.open(rollouts_path).fingerprint
    options = ["--batches", 3, "--batch-size", 4, "--context", 5, "--preset", "raw", "--seed", 9, "--format", "npz"]
    facts = run_json(capsys, "export", rollouts_path, tmp_path / "batches", *options)
    assert facts["batches"] == 3
    assert facts["seed"] == 9
    assert sorted(path.name for path in (tmp_path / "batches").iterdir()) == sorted(facts["files"])


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
    wanted = {
        r.columns["actions"][t].tobytes()
        for r in rollouts
        for t in range(len(r))
        if len(r) > 4 and r.columns["rewards"][t] > 0
    }
    for file in (tmp_path / "out").glob("*.npz"):
        with np.load(file, allow_pickle=False) as batch:
            assert {action[0].tobytes() for action in batch["actions"]} <= wanted
    assert run_json(capsys, "feed", rollouts_path, *options, "--steps", 5)["batches"] == 5


@pytest.mark.parametrize(
    ("options", "status", "words"),
    [
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


def test_every_failed_check_has_a_remedy(capsys: pytest.CaptureFixture[str]) -> None:
    checks = {check["name"]: check for check in run_json(capsys, "doctor")["checks"]}
    assert {"cpu kernels", "gpu", "cupy", "cudf", "rdma devices", "locked memory", "shared memory"} <= checks.keys()
    assert checks["cpu kernels"]["ok"]
    for check in checks.values():
        assert check["ok"] or check["remedy"], check
