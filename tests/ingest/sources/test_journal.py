from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import gear_data
from gear_data.errors import EmptySourceError, UnsupportedColumnError
from gear_data.schema import ColumnSpec
from gear_data.storage.journal.record import RecordedEpisode
from gear_data.storage.journal.writing import JournalWriter

OBSERVATIONS = ColumnSpec("observations", "float32", (2,), has_final=True)
COLUMNS = (OBSERVATIONS, ColumnSpec("action", "int64"))


def write(path: Path, lengths: list[int], columns: tuple[ColumnSpec, ...] = COLUMNS, *, finals: bool = True) -> None:
    path.parent.mkdir(exist_ok=True)
    writer = JournalWriter(path, columns)
    for number, length in enumerate(lengths):
        values = {c.name: np.full((length, *c.shape), number, c.dtype) for c in columns}
        final = {"observations": np.full(2, -number, np.float32)} if finals and number % 2 else {}
        writer.append(RecordedEpisode(values, True, False, final, {"run": path.stem, "number": number}))
    writer.close()


def test_journals_are_read_in_the_order_of_their_names(tmp_path: Path) -> None:
    """Names become canonical, as in any source, and a torn end is a finding."""
    source = tmp_path / "journals"
    write(source / "000001.arrows", [1, 2, 3])
    write(source / "000000.arrows", [4, 5])
    write(source / "000002.arrows", [6], finals=False)
    torn = (source / "000002.arrows").read_bytes()[:-8] + b"\xff\xff\xff\xff\x10"
    (source / "000002.arrows").write_bytes(torn)
    (source / "000003.arrows").touch()
    report = gear_data.convert(source, tmp_path / "dataset", shard_bytes=1024)
    assert report.format == "journal"
    (warning,) = [each for each in report.warnings if each.startswith("journal-torn")]
    assert "the last 5 bytes" in warning and "000002.arrows" in warning
    ds = gear_data.open(tmp_path / "dataset")
    assert ds.episodes.select("run", "number", "length").rows() == [
        ("000000", 0, 4), ("000000", 1, 5), ("000001", 0, 1), ("000001", 1, 2), ("000001", 2, 3), ("000002", 0, 6),
    ]  # fmt: skip
    assert ds[4]["actions"].tolist() == [2, 2, 2]
    assert ds.final(3)["observations"].tolist() == [-1, -1]
    assert ds.final(4) is None
    assert ds.episodes["terminated"].all()


def test_columns_can_be_chosen_and_renamed(tmp_path: Path) -> None:
    write(tmp_path / "j" / "a.arrows", [3])
    gear_data.convert(tmp_path / "j", tmp_path / "d", columns=["action"], rename={"action": "infos.button"})
    assert gear_data.open(tmp_path / "d").schema.names == ("infos.button", "terminated", "truncated")


def test_journals_of_different_columns_are_refused(tmp_path: Path) -> None:
    write(tmp_path / "j" / "a.arrows", [3])
    write(tmp_path / "j" / "b.arrows", [3], (OBSERVATIONS, ColumnSpec("action", "int32")))
    with pytest.raises(UnsupportedColumnError, match=r"b\.arrows: has other columns than a\.arrows"):
        gear_data.convert(tmp_path / "j", tmp_path / "d")


def test_a_journal_without_an_episode_is_empty(tmp_path: Path) -> None:
    (tmp_path / "j").mkdir()
    (tmp_path / "j" / "a.arrows").touch()
    with pytest.raises(EmptySourceError, match="has no finished episode"):
        gear_data.convert(tmp_path / "j", tmp_path / "d", format="journal")
