"""Sealed journals of a bucket that cannot join its dataset are set aside, and the others are published."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import s3fs

import gear_data
from gear_data.cli import main
from gear_data.growing.object_store import retirement
from tests.support.s3.recordings import add_episodes, numbers_in, objects


@pytest.fixture
def other_machines(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """Returns a function that opens a Writer of a machine, whose journals the others do not see."""

    def writer(url: str, name: str, **options: Any) -> gear_data.Writer:
        with monkeypatch.context() as patch:
            patch.setenv("GEAR_DATA_JOURNALS", str(tmp_path / name))
            return gear_data.Writer(url, **options)

    return writer


def add(writer: gear_data.Writer, number: int, actions: Any = 0, **facts: Any) -> None:
    writer.append(actions=actions)
    writer.end_episode(terminated=True, number=number, **facts)


def listed(url: str, capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    capsys.readouterr()
    assert main(["journal", "list", url, "--json"]) == 0
    entries: list[dict[str, Any]] = json.loads(capsys.readouterr().out)["entries"]
    return entries


@pytest.mark.parametrize("kind", ["columns", "facts"])
def test_what_cannot_join_is_set_aside(
    kind: str, url: str, tmp_path: Path, other_machines: Any, capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    """Two machines begin at once, before there is a dataset: the first journal decides. Later ones are published."""
    writers = [other_machines(url, name) for name in ("one", "two")]
    with_text = {"a": "x"} if kind == "facts" else {}
    add(writers[0], 0, 1, a=1)
    add(writers[1], 1, 1.5 if kind == "columns" else 1, **with_text)
    for writer in writers:
        writer.flush()
    third = other_machines(url, "three")
    published = third.seal()
    assert published is not None
    assert (published.episodes, published.total_episodes) == (1, 1)
    [entry] = listed(url, capsys)
    assert entry["holds"] == "episodes"
    assert f"gear-data journal show {url} {entry['name']}" in caplog.text
    (lost,) = {0, 1} - set(gear_data.open(url).episodes["number"])
    # The Writer of the refused journal goes on, if its columns fit.
    for number, writer in enumerate(writers, 2):
        if kind == "facts" or number - 2 != lost:
            add(writer, number, 1)
    for writer in (*writers, third):
        writer.close()
    kept = [2, 3] if kind == "facts" else [3 - lost]
    assert sorted(gear_data.open(url).episodes["number"]) == sorted([1 - lost, *kept])
    assert gear_data.verify(url, deep=True, progress=False).ok
    # The next Writers leave it alone, also when its number is below that of a published journal.
    other_machines(url, "four").close()
    assert [each["name"] for each in listed(url, capsys)] == [entry["name"]]
    assert main(["journal", "rescue", url, entry["name"], str(tmp_path / "rescued")]) == 0
    rescued = gear_data.open(tmp_path / "rescued")
    assert list(rescued.episodes["number"]) == [lost]
    assert gear_data.verify(tmp_path / "rescued", deep=True, progress=False).ok
    assert main(["journal", "show", url, entry["name"]]) == 0
    assert f"journal: journals/{entry['name']}" in capsys.readouterr().out
    assert main(["journal", "drop", url, entry["name"]]) == 0
    assert listed(url, capsys) == []
    assert not [file for file in objects(url) if entry["name"] in file]
    assert main(["journal", "drop", url, entry["name"]]) == 2


def test_a_damaged_journal_does_not_stop_others(
    url: str, other_machines: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    broken, intact = other_machines(url, "one"), other_machines(url, "two")
    add_episodes(broken, [0])
    broken.flush()
    [table] = [file for file in objects(url) if file.startswith("journals/") and file.endswith("episodes.arrow")]
    s3fs.S3FileSystem().pipe(f"{url.removeprefix('s3://')}/{table}", b"not a table")
    add_episodes(intact, [1])
    intact.close()
    broken.close()
    assert numbers_in(gear_data.open(url)) == [1]
    [entry] = listed(url, capsys)
    assert "checksum" in entry["reason"]


def test_a_refused_journal_outlives_the_clean_up(
    url: str, other_machines: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    first, second = other_machines(url, "one"), other_machines(url, "two")
    add(first, 0, 1)
    add(second, 1, 1.5)
    first.flush()
    second.flush()
    first.close()
    second.close()
    [entry] = listed(url, capsys)
    monkeypatch.setattr(retirement, "_UNFINISHED", retirement.timedelta(seconds=-1))
    other_machines(url, "three").close()
    assert main(["journal", "rescue", url, entry["name"], str(tmp_path / "rescued")]) == 0
    numbers = Counter(gear_data.open(tmp_path / "rescued").episodes["number"])
    assert numbers + Counter(gear_data.open(url).episodes["number"]) == Counter([0, 1])
