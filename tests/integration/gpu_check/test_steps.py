"""The steps: their commands, their limits, and what they leave."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gpu
import pytest

from scripts.gpu import __main__ as command
from scripts.gpu import bundle, interpreter, steps
from scripts.gpu.errors import ROOT, GpuCheckError
from scripts.gpu.interpreter import Interpreter

HERE = Interpreter(sys.executable, (ROOT,))


def record_file(results: Path) -> Path:
    return results / "steps.json"


def record(results: Path) -> Any:
    return json.loads(record_file(results).read_text())


@pytest.fixture
def codes(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Python code of steps, in place of their commands. {results} is the folder of the results."""
    found: dict[str, str] = {}

    def command_of(step: str, python: str, results: Path, seconds: float) -> list[str]:
        return [python, "-c", found[step].replace("{results}", str(results))]

    monkeypatch.setattr(steps, "command_of", command_of)
    return found


#: It starts a process of another session, which keeps the output open, and waits for ever.
ENDLESS = (
    "import subprocess, sys, time; print('begun', end='', flush=True);"
    "subprocess.run([sys.executable, '-c', 'import time; time.sleep(600)'], start_new_session={session})"
)


def test_steps_run_in_order_and_are_recorded(
    tmp_path: Path, codes: dict[str, str], capfd: pytest.CaptureFixture[str]
) -> None:
    codes |= {
        "doctor": "import sys; print('out'); print('err', file=sys.stderr); sys.exit(3)",
        "tests": "import os, gear_data; print('from', os.getcwd(), os.environ['GEAR_DATA_REQUIRE_GPU'])",
    }
    assert steps.run_steps({"doctor": 1, "tests": 1}, HERE, tmp_path) == ["doctor"]
    found = record(tmp_path)
    assert {step: each["status"] for step, each in found.items()} == {"doctor": "failed", "tests": "passed"}
    assert found["doctor"]["reason"] == "status 3"
    assert (tmp_path / "doctor.txt").read_text() == "out\nerr\n"
    assert (tmp_path / "tests.txt").read_text() == f"from {ROOT} 1\n"
    shown = capfd.readouterr().out.splitlines()
    assert shown[:5] == ["== doctor", "out", "err", "== tests", f"from {ROOT} 1"]
    assert [line.partition(",")[0] for line in shown[5:]] == ["== doctor failed", "== tests passed"]


@pytest.mark.parametrize("session", [False, True])
def test_a_step_that_hangs_leaves_its_output_and_the_later_steps(
    session: bool, tmp_path: Path, codes: dict[str, str]
) -> None:
    codes |= {"tests": ENDLESS.format(session=session), "benchmark:b": "print('ran')"}
    assert steps.run_steps({"tests": 1, "benchmark:b": 30}, HERE, tmp_path, seconds=62.0) == ["tests"]
    found = record(tmp_path)
    assert (found["tests"]["status"], found["tests"]["reason"]) == ("timed out", "took more than 2 s")
    assert found["benchmark:b"]["status"] == "passed"
    assert (tmp_path / "tests.txt").read_text() == "begun"
    assert (tmp_path / "benchmark-b.txt").read_text() == "ran\n"


def test_output_is_on_the_disk_as_it_comes(tmp_path: Path, codes: dict[str, str]) -> None:
    """The step reads its own output, of a line that has not ended."""
    codes["tests"] = (
        "print('half a line', end='', flush=True);assert open('{results}/tests.txt').read() == 'half a line'"
    )
    assert steps.run_steps({"tests": 1}, HERE, tmp_path) == []


def test_time_that_a_step_leaves_is_for_the_later_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[float] = []
    now = 0.0

    def run_step(step: str, python: Interpreter, results: Path, seconds: float) -> steps.StepResult:
        nonlocal now
        given.append(seconds)
        now += {"one": 0.0, "two": 60.0, "three": 50.0}[step]
        return steps.StepResult("passed", 0.0, [])

    monkeypatch.setattr(steps, "run_step", run_step)
    monkeypatch.setattr(steps, "time", SimpleNamespace(monotonic=lambda: now))
    steps.run_steps({"one": 1, "two": 2, "three": 1}, HERE, tmp_path, seconds=90.0)
    assert given == [22.5, 60.0, 30.0]


def test_sanitizers_run_the_tests_of_kernels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool = tmp_path / "bin" / "compute-sanitizer"
    tool.parent.mkdir()
    tool.write_text('#!/bin/sh\necho "$@"\n')
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tool.parent}{os.pathsep}{os.environ['PATH']}")
    assert steps.run_steps(dict.fromkeys(steps.SANITIZERS, 1), HERE, tmp_path) == []
    for name in ("memcheck", "racecheck", "synccheck"):
        words = (tmp_path / f"{name}.txt").read_text().split()
        assert words[:2] == ["--tool", name]
        assert ("--report-api-errors=no" in words) == (name == "memcheck")
        assert words[words.index("--error-exitcode") + 1] == "9"
        assert "tests/gpu/test_kernels.py" in words
    monkeypatch.setenv("PATH", str(tmp_path))
    assert steps.run_steps({"memcheck": 1}, HERE, tmp_path) == []
    assert record(tmp_path)["memcheck"]["status"] == "skipped"
    assert "CUDA toolkit" in record(tmp_path)["memcheck"]["reason"]


def test_tests_fail_without_a_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A check must not pass because all its tests were skipped."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    one = "tests/gpu/test_loader.py::test_tensors_are_on_the_device"
    whole = steps.command_of("tests", sys.executable, tmp_path, 1.0)
    assert whole is not None
    assert whole[-1] == "tests/gpu"
    monkeypatch.setattr(steps, "command_of", lambda *arguments: [*whole[:-1], "-n", "0", one])
    assert steps.run_steps({"tests": 1}, HERE, tmp_path) == ["tests"]
    assert "there is no GPU" in (tmp_path / "tests.txt").read_text()


@pytest.mark.parametrize("text", ["bogus", "tests:a", "benchmark:", "memcheck:b", "quick:a"])
def test_an_unknown_step_is_told(text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    known = (
        r"known: first, rest, probe, doctor, tests, quick, benchmark, memcheck, racecheck, synccheck, and benchmark:"
    )
    with pytest.raises(GpuCheckError, match=known):
        steps.parse_steps(text)
    assert command.main(["probe", text, "--results", str(tmp_path)]) == 2
    assert f"unknown step {text!r}" in capsys.readouterr().err
    assert not record_file(tmp_path).exists()


def test_groups_have_the_steps_that_the_documentation_names() -> None:
    assert steps.parse_steps("first").keys() == {"probe", "doctor", "tests", "quick"}
    assert steps.parse_steps("rest").keys() == {"benchmark", *steps.SANITIZERS}
    assert steps.parse_steps("benchmark:b,c") == {"benchmark:b,c": 1.0}
    assert steps.SECONDS <= 540
    page = (ROOT / "docs/how-to/gpu-without-network.md").read_text()
    for step in (*steps.GROUPS, *steps.STEPS):
        assert f"`{step}`" in page
    # With `steps.json`, a machine that returns eight files returns all of them.
    for group in steps.GROUPS.values():
        assert sum(1 + step.startswith(("probe", "quick", "benchmark")) for step in group) < 8


def test_without_arguments_both_groups_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[list[str]] = []
    monkeypatch.setattr(command, "interpreter", lambda: HERE)
    monkeypatch.setattr(command, "run_steps", lambda group, *arguments: seen.append([*group]) or ["tests"])
    assert command.main(["--results", str(tmp_path)]) == 1
    assert seen == [[*steps.GROUPS["first"]], [*steps.GROUPS["rest"]]]


@pytest.mark.parametrize("step", ["quick", "benchmark", "benchmark:b,c"])
def test_the_benchmark_gets_its_time_and_sections(step: str, tmp_path: Path) -> None:
    script, *arguments = (steps.command_of(step, "python3", tmp_path, 100.4) or [])[1:]
    assert ROOT.joinpath(script).is_file()
    found = gpu.make_parser().parse_args(arguments)
    assert (found.seconds, found.quick) == (95.0, step == "quick")
    assert found.only == ("bc" if step == "benchmark:b,c" else "".join(gpu.TITLES))
    assert found.json == tmp_path / {"benchmark:b,c": "benchmark-bc.json"}.get(step, f"{step}.json")
    # A benchmark that is stopped while it ends would lose nothing but its exit status.
    assert steps.command_of(step, "python3", tmp_path, 1.0)


def test_the_writer_of_results_gets_all_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last record of a section counts, so sections that ran alone come after those that ran together."""
    (tmp_path / "second").mkdir()
    for name in ("second/benchmark.json", "benchmark-ie.json", "quick.json", "steps.json"):
        (tmp_path / name).touch()
    runs: list[list[str]] = []
    done = SimpleNamespace(run=lambda command, **options: runs.append(command) or SimpleNamespace(returncode=0))
    monkeypatch.setattr(command, "subprocess", done)
    monkeypatch.setattr(command, "interpreter", lambda: HERE)
    assert command.main(["--write-results", str(tmp_path)]) == 0
    records = [str(tmp_path / name) for name in ("second/benchmark.json", "benchmark-ie.json")]
    assert [each[1:] for each in runs] == [["benchmarks/gpu.py", "--write-results", *records]]
    assert [str(path) for path in gpu.make_parser().parse_args(runs[0][2:]).write_results] == records
    assert command.main(["--write-results", str(tmp_path / "nothing")]) == 2


def test_the_checkout_is_imported_before_the_bundle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wheels may hold top-level folders such as `scripts`."""
    for folder in (tmp_path, tmp_path / bundle.SITE):
        (folder / "scripts").mkdir(parents=True)
        (folder / "scripts" / "__init__.py").touch()
    monkeypatch.setattr(interpreter, "PYTHON_VERSION", ".".join(map(str, sys.version_info[:2])))
    python = interpreter.interpreter(tmp_path)
    code = "import scripts, sys; print(scripts.__file__); print(sys.path)"
    options: Any = {"env": python.environment(), "cwd": ROOT, "capture_output": True, "text": True, "check": True}
    printed = subprocess.run([python.path, "-P", "-c", code], **options).stdout
    assert printed.startswith(str(tmp_path / "scripts"))
    assert str(tmp_path / bundle.SITE) in printed
