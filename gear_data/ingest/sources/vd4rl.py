"""V-D4RL's HDF5 shards of 84 x 84 images: https://github.com/conglu1997/v-d4rl.

A shard holds `observation` [N, C, H, W], `action`, `reward`, `discount` and `step_type` of time steps of `dm_env`, one
after another. `step_type` is 0 in an episode's first row, 2 in its last one, and 1 between. A row has the action, the
reward and the discount that led to its observation, so they belong to the step before. The first row of an episode has
none. The reference is `EfficientReplayBuffer` in drqbc/numpy_replay_buffer.py.

The archives of 64 x 64 images are Dreamer's: `gear_data.ingest.sources.arrays.dreamer` reads them.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from gear_data.errors import BadEpisodeError, UnknownFormatError
from gear_data.ingest.findings.log import Finding
from gear_data.ingest.layout import Column, ColumnRole, EndsAre, EpisodeRule, Kind, Layout
from gear_data.ingest.location import Location
from gear_data.ingest.pipeline.columns import choose_columns
from gear_data.ingest.pipeline.names import is_observation
from gear_data.ingest.source import Format, SourceOptions
from gear_data.ingest.sources.arrays.boundaries import without_final_rows
from gear_data.ingest.sources.arrays.step_arrays import EpisodeRanges
from gear_data.ingest.sources.hdf5.flat_file import FlatFile, flat_file
from gear_data.ingest.sources.hdf5.open_file import HDF5_SUFFIXES, hdf5_files
from gear_data.ingest.sources.tree.blocks import TreeLayout
from gear_data.ingest.sources.tree.columns import TreeColumn, describe
from gear_data.ingest.sources.tree.hdf5_view import hdf5_tree, hdf5_trees
from gear_data.ingest.sources.tree.source import Hooks, TreeSource
from gear_data.ingest.sources.tree.view import Tree, TreeArray
from gear_data.schema import ColumnSpec

_ACTION, _REWARD, _DISCOUNT, _STEP_TYPE = "action", "reward", "discount", "step_type"
_REQUIRED = ("observation", _ACTION, _REWARD, _DISCOUNT, _STEP_TYPE)
_FIRST, _MID, _LAST = 0, 1, 2
_FLAGS = (ColumnSpec("terminated", "bool", source=_DISCOUNT), ColumnSpec("truncated", "bool", source=_STEP_TYPE))


def probe(location: Location) -> str | None:
    """Returns the reason if the first HDF5 file has the arrays of V-D4RL."""
    files = hdf5_files(location)
    if not files:
        return None
    with hdf5_tree(files[0]).open() as tree:
        if all(tree.array(name) is not None for name in _REQUIRED):
            return f"V-D4RL: {files[0].name} has {', '.join(_REQUIRED)}"
    return None


def open_(location: Location, options: SourceOptions) -> TreeSource:
    """Opens HDF5 shards.

    Raises:
        UnknownFormatError: there is no HDF5 file, or a dataset is missing.
        UnsupportedColumnError: a column to read is a link, or has a type that no column has.
    """
    trees = hdf5_trees(location)
    with trees[0].open() as tree:
        file = _file(tree)
        columns, known = _columns(file, options), frozenset(file.kinds)
        size = trees[0].size // max(1, file.array(_ACTION, tree.name).rows)
    names = [item.name for item in trees]

    def find(tree: Tree) -> EpisodeRanges:
        file = _file(tree)
        arrays = file.checked(columns, [_ACTION, _STEP_TYPE, _DISCOUNT, _REWARD], names[0], names)
        types, discounts, rewards = (_numbers(arrays[name]) for name in (_STEP_TYPE, _DISCOUNT, _REWARD))
        episodes = _episodes(tree.name, types, discounts, rewards, options)
        left_out = file.left_out(known, names[0]) if options.columns is None else ()
        return replace(episodes, findings=(*episodes.findings, *left_out))

    return TreeSource(
        trees,
        Layout(EpisodeRule(Kind.ENDS, (_STEP_TYPE,), EndsAre.FLAGS), tuple(column.mapped for column in columns)),
        TreeLayout(columns, Column("actions", _ACTION), (), {}, names[0], flags=_FLAGS),
        Hooks(find_flat=find, whole_files=True),
        variable_bytes=size,
        skip_bad=options.skip_bad,
    )


def _file(tree: Tree) -> FlatFile:
    file = flat_file(tree)
    if missing := [name for name in _REQUIRED if name not in file.kinds]:
        raise UnknownFormatError(f"has no dataset '{missing[0]}'", column=missing[0], hint="leave --format out")
    return file


def _columns(file: FlatFile, options: SourceOptions) -> tuple[TreeColumn, ...]:
    names = [path for path in file.kinds if path != _STEP_TYPE and file.shape(path) != ()]
    others = {name: f"observations.{name}" for name in names if name not in _REQUIRED}
    chosen = choose_columns(names, replace(options, rename={**others, **(options.rename or {})}))
    return tuple(
        describe(
            file.array(path, file.tree.name),
            Column(name, path, role=ColumnRole.WITH_FINAL if is_observation(name) else ColumnRole.AFTER_RESET),
        )
        for path, name in chosen.items()
    )


def _numbers(array: TreeArray) -> npt.NDArray[Any]:
    """Reads one number a row.

    Raises BadEpisodeError if the dataset holds something else.
    """
    if not array.kind or array.shape[1:] not in ((), (1,)):
        raise BadEpisodeError(
            f"holds {array.dtype} {array.shape}, not one number a row",
            column=array.path,
            hint="download the file again",
        )
    return np.asarray(array.read(0, array.rows)).reshape(-1)


def _episodes(
    name: str, types: npt.NDArray[Any], discounts: npt.NDArray[Any], rewards: npt.NDArray[Any], options: SourceOptions
) -> EpisodeRanges:
    """Finds the episodes of a shard, and how they ended."""
    unknown = np.flatnonzero(~np.isin(types, (_FIRST, _MID, _LAST)))
    if len(unknown):
        raise BadEpisodeError(
            f"is {types[unknown[0]]}, which is no type of a time step: 0 (first), 1 or 2 (last)",
            column=_STEP_TYPE,
            row=int(unknown[0]),
            hint="download the file again",
        )
    begins = types == _FIRST
    begins[1:] |= types[:-1] == _LAST
    begins[:1] = True
    starts = np.flatnonzero(begins)
    findings = []
    if cut := int((types[starts] != _FIRST).sum()):
        row = int(starts[types[starts] != _FIRST][0])
        message = "rows begin inside an episode; the rest of the episode is read as an episode"
        findings.append(Finding("episode-cut", message, cut, name, row))
    if (at_reset := starts[(types[starts] == _FIRST) & (rewards[starts] != 0)]).size:
        message = "the reward of an episode's first row belongs to no step; left out"
        findings.append(Finding("reset-info-left-out", message, len(at_reset), name, int(at_reset[0]), "reward"))
    starts, lengths, empty = without_final_rows(name, _STEP_TYPE, starts, len(types), options)
    last_rows = starts + lengths
    is_last = types[last_rows] == _LAST
    if not is_last.all():
        row = int(last_rows[~is_last][0])
        message = "the last row of an episode is not marked as the last one; read as truncated"
        findings.append(Finding("unfinished-episode", message, int((~is_last).sum()), name, row))
    terminated = is_last & (discounts[last_rows] == 0)
    flags = {"terminated": terminated, "truncated": ~terminated}
    return EpisodeRanges(lengths, starts, flags=flags, findings=(*findings, *empty))


FORMAT = Format("vd4rl", probe, open_, suffixes=HDF5_SUFFIXES)
