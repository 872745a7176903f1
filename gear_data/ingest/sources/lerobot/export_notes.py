"""Notes that gear-data adds to its LeRobot exports.

With the notes, an export converts to an equal dataset again. LeRobot needs columns that a dataset may lack, stores the
shapes () and (1,) as the same scalar, and has no place for final observations.

`meta/gear_data.json` names the features concerned. `meta/final_observations.parquet` has one row per episode:
`episode_index`, and the final observation of every such feature, null if the episode has none. LeRobot ignores both
files.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from gear_data.common.typed_json import check_json, resolved
from gear_data.errors import CorruptSourceError
from gear_data.ingest.location import Location
from gear_data.ingest.sources.json_files import read_json_object
from gear_data.ingest.sources.tables.file_stream import FileTables
from gear_data.ingest.sources.tables.files.parquet import PARQUET
from gear_data.ingest.sources.tables.to_numpy import IrregularRowsError, null_rows, storage_array, to_numpy
from gear_data.schema import ColumnSpec
from gear_data.storage.episode_block import END, EpisodeBlock, Position

NOTES = "meta/gear_data.json"
FINALS = "meta/final_observations.parquet"
_EPISODE = "episode_index"
#: Without the notes the file of final observations is not read.
_HINT = f"download it again, or remove {NOTES} to leave the final observations out"


@resolved
class ExportNotes(msgspec.Struct, frozen=True, rename={"added": "made"}):
    """Features of an export, by LeRobot's names.

    Attributes:
        added: columns that LeRobot needs and the dataset lacks.
        vectors: vectors of one element, which LeRobot stores as scalars.
        finals: observations that have a final observation.
    """

    added: tuple[str, ...] = ()
    vectors: tuple[str, ...] = ()
    finals: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Returns the contents of `meta/gear_data.json`."""
        return dict(msgspec.to_builtins(self))

    def restore(self, columns: tuple[ColumnSpec, ...]) -> tuple[ColumnSpec, ...]:
        """Returns the columns as they were before the export."""
        return tuple(
            replace(
                spec,
                shape=(1,) if spec.source_name in self.vectors and spec.shape == () else spec.shape,
                has_final=spec.source_name in self.finals and not spec.variable_length,
            )
            for spec in columns
        )


def read_notes(location: Location) -> ExportNotes:
    """Reads the notes; they are empty for a dataset of another writer.

    Raises:
        CorruptSourceError: the file is not a JSON object of lists of names.
    """
    file = location.file(NOTES)
    if file is None:
        return ExportNotes()
    return check_json(read_json_object(file), ExportNotes, error=CorruptSourceError, file=NOTES)


class FinalObservations:
    """Final observations by episode number, read from `FINALS` when needed.

    Raises:
        CorruptSourceError: the file is missing or truncated, or lacks a column.
    """

    def __init__(self, location: Location, columns: tuple[ColumnSpec, ...]) -> None:
        file = location.file(FINALS)
        if file is None:
            raise CorruptSourceError(f"is missing, but {NOTES} names final observations", file=FINALS, hint=_HINT)
        self._columns = columns
        self._tables = FileTables((file,), PARQUET)
        names = [_EPISODE, *(spec.source_name for spec in columns)]
        for name in names:
            if name not in self._tables.schema.names:
                raise CorruptSourceError("the column is missing", file=FINALS, column=name, hint=_HINT)
        self._tables.select(names)

    def add(self, block: EpisodeBlock, ids: npt.NDArray[np.int64]) -> EpisodeBlock:
        """Returns the block with the final observations of its episodes.

        Args:
            block: without final observations.
            ids: int64 [episodes], the numbers of its episodes.

        Raises:
            CorruptSourceError: the file does not match the episodes.
        """
        first = int(ids.min())
        rows = self._rows(first, int(ids.max())).take(pa.array(ids - first))
        if not np.array_equal(rows.column(_EPISODE).to_numpy(), ids):
            raise CorruptSourceError("rows and episodes do not match", file=FINALS, column=_EPISODE, hint=_HINT)
        found = {spec.name: _values(rows, spec) for spec in self._columns}
        has_final = next(iter(found.values()))[0]
        for name, (present, _) in found.items():
            if not np.array_equal(present, has_final):
                raise CorruptSourceError(
                    "an episode has only part of a final observation", file=FINALS, column=name, hint=_HINT
                )
        return replace(block, has_final=has_final, finals={name: values for name, (_, values) in found.items()})

    def _rows(self, first: int, last: int) -> pa.Table:
        """Returns the rows of the episodes `first` to `last`, both included."""
        tables: list[pa.Table] = []
        needed = last + 1 - first
        if needed > 0 <= first:
            for part in self._tables.parts(Position(0, first), END):
                tables.append(part.table.slice(0, needed))
                needed -= len(tables[-1])
                if not needed:
                    return pa.concat_tables(tables)
        raise CorruptSourceError(f"has no rows for episodes {first} to {last}", file=FINALS, hint=_HINT)


def _values(rows: pa.Table, spec: ColumnSpec) -> tuple[npt.NDArray[np.bool_], npt.NDArray[Any]]:
    """Returns bool [rows], the rows with a final observation, and the observations."""
    array = storage_array(rows.column(spec.source_name))
    present = np.ones(len(array), np.bool_)
    present[null_rows(array)] = False
    try:
        values = to_numpy(array.filter(pa.array(present)), spec.shape)
    except (IrregularRowsError, pa.ArrowException, AttributeError) as error:
        raise CorruptSourceError(
            f"should hold {spec.dtype} {spec.shape}: {error}", file=FINALS, column=spec.name, hint=_HINT
        ) from error
    if str(values.dtype) != spec.dtype:
        message = f"holds {values.dtype}, not {spec.dtype}"
        raise CorruptSourceError(message, file=FINALS, column=spec.source_name, hint=_HINT)
    return present, values
