"""The output of goals: the array of a batch that holds the goals' values."""

from __future__ import annotations

import dataclasses

from gear_data.collection.output import Output, Padding
from gear_data.errors import InvalidArgumentError
from gear_data.loaders.presets.batch_format import BatchFormat
from gear_data.loaders.presets.outputs import BatchRequest, batch_outputs

#: Key of the output. The batch has one array for each kind of goal.
GOALS = "goals"


def goal_output(column: str, batch_format: BatchFormat, request: BatchRequest, outputs: tuple[Output, ...]) -> Output:
    """Returns the output of goals.

    Goals are cast and normalised like the column in the batch. If the column has offsets, a goal has the same steps
    around its own step; at an episode's ends the nearest step is repeated.

    Args:
        column: the goals' column.
        batch_format: the preset, with its options.
        request: the arguments for the preset.
        outputs: the batch's outputs.

    Raises:
        UnknownNameError: no such column.
        InvalidArgumentError: the column is of variable length, or the preset makes tokens.
    """
    if request.schema[column].video is not None:
        raise InvalidArgumentError(
            "goals cannot be frames of a camera",
            column=column,
            hint="give goal_column= the name of a column of numbers, or convert with --videos frames",
        )
    if request.schema[column].variable_length:
        raise InvalidArgumentError(
            f"goals cannot be values of a column of {request.schema[column].dtype}",
            column=column,
            hint="give goal_column= the name of a column of numbers; convert images without --keep-encoded",
        )
    if column in request.relative:
        raise InvalidArgumentError(
            "goals have the column's values, and relative= makes them relative to each window", column=column,
            hint="leave the column out of relative, or give another goal_column",
        )  # fmt: skip
    if batch_format.tokens is not None:
        raise InvalidArgumentError(
            f"preset '{batch_format.name}' makes tokens, and goals have none", hint="give another preset, or no goals"
        )
    own = [output for output in outputs if _holds(output, column)]
    if not own:
        alone = dataclasses.replace(request, columns=(column,), offsets={}, n_step=None)
        own = [output for output in batch_outputs(batch_format, alone) if _holds(output, column)]
    stacked = column in request.offsets
    return dataclasses.replace(
        own[0],
        key=GOALS,
        first=own[0].first if stacked else 0,
        width=own[0].width if stacked else 1,
        squeeze_time=not stacked,
        pad_left=False,
        within_window=False,
        padding=Padding.EDGE,
    )


def _holds(output: Output, column: str) -> bool:
    """Returns whether an output holds the values of a column, each at its own step."""
    return output.column and output.source == column and output.shift == 0 and output.discounts is None
