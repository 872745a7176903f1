"""Growth: what the manifest of a growing dataset says in addition."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from gear_data.common.typed_json import Count, resolved

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
class GrowthRecord(msgspec.Struct, frozen=True):
    """Growth in JSON. See `Growth`."""

    id: str
    generation: Count
    next_id: Count
    base: str | None
    sealed: dict[str, int]
    sequences: dict[str, int]
    parts: list[Part]


@dataclass(frozen=True)
class Growth:
    """The place of a manifest among the generations of its dataset.

    Attributes:
        id: text that all generations share, and no other dataset.
        generation: number of this one, from 1. Generation 0 is the dataset before it grew.
        next_id: the id of the next episode. Ids are never used again.
        base: identity of generation 0; None if a Writer made the dataset.
        sealed: series of journals -> number of its last journal in this dataset. Of journals of earlier versions: the
            name of their folder; in an object store: their id.
        sequences: client of a server for writers -> sequence number of its last episode in this dataset.
        parts: the shards in order, in parts.
    """

    id: str
    generation: int
    next_id: int
    base: str | None
    sealed: Mapping[str, int] = field(default_factory=dict)
    sequences: Mapping[str, int] = field(default_factory=dict)
    parts: Sequence[Part] = ()

    def to_json(self) -> dict[str, Any]:
        """Returns the JSON form of a `GrowthRecord`."""
        return {
            "id": self.id,
            "generation": self.generation,
            "next_id": self.next_id,
            "base": self.base,
            "sealed": dict(self.sealed),
            "sequences": dict(self.sequences),
            "parts": [msgspec.to_builtins(part) for part in self.parts],
        }

    @staticmethod
    def from_record(record: GrowthRecord) -> Growth:
        """Returns the growth of a record."""
        return Growth(
            record.id, record.generation, record.next_id, record.base, record.sealed, record.sequences,
            tuple(record.parts),
        )  # fmt: skip


def generation_file(generation: int) -> str:
    """Returns the name of a generation's manifest, in the folder of the dataset."""
    return f"{GENERATIONS}/{generation:06d}.json"
