"""The progress of a conversion of several files."""

from __future__ import annotations

import re

import pytest

from gear_data.common.progress import ProgressLines
from gear_data.ingest.engine.row_progress import row_counter
from gear_data.ingest.location import SourceFile


def files(*sizes: int) -> list[SourceFile]:
    return [SourceFile(f"/{number}", str(number), size) for number, size in enumerate(sizes)]


def test_several_files(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: clock[0])
    with ProgressLines(40, "convert", "step", seconds=0.0) as bar:
        count = row_counter(bar, files(1024, 3072), 40)
        clock[0] += 2
        count(10)  # a quarter of 4 KiB in two seconds
        count(30)
    assert capsys.readouterr().err.splitlines() == [
        "convert: 10 of 40 step, 0 min",
        "convert: 40 of 40 step, 0 min, 2 files of 4.0 KiB, 512 B/s",
    ]


@pytest.mark.parametrize(("sizes", "rows"), [((1024,), 40), ((1, 2), None)])
def test_one_file_or_unknown_rows(sizes: tuple[int, ...], rows: int | None, capsys: pytest.CaptureFixture[str]) -> None:
    with ProgressLines(rows, "convert", "step", seconds=0.0) as bar:
        count = row_counter(bar, files(*sizes), rows)
        count(1)
        count(2)
    assert all(re.fullmatch(r"convert: \d( of 40)? step, 0 min", line) for line in capsys.readouterr().err.splitlines())
