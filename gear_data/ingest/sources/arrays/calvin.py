"""CALVIN: one `.npz` file per step, https://github.com/mees/calvin.

A split is a folder, `training` or `validation`, with files such as `episode_0358482.npz`. `ep_start_end_ids.npy` [n, 2]
has the numbers of the first and the last file of each recording, both inclusive. The reference is `DiskDataset` in
calvin_agent/datasets/disk_dataset.py.

Nothing says how a recording ended, and there are no rewards. The language annotations are a pickle, which is never
loaded. A recording may have thousands of steps: `--max-episode-steps` cuts it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from typing import Any

import numpy as np
import numpy.typing as npt

from gear_data.errors import (
    BadEpisodeError,
    CorruptSourceError,
    EmptySourceError,
    GearError,
    HostMemoryError,
    UnknownFormatError,
)
from gear_data.ingest.findings.log import Finding, FindingLog
from gear_data.ingest.location import Location, SourceFile, holds_several
from gear_data.ingest.pipeline.columns import LEAVE_OUT, choose_columns
from gear_data.ingest.source import Format, SourceOptions
from gear_data.ingest.sources.arrays.boundaries import limit_lengths
from gear_data.ingest.sources.arrays.classify import integer_values, object_left_out
from gear_data.ingest.sources.arrays.numpy_files import StoredArray, open_npy, open_npz, read_small_npz
from gear_data.ingest.sources.arrays.source import ArraySource
from gear_data.ingest.sources.arrays.step_arrays import EpisodeRanges, StepArrays
from gear_data.ingest.splits import one_split
from gear_data.storage.episode_block import offsets_of

_RANGES, _LENGTHS = "ep_start_end_ids.npy", "ep_lens.npy"
_STEP = re.compile(r"(?P<prefix>.*?)(?P<number>\d+)\.npz")
#: Arrays that together are found in CALVIN's steps only.
_TYPICAL = ("rel_actions", "robot_obs")
_OBSERVATION = re.compile(r"(rgb|depth)_.+|robot_obs|scene_obs")
#: More threads than cores would only wait for each other: unpacking takes longer than opening.
_THREADS = min(8, os.cpu_count() or 1)
#: The part of the memory that the longest episode may take.
_MEMORY_PART = 4


def probe(location: Location) -> str | None:
    """Returns the reason if a folder holds CALVIN's list or steps; otherwise None."""
    for file in location.files:
        if file.name.endswith(_RANGES):  # there may be a million files
            return f"CALVIN: {file.name} lists recordings, and each step is a file"
    first = next(iter(location.with_suffix(".npz")), None)
    if first is None or _STEP.fullmatch(PurePosixPath(first.name).name) is None:
        return None
    try:
        names = set(open_npz(first))
    except GearError:
        return None  # format npz raises the error
    return f"CALVIN: {first.name} holds one step" if names.issuperset(_TYPICAL) else None


def open_(location: Location, options: SourceOptions) -> ArraySource:
    """Opens one split.

    Raises:
        SplitNeededError: there are several splits and none is chosen.
        InvalidArgumentError: the chosen split does not exist.
        UnknownFormatError: there is no list of recordings, or there are several datasets.
        CorruptSourceError: the list or the first step is damaged.
        BadEpisodeError: steps of a recording are missing, and bad episodes are not skipped.
        HostMemoryError: a recording does not fit the memory.
    """
    split, findings = _split(location), FindingLog()
    starts, stops = _recordings(split, options, findings)
    lengths = stops - starts
    if options.episodes.max_episode_steps is not None:
        lengths = limit_lengths(lengths, options.episodes.max_episode_steps)
        message = f"recordings are cut into episodes of {options.episodes.max_episode_steps} steps"
        findings.add(Finding("ends-by-length", message, file=split.ranges.name))
    numbers = np.concatenate([np.arange(*recording) for recording in zip(starts, stops, strict=True)])
    _report_left_out(split, numbers, findings)
    files = [split.steps[number] for number in numbers.tolist()]
    model = open_npz(files[0])
    columns = _columns(model, options, findings)
    arrays = {column: replace(model[name], shape=(len(files), *model[name].shape)) for name, column in columns.items()}
    first_rows = offsets_of(lengths)[:-1]
    episodes = EpisodeRanges(lengths, first_rows, facts={"first_file": numbers[first_rows].tolist()})
    step_arrays = StepArrays(
        name=split.name,
        steps=len(files),
        arrays=arrays,
        sources={column: name for name, column in columns.items()},
        locate=lambda: episodes,
        seekable=True,
    )
    step_arrays.columns()  # refuses sizes of a step that no column has
    step_bytes = sum(array.row_bytes for array in arrays.values())
    _check_memory(split, lengths, step_bytes)
    return ArraySource(
        [split.name],
        [step_bytes * len(files)],
        lambda _: step_arrays,
        findings,
        open_reader=lambda: _StepReader(files, arrays.values()),
    )


@dataclass(frozen=True)
class _Split:
    """The files of one split.

    Attributes:
        name: the name of its folder.
        ranges: the list of recordings.
        lengths: the list of their lengths, if there is one.
        steps: number -> file of a step.
        others: all other NumPy files.
    """

    name: str
    ranges: SourceFile
    lengths: SourceFile | None
    steps: Mapping[int, SourceFile]
    others: Sequence[SourceFile]


def _split(location: Location) -> _Split:
    """Finds the files of the chosen split."""
    lists = {PurePosixPath(f.name).parent: f for f in location.files if f.name.endswith(_RANGES)}
    if not lists:
        raise UnknownFormatError(
            f"lacks {_RANGES}, which lists the recordings of CALVIN", hint="copy it to this folder"
        )
    named = {folder.name: folder for folder in lists}
    if len(named) < len(lists):
        raise holds_several("datasets", lists, "convert one at a time: give its folder")
    folder = one_split(location.name, named, location.split)
    steps: dict[int, SourceFile] = {}
    others = []
    for file in location.with_suffix(".npz", ".npy"):
        path = PurePosixPath(file.name)
        match = _STEP.fullmatch(path.name) if path.parent == folder else None
        if match is not None and steps.setdefault(int(match["number"]), file) is not file:
            raise CorruptSourceError(
                f"has the number of {steps[int(match['number'])].name}", file=file.name, hint="move one of them away"
            )
        if match is None and folder in path.parents and path.name not in (_RANGES, _LENGTHS):
            others.append(file)
    name = str(folder) if folder.name else PurePosixPath(location.name).name
    return _Split(name, lists[folder], location.file(str(folder / _LENGTHS)), steps, others)


def _recordings(
    split: _Split, options: SourceOptions, findings: FindingLog
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Returns the recordings' first numbers, and the numbers after their last ones.

    Both are int64 [n]. Recordings that lack a step are left out if bad episodes are skipped.
    """
    name = split.ranges.name
    ranges = integer_values(open_npy(split.ranges), 2)
    if ranges.ndim != 2 or ranges.shape[1] != 2 or not len(ranges):
        raise CorruptSourceError(
            f"has the shape {ranges.shape}, not (recordings, 2)", file=name, hint="restore the file"
        )
    lengths = ranges[:, 1] - ranges[:, 0] + 1
    if split.lengths is not None and not np.array_equal(integer_values(open_npy(split.lengths), 2), lengths):
        message = f"gives other lengths than {_RANGES}, which counts"
        findings.add(Finding("metadata-disagrees", message, file=split.lengths.name))
    known = np.array(sorted(split.steps), np.int64)
    keep = np.ones(len(ranges), np.bool_)
    for row, (first, last) in enumerate(ranges.tolist()):
        problem = _problem(known, first, last)
        if problem is not None:
            findings.add_bad_episode(BadEpisodeError(problem, file=name, row=row), skip=options.skip_bad)
            keep[row] = False
    ranges = ranges[keep]
    if not len(ranges):
        raise EmptySourceError("lists no recording whose steps exist", file=name, hint="download the steps again")
    in_order = ranges[np.argsort(ranges[:, 0], kind="stable")]
    if overlaps := int((in_order[1:, 0] <= in_order[:-1, 1]).sum()):
        message = "recordings share steps, which are read once for each recording"
        findings.add(Finding("recordings-overlap", message, overlaps, name))
    return ranges[:, 0], ranges[:, 1] + 1


def _problem(known: npt.NDArray[np.int64], first: int, last: int) -> str | None:
    """Returns the reason why a recording cannot be read; None if all its steps exist.

    Args:
        known: the numbers of all steps, rising.
        first: the number of the recording's first step.
        last: the number of its last step.
    """
    if not 0 <= first <= last:
        return f"the recording is from step {first} to step {last}"
    found = known[np.searchsorted(known, first) : np.searchsorted(known, last, side="right")]
    if len(found) == last - first + 1:
        return None
    gaps = np.flatnonzero(found != first + np.arange(len(found)))
    missing = first + (int(gaps[0]) if len(gaps) else len(found))
    return f"the recording from step {first} to step {last} lacks the file of step {missing}"


def _report_left_out(split: _Split, numbers: npt.NDArray[np.int64], findings: FindingLog) -> None:
    """Adds findings about steps of no recording, and about files that are no steps."""
    if left_out := len(split.steps) - len(np.unique(numbers)):
        message = f"steps of no recording in {_RANGES}; left out"
        findings.add(Finding("rows-left-out", message, left_out, split.name))
    for file in split.others:
        if file.name.lower().endswith(".npy") and open_npy(file).dtype.hasobject:
            message = "a pickle, such as language annotations, which is never loaded; left out"
            findings.add(Finding("pickle-left-out", message, file=file.name))
        else:
            findings.add(Finding("files-left-out", "not a step of CALVIN; left out", file=file.name))


def _columns(model: Mapping[str, StoredArray], options: SourceOptions, findings: FindingLog) -> dict[str, str]:
    """Returns source name -> canonical name of the arrays of a step to read."""
    names = []
    for name, array in model.items():
        if array.dtype.hasobject:
            findings.add(object_left_out(array, name))
        else:
            names.append(name)
    rename = {name: f"observations.{name}" for name in names if _OBSERVATION.fullmatch(name)}
    return choose_columns(names, replace(options, rename=rename | dict(options.rename or {})))


def _check_memory(split: _Split, lengths: npt.NDArray[np.int64], step_bytes: int) -> None:
    """Checks that no episode takes a large part of the memory.

    Raises HostMemoryError otherwise: episodes are read whole.
    """
    longest = int(lengths.max())
    size = longest * step_bytes
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if size > memory // _MEMORY_PART:
        raise HostMemoryError(
            f"the longest recording has {longest} steps, which take {size >> 20} MiB in memory, more than a quarter of "
            f"{memory >> 20} MiB",
            file=split.ranges.name,
            hint="cut recordings with --max-episode-steps (episodes=EpisodeBoundaries(max_episode_steps=...)), "
            "or keep fewer arrays with --columns",
        )


class _StepReader:
    """A reader of steps, which opens several files at once.

    All columns of the rows that are read are read together, and kept until each was requested.
    """

    def __init__(self, files: Sequence[SourceFile], arrays: Collection[StoredArray]) -> None:
        self._files = files
        self._models = {_key(array): array for array in arrays}
        self._rows: dict[str, npt.NDArray[Any]] = {}
        self._range = (0, 0)

    def __enter__(self) -> _StepReader:
        self._pool = ThreadPoolExecutor(_THREADS, "gear-calvin")
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(cancel_futures=True)

    def read(self, array: StoredArray, start: int, stop: int) -> npt.NDArray[Any]:
        """Reads the steps [start, stop) of an array.

        Returns:
            [stop - start, *row_shape], in native byte order.

        Raises:
            CorruptSourceError: a file is damaged, or its arrays are not those of the first step.
        """
        if self._range != (start, stop) or _key(array) not in self._rows:
            self._rows = {
                name: np.empty((stop - start, *model.row_shape), model.dtype.newbyteorder("="))
                for name, model in self._models.items()
            }
            self._range = (start, stop)
            for _ in self._pool.map(self._read_step, range(start, stop)):
                pass
        return self._rows.pop(_key(array))

    def _read_step(self, row: int) -> None:
        file = self._files[row]
        values = read_small_npz(file, self._models)
        for name, model in self._models.items():
            found = values.get(name)
            if found is None or (found.dtype, found.shape) != (model.dtype, model.row_shape):
                described = "is missing" if found is None else f"is {found.dtype} {found.shape}"
                raise CorruptSourceError(
                    f"{described}; in the first step it is {model.dtype} {model.row_shape}",
                    file=file.name,
                    column=name,
                    hint=LEAVE_OUT,
                )
            self._rows[name][row - self._range[0]] = found


def _key(array: StoredArray) -> str:
    return (array.member or "").removesuffix(".npy")


FORMAT = Format(
    "calvin",
    probe,
    open_,
    uses=frozenset({"max_episode_steps", "split"}),
    suffixes=(".npz", ".npy"),
    beside=r"(.*/)?statistics\.yaml",
)
