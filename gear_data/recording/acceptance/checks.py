"""Acceptance: which episodes can join a dataset."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from gear_data.errors import CorruptSourceError, GearError
from gear_data.growing.added_journals import check_columns
from gear_data.growing.seal_options import OLDEST, SealOptions
from gear_data.recording.acceptance.columns import recorded_schema
from gear_data.recording.acceptance.facts import FactTypes
from gear_data.schema import ColumnSpec
from gear_data.storage.journal.reading import Journal, read_journal, recorded_facts
from gear_data.storage.manifest import Manifest

#: Entries of a provenance that may name journals: of a source, of several sources, and of a merge or a saved view.
_ORIGINS = ("metadata", "parts", "merged", "view", "dataset", "provenance")


class Acceptance:
    """The checks of publication, for episodes that are not published yet.

    Args:
        dataset: its place, for errors.
        manifest: its newest manifest; None: there is no dataset.
        episodes: its episode table; None: it is not known.
    """

    def __init__(self, dataset: str, manifest: Manifest | None, episodes: pa.Table | None) -> None:
        self._dataset = dataset
        self._schema = None if manifest is None else manifest.schema
        self._facts = FactTypes()
        if episodes is not None:
            self._facts.add_table(episodes)
        #: Id of a journal that was converted to this dataset -> number of its last record then.
        self._converted: dict[str, int] = {}
        for journal, number in _converted_journals(() if manifest is None else manifest.provenance):
            self._converted[journal] = max(number, self._converted.get(journal, -1))

    def add_journals(self, journals: Iterable[Path]) -> None:
        """Adds the types of facts, and the columns, of journals that other writers may be writing."""
        for path in journals:
            try:
                if self._schema is None and (found := read_journal(path, is_written=True)).episodes:
                    self._schema = recorded_schema(found.columns, found.cameras, self._dataset)
                for facts in recorded_facts(path):
                    self._facts.add(facts)
            except CorruptSourceError:  # its writer removed it, after it was published
                continue

    def knows(self, facts: Mapping[str, Any]) -> bool:
        """Returns whether the types of all facts are known."""
        return all(name in self._facts for name in facts)

    def check_columns(self, columns: Sequence[ColumnSpec], cameras: Sequence[ColumnSpec]) -> None:
        """Checks the columns and cameras of episodes.

        Raises:
            GearError: they cannot be stored, or are not those of the dataset.
        """
        schema = recorded_schema(tuple(columns), tuple(cameras), self._dataset)
        if self._schema is not None:
            check_columns(self._schema, schema, self._dataset)
        self._schema = self._schema or schema

    def take_facts(self, facts: Mapping[str, Any], options: SealOptions) -> None:
        """Checks the facts of an episode, and adds their types to the known ones.

        Raises:
            EpisodeRefusedError: they cannot be stored beside those of earlier episodes, or episodes cannot leave by
                the column that the options name.
        """
        self._facts.check(facts)
        if options.limited and options.evict != OLDEST:
            self._facts.check_weight(options.evict, facts)
        self._facts.add(facts)

    def is_converted(self, journal: Journal, record: int) -> bool:
        """Returns whether the dataset was converted from a journal, with this record."""
        return record <= self._converted.get(journal.id.decode(), -1)

    def refused(self, journal: Journal) -> dict[int, str]:
        """Returns the places of the episodes of a journal that cannot join the dataset, and why."""
        if not journal.episodes:
            return {}
        try:
            self.check_columns(journal.columns, journal.cameras)
        except GearError as error:
            reason = f"column {error.column}: {error.message}" if error.column else error.message
            return dict.fromkeys(range(len(journal.episodes)), reason)
        reasons = {}
        for place, episode in enumerate(journal.episodes):
            if (problem := self._facts.problem(episode.facts)) is not None:
                reasons[place] = "the fact {}: {}".format(*problem)
            else:
                self._facts.add(episode.facts)
        return reasons


def _converted_journals(origin: Any) -> Iterator[tuple[str, int]]:
    """Yields the journals in a provenance, at any depth: the id, and the number of the last record."""
    if isinstance(origin, Mapping):
        if isinstance(journals := origin.get("journals"), Mapping):
            yield from ((journal, number) for journal, number in journals.items() if isinstance(number, int))
        origin = [origin.get(name) for name in _ORIGINS]
    if isinstance(origin, list | tuple):
        for each in origin:
            yield from _converted_journals(each)
