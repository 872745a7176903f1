"""Reader of one episode that is a group of an HDF5 file.

Every dataset of the group is checked against the source's columns before it is read.
"""

from __future__ import annotations

import math
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
from gear_data.ingest.sources.hdf5.datasets import check_dataset, read_fixed, read_variable, step_spec
from gear_data.ingest.sources.hdf5.inventory import links_below
from gear_data.ingest.sources.hdf5.open_file import reading
from gear_data.ingest.sources.tables.to_numpy import IrregularRowsError
from gear_data.schema import ColumnSpec

#: Larger facts, such as images, are left out: the episode table is held in memory.
MAX_FACT_VALUES = 1 << 16


@dataclass(frozen=True)
class GroupColumn:
    """A dataset that every episode's group has, and the column it becomes.

    Attributes:
        spec: the column.
        path: path of the dataset in the group.
        final: path of the dataset whose last row is the final observation, or None. It is `path` for a dataset of T + 1
            rows; otherwise it is a dataset of T rows, the observations after each step.
        reset: the dataset may have T + 1 rows, of which the first belongs to the reset and is dropped.
        encoded: rows of uint8, or of text, are encoded images. They may be padded to one length.
        is_list: a fact may have any number of rows, which become a list.
    """

    spec: ColumnSpec
    path: str
    final: str | None = None
    reset: bool = False
    encoded: bool = False
    is_list: bool = False


@dataclass(frozen=True)
class GroupContents:
    """The datasets to read from every episode's group.

    Attributes:
        columns: datasets with a row per step.
        facts: datasets that belong to the whole episode: one row, or a list. Their `spec` is about one row: a scalar,
            or an array that becomes a list.
        findings: notes on datasets with an unusual number of rows.
    """

    columns: tuple[GroupColumn, ...]
    facts: tuple[GroupColumn, ...] = ()
    findings: tuple[Finding, ...] = ()


@dataclass
class GroupEpisode:
    """An episode that was read.

    Attributes:
        number: number of the episode, from the name of its group.
        steps: number of steps, T.
        columns: name -> [T, ...], columns of a fixed size.
        finals: name -> [1, ...], final observations.
        variable: name -> T texts or bytes.
        variable_finals: name -> one text or bytes, the final observation.
        facts: name -> plain value, or nested list of them, of a dataset with one row; None if the group lacks it.
    """

    number: int
    steps: int
    columns: dict[str, npt.NDArray[Any]] = field(default_factory=dict)
    finals: dict[str, npt.NDArray[Any]] = field(default_factory=dict)
    variable: dict[str, pa.Array] = field(default_factory=dict)
    variable_finals: dict[str, pa.Array] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays."""
        groups = (self.columns, self.finals, self.variable, self.variable_finals)
        return sum(array.nbytes for group in groups for array in group.values())


@dataclass(frozen=True)
class EpisodeReader:
    """Reads the episodes of one source.

    Attributes:
        contents: the columns and facts to read from each episode.
        steps: path of the dataset whose rows are the steps.
        model: file and episode that `contents` were inferred from, for messages.
        links: paths of every link below the model's group, for comparison with the other episodes.
        findings: receives the findings.
    """

    contents: GroupContents
    steps: str
    model: str
    links: frozenset[str]
    findings: FindingLog

    def read(self, group: h5py.Group, file: SourceFile, number: int) -> GroupEpisode:
        """Reads one episode.

        Raises:
            BadEpisodeError: a dataset is missing, differs from the model's, or has the wrong number of rows.
        """
        links = links_below(group, file.name)
        if extra := sorted(links.keys() - self.links):
            message = f"'{extra[0]}' is not in {self.model}, so it is not a column; left out"
            self.findings.add(Finding("column-left-out", message, len(extra), file.name, number))
        opened = _OpenGroup(group, links, file, number, self.model)
        steps = opened.dataset(self.steps).shape[0]
        if not steps:
            raise opened.error("the episode has no steps", self.steps)
        episode = GroupEpisode(number, steps)
        for column in self.contents.columns:
            self._read_column(column, opened, episode)
        for fact in self.contents.facts:
            episode.facts[fact.spec.name] = self._read_fact(fact, opened) if fact.path in links else None
        return episode

    def _read_column(self, column: GroupColumn, opened: _OpenGroup, episode: GroupEpisode) -> None:
        spec, steps = column.spec, episode.steps
        dataset = opened.dataset(column.path)
        has_last = column.final == column.path
        has_reset_row = column.reset and dataset.shape[0] == steps + 1
        if not has_reset_row:
            opened.check_rows(dataset, steps + 1 if has_last else steps, self.steps)
        step_rows = slice(1, None) if has_reset_row else slice(0, steps)
        if has_reset_row:
            message = "the first of T + 1 values belongs to the reset, not to a step; left out"
            self.findings.add(Finding("reset-info-left-out", message, 1, opened.file.name, opened.number, column.path))
        self._check_matches(dataset, column, opened)
        if spec.variable_length:
            texts = opened.read_variable(dataset, spec)
            episode.variable[spec.name] = texts[step_rows]
            if has_last:
                episode.variable_finals[spec.name] = texts[steps:]
            return
        with reading(opened.file.name, column.path, opened.number):
            values = read_fixed(dataset.id, dataset.shape, dataset.dtype)
        values = self._cast(values, column, opened)
        episode.columns[spec.name] = values[step_rows]
        if has_last:
            episode.finals[spec.name] = values[steps:]
        elif column.final is not None:
            episode.finals[spec.name] = self._read_final(column, column.final, opened, steps)

    def _read_fact(self, fact: GroupColumn, opened: _OpenGroup) -> Any:
        """Returns the value of a fact. The one element of one row becomes a scalar."""
        dataset = opened.dataset(fact.path)
        if not fact.is_list:
            opened.check_rows(dataset, 1, self.steps)
        elif (count := math.prod(dataset.shape)) > MAX_FACT_VALUES:
            raise opened.error(f"holds {count} values, above the limit of {MAX_FACT_VALUES} for a fact", fact.path)
        self._check_matches(dataset, fact, opened)
        if fact.spec.variable_length:
            texts = opened.read_variable(dataset, fact.spec).to_pylist()
            return texts if fact.is_list else texts[0]
        with reading(opened.file.name, fact.path, opened.number):
            values = read_fixed(dataset.id, dataset.shape, dataset.dtype)
        values = self._cast(values, fact, opened)
        if fact.is_list:
            return values.tolist()
        return values.item() if values.size == 1 else values[0].tolist()

    def _read_final(self, column: GroupColumn, path: str, opened: _OpenGroup, steps: int) -> npt.NDArray[Any]:
        """Returns [1, *shape]: the last row of the observations after each step."""
        dataset = opened.dataset(path)
        opened.check_rows(dataset, steps, self.steps)
        column = replace(column, path=path)
        self._check_matches(dataset, column, opened)
        with reading(opened.file.name, path, opened.number):
            last = h5py.Dataset(dataset.id)[steps - 1 :]
        return self._cast(last.astype(dataset.dtype, copy=False), column, opened)

    def _check_matches(self, dataset: _CheckedDataset, column: GroupColumn, opened: _OpenGroup) -> None:
        """Checks that a dataset has the column's shape and kind of dtype."""
        spec = column.spec
        if not spec.variable_length and dataset.dtype == spec.numpy_dtype and dataset.shape[1:] == spec.shape:
            return
        with reading(opened.file.name, column.path, opened.number):
            values = h5py.Dataset(dataset.id)
            try:
                found = step_spec(values, column.path, spec.name, opened.file.name, encoded=column.encoded)
            except UnsupportedColumnError as error:
                raise opened.error(error.message, column.path) from error
        both_numbers = (
            not spec.variable_length and found.dtype not in ("bool", "string", "binary") and spec.dtype != "bool"
        )
        if found.shape != spec.shape or (found.dtype != spec.dtype and not both_numbers):
            raise opened.error(
                f"is {found.dtype} {found.shape}, in {self.model} {spec.dtype} {spec.shape}", column.path
            )

    def _cast(self, values: npt.NDArray[Any], column: GroupColumn, opened: _OpenGroup) -> npt.NDArray[Any]:
        """Returns [rows, *shape] in the column's dtype, cast if no value changes.

        Minari writes lists of Python numbers, whose dtype depends on the values of one episode: int64 in one group,
        float64 in the next.
        """
        spec, stored = column.spec, values.dtype
        values = values.reshape(-1, *spec.shape)
        if stored == spec.numpy_dtype:
            return values
        cast = cast_exactly(values, spec.dtype)
        if cast is None:
            raise opened.error(f"is {stored}, and does not fit {spec.dtype}, its dtype in {self.model}", column.path)
        message = f"{stored} in some episodes; the same numbers are kept as {spec.dtype}"
        self.findings.add(Finding("dtype-differs", message, 1, opened.file.name, opened.number, column.path))
        return cast


@dataclass(frozen=True)
class _CheckedDataset:
    """A dataset that is open and safe to read; `dtype` is in native byte order."""

    id: h5d.DatasetID
    path: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]


@dataclass
class _OpenGroup:
    """An episode's group, and the datasets opened so far."""

    group: h5py.Group
    links: Mapping[str, int]
    file: SourceFile
    number: int
    model: str
    datasets: dict[str, _CheckedDataset] = field(default_factory=dict)

    def error(self, message: str, column: str) -> BadEpisodeError:
        """Returns a BadEpisodeError with the file and number of this episode."""
        return BadEpisodeError(message, file=self.file.name, column=column, row=self.number)

    def dataset(self, path: str) -> _CheckedDataset:
        """Opens a dataset by its path in the group."""
        if path in self.datasets:
            return self.datasets[path]
        if path not in self.links:
            raise self.error(f"is missing; {self.model} has it", path)
        if any(self.links[prefix] != h5l.TYPE_HARD for prefix in (path, *_parents(path))):
            raise self.error("is a link to elsewhere, which is not followed", path)
        with reading(self.file.name, path, self.number):
            dataset = h5d.open(self.group.id, path.encode())
            shape = check_dataset(dataset, self.file, path)
            checked = _CheckedDataset(dataset, path, shape, dataset.dtype.newbyteorder("="))
        if not shape:
            raise self.error("is a scalar, where one row per step is expected", path)
        self.datasets[path] = checked
        return checked

    def check_rows(self, dataset: _CheckedDataset, expected: int, steps: str) -> None:
        """Checks the number of rows.

        `steps` is the path of the dataset whose rows are the steps.
        """
        if dataset.shape[0] != expected:
            rows = self.datasets[steps].shape[0]
            message = f"has {dataset.shape[0]} rows, where {expected} are expected: '{steps}' has {rows}"
            raise self.error(message, dataset.path)

    def read_variable(self, dataset: _CheckedDataset, spec: ColumnSpec) -> pa.Array:
        """Reads a dataset of texts or bytes."""
        with reading(self.file.name, dataset.path, self.number):
            try:
                return read_variable(h5py.Dataset(dataset.id), spec)
            except IrregularRowsError as error:
                raise self.error(f"step {error.rows[0]} {error.reason}", dataset.path) from error


@cache
def _parents(path: str) -> tuple[str, ...]:
    parts = path.split("/")
    return tuple("/".join(parts[:i]) for i in range(1, len(parts)))
