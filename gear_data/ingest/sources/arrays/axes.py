"""Checks whether the first axis of arrays can only be the steps."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from gear_data.errors import UnknownFormatError
from gear_data.ingest.pipeline.columns import EPISODE_COLUMNS, SCALAR_COLUMNS
from gear_data.ingest.pipeline.names import DONES, canonical_name, is_observation
from gear_data.ingest.source import SourceOptions
from gear_data.ingest.sources.arrays.classify import (
    ENDS,
    FIRST,
    INDICES,
    LENGTHS,
    STARTS,
    ClassifiedArrays,
)

#: Arrays that say where episodes are, and so which axis is the steps.
_BOUNDARIES = {FIRST, INDICES, ENDS, STARTS, *LENGTHS, *EPISODE_COLUMNS}
Shapes = Mapping[str, tuple[int, ...]]


def refuse_unclear_axes(name: str, shapes: Shapes, format_name: str) -> None:
    """Refuses arrays whose first axis may be something else than the steps.

    They may be [steps, ...], [episodes, steps, ...] or [steps, environments, ...]. Formats call this
    only if the user did not name the format.

    Args:
        name: the name of the file or folder.
        shapes: name -> shape; the names that the user gives, and otherwise the source's.
        format_name: the format that reads the first axis as the steps.

    Raises:
        UnknownFormatError: all arrays of steps have two axes in common, and no array says where episodes are.
    """
    shared = shared_axes(shapes)
    if shared is None or _BOUNDARIES & shapes.keys():
        return
    first, second = shared
    shown = ", ".join(f"'{source}' {shape}" for source, shape in _step_arrays(shapes).items())
    others = "write other arrays again as [steps, ...], one episode after the other"
    if format_name != "d4rl":
        others = "if they are padded episodes, add 'episode_lengths', an array [episodes]"
    if {"observations", "actions", "rewards", DONES} <= {*map(canonical_name, shapes)}:
        others += "; if they are steps of several environments, give --format stable-baselines3"
    raise UnknownFormatError(
        f"could mean several things: {shown} have the axes ({first}, {second}) in common, which may be "
        f"{first} steps with {second} values each, {first} episodes of {second} steps, or {first} steps of {second} "
        "environments",
        file=name,
        hint=f"if the rows are steps, give --format {format_name}; {others}",
    )


def shared_axes(shapes: Shapes) -> tuple[int, int] | None:
    """Returns the first two axes, if all arrays of steps have them in common.

    Otherwise it returns None. Observations may have one step more in the second axis. Two vectors of equal size, such
    as joints and their commands, are no evidence: there must be rewards or flags, or a third axis.
    """
    steps = _step_arrays(shapes)
    if len(steps) < 2 or any(len(shape) < 2 for shape in steps.values()):
        return None
    has_scalars = any(canonical_name(source) in SCALAR_COLUMNS for source in steps)
    if not has_scalars and any(len(shape) < 3 for shape in steps.values()):
        return None
    reference = next((shape for source, shape in steps.items() if not is_observation(canonical_name(source))), None)
    if reference is None or reference[1] < 2:
        return None
    for source, shape in steps.items():
        final = is_observation(canonical_name(source)) and shape[1] == reference[1] + 1
        if shape[0] != reference[0] or (shape[1] != reference[1] and not final):
            return None
    return reference[0], reference[1]


def is_padded(classified: ClassifiedArrays, shapes: Shapes, lengths: npt.NDArray[np.int64]) -> bool:
    """Returns whether arrays with these lengths are padded [episodes, steps, ...].

    Otherwise they are flat steps. `shapes` are canonical name -> shape.

    Raises UnknownFormatError if they may be either, or [steps, episodes, ...].
    """
    count, shared = len(lengths), shared_axes(shapes)
    column = classified.boundary
    if shared is not None and count == shared[1] != classified.rows:
        raise UnknownFormatError(
            f"has {count} values, one for each of the second axis of '{classified.sources[classified.reference]}' "
            f"{shapes[classified.reference]}; padded episodes must be [episodes, steps]",
            column=column,
            hint=f"describe them with --map, episodes: {{padded: [T, E, ...], lengths: {column}}}; or "
            "transpose the arrays: np.swapaxes(array, 0, 1).copy()",
        )
    if count != classified.rows:
        return False
    if shared is not None and shared[0] == shared[1]:
        raise UnknownFormatError(
            f"could mean two things: the arrays may be padded episodes [episodes, steps] or [steps, episodes], because "
            f"both axes have {count}",
            column=column,
            hint=f"say which with --map, episodes: {{padded: [E, T, ...], lengths: {column}}}, or [T, E, ...]",
        )
    if int(lengths.sum()) != classified.rows:
        return True
    if shared is not None:
        raise UnknownFormatError(
            f"could mean two things: {count} steps, each an episode, or {count} episodes of one step, padded to "
            f"{shared[1]}",
            column=column,
            hint="cut padded arrays to one step, array[:, :1]; for steps, leave this array out and give "
            "--max-episode-steps 1 (episodes=EpisodeBoundaries(max_episode_steps=1))",
        )
    return False


def refuse_equal_sizes(classified: ClassifiedArrays, options: SourceOptions) -> None:
    """Refuses vectors that may have one value per step, or one per element.

    An example is the mean of 30 observations in a file of 30 steps. Raises UnknownFormatError, unless the user chooses
    the columns.
    """
    rows = classified.rows
    vectors = [name for name in ("observations", "actions") if name in classified.steps]
    equal = [name for name in vectors if classified.steps[name].row_shape == (rows,)]
    if options.columns is not None or not equal or rows < 2:
        return
    for name, array in classified.steps.items():
        if array.shape == (rows,) and name not in {*SCALAR_COLUMNS, "actions", "observations"}:
            raise UnknownFormatError(
                f"could mean two things: one value for each of {rows} steps, or for each of {rows} elements of "
                f"'{classified.sources[equal[0]]}'",
                column=classified.sources[name],
                hint="name the columns of steps with --columns (columns=[...]), with this one or without",
            )


def _step_arrays(shapes: Shapes) -> Shapes:
    """Returns the arrays that have one value or vector per step."""
    known = {"actions", *SCALAR_COLUMNS}
    return {
        source: shape
        for source, shape in shapes.items()
        if (name := canonical_name(source)) in known or is_observation(name.removeprefix("next_"))
    }
