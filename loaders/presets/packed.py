"""Packed formats: presets whose rows have a fixed number of steps, and hold several windows."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence

from gear_data.collection.output import Output
from gear_data.errors import InvalidArgumentError
from gear_data.loaders.presets.batch_format import BatchFormat

#: Keys of a packed batch.
CU_SEQLENS, MAX_SEQLEN, POSITION_IDS, SEGMENT_IDS = "cu_seqlens", "max_seqlen", "position_ids", "segment_ids"
PACKED_KEYS = (CU_SEQLENS, MAX_SEQLEN, POSITION_IDS, SEGMENT_IDS)


def packed_format(batch_format: BatchFormat) -> BatchFormat:
    """Returns the format of packed rows: the rest of a row, on the right, has the fill values.

    Raises:
        InvalidArgumentError: a window of the preset is one value, and not a sequence.
    """
    if batch_format.sequences is not None:
        raise InvalidArgumentError(
            f"preset '{batch_format.name}' has one value of a window in some arrays, and pack= packs sequences",
            hint="leave pack out, or give another preset, such as 'raw' or 'decision_transformer'",
        )
    return dataclasses.replace(batch_format, side="right", padding="fill", timesteps_padding="fill")


def check_packed(outputs: Iterable[Output], text: Iterable[str], steps: int, taken: Sequence[str]) -> None:
    """Raises InvalidArgumentError if windows of these arrays cannot be packed.

    Args:
        outputs: the arrays.
        text: columns of text or bytes with a decoder.
        steps: steps of a row.
        taken: keys of the batch.
    """
    for output in outputs:
        if output.camera is not None:
            raise InvalidArgumentError(
                "a camera cannot be packed", column=output.source,
                hint="leave it out with columns=, or leave pack out",
            )  # fmt: skip
        if output.relative is not None:
            raise InvalidArgumentError(
                "a column that is relative to the first step of a window cannot be packed",
                column=output.source,
                hint="leave it out of relative, or leave pack out",
            )
        if (output.first, output.width, output.steps) != (0, steps, None) or output.squeeze_time:
            raise InvalidArgumentError(
                "a column with offsets has steps of its own, and cannot be packed",
                column=output.source,
                hint="leave it out of offsets, or leave pack out",
            )
    for column in text:
        raise InvalidArgumentError(
            "the decoded steps of a column cannot be packed",
            column=column,
            hint="leave its decoder out: the batch then has a list of each window's values; or leave pack out",
        )
    for key in PACKED_KEYS:
        if key in taken:
            raise InvalidArgumentError(
                f"pack= adds the key '{key}', which the batch already has",
                column=key,
                hint="choose other columns with columns=",
            )
