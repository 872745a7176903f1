"""All sections of benchmarks/gpu.py run by one command, on a stand-in for CuPy."""

from __future__ import annotations

import contextlib
import io
import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gpu as benchmark
import pytest
from gpu_sections import collection as gpu_collection
from gpu_sections import feeds as gpu_feeds
from gpu_sections import peers as gpu_peers
from gpu_sections import results as gpu_results

from gear_data.residency.device.registration import FALLBACK_VARIABLE
from tests.support.benchmarks.commands import COMMANDS
from tests.support.benchmarks.gpu import SMALL, small_feeds, small_sections, small_training
from tests.support.benchmarks.results import read_record, rows_of
from tests.support.cuda.gpu_stand_in import stand_in


def test_all_sections_are_run_printed_and_recorded(
    tmp_path: Path,
    libraries: Path,
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
    small_sections(monkeypatch)
    monkeypatch.setattr(gpu_collection, "all_cases", lambda most, quick: SMALL[:2])
    monkeypatch.setenv(FALLBACK_VARIABLE, "copy")
    script, *arguments = COMMANDS["GPU"].format(json=tmp_path / "gpu.json").split()
    assert script == "gpu.py"
    with stand_in(monkeypatch, libraries, order="all late") as found:
        monkeypatch.setattr(small_training(monkeypatch, stand_in=True), "BATCHES", (2,))
        small_feeds(monkeypatch, found.cupy.streams)
        status = benchmark.main(arguments)
    # Pinned memory is the registered segment, whatever the environment allows.
    assert FALLBACK_VARIABLE not in os.environ
    printed, record = capsys.readouterr().out, read_record(tmp_path / "gpu.json")
    sections = record["sections"]
    assert [*sections] == [*benchmark.TITLES]
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
    assert record["machine"]["gpu"]["gpu"] == "made up"
    assert [row[0] for row in rows_of(printed, "empty launches")] == [case.name for case in SMALL[:2]]
    assert "\ntargets met: " in printed
    feeds = {row["name"]: row for row in sections["i"]["section"]["rows"]}
    # `small_training` hides TorchRL, and torch cannot copy to a GPU that is not there.
    missing = [gpu_peers.TORCHRL, "gear-data, host, by the CPU"]
    titles = [title for title in (*gpu_peers.PEERS, *gpu_feeds.LOADERS) if title not in missing]
    names = [workload.name for workload in gpu_feeds.WORKLOADS]
    assert [*feeds] == [f"{name}: {title}" for name in names for title in titles]
    skipped = [note.partition(": not run: ")[0] for note in sections["i"]["section"]["notes"] if ": not run: " in note]
    assert skipped == [f"{name}: {title}" for name in names for title in missing]
    judged = {name: row["target"] for name, row in feeds.items() if row["target"]}
    assert judged == {
        "Hopper 256 x 20: gear-data, device": 5.0,
        "1 KiB x 100 x 1024: gear-data, device": 0.75,
        "1 KiB x 100 x 1024: gear-data, pinned": 0.9,
    }
    assert all(row["ratio"] > 0 for row in feeds.values() if row["target"])
    assert all(row["values"]["host us"] > 0 for row in feeds.values())
    graph = [row for row in sections["e"]["section"]["rows"] if "as a graph" in row["name"]]
    assert [row["target"] for row in graph] == [None, 0.98]
    check_results(tmp_path, monkeypatch, capsys)


def check_results(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Times of the stand-in are never written as results.

    The same record of a GPU is.
    """
    page = folder / "RESULTS.md"
    before = gpu_results.PAGE.read_text()
    page.write_text(before)
    monkeypatch.setattr(benchmark, "PAGE", page)
    _, *arguments = COMMANDS["GPU results"].format(json=folder / "gpu.json").split()
    assert benchmark.main(arguments) == 1
    assert "made by the tests' stand-in" in capsys.readouterr().err
    assert page.read_text() == before
    record = read_record(folder / "gpu.json")
    record["machine"]["gpu"] |= {"stand_in": False, "gpu": "a GPU"}
    (folder / "gpu.json").write_text(json.dumps(record))
    assert benchmark.main(arguments) == 1
    assert "--quick" in capsys.readouterr().err
    record["quick"] = False
    (folder / "gpu.json").write_text(json.dumps(record))
    assert benchmark.main(arguments) == 0
    written = page.read_text()
    assert "Measured on a GPU" in written
    first, last = (written.index(line) for line in (gpu_results.BEGIN, gpu_results.END))
    kept = before[: before.index(gpu_results.BEGIN)], before[before.index(gpu_results.END) :]
    assert (written[:first], written[last:]) == kept
    for name, title in benchmark.TITLES.items():
        assert f"**({name}) {title}**" in written
    # A second writing replaces the first.
    assert benchmark.main(arguments) == 0
    assert page.read_text() == written
