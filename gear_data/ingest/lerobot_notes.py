"""What gear-data's own LeRobot exports say beside LeRobot's files, so that they convert to an equal dataset again.

LeRobot needs columns that a dataset may lack, keeps shapes () and (1,) as the same scalar, and has no place for final
observations. `meta/gear_data.json` names the features concerned; `meta/final_observations.parquet` has a row an
episode: `episode_index`, and the final observation of every such feature, null where an episode has none. LeRobot looks
at neither file.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from gear_data.errors import CorruptSourceError
from gear_data.ingest.arrow_tables import corrupt_parquet, open_parquet
from gear_data.ingest.arrow_values import Irregular, null_rows, storage_array, to_numpy
from gear_data.ingest.json_files import read_json_object
from gear_data.ingest.location import Location, SourceFile
from gear_data.schema import ColumnSpec
from gear_data.storage.block import EpisodeBlock, offsets_of

NOTES = "meta/gear_data.json"
FINALS = "meta/final_observations.parquet"


@dataclass(frozen=True)
class LerobotNotes:
    """Features of an export, by LeRobot's names.

    Attributes:
        made: LeRobot needs them, and the dataset had no such column.
        vectors: vectors of one element, which LeRobot keeps as scalars.
        finals: observations that have a final one.
    """

    made: tuple[str, ...] = ()
    vectors: tuple[str, ...] = ()
    finals: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        return {"made": list(self.made), "vectors": list(self.vectors), "finals": list(self.finals)}

    def columns(self, columns: tuple[ColumnSpec, ...]) -> tuple[ColumnSpec, ...]:
        """The columns as they were before the export; those of `made` are left to the caller."""
        return tuple(
            replace(
                spec,
                shape=(1,) if _source(spec) in self.vectors and spec.shape == () else spec.shape,
                has_final=_source(spec) in self.finals and not spec.variable_length,
            )
            for spec in columns
        )


def read_notes(location: Location) -> LerobotNotes:
    """Empty for a dataset that gear-data did not write.

    Raises:
        CorruptSourceError: not a JSON object of lists of names.
    """
    file = location.file(NOTES)
    if file is None:
        return LerobotNotes()
    values = read_json_object(file)
    names = {key: values.get(key, []) for key in ("made", "vectors", "finals")}
    for key, value in names.items():
        if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
            raise CorruptSourceError("should be a list of names", file=NOTES, column=key)
    return LerobotNotes(**{key: tuple(value) for key, value in names.items()})


class FinalObservations:
    """Final observations by episode number, read from `FINALS` one row group at a time.

    Raises:
        CorruptSourceError: the file is missing, cut short, or lacks a column.
    """

    def __init__(self, location: Location, columns: tuple[ColumnSpec, ...]) -> None:
        file = location.file(FINALS)
        if file is None:
            raise CorruptSourceError(f"is missing, and {NOTES} names final observations", file=FINALS)
        self._file: SourceFile = file
        self._columns = columns
        with open_parquet(file) as parquet:
            names, groups = parquet.schema_arrow.names, parquet.metadata.num_row_groups
            rows = [parquet.metadata.row_group(i).num_rows for i in range(groups)]
        for name in ("episode_index", *(_source(spec) for spec in columns)):
            if name not in names:
                raise CorruptSourceError("the column is missing", file=FINALS, column=name)
        self._starts = offsets_of(np.array(rows, np.int64))
        self._group = -1
        self._table = pa.table({})

    def add(self, block: EpisodeBlock, ids: npt.NDArray[np.int64]) -> EpisodeBlock:
        """The block with the final observations of its episodes, of which `ids` are the numbers."""
        has_final = np.zeros(len(ids), np.bool_)
        finals: dict[str, list[npt.NDArray[Any]]] = {spec.name: [] for spec in self._columns}
        groups = np.searchsorted(self._starts, ids, side="right") - 1
        if len(ids) and (ids.min() < 0 or ids.max() >= self._starts[-1]):
            raise CorruptSourceError(f"has {self._starts[-1]} rows, and there is an episode {ids.max()}", file=FINALS)
        for group in np.unique(groups).tolist():
            chosen = np.flatnonzero(groups == group)
            rows = self._read(group).take(pa.array(ids[chosen] - self._starts[group]))
            if not np.array_equal(rows.column("episode_index").to_numpy(), ids[chosen]):
                raise CorruptSourceError("a row is not that of its episode", file=FINALS, column="episode_index")
            for spec in self._columns:
                known, values = _known(rows, spec)
                if spec is not self._columns[0] and not np.array_equal(known, has_final[chosen]):
                    raise CorruptSourceError("only part of a final observation", file=FINALS, column=_source(spec))
                has_final[chosen] = known
                finals[spec.name].append(values)
        joined: Mapping[str, npt.NDArray[Any]] = {name: np.concatenate(values) for name, values in finals.items()}
        return replace(block, has_final=has_final, finals=joined)

    def _read(self, group: int) -> pa.Table:
        if group != self._group:
            with open_parquet(self._file) as parquet:
                try:
                    self._table = parquet.read_row_group(group)
                except (pa.ArrowException, OSError) as error:
                    raise corrupt_parquet(FINALS, error) from error
            self._group = group
        return self._table


def _known(rows: pa.Table, spec: ColumnSpec) -> tuple[npt.NDArray[np.bool_], npt.NDArray[Any]]:
    """Which rows have a final observation, and those there are."""
    array = storage_array(rows.column(_source(spec)))
    known = np.ones(len(array), np.bool_)
    known[null_rows(array)] = False
    try:
        values = to_numpy(array.filter(pa.array(known)), spec.shape)
    except (Irregular, pa.ArrowException, AttributeError) as error:
        raise CorruptSourceError(
            f"should hold {spec.dtype} {spec.shape}: {error}", file=FINALS, column=spec.name
        ) from error
    if str(values.dtype) != spec.dtype:
        raise CorruptSourceError(f"holds {values.dtype}, not {spec.dtype}", file=FINALS, column=_source(spec))
    return known, values


def _source(spec: ColumnSpec) -> str:
    return spec.source or spec.name
