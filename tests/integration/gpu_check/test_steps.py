"""The steps: their commands, their limits, and what they leave."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gpu
import pytest

from scripts.gpu import __main__ as command
from scripts.gpu import installation, steps
from scripts.gpu.errors import ROOT, GpuCheckError
from scripts.gpu.installation import Interpreter

HERE = Interpreter(sys.executable, (ROOT,))


def record(results: Path) -> Any:
    return json.loads((results / "steps.json").read_text())


def test_steps_run_in_order_and_are_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    codes = {
        "tests": "import os, gear_data; print('from', os.getcwd())",
        "doctor": "import sys; print('out'); print('err', file=sys.stderr); sys.exit(3)",
        # It starts another process, which keeps the output open.
        "benchmark:b": "import subprocess, sys, time; print('begun', flush=True);"
        "subprocess.run([sys.executable, '-c', 'import time; time.sleep(60)'])",
    }
    monkeypatch.setattr(steps, "command_of", lambda step, python, results: [python, "-c", codes[step]])
    begun = time.monotonic()
    assert steps.run_steps(["doctor", "tests"], HERE, tmp_path) == ["doctor"]
    assert steps.run_steps(["benchmark:b"], HERE, tmp_path, seconds=2.0) == ["benchmark:b"]
    assert time.monotonic() - begun < 40
    found = record(tmp_path)
    assert {step: each["status"] for step, each in found.items()} == {
        "doctor": "failed", "tests": "passed", "benchmark:b": "timed out"
    }  # fmt: skip
    assert (found["doctor"]["reason"], found["benchmark:b"]["reason"]) == ("status 3", "took more than 2 s")
    assert (tmp_path / "doctor.txt").read_text() == "out\nerr\n"
    assert (tmp_path / "tests.txt").read_text() == f"from {ROOT}\n"
    assert (tmp_path / "benchmark-b.txt").read_text() == "begun\n"


def test_sanitizers_run_the_tests_of_kernels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool = tmp_path / "bin" / "compute-sanitizer"
    tool.parent.mkdir()
    tool.write_text('#!/bin/sh\necho "$@"\n')
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tool.parent}{os.pathsep}{os.environ['PATH']}")
    assert steps.run_steps([*steps.SANITIZERS], HERE, tmp_path) == []
    for name in ("memcheck", "racecheck", "synccheck"):
        words = (tmp_path / f"{name}.txt").read_text().split()
        assert words[:2] == ["--tool", name]
        assert ("--report-api-errors=no" in words) == (name == "memcheck")
        assert words[words.index("--error-exitcode") + 1] == "9"
        assert "tests/gpu/test_kernels.py" in words
    monkeypatch.setenv("PATH", str(tmp_path))
    assert steps.run_steps(["memcheck"], HERE, tmp_path) == []
    assert record(tmp_path)["memcheck"]["status"] == "skipped"
    assert "CUDA toolkit" in record(tmp_path)["memcheck"]["reason"]


def test_tests_fail_without_a_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A check must not pass because all its tests were skipped."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    one = "tests/gpu/test_loader.py::test_tensors_are_on_the_device"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", one]
    monkeypatch.setattr(steps, "command_of", lambda step, python, results: command)
    assert steps.run_steps(["tests"], HERE, tmp_path) == ["tests"]
    assert "there is no GPU" in (tmp_path / "tests.txt").read_text()


@pytest.mark.parametrize("text", ["bogus", "tests:a", "benchmark:", "memcheck:b"])
def test_an_unknown_step_is_told(text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(
        GpuCheckError, match=r"known: probe, doctor, tests, benchmark:.*, memcheck, racecheck, synccheck"
    ):
        steps.parse_steps(["probe", text])
    assert command.main([text, "--results", str(tmp_path)]) == 2
    assert f"unknown step {text!r}" in capsys.readouterr().err


def test_steps_have_the_commands_that_the_documentation_names(tmp_path: Path) -> None:
    assert steps.SECONDS <= 540
    found = steps.command_of("benchmark:b,c", "python3", tmp_path) or []
    assert found == ["python3", "benchmarks/gpu.py", "--only", "b,c", "--json", str(tmp_path / "benchmark-bc.json")]
    assert ROOT.joinpath(found[1]).is_file()
    assert (ROOT / (steps.command_of("tests", "python3", tmp_path) or [])[-1]).is_dir()
    page = (ROOT / "docs/how-to/gpu-without-network.md").read_text()
    for step in steps.STEPS:
        assert f"`{step}`" in page


def test_the_benchmarks_steps_are_all_its_sections() -> None:
    assert steps.parse_steps(["benchmark", "probe"]) == [*steps.BENCHMARKS, "probe"]
    sections = [letter for step in steps.BENCHMARKS for letter in step.partition(":")[2]]
    assert sorted(sections) == sorted(gpu.TITLES)
    # A section and what it is compared with run within the time of a command.
    for step in steps.BENCHMARKS:
        assert sum(gpu.SECONDS[letter] for letter in {*step.partition(":")[2], "a"}) < steps.SECONDS
    assert gpu.TOTAL_SECONDS < steps.SECONDS


def test_without_a_gpu_the_probe_fails_and_leaves_its_record(tmp_path: Path) -> None:
    """The script runs from any folder."""
    script = [str(ROOT / "scripts/gpu_check.sh"), "probe", "--results", "found"]
    environment = {**os.environ, "PYTHON": sys.executable, "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(script, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (1, "failed: probe\n")
    found = json.loads((tmp_path / "found" / "probe.json").read_text())
    assert "GPU" in found["error"]
    assert found["machine"]["packages"]["numpy"]
    assert record(tmp_path / "found")["probe"]["status"] == "failed"


def test_the_writer_of_results_gets_all_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "second").mkdir()
    for name in ("benchmark-abch.json", "second/benchmark-ie.json", "probe.json", "steps.json"):
        (tmp_path / name).touch()
    runs: list[list[str]] = []
    done = SimpleNamespace(run=lambda command, **options: runs.append(command) or SimpleNamespace(returncode=0))
    monkeypatch.setattr(command, "subprocess", done)
    monkeypatch.setattr(command, "interpreter", lambda: HERE)
    assert command.main(["--write-results", str(tmp_path)]) == 0
    records = [str(tmp_path / name) for name in ("benchmark-abch.json", "second/benchmark-ie.json")]
    assert [each[1:] for each in runs] == [["benchmarks/gpu.py", "--write-results", *records]]
    assert [str(path) for path in gpu.make_parser().parse_args(runs[0][2:]).write_results] == records
    assert command.main(["--write-results", str(tmp_path / "nothing")]) == 2


def test_the_checkout_is_imported_before_the_bundle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wheels may hold top-level folders such as `scripts`."""
    (tmp_path / "site" / "scripts").mkdir(parents=True)
    (tmp_path / "site" / "scripts" / "__init__.py").touch()
    monkeypatch.setattr(installation, "FOLDER", tmp_path)
    python = installation.interpreter()
    code = "import scripts, sys; print(scripts.__file__); print(sys.path)"
    options: Any = {"env": python.environment(), "cwd": tmp_path, "capture_output": True, "text": True, "check": True}
    printed = subprocess.run([python.path, "-c", code], **options).stdout
    assert printed.startswith(str(ROOT / "scripts"))
    assert str(tmp_path / "site") in printed
