"""Whatever a Writer acknowledges is in the dataset once, or in the quarantine with its bytes."""

from __future__ import annotations

import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

import gear_data
from gear_data.errors import GearError, InvalidArgumentError
from gear_data.schema import ColumnSpec
from gear_data.storage.journal.quarantine import entries
from gear_data.storage.journal.reading import read_journal
from gear_data.storage.journal.record import RecordedEpisode
from gear_data.storage.journal.writing import JournalWriter

WRITERS = 3
_VALUES = st.one_of(
    st.integers(-(2**53) - 9, 2**53 + 9),
    st.integers(-(2**62), 2**62),
    st.floats(allow_nan=False, allow_infinity=False),
    st.booleans(),
    st.text(st.characters(codec="utf-8"), max_size=3),
)
_FACTS = st.dictionaries(st.sampled_from(["a", "b", "length", "metadata.length", "task", ""]), _VALUES, max_size=2)
_STEPS = st.lists(
    st.tuples(
        st.sampled_from(["episode"] * 8 + ["seal", "seal", "crash", "convert", "old"]),
        st.integers(0, WRITERS - 1),
        _FACTS,
    ),
    max_size=30,
)


class Recording:
    """Several Writers of one dataset, and the numbers of the episodes that they acknowledged."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.journals = folder.with_name(f"{folder.name}.journal")
        self.writers: list[gear_data.Writer | None] = [None] * WRITERS
        self.acknowledged: list[int] = []
        self.number = 0

    def episode(self, place: int, facts: dict[str, Any]) -> None:
        writer = self.writers[place] = self.writers[place] or gear_data.Writer(self.folder, durability="os")
        self.number += 1
        writer.append(actions=self.number)
        try:
            writer.end_episode(terminated=True, number=self.number, **facts)
        except InvalidArgumentError:
            writer.discard()
        else:
            self.acknowledged.append(self.number)

    def seal(self, place: int, facts: dict[str, Any]) -> None:
        if (writer := self.writers[place]) is not None:
            writer.seal()

    def crash(self, place: int, facts: dict[str, Any]) -> None:
        """Forgets a Writer. The kernel would release its lock."""
        if (writer := self.writers[place]) is not None:
            writer._sink._journals._stack.close()  # type: ignore[attr-defined]
            self.writers[place] = None

    def convert(self, place: int, facts: dict[str, Any]) -> None:
        """Converts the journals by hand, as a user may do before the first generation."""
        if not (self.folder / "manifest.json").exists() and any(self.journals.glob("*/*.arrows")):
            try:
                gear_data.convert(self.journals, self.folder, progress=False)
            except GearError:
                return

    def old(self, place: int, facts: dict[str, Any]) -> None:
        """Leaves the journal of a Writer that checked nothing."""
        self.number += 1
        path = self.journals / f"{500 + self.number}" / "000000.arrows"
        path.parent.mkdir(parents=True)
        writer = JournalWriter(path, [ColumnSpec("actions", "int64")])
        values = {"actions": np.array([self.number])}
        writer.append(RecordedEpisode(values, True, False, facts={"number": self.number, **facts}))
        writer.close()
        self.acknowledged.append(self.number)

    def close(self) -> None:
        for writer in self.writers:
            if writer is not None:
                writer.close()
        gear_data.Writer(self.folder).close()


@settings(max_examples=40, deadline=None)
@given(_STEPS)
def test_acknowledged_episodes_are_published_once_or_kept(steps: list[tuple[str, int, dict[str, Any]]]) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        recording = Recording(Path(scratch, "live"))
        for action, place, facts in steps:
            getattr(recording, action)(place, facts)
        recording.close()
        found: Counter[int] = Counter()
        if (recording.folder / "manifest.json").exists():
            ds = gear_data.open(recording.folder)
            assert gear_data.verify(recording.folder, deep=True, progress=False).ok
            found.update(ds.episodes["number"])
            assert [int(ds[place]["actions"][0]) for place in range(len(ds))] == list(ds.episodes["number"])
        for entry in entries(recording.folder):
            assert entry.episodes is not None
            for episode in read_journal(entry.episodes).episodes:
                assert episode.columns["actions"].tolist() == [episode.facts["number"]]
                found[episode.facts["number"]] += 1
        assert found == Counter(recording.acknowledged)
        assert not recording.journals.exists()
