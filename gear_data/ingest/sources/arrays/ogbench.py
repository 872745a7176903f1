"""OGBench's NumPy archives: https://github.com/seohongpark/ogbench.

A trajectory of T steps has T + 1 rows of `observations` and `actions`. `terminals` is 1 in its last row, which holds
only the final observation: the action there leads nowhere. Nothing terminates; a trajectory ends at a time limit.

Two other forms exist, as `ogbench.load_dataset` and its relabelling for `-singletask` return them. They may have
`rewards` and `masks`, both about the observation of their row:

- compact: `valids` is 0 in the row of the final observation.
- regular: T rows with `next_observations`; `terminals` is 1 at the last step.

`NAME.npz` is the split train and `NAME-val.npz` is val; `gear_data.ingest.location` chooses.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import PurePosixPath

import numpy as np

from gear_data.errors import GearError, UnknownFormatError
from gear_data.ingest.findings.log import Finding
from gear_data.ingest.location import Location, holds_several
from gear_data.ingest.pipeline.names import is_observation
from gear_data.ingest.source import Format, SourceOptions
from gear_data.ingest.sources.arrays.boundaries import scan_lengths, without_final_rows
from gear_data.ingest.sources.arrays.classify import NEXT, ClassifiedArrays, classify_arrays, flag_values, scalar_facts
from gear_data.ingest.sources.arrays.numpy_files import StoredArray, open_npz
from gear_data.ingest.sources.arrays.source import ArraySource
from gear_data.ingest.sources.arrays.step_arrays import EpisodeRanges, StepArrays
from gear_data.storage.episode_block import offsets_of

_SUFFIX = ".npz"
_TERMINALS, _VALIDS = "terminals", "valids"
#: OGBench has no such array: beside it, `terminals` are terminal steps, as in D4RL and in exports to npz.
_TIMEOUTS = "timeouts"
_REQUIRED = ("observations", "actions", _TERMINALS)
#: The state of the simulator. `ogbench.load_dataset` reads it only if asked to, and so does this format.
_ON_REQUEST = ("qpos", "qvel", "button_states")
#: The files of OGBench: `cube-double-play-v0.npz`, and `NAME-000.npz` of a dataset in several files.
_FILE_NAME = re.compile(
    r"(?P<dataset>(visual-)?(pointmaze|antmaze|humanoidmaze|antsoccer|cube|scene|puzzle|powderworld)-.+-v\d+)"
    r"(-\d+)?(-val)?\.npz"
)


def probe(location: Location) -> str | None:
    """Returns the reason if the first archive is OGBench's; otherwise None.

    The array `terminals` is no evidence: in other archives its row is a step.
    """
    files = location.with_suffix(_SUFFIX)
    if not files:
        return None
    try:
        names = set(open_npz(files[0]))
    except GearError:
        return None  # format npz raises the error
    if not names.issuperset(_REQUIRED) or _TIMEOUTS in names:
        return None
    has_state = names.issuperset(("qpos", "qvel")) and "rewards" not in names
    if not (has_state or _VALIDS in names or _dataset(files[0].name)):
        return None
    left_out = [name for name in _ON_REQUEST if name in names]
    note = f"; --columns also reads {', '.join(left_out)}" if left_out else ""
    return f"OGBench: {files[0].name} has {', '.join(_REQUIRED)}{note}"


def open_(location: Location, options: SourceOptions) -> ArraySource:
    """Opens OGBench's archives of one dataset and split.

    Raises:
        UnknownFormatError: there is no archive, or there are archives of several datasets.
    """
    files = location.with_suffix(_SUFFIX)
    if not files:
        raise UnknownFormatError("holds no .npz file", hint="leave --format out")
    datasets = dict.fromkeys(name for file in files if (name := _dataset(file.name)) is not None)
    if len(datasets) > 1:
        raise holds_several("datasets", datasets, f"convert one at a time: give a file, such as {files[0].name}")

    def open_arrays(i: int) -> StepArrays:
        return ogbench_arrays(files[i].name, open_npz(files[i]), options)

    return ArraySource([file.name for file in files], [file.size for file in files], open_arrays)


def ogbench_arrays(name: str, arrays: Mapping[str, StoredArray], options: SourceOptions) -> StepArrays:
    """Builds the step arrays of one archive, in any of the three forms.

    Raises:
        UnknownFormatError: the archive lacks an array that OGBench's archives have, or has `timeouts`.
        BadEpisodeError: arrays have different lengths, a flag is neither 0 nor 1, or a trajectory has no step.
    """
    missing = [source for source in _REQUIRED if source not in arrays]
    if missing:
        raise UnknownFormatError(
            f"holds no array '{missing[0]}', which OGBench's files have",
            hint=f"its arrays: {', '.join(arrays)}; leave --format out",
        )
    if _TIMEOUTS in arrays and _TIMEOUTS not in (options.rename or {}):
        raise UnknownFormatError(
            f"holds '{_TIMEOUTS}', which OGBench's files do not have: '{_TERMINALS}' may be terminal steps",
            column=_TIMEOUTS,
            hint="leave --format out",
        )
    requested = {*(options.columns or ()), *(options.rename or {})}
    wanted = {
        source: array
        for source, array in arrays.items()
        if source != _VALIDS and (source not in _ON_REQUEST or source in requested)
    }
    # The row of a set flag is where a time limit ended the trajectory.
    rename = {_TERMINALS: "truncated", **(options.rename or {})}
    classified = classify_arrays(name, wanted, replace(options, rename=rename))
    rows = len(arrays[_TERMINALS])
    for column, array in classified.steps.items():
        if len(array) != rows:
            raise classified.wrong_length(column, rows)
    columns = {column: array for column, array in classified.steps.items() if column != "truncated"}
    with_final_row = NEXT not in arrays or _VALIDS in arrays
    episodes = _episodes(classified, arrays, options, with_final_row=with_final_row)
    finals = filter(is_observation, columns) if with_final_row else ()
    return classified.with_episodes(episodes, columns, finals, flag_sources={"truncated": _TERMINALS})


def _episodes(
    classified: ClassifiedArrays, arrays: Mapping[str, StoredArray], options: SourceOptions, *, with_final_row: bool
) -> EpisodeRanges:
    """Finds the episodes. Their last row may be only the final observation, or a step, as in the regular form."""
    rows, column = len(arrays[_TERMINALS]), _VALIDS if _VALIDS in arrays else _TERMINALS
    is_last = flag_values(arrays[column], rows, column) ^ (column == _VALIDS)
    lengths, findings = scan_lengths(rows, 1, [lambda start, stop: is_last[start:stop]]), list(classified.findings)
    starts = offsets_of(lengths)[:-1]
    if rows and not is_last[-1]:
        message = f"the file ends before '{_TERMINALS}' does; read as truncated"
        if with_final_row:
            message = "the file ends inside a trajectory; its last row is read as the final observation"
        findings.append(Finding("unfinished-episode", message, file=classified.name, row=int(starts[-1])))
    if with_final_row:
        starts, lengths, empty = without_final_rows(classified.name, column, starts, rows, options)
        findings += empty
    return EpisodeRanges(
        lengths,
        starts,
        facts=scalar_facts(classified, len(lengths)),
        flags={"truncated": np.ones(len(lengths), np.bool_)},
        findings=tuple(findings),
    )


def _dataset(name: str) -> str | None:
    """Returns the name of OGBench's dataset that a file belongs to, or None."""
    match = _FILE_NAME.fullmatch(PurePosixPath(name).name)
    return match and match["dataset"]


FORMAT = Format("ogbench", probe, open_, suffixes=(_SUFFIX,))
