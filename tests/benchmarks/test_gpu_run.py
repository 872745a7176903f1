"""All sections of benchmarks/gpu.py run by one command, on a stand-in for CuPy."""

from __future__ import annotations

import contextlib
import io
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gpu as benchmark
import pytest
from gpu_sections import collection as gpu_collection
from gpu_sections import device as gpu_device
from gpu_sections import knobs as gpu_knobs
from gpu_sections import selection as gpu_selection

from tests.support.benchmarks.commands import COMMANDS
from tests.support.benchmarks.gpu import SMALL, small_training
from tests.support.benchmarks.results import read_record, rows_of
from tests.support.cuda.cupy_stand_in import stand_in


def test_all_sections_are_run_printed_and_recorded(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The command for a GPU runs on the stand-in.

    Sizes are small, and workers run in this process.
    """

    def worker(command: list[str], **options: Any) -> Any:
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            status = benchmark.main(command[2:])
        return SimpleNamespace(returncode=status, stdout=printed.getvalue(), stderr="")

    monkeypatch.setattr(benchmark, "subprocess", SimpleNamespace(run=worker, TimeoutExpired=TimeoutError))
    monkeypatch.setattr(benchmark, "no_gpu", lambda: None)
    monkeypatch.setattr(gpu_device.Gpu, "seconds", lambda gpu, calls, repeats=7: gpu._timed(calls, len(calls)))
    monkeypatch.setattr(gpu_collection, "QUICK_SOURCE_BYTES", 4 << 20)
    monkeypatch.setattr(gpu_collection, "all_cases", lambda most, quick: SMALL[:2])
    monkeypatch.setattr(gpu_selection, "EPISODES", (300, 500))
    monkeypatch.setattr(gpu_selection, "DRAWS", (50, 100))
    monkeypatch.setattr(gpu_knobs, "VARIANTS", (gpu_knobs.Variant(),))
    monkeypatch.setattr(gpu_knobs, "CASES", (SMALL[0], SMALL[0]))
    monkeypatch.setattr(gpu_knobs, "CROSSOVER_BYTES", (1 << 12,) * 4)
    monkeypatch.setattr(small_training(monkeypatch), "BATCHES", (2,))
    script, *arguments = COMMANDS["GPU"].format(json=tmp_path / "gpu.json").split()
    assert script == "gpu.py"
    with stand_in(monkeypatch, tmp_path, order="all late"):
        status = benchmark.main(arguments)
    printed, record = capsys.readouterr().out, read_record(tmp_path / "gpu.json")
    sections = record["sections"]
    assert "".join(sections) == "abcdefg" == "".join(benchmark.TITLES)
    assert {name: item["status"] for name, item in sections.items()} == dict.fromkeys(sections, "ok"), sections
    assert status == 0
    for name, title in benchmark.TITLES.items():
        assert f"\n({name}) {title}\n" in printed
        rows = sections[name]["section"]["rows"]
        # cuDF is missing, which its section says.
        assert bool(rows) == (name != "g")
        for row in rows:
            assert row["name"] in printed
    assert "not run: cudf_polars not installed" in printed
    assert {"gpu", "l2_bytes", "cupy"} < sections["a"]["section"]["facts"]["machine"].keys()
    assert [row[0] for row in rows_of(printed, "empty launches")] == [case.name for case in SMALL[:2]]
    assert "\ntargets met: " in printed
