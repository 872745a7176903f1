"""Growth: what the manifest of a growing dataset says in addition."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import msgspec

from gear_data.common.typed_json import Count, resolved
from gear_data.storage.journal.writing import is_series

#: Folder of the generations' manifests, in the folder of the dataset.
GENERATIONS = "generations"
#: Folders of the statistics of parts, and of the tables of generations.
PARTS, TABLES = "parts", "tables"
#: Folders that only a dataset that grows has.
GROWING_FOLDERS = (GENERATIONS, PARTS, TABLES)

#: Folder of the sealed journals that wait for a generation, in an object store.
JOURNALS = "journals"


@resolved
class Part(msgspec.Struct, frozen=True):
    """Some shards that were added together.

    Their statistics are in the file `parts/NAME.json`, if there is one.

    Attributes:
        name: unique among all parts that the dataset ever had.
        shards: number of shards.
    """

    name: str
    shards: Count


@resolved
class LastJournal(NamedTuple):
    """The last journal of a series in a dataset.

    Attributes:
        number: of the journal.
        content: the start of the fingerprint of its episodes. Two copies of a machine may record other ones under it.
    """

    number: int
    content: str


@resolved
class GrowthRecord(msgspec.Struct, frozen=True):
    """Growth in JSON. See `Growth`."""

    id: str
    generation: Count
    next_id: Count
    base: str | None
    sealed: dict[str, LastJournal]
    sequences: dict[str, int]
    forgotten: str
    forgotten_clients: str
    parts: list[Part]


@dataclass(frozen=True)
class Growth:
    """The place of a manifest among the generations of its dataset.

    Attributes:
        id: text that all generations share, and no other dataset.
        generation: number of this one, from 1. Generation 0 is the dataset before it grew.
        next_id: the id of the next episode. Ids are never used again.
        base: identity of generation 0; None if a Writer made the dataset.
        sealed: series of journals -> its last journal in this dataset. Of journals of earlier versions: the name of
            their folder; in an object store: their id.
        sequences: client of a server for writers -> sequence number of its last episode in this dataset.
        forgotten: the largest series that `sealed` had and has not any more; empty: there is none. A smaller series
            that `sealed` does not have may be in the dataset.
        forgotten_clients: likewise, of `sequences`.
        parts: the shards in order, in parts.
    """

    id: str
    generation: int
    next_id: int
    base: str | None
    sealed: Mapping[str, LastJournal] = field(default_factory=dict)
    sequences: Mapping[str, int] = field(default_factory=dict)
    forgotten: str = ""
    forgotten_clients: str = ""
    parts: Sequence[Part] = ()

    @property
    def largest_series(self) -> str:
        """The largest series that the dataset knows; empty: it knows none."""
        return max(self.forgotten, *filter(is_series, self.sealed), "")

    def has_journal(self, series: str, number: int) -> bool:
        """Returns whether the dataset has a journal, or another one of the same name."""
        return series in self.sealed and number <= self.sealed[series].number

    def has_forgotten(self, series: str) -> bool:
        """Returns whether the dataset may have journals of a series, and does not know."""
        return series not in self.sealed and is_series(series) and series <= self.forgotten

    def to_json(self) -> dict[str, Any]:
        """Returns the JSON form of a `GrowthRecord`."""
        return {
            "id": self.id,
            "generation": self.generation,
            "next_id": self.next_id,
            "base": self.base,
            "sealed": dict(self.sealed),
            "sequences": dict(self.sequences),
            "forgotten": self.forgotten,
            "forgotten_clients": self.forgotten_clients,
            "parts": [msgspec.to_builtins(part) for part in self.parts],
        }

    @staticmethod
    def from_record(record: GrowthRecord) -> Growth:
        """Returns the growth of a record."""
        return Growth(
            record.id, record.generation, record.next_id, record.base, record.sealed, record.sequences,
            record.forgotten, record.forgotten_clients, tuple(record.parts),
        )  # fmt: skip


def generation_file(generation: int) -> str:
    """Returns the name of a generation's manifest, in the folder of the dataset."""
    return f"{GENERATIONS}/{generation:06d}.json"
