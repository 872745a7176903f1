"""One episode that is a group of an HDF5 file: its datasets read, and checked against what the source's columns are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import h5py
import numpy as np
import numpy.typing as npt
import pyarrow as pa
from h5py import h5d, h5l

from gear_data.errors import BadEpisodeError, UnsupportedColumnError
from gear_data.ingest.findings.log import Finding, FindingLog
from gear_data.ingest.location import SourceFile
from gear_data.ingest.pipeline.episode_values import cast_exactly
from gear_data.ingest.sources.hdf5.file import check_dataset, links_below, read_fixed, read_variable, reading, step_spec
from gear_data.ingest.sources.tables.to_numpy import IrregularRowsError
from gear_data.schema import ColumnSpec


@dataclass(frozen=True)
class GroupColumn:
    """A dataset that every episode's group has, and the column it becomes.

    Attributes:
        spec: the column; with `has_final`, its final observation is the last row of `final`.
        path: of the dataset in the group.
        final: `path` itself where the dataset must have a row more than there are steps, which is the final
            observation; else the dataset of observations after each step, whose last row it is; None for no final.
        reset: the dataset may have a row more than there are steps; the first then belongs to the reset, and is left
            out.
        encoded: rows of uint8 are encoded images that happen to have one length.
    """

    spec: ColumnSpec
    path: str
    final: str | None = None
    reset: bool = False
    encoded: bool = False


@dataclass
class GroupEpisode:
    """An episode read: column name -> [steps, ...], final observation [1, ...], texts or bytes [steps] and [1]."""

    number: int
    steps: int
    columns: dict[str, npt.NDArray[Any]] = field(default_factory=dict)
    finals: dict[str, npt.NDArray[Any]] = field(default_factory=dict)
    variable: dict[str, pa.Array] = field(default_factory=dict)
    variable_finals: dict[str, pa.Array] = field(default_factory=dict)

    @property
    def nbytes(self) -> int:
        parts = (self.columns, self.finals, self.variable, self.variable_finals)
        return sum(array.nbytes for part in parts for array in part.values())


@dataclass(frozen=True)
class EpisodeReader:
    """Reads episodes of one source.

    Attributes:
        columns: what to read of each.
        steps: path of the dataset whose rows are the steps.
        model: the file and episode that `columns` were taken from, for messages.
        links: paths of every link below the model's group; those below other episodes are compared with them.
        findings: where what is noticed goes.
    """

    columns: tuple[GroupColumn, ...]
    steps: str
    model: str
    links: frozenset[str]
    findings: FindingLog

    def read(self, group: h5py.Group, file: SourceFile, number: int) -> GroupEpisode:
        """Raises BadEpisodeError: a dataset is missing, or not like the model's, or of an unfit number of rows."""
        links = links_below(group, file.name)
        if extra := sorted(links.keys() - self.links):
            message = f"'{extra[0]}' is not in {self.model}, so it is no column; left out"
            self.findings.add(Finding("column-left-out", message, len(extra), file.name, number))
        place = _OpenGroup(group, links, file, number, self.model)
        steps = place.dataset(self.steps).shape[0]
        if not steps:
            raise place.bad("the episode has no steps", self.steps)
        episode = GroupEpisode(number, steps)
        for column in self.columns:
            self._read_column(column, place, episode)
        return episode

    def _read_column(self, column: GroupColumn, place: _OpenGroup, episode: GroupEpisode) -> None:
        spec, steps = column.spec, episode.steps
        dataset = place.dataset(column.path)
        has_last = column.final == column.path
        after_reset = column.reset and dataset.shape[0] == steps + 1
        if not after_reset:
            place.check_rows(dataset, steps + 1 if has_last else steps, self.steps)
        part = slice(1, None) if after_reset else slice(0, steps)
        if after_reset:
            message = "the first of T + 1 values belongs to the reset, not to a step; left out"
            self.findings.add(Finding("reset-info-left-out", message, 1, place.file.name, place.number, column.path))
        self._check_like(dataset, column, place)
        if spec.variable_length:
            texts = place.read_variable(dataset, spec)
            episode.variable[spec.name] = texts[part]
            if has_last:
                episode.variable_finals[spec.name] = texts[steps:]
            return
        with reading(place.file.name, column.path, place.number):
            values = read_fixed(dataset.id, dataset.shape, dataset.dtype)
        values = self._converted(values, column, place)
        episode.columns[spec.name] = values[part]
        if has_last:
            episode.finals[spec.name] = values[steps:]
        elif column.final is not None:
            episode.finals[spec.name] = self._final(column, column.final, place, steps)

    def _final(self, column: GroupColumn, path: str, place: _OpenGroup, steps: int) -> npt.NDArray[Any]:
        """[1, *shape]: the last row of the observations after each step."""
        following = place.dataset(path)
        place.check_rows(following, steps, self.steps)
        column = replace(column, path=path)
        self._check_like(following, column, place)
        with reading(place.file.name, path, place.number):
            last = h5py.Dataset(following.id)[steps - 1 :]
        return self._converted(last.astype(following.dtype, copy=False), column, place)

    def _check_like(self, dataset: _CheckedDataset, column: GroupColumn, place: _OpenGroup) -> None:
        """That a dataset's steps are of the column's shape, and numbers where those are numbers."""
        spec = column.spec
        if not spec.variable_length and dataset.dtype == spec.numpy_dtype and dataset.shape[1:] == spec.shape:
            return
        with reading(place.file.name, column.path, place.number):
            opened = h5py.Dataset(dataset.id)
            try:
                found = step_spec(opened, column.path, spec.name, place.file.name, encoded=column.encoded)
            except UnsupportedColumnError as error:
                raise place.bad(error.message, column.path) from error
        numbers = not spec.variable_length and found.dtype not in ("bool", "string", "binary") and spec.dtype != "bool"
        if found.shape != spec.shape or (found.dtype != spec.dtype and not numbers):
            is_, was = f"{found.dtype} {found.shape}", f"{spec.dtype} {spec.shape}"
            raise place.bad(f"is {is_}, in {self.model} {was}", column.path)

    def _converted(self, values: npt.NDArray[Any], column: GroupColumn, place: _OpenGroup) -> npt.NDArray[Any]:
        """[rows, *shape] in the column's dtype, into which other numbers go if it holds them exactly.

        Lists of numbers get their dtype from the values of one episode, so writers leave int64 in one group and float64
        in the next.
        """
        spec, own = column.spec, values.dtype
        values = values.reshape(-1, *spec.shape)
        if own == spec.numpy_dtype:
            return values
        cast = cast_exactly(values, spec.dtype)
        if cast is None:
            raise place.bad(f"is {own}, and does not fit {spec.dtype}, which it is in {self.model}", column.path)
        message = f"{own} in some episodes; the same numbers are kept as {spec.dtype}"
        self.findings.add(Finding("dtype-differs", message, 1, place.file.name, place.number, column.path))
        return cast


@dataclass(frozen=True)
class _CheckedDataset:
    """A dataset opened and found harmless; `dtype` is of this machine's byte order."""

    id: h5d.DatasetID
    path: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]


@dataclass
class _OpenGroup:
    """Where an episode is, and its datasets opened so far."""

    group: h5py.Group
    links: Mapping[str, int]
    file: SourceFile
    number: int
    model: str
    opened: dict[str, _CheckedDataset] = field(default_factory=dict)

    def bad(self, message: str, column: str) -> BadEpisodeError:
        return BadEpisodeError(message, file=self.file.name, column=column, row=self.number)

    def dataset(self, path: str) -> _CheckedDataset:
        if path in self.opened:
            return self.opened[path]
        if path not in self.links:
            raise self.bad(f"is missing; {self.model} has it", path)
        if any(self.links[part] != h5l.TYPE_HARD for part in (path, *_parents(path))):
            raise self.bad("is a link to elsewhere, which is not followed", path)
        with reading(self.file.name, path, self.number):
            dataset = h5d.open(self.group.id, path.encode())
            shape = check_dataset(dataset, self.file, path)
            found = _CheckedDataset(dataset, path, shape, dataset.dtype.newbyteorder("="))
        if not shape:
            raise self.bad("is a scalar, where a row a step is due", path)
        self.opened[path] = found
        return found

    def check_rows(self, dataset: _CheckedDataset, wanted: int, steps: str) -> None:
        if dataset.shape[0] != wanted:
            rows = self.opened[steps].shape[0]
            message = f"has {dataset.shape[0]} rows, where {wanted} go with the {rows} of '{steps}'"
            raise self.bad(message, dataset.path)

    def read_variable(self, dataset: _CheckedDataset, spec: ColumnSpec) -> pa.Array:
        with reading(self.file.name, dataset.path, self.number):
            try:
                return read_variable(h5py.Dataset(dataset.id), spec)
            except IrregularRowsError as error:
                raise self.bad(f"step {error.rows[0]} {error.reason}", dataset.path) from error


@cache
def _parents(path: str) -> tuple[str, ...]:
    parts = path.split("/")
    return tuple("/".join(parts[:i]) for i in range(1, len(parts)))
