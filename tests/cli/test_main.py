"""The command line: help, exit statuses, errors and JSON."""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import gear_data
from gear_data.cli import build_parser, main
from tests.support.command_line import run_json

COMMANDS = (
    "convert", "lint", "repair", "inspect", "verify", "feed", "export", "tune", "plan", "serve", "doctor", "demo",
)  # fmt: skip


@pytest.mark.parametrize("command", COMMANDS)
def test_help_has_an_example(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        main([command, "--help"])
    assert exit_.value.code == 0
    assert f"example:\n  gear-data {command}" in capsys.readouterr().out


def test_help_shows_each_command_once(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    printed = capsys.readouterr().out
    titles = [line for line in printed.splitlines() if re.fullmatch(r"[a-z]+:", line)]
    assert titles == ["data:", "look:", "train:", "share:", "serve:", "options:"]
    (group,) = (each for each in build_parser()._actions if isinstance(each, argparse._SubParsersAction))
    shown = re.findall(r"^ {2,4}([a-z]+) {2,}[a-z]", printed, re.MULTILINE)
    assert sorted(shown) == sorted(group.choices)


@pytest.mark.processes
@pytest.mark.parametrize(("line", "words"), [
    ("gear-data ver", {"verify "}), ("gear-data feed x --pa", {"--pack "}),
    ("gear-data convert a b --engine ", {"local", "ray"}),
])  # fmt: skip
def test_completion(line: str, words: set[str], tmp_path: Path) -> None:
    """argcomplete's protocol: the line in the environment, and completions in a file."""
    pytest.importorskip("argcomplete")
    found = tmp_path / "found"
    variables = {"_ARGCOMPLETE": "1", "COMP_LINE": line, "COMP_POINT": str(len(line)), "_ARGCOMPLETE_IFS": "\n"}
    subprocess.run(
        [sys.executable, "-m", "gear_data.cli"], check=True,
        env={**os.environ, **variables, "_ARGCOMPLETE_STDOUT_FILENAME": str(found)},
    )  # fmt: skip
    assert set(found.read_text().split("\n")) == words


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


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["convrt", "a", "b"], "argument COMMAND: unknown value 'convrt'\n  did you mean 'convert'? known: cache, "),
        (["stats", "a"], "argument COMMAND: 'stats' is now 'gear-data inspect --full'"),
        (["convert", "a", "b", "--overwrit"], "unknown option '--overwrit'\n  did you mean '--overwrite'?\n"),
        (["convert", "a", "b", "--shard-byte=3"], "unknown option '--shard-byte'\n  did you mean '--shard-bytes'?\n"),
        (
            ["convert", "a", "b", "--engine", "rya"],
            "argument --engine: unknown value 'rya'\n  did you mean 'ray'? known: ",
        ),
        (
            ["serve", "a", "--listen", "7000"],
            "argument --listen: '7000' is not host:port\n  write it like 10.0.0.1:7000 or [::1]:7000\n",
        ),
        (["feed", "a", "--qqq", "3"], "unknown option '--qqq'\n  see gear-data feed --help\n"),
        (["verify", "a", "b"], "unexpected argument 'b'\n  see gear-data verify --help\n"),
    ],
)
def test_bad_usage_names_the_closest(arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        main(arguments)
    printed = capsys.readouterr()
    assert exit_.value.code == 2
    assert f"error: {words}" in printed.err
    assert printed.err.startswith("usage: gear-data") and printed.out == ""


def test_bad_usage_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["verify", "a", "--deap", "--json"])
    printed = capsys.readouterr()
    message = "unknown option '--deap'\n  did you mean '--deep'?"
    kept = {"ok": False, "shards": [], "differences": []}  # keys of the command's JSON
    assert json.loads(printed.out) == {**kept, "error": "UnknownArgumentError", "message": message}
    assert message in printed.err


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


@pytest.mark.processes
def test_exit_status_of_the_process(tmp_path: Path) -> None:
    """A process with its output in a pipe prints only the message, no progress bar."""
    ran = subprocess.run(
        [sys.executable, "-m", "gear_data.cli", "inspect", str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert ran.returncode == 1
    assert ran.stdout == ""
    assert ran.stderr.startswith("gear-data: ")


def test_numbers_that_json_lacks_are_null(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    report = {"loss": [0.5, float("nan")], "rates": {"a": float("-inf"), "b": (1, float("inf"))}}
    monkeypatch.setattr("gear_data.cli.doctor.examine", lambda: [SimpleNamespace(to_json=lambda: report)])
    assert run_json(capsys, "doctor")["checks"] == [{"loss": [0.5, None], "rates": {"a": None, "b": [1, None]}}]


def test_errors_of_the_system_are_status_1(
    rollouts_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(path: Any, **options: Any) -> None:
        raise PermissionError(13, "Permission denied", "manifest.json")

    monkeypatch.setattr(gear_data, "verify", refuse)
    monkeypatch.setattr(gear_data, "open", refuse)
    assert main(["inspect", str(rollouts_path)]) == 1
    printed = capsys.readouterr()
    assert (printed.out, printed.err) == ("", "gear-data: [Errno 13] Permission denied: 'manifest.json'\n")
    error = {"error": "PermissionError", "message": "[Errno 13] Permission denied: 'manifest.json'"}
    assert run_json(capsys, "inspect", rollouts_path, status=1) == error
    assert run_json(capsys, "verify", rollouts_path, status=1) == {
        "ok": False,
        "shards": [],
        "differences": [],
        **error,
    }


def test_too_little_memory_is_an_error_with_a_way_out(
    rollouts_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def exhaust(path: Any, **options: Any) -> None:
        raise MemoryError

    monkeypatch.setattr(gear_data, "open", exhaust)
    assert main(["inspect", str(rollouts_path)]) == 1
    printed = capsys.readouterr().err
    assert printed.startswith("gear-data: this process needs more memory than it can have\n  end other programs, or")
    assert run_json(capsys, "inspect", rollouts_path, status=1)["error"] == "HostMemoryError"
