from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

import gear_data
from gear_data.cli import main


def test_record(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """The policy is a function of a module in the current folder."""
    (tmp_path / "pole_policy.py").write_text("def act(observation):\n    return int(observation[2] > 0)\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", list(sys.path))
    arguments = [
        "record",
        "CartPole-v1",
        "pole",
        "--episodes",
        "3",
        "--policy",
        "pole_policy:act",
        "--seed",
        "5",
        "--json",
    ]
    assert main(arguments) == 0
    report = json.loads(capsys.readouterr().out)
    ds = gear_data.open("pole")
    assert (report["episodes"], report["steps"]) == (3, ds.num_steps)
    assert ds.episodes["seed"].to_list() == [5, 6, 7]
    for number in range(3):
        episode = ds[number]
        assert episode["actions"].tolist() == (episode["observations"][:, 2] > 0).tolist()


@pytest.mark.parametrize("policy", ["act", "no_such_module:act", "json:act", "json:decoder"])
def test_policies_that_are_no_functions(tmp_path: Path, capsys: pytest.CaptureFixture[str], policy: str) -> None:
    assert main(["record", "CartPole-v1", str(tmp_path / "pole"), "--policy", policy]) == 2
    assert "--policy" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
