"""Cases, targets, the report and the order of sections of benchmarks/gpu.py."""

from __future__ import annotations

import argparse
import itertools
import json
import re
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gpu as benchmark
import pytest
from gpu_sections import collection as gpu_collection
from gpu_sections import knobs as gpu_knobs
from gpu_sections import results as gpu_results
from gpu_sections.collection import CollectCase
from gpu_sections.report import Row, Section, from_json, table, verdict

from gear_data.kernels.cuda.tuning import DEFAULT
from tests.support.benchmarks.commands import BENCHMARKS, COMMANDS


def test_cases_span_what_is_asked_for() -> None:
    cases = gpu_collection.all_cases(512 << 20, quick=False)
    sizes = [(case.row_bytes, case.context, case.batch) for case in cases if case.row_bytes]
    assert {row for row, _, _ in sizes} >= {44, 1024, 65536}
    assert {context for _, context, _ in sizes} == {20, 100, 1000}
    assert {batch for _, _, batch in sizes} == {32, 256, 1024, 4096}
    assert all(row * context * batch <= 512 << 20 for row, context, batch in sizes)
    assert (44, 1000, 4096) in sizes
    quick = gpu_collection.all_cases(gpu_collection.QUICK_SOURCE_BYTES // 4, quick=True)
    assert len(quick) < 10
    # Both kinds of memory have cases with a target among them.
    assert all(any(gpu_collection.target(where, case) for case in quick) for where in ("pinned", "device"))


@pytest.mark.parametrize(
    ("where", "case", "expected"),
    [
        ("pinned", CollectCase(1024, 100, 256), 0.9),  # 25 MiB
        ("pinned", CollectCase(65536, 20, 256), 0.9),
        ("pinned", CollectCase(44, 100, 4096), 0.8),
        ("pinned", CollectCase(44, 20, 32), None),  # below 16 MiB the launch dominates
        ("pinned", CollectCase(44, 1000, 4096), None),
        ("pinned", CollectCase(256, 1000, 4096), None),
        ("pinned", CollectCase(0, 1000, 4096), None),
        ("device", CollectCase(1024, 100, 256), None),  # below 64 MiB
        ("device", CollectCase(1024, 100, 1024), 0.75),
        ("device", CollectCase(44, 1000, 4096), None),
    ],
)
def test_targets_are_those_of_large_batches(where: str, case: CollectCase, expected: float | None) -> None:
    assert gpu_collection.target(where, case) == expected


@pytest.mark.parametrize("variant", gpu_knobs.VARIANTS, ids=lambda variant: variant.name)
def test_constants_are_those_of_the_launcher(variant: gpu_knobs.Variant) -> None:
    assert (variant.tuning == DEFAULT) == (variant == gpu_knobs.VARIANTS[0])
    # Stages of one block are at most 48 KiB.
    assert variant.threads // 32 * (variant.unroll * 32 * 16 + 16) <= 48 << 10


SECTION = Section(
    [
        Row("fast", {"us": 12.0}, 0.95, 0.9),
        Row("slow", {"us": 1234.5, "text": "a"}, 0.5, 0.7),
        Row("late", {"us": None}, 1.5, 1.0, at_most=True),
        Row("free", {"us": 1.0}, 2.0),
    ],
    left_out=["one", "two"],
    notes=["a note"],
)


def test_a_report_says_what_is_met() -> None:
    assert from_json(json.loads(json.dumps(SECTION.to_json()))) == SECTION
    assert [row["met"] for row in SECTION.to_json()["rows"]] == [True, False, False, None]
    lines = table(SECTION).splitlines()
    assert "0.95" in lines[2]
    assert ">= 0.9 met" in lines[2]
    assert ">= 0.7 NOT met" in lines[3]
    assert "<= 1 NOT met" in lines[4]
    assert lines[-2:] == ["left out: one; two", "a note"]
    assert verdict({"b": SECTION}).splitlines() == [
        "targets met: 1 of 3", "  (b) slow: 0.5, target 0.7", "  (b) late: 1.5, target 1"
    ]  # fmt: skip


class Runs:
    """A stand-in for `run_apart`. fails: the sections that fail."""

    def __init__(self, fails: str = "") -> None:
        self.fails, self.names, self.ceilings = fails, "", {}

    def __call__(self, name: str, ceilings: dict[str, Any], quick: bool, seconds: float) -> dict[str, Any]:
        self.names += name
        self.ceilings[name] = ceilings
        assert 10 <= seconds <= benchmark.SECONDS[name]
        if name in self.fails:
            return {"status": "failed", "reason": "a reason"}
        section = Section([Row(f"row of {name}", {"us": 1.0})], facts={"from": name})
        return {"status": "ok", "seconds": 1.0, "section": section.to_json()}


@pytest.mark.parametrize(
    ("names", "fails", "run", "left_out"),
    [
        ("abcdefghi", "", "abciehfdg", ""),
        ("abcdefghi", "ce", "abciehfdg", ""),
        ("abcdefghi", "a", "aefg", "bcdhi"),
        ("d", "", "ad", ""),
        ("fe", "", "ef", ""),
    ],
)
def test_sections_that_fail_leave_the_others(
    names: str, fails: str, run: str, left_out: str, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = Runs(fails)
    saved: list[set[str]] = []
    end = time.monotonic() + 10 * benchmark.TOTAL_SECONDS
    record = benchmark.run_all(names, False, end, runs, lambda record: saved.append(set(record)))
    # Every section is saved at its end.
    assert saved == [set([*record][: number + 1]) for number in range(len(record))]
    assert runs.names == run
    assert {name for name, item in record.items() if item["status"] == "left out"} == set(left_out)
    assert {name for name, item in record.items() if item["status"] == "failed"} == set(fails)
    for name in set(run) & set(benchmark._COMPARED):
        assert runs.ceilings[name] == {"from": "a"}
    shown = capsys.readouterr().out
    for name in set(run) - set(fails):
        assert f"row of {name}" in shown


def test_all_of_it_takes_less_than_eight_minutes(monkeypatch: pytest.MonkeyPatch) -> None:
    now = itertools.count(step=100.0)
    monkeypatch.setattr(benchmark.time, "monotonic", lambda: next(now))
    record = benchmark.run_all("abcdefghi", False, benchmark.TOTAL_SECONDS, Runs())
    assert [item["status"] for item in record.values()].count("left out") >= 1
    assert benchmark.TOTAL_SECONDS < 8 * 60


@pytest.mark.parametrize(
    ("quick", "factor", "left_out"),
    [(False, 10.0, ""), (False, 0.5, ""), (False, 0.05, "a"), (True, 0.5, "")],
)
def test_sections_share_a_time_that_is_short(
    quick: bool, factor: float, left_out: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every section takes all its time, but few cases take little."""
    now, given = 0.0, {}
    whole = sum(benchmark.SECONDS.values())

    def run(name: str, ceilings: dict[str, Any], quick: bool, seconds: float) -> dict[str, Any]:
        nonlocal now
        given[name] = seconds
        now += 1.0 if quick else seconds
        section = Section([], facts={"from": name})
        return {"status": "ok", "seconds": 1.0, "section": section.to_json()}

    monkeypatch.setattr(benchmark.time, "monotonic", lambda: now)
    record = benchmark.run_all("".join(benchmark.TITLES), quick, benchmark._GRACE_SECONDS + factor * whole, run)
    if left_out:
        assert record[left_out] == {"status": "left out", "reason": f"the time is over: run --only {left_out}"}
        assert left_out not in given
    elif quick:
        assert given == benchmark.SECONDS
    else:
        assert given == pytest.approx({name: min(1.0, factor) * most for name, most in benchmark.SECONDS.items()})


ON_THE_PAGE = re.findall(r"--only (\S+) --json", gpu_results.PAGE.read_text().partition("## On a GPU")[2])


def test_the_commands_run_all_sections_in_time() -> None:
    """A command that has no time left leaves cases out."""
    names = [set(benchmark._letters(command)) for command in ON_THE_PAGE]
    assert set().union(*names) == benchmark.TITLES.keys()
    for sections in names:
        needed = sections | ({"a"} if sections & {*benchmark._COMPARED} else set())
        # Starting and ending a section takes a part of its grace.
        assert sum(benchmark.SECONDS[name] + 10 for name in needed) < benchmark.TOTAL_SECONDS


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"benchmark": "feed"}, "no record of benchmarks/gpu.py"),
        ({"quick": True}, "--quick"),
        ({"machine": {"gpu": {"stand_in": True}}}, "stand-in"),
        ({"machine": {"processor": "P", "cores": 2, "gpu": {"gpu": "H", "stand_in": False}}}, "different machines"),
    ],
)
def test_what_is_no_result_is_not_written(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    machine = {"processor": "P", "cores": 1, "gpu": {"gpu": "H", "stand_in": False}}
    record = {"benchmark": "gpu", "quick": False, "machine": machine, "sections": {}}
    (tmp_path / "one.json").write_text(json.dumps(record))
    (tmp_path / "two.json").write_text(json.dumps(record | changes))
    page = tmp_path / "page.md"
    page.write_text(f"{gpu_results.BEGIN}\n{gpu_results.END}\n")
    with pytest.raises(gpu_results.ResultsError, match=message):
        gpu_results.write_results([tmp_path / "one.json", tmp_path / "two.json"], page, {})
    assert page.read_text() == f"{gpu_results.BEGIN}\n{gpu_results.END}\n"


def test_a_process_that_dies_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def died(command: list[str], **options: Any) -> Any:
        assert "--worker" in command
        return SimpleNamespace(returncode=-6, stdout="", stderr="Traceback\n  there\nCUDAError: 700\n")

    monkeypatch.setattr(benchmark.subprocess, "run", died)
    found = benchmark.run_apart("b", {}, True, 20.0)
    assert found["status"] == "failed"
    assert "status -6: Traceback |   there | CUDAError: 700" in found["reason"]

    def slow(command: list[str], **options: Any) -> Any:
        raise subprocess.TimeoutExpired(command, options["timeout"])

    monkeypatch.setattr(benchmark.subprocess, "run", slow)
    assert benchmark.run_apart("b", {}, True, 20.0)["reason"] == "took more than 60 s"


@pytest.mark.parametrize(("text", "letters"), [("a,b", "ab"), ("f", "f"), ("c, d", "cd")])
def test_sections_are_named_by_letters(text: str, letters: str) -> None:
    assert benchmark.make_parser().parse_args(["--only", text]).only == letters
    with pytest.raises(argparse.ArgumentTypeError, match="a, b, c"):
        benchmark._letters(f"{text},x")


def test_without_a_gpu_it_says_so(tmp_path: Path) -> None:
    if benchmark.no_gpu() is None:
        pytest.skip("there is a GPU")
    script, *arguments = COMMANDS["no GPU"].format(json=tmp_path / "out.json").split()
    done = subprocess.run([sys.executable, str(BENCHMARKS / script), *arguments], capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr.startswith("not run: ")
    assert not (tmp_path / "out.json").exists()
