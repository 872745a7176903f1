"""The example of offline-to-online training, with a few updates."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import pytest

import gear_data

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "offline_to_online.py"
FEW = ("--offline-episodes", "2", "--offline-updates", "3", "--online-episodes", "3", "--updates", "2")


def test_the_example_trains_on_both_datasets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run() -> list[str]:
        monkeypatch.setattr(sys, "argv", [SCRIPT.name, str(tmp_path / "out"), "--evaluation-episodes", "1", *FEW])
        runpy.run_path(str(SCRIPT), run_name="__main__")
        return capsys.readouterr().out.splitlines()

    lines = run()
    names = ["policy of the offline dataset", "offline", "offline, with as many updates as online", "offline to online"]
    assert [line.rsplit(": ", 1)[0] for line in lines] == names
    assert all(-2000 < float(line.rsplit(": ", 1)[1]) < 0 for line in lines)
    offline, live = gear_data.open(tmp_path / "out" / "offline"), gear_data.open(tmp_path / "out" / "live")
    assert offline.episodes["length"].to_list() == [200, 200]
    assert live.episodes["length"].to_list() == [200, 200, 200]
    assert live.generation == 3
    assert abs(offline[0]["actions"]).max() <= 0.7 < abs(live[0]["actions"]).max()
    with pytest.raises(SystemExit):
        run()
    assert "give a new folder" in capsys.readouterr().err
