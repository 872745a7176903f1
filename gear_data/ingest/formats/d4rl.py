"""D4RL HDF5: all steps flat, episodes told apart by `terminals` and `timeouts`.

Layout: https://github.com/Farama-Foundation/D4RL (`observations` (N, S), `actions` (N, A), `rewards` and
`terminals` (N,) or (N, 1), optionally `timeouts`, `next_observations`, `infos/*`, `metadata/*`). Without
`timeouts` an episode ends where `next_observations[t]` is not `observations[t + 1]`. `next_observations` of an
episode's last step becomes its final observation; within an episode it repeats `observations` and is not stored.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import h5py
import numpy as np
import numpy.typing as npt

from gear_data.errors import (
    BadEpisodeError,
    CorruptSourceError,
    EmptySourceError,
    UnknownFormatError,
    UnsupportedColumnError,
)
from gear_data.ingest.assemble import StepPart, assemble
from gear_data.ingest.columns import SCALARS, choose_columns
from gear_data.ingest.findings import Finding, Findings
from gear_data.ingest.location import Location, SourceFile
from gear_data.ingest.names import canonical_name, name_map
from gear_data.ingest.source import Format, SourceOptions, Unit
from gear_data.schema import DTYPES, ColumnSpec
from gear_data.storage.block import BEGIN, EpisodeBlock, Position

_SUFFIXES = (".hdf5", ".h5")
_REQUIRED = ("observations", "actions", "rewards", "terminals")
_CHUNK_BYTES = 32 << 20


def probe(location: Location) -> str | None:
    files = location.with_suffix(*_SUFFIXES)
    if not files:
        return None
    with _open_file(files[0]) as file:
        if all(isinstance(file.get(name), h5py.Dataset) for name in _REQUIRED):
            return "D4RL: flat HDF5 datasets " + ", ".join(_REQUIRED)
    return None


def open_(location: Location, options: SourceOptions) -> D4rl:
    files = location.with_suffix(*_SUFFIXES)
    if not files:
        raise UnknownFormatError("holds no HDF5 file", file=location.name)
    return D4rl(files, options)


def _open_file(file: SourceFile) -> h5py.File:
    file.check_readable()
    with _reading(file.name):
        return h5py.File(file.path if file.filesystem is None else file.open(), "r")


@contextmanager
def _reading(name: str) -> Iterator[None]:
    """Turns what h5py raises for a damaged file into CorruptSourceError."""
    try:
        yield
    except (OSError, RuntimeError, KeyError) as error:
        raise CorruptSourceError(
            f"not a whole HDF5 file: {error}", file=name, hint="it may have been cut short: download it again"
        ) from error


class D4rl:
    """An `EpisodeSource` over D4RL HDF5 files."""

    rows_are_steps = True

    def __init__(self, files: tuple[SourceFile, ...], options: SourceOptions) -> None:
        self.findings = Findings()
        self.notes: dict[str, Any] = {}
        self._files = files
        for file in files:  # the first that has steps is what the others must be like
            self._model = file.name
            with _open_file(file) as opened:
                rows = self._describe(opened, options)
            if rows:
                break
        else:
            raise EmptySourceError("holds no steps", file=files[0].name, column=self._observations)
        self.num_rows: int | None = rows if len(files) == 1 else None
        if self._timeouts is None and self._next is None:
            raise UnknownFormatError(
                "neither 'timeouts' nor 'next_observations' says where episodes end",
                file=self._model,
                hint="add a 'timeouts' dataset, true at each episode's last step that is not terminal",
            )

    def _describe(self, file: h5py.File, options: SourceOptions) -> int:
        """Takes names, dtypes and shapes from a file; its number of steps."""
        with _reading(self._model):
            datasets, self.metadata = _inventory(file)
        by_name = {name: source for source, name in name_map(datasets, options.rename).items()}
        for name in _REQUIRED:
            if canonical_name(name) not in by_name:
                raise UnknownFormatError(f"has no dataset '{name}'", file=self._model, column=name)
        self._next = by_name.get("next_observations")
        self._observations = by_name["observations"]
        self._terminals = by_name["terminated"]
        self._timeouts = by_name.get("truncated")
        chosen = choose_columns(datasets, options)
        keeps_next = options.columns is not None and "next_observations" in options.columns
        self._sources = {s: n for s, n in chosen.items() if keeps_next or n != "next_observations"}
        self._has_final = self._next is not None and "observations" in self._sources.values()
        self.columns = tuple(
            _column(source, name, datasets[source], self._has_final and name == "observations", self._model)
            for source, name in self._sources.items()
        )
        return int(datasets[self._observations].shape[0])

    def units(self) -> Sequence[Unit]:
        return (Unit(BEGIN, sum(file.size for file in self._files)),)

    def blocks(self, start: Position, stop: Position) -> Iterator[EpisodeBlock]:
        for block in assemble(self._parts(start, stop), self.findings, has_final=self._has_final):
            yield self._settle_flags(block)

    def _parts(self, start: Position, stop: Position) -> Iterator[StepPart]:
        number = 0
        for index in range(start.file, len(self._files)):
            first = start.row if index == start.file else 0
            if (index, first) >= stop:
                return
            with _open_file(self._files[index]) as file:
                for part in self._file_parts(file, index, first, number):
                    number = int(part.episodes[-1])
                    yield part
            number += 1  # an episode does not go on in the next file

    def _file_parts(self, file: h5py.File, index: int, first: int, number: int) -> Iterator[StepPart]:
        name = self._files[index].name
        rows = self._check_rows(file, name)
        if not rows:
            self.findings.add(Finding("empty-file", "the datasets hold no steps", file=name))
        row_bytes = sum(spec.row_bytes for spec in self.columns)
        step = max(1, _CHUNK_BYTES // row_bytes)
        ended = False  # whether the row before this part was an episode's last
        for row in range(first, rows, step):
            stop = min(rows, row + step)
            with _reading(name):
                columns = {
                    # HDF5 may hold the other byte order.
                    spec.name: file[source][row:stop].reshape(stop - row, *spec.shape).astype(spec.dtype, copy=False)
                    for source, spec in zip(self._sources, self.columns, strict=True)
                }
                following = None if self._next is None else file[self._next][row:stop]
                ends = self._ends(file, row, stop, rows, following)
            episodes = number + np.cumsum(np.concatenate([[ended], ends[:-1]]))
            number, ended = int(episodes[-1]), bool(ends[-1])
            finals = {}
            if self._has_final and following is not None:
                finals["observations"] = following.astype(columns["observations"].dtype, copy=False)
            yield StepPart(
                file=index,
                name=name,
                rows=np.arange(row, stop, dtype=np.int64),
                episodes=episodes.astype(np.int64),
                keep=np.ones(stop - row, np.bool_),
                columns=columns,
                facts={},
                finals=finals,
            )

    def _check_rows(self, file: h5py.File, name: str) -> int:
        """Steps of a file, whose datasets must have one length, and dtypes and shapes like the first file's."""
        names = [*self._sources, *([self._next] if self._next else [])]
        for source in names:
            if not isinstance(file.get(source), h5py.Dataset):
                raise CorruptSourceError(f"is missing; {self._model} has it", file=name, column=source)
        rows = int(file[self._observations].shape[0])
        if rows and self._next is not None:
            model, found = (_column(n, n, file[n], False, name) for n in (self._observations, self._next))
            if (model.dtype, model.shape) != (found.dtype, found.shape):
                raise CorruptSourceError(
                    f"is {found.dtype} {found.shape}, where '{self._observations}' is {model.dtype} {model.shape}",
                    file=name,
                    column=self._next,
                    hint="it gives final observations, which must be like the others; convert a copy without it",
                )
        for source in names:
            if file[source].shape[0] != rows:
                raise BadEpisodeError(
                    f"has {file[source].shape[0]} rows, where '{self._observations}' has {rows}",
                    file=name,
                    column=source,
                    row=min(rows, int(file[source].shape[0])),
                )
        if rows:
            for source, spec in zip(self._sources, self.columns, strict=True):
                found = _column(source, spec.name, file[source], spec.has_final, name)
                if found != spec:
                    raise CorruptSourceError(
                        f"is {found.dtype} {found.shape}, in {self._model} {spec.dtype} {spec.shape}",
                        file=name,
                        column=source,
                    )
        return rows

    def _ends(
        self, file: h5py.File, row: int, stop: int, rows: int, following: npt.NDArray[Any] | None
    ) -> npt.NDArray[np.bool_]:
        """bool [stop - row]: whether each step is the last of its episode."""
        ends: npt.NDArray[np.bool_] = file[self._terminals][row:stop].reshape(-1).astype(np.bool_)
        if self._timeouts is not None:
            ends |= file[self._timeouts][row:stop].reshape(-1).astype(np.bool_)
            return ends
        if following is not None:
            observations = file[self._observations][row + 1 : min(rows, stop + 1)]
            following = following[: len(observations)]
            same = (following == observations) | ((following != following) & (observations != observations))  # NaN
            ends[: len(same)] |= ~same.reshape(len(same), -1).all(axis=1)
        return ends

    def _settle_flags(self, block: EpisodeBlock) -> EpisodeBlock:
        """Both flags set means terminated (D4RL's own reading)."""
        if self._timeouts is None:
            return block
        truncated = block.columns["truncated"].astype(np.bool_)
        both = block.columns["terminated"].astype(np.bool_) & truncated
        if not both.any():
            return block
        step, offsets = int(np.argmax(both)), block.offsets
        episode = int(np.searchsorted(offsets, step, side="right")) - 1
        row = int(block.rows[episode]) + step - int(offsets[episode])
        message = "terminals and timeouts both set; taken as terminated, not truncated"
        self.findings.add(Finding("both-flags", message, int(both.sum()), block.sources[episode], row))
        return replace(block, columns={**block.columns, "truncated": truncated & ~both})


def _inventory(file: h5py.File) -> tuple[dict[str, h5py.Dataset], dict[str, Any]]:
    """The step datasets by path, and what stands under `metadata/`."""
    datasets: dict[str, h5py.Dataset] = {}
    metadata: dict[str, Any] = {}

    def visit(path: str, item: Any) -> None:
        if not isinstance(item, h5py.Dataset):
            return
        if path.startswith("metadata/"):
            if item.shape == ():
                value = item[()]
                metadata[path.removeprefix("metadata/")] = (
                    value.decode("utf-8", "replace") if isinstance(value, bytes) else np.asarray(value).item()
                )
        elif item.shape:
            datasets[path] = item

    file.visititems(visit)
    return datasets, metadata


def _column(source: str, name: str, dataset: h5py.Dataset, has_final: bool, file: str) -> ColumnSpec:
    dtype = str(dataset.dtype.newbyteorder("=")) if dataset.dtype.kind in "biuf" else str(dataset.dtype)
    if dtype not in DTYPES:
        raise UnsupportedColumnError(
            f"holds {dtype}, which is not a number or a boolean",
            file=file,
            column=source,
            hint="name the columns to keep with --columns (columns=[...]), leaving this one out",
        )
    shape = tuple(int(n) for n in dataset.shape[1:])
    if name in SCALARS and shape == (1,):
        shape = ()
    return ColumnSpec(name, dtype, shape, False, None if source == name else source, has_final)


FORMAT = Format(
    name="d4rl",
    summary="D4RL HDF5 (flat datasets with terminals and timeouts)",
    probe=probe,
    open=open_,
    priority=10,
)
