"""Several Writers of one dataset that crash, and the invariant: what they acknowledge is published once, or kept."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
from hypothesis import strategies as st

import gear_data
from gear_data.errors import DatasetNotFoundError, GearError, InvalidArgumentError, UnsupportedColumnError
from gear_data.growing.object_store.quarantine import download, refused_journals
from gear_data.recording.journal_folder import journals_of
from gear_data.recording.object_store.local_journals import journal_base
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
Steps = list[tuple[str, int, dict[str, Any]]]


def steps(most: int) -> st.SearchStrategy[Steps]:
    """Returns what Writers do: the method of a `Recording`, the Writer, and facts."""
    kinds = ["episode"] * 8 + ["seal", "seal", "flush", "crash", "convert", "old", "leave", "leave"]
    return st.lists(st.tuples(st.sampled_from(kinds), st.integers(0, WRITERS - 1), _FACTS), max_size=most)


def _dtype(facts: dict[str, Any]) -> np.dtype[Any]:
    """Returns the dtype of the actions of an episode with some facts. A dataset has one."""
    return np.dtype(np.float32 if "metadata.length" in facts else np.int64)


class Recording:
    """Several Writers of one dataset in a folder, and the numbers of the episodes that they acknowledged.

    Args:
        location: path or URL of the dataset.
        scratch: a folder that is removed later.
    """

    def __init__(self, location: Path | str, scratch: Path) -> None:
        self.location, self.scratch = location, scratch
        self.writers: list[gear_data.Writer | None] = [None] * WRITERS
        self.acknowledged: list[int] = []
        self.number = 0

    def base(self, place: int) -> Path:
        """Returns the path beside which the journals of a Writer are."""
        return Path(self.location)

    def open(self, place: int) -> gear_data.Writer:
        return gear_data.Writer(self.location, durability="os")

    def episode(self, place: int, facts: dict[str, Any]) -> None:
        writer = self.writers[place] = self.writers[place] or self.open(place)
        self.number += 1
        try:
            writer.append(actions=_dtype(facts).type(self.number))
            writer.end_episode(terminated=True, number=self.number, **facts)
        except (InvalidArgumentError, UnsupportedColumnError):
            writer.discard()
        else:
            self.acknowledged.append(self.number)

    def seal(self, place: int, facts: dict[str, Any]) -> None:
        if (writer := self.writers[place]) is not None:
            writer.seal()

    def flush(self, place: int, facts: dict[str, Any]) -> None:
        if (writer := self.writers[place]) is not None:
            writer.flush()

    def crash(self, place: int, facts: dict[str, Any]) -> None:
        """Forgets a Writer. The kernel would release its lock."""
        if (writer := self.writers[place]) is not None:
            writer._sink._journals._stack.close()  # type: ignore[attr-defined]
            self.writers[place] = None

    def leave(self, place: int, facts: dict[str, Any]) -> None:
        """Closes a Writer. Another one may take its place."""
        if (writer := self.writers[place]) is not None:
            writer.close()
            self.writers[place] = None

    def convert(self, place: int, facts: dict[str, Any]) -> None:
        """Converts the journals by hand, as a user may do before the first generation."""
        folder = Path(self.location)
        if not (folder / "manifest.json").exists() and any(journals_of(folder).glob("*/*.arrows")):
            try:
                gear_data.convert(journals_of(folder), folder, progress=False)
            except GearError:
                return

    def old(self, place: int, facts: dict[str, Any]) -> None:
        """Leaves the journal of a Writer that checked nothing."""
        self.number += 1
        path = journals_of(self.base(place)) / f"{500 + self.number}" / "000000.arrows"
        path.parent.mkdir(parents=True)
        writer = JournalWriter(path, [ColumnSpec("actions", _dtype(facts).name)])
        values = {"actions": np.array([self.number], _dtype(facts))}
        writer.append(RecordedEpisode(values, True, False, facts={"number": self.number, **facts}))
        writer.close()
        self.acknowledged.append(self.number)

    def close(self) -> None:
        for writer in self.writers:
            if writer is not None:
                writer.close()
        for place in range(WRITERS):
            self.open(place).close()

    def kept(self) -> Iterator[tuple[int, int]]:
        """Yields the number and the action of each episode in a quarantine."""
        for base in {self.base(place) for place in range(WRITERS)}:
            assert not list(journals_of(base).glob("*/*.arrows"))
            for entry in entries(base):
                assert entry.holds == "episodes"
                for episode in read_journal(entry.episodes).episodes:
                    yield int(episode.facts["number"]), int(episode.columns["actions"][0])

    def check(self, steps: Steps) -> None:
        """Does all steps, and checks the invariant."""
        for action, place, facts in steps:
            getattr(self, action)(place, facts)
        self.close()
        found = list(self.kept())
        try:
            ds = gear_data.open(self.location)
        except DatasetNotFoundError:
            pass
        else:
            assert gear_data.verify(self.location, deep=True, progress=False).ok
            found += numbers_and_actions(ds)
        assert all(number == action for number, action in found)
        assert Counter(number for number, _ in found) == Counter(self.acknowledged)


class BucketRecording(Recording):
    """Several Writers of one dataset in a bucket, each on a machine of its own."""

    def machine(self, place: int) -> Any:
        return mock.patch.dict(os.environ, GEAR_DATA_JOURNALS=str(self.scratch / f"machine-{place}"))

    def base(self, place: int) -> Path:
        with self.machine(place):
            return journal_base(str(self.location))

    def open(self, place: int) -> gear_data.Writer:
        with self.machine(place):
            return super().open(place)

    def convert(self, place: int, facts: dict[str, Any]) -> None:
        """Does nothing: a conversion to the bucket would not be of the journals of all machines."""

    def kept(self) -> Iterator[tuple[int, int]]:
        yield from super().kept()
        for entry in refused_journals(str(self.location)):
            download(entry, self.scratch / entry.name)
            yield from numbers_and_actions(gear_data.open(self.scratch / entry.name))


def numbers_and_actions(ds: gear_data.Dataset) -> list[tuple[int, int]]:
    return [(number, int(ds[place]["actions"][0])) for place, number in enumerate(ds.episodes["number"])]
