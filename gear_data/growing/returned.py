"""Journals that come back: a killed process did not remove them, a disk was restored, or a machine was copied."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gear_data.growing.added_journals import SealedJournal
from gear_data.storage.generations.growth import Growth, LastJournal
from gear_data.storage.manifest import Manifest

#: What helps with a journal that may be in a dataset.
WAY_OUT = "'gear-data journal rescue' makes a dataset of it, to compare and to merge"


def last_journal(number: int, manifest: Manifest) -> LastJournal:
    """Returns what a generation remembers of a journal.

    Args:
        number: of the journal.
        manifest: of the sealed journal.
    """
    return LastJournal(number, manifest.fingerprint[:8])


@dataclass(frozen=True)
class SortedJournals:
    """Sealed journals that a dataset does not have for certain.

    Attributes:
        new: those that it lacks.
        doubtful: those that it may have or may lack, and why.
    """

    new: Sequence[SealedJournal]
    doubtful: Sequence[tuple[SealedJournal, str]]


def sort_journals(growth: Growth, journals: Sequence[SealedJournal]) -> SortedJournals:
    """Sorts the sealed journals of one folder of journals.

    Args:
        growth: of the dataset.
        journals: the journals.
    """
    new: list[SealedJournal] = []
    doubtful: list[tuple[SealedJournal, str]] = []
    # A writer records a journal after those of smaller numbers: the dataset has these, too.
    found = ((each.writer, last_journal(each.number, each.manifest)) for each in journals)
    same = {writer for writer, last in found if growth.sealed.get(writer) == last}
    for each in journals:
        if each.comes_back and growth.has_forgotten(each.writer):
            reason = "the dataset may have this journal: it has forgotten which ones of that time it has"
            doubtful.append((each, f"{reason}; {WAY_OUT}"))
        elif not growth.has_journal(each.writer, each.number):
            new.append(each)
        elif each.writer not in same:
            last = growth.sealed[each.writer].number
            reason = f"the dataset has journal {last} of this series, and this one may be of another copy of its Writer"
            doubtful.append((each, f"{reason}; {WAY_OUT}"))
    return SortedJournals(new, doubtful)
