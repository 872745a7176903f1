"""Gato's tokens: observations and actions as one sequence of integers.

After Reed et al., "A Generalist Agent" (2022). Section 2.1 and appendix B define the tokens of values and the mu-law.
Section 2.2 defines a step: its observations in the order of their names, a separator, its actions. By section 2.3 the
loss applies to actions.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from gear_data.errors import InvalidArgumentError, NonFiniteError
from gear_data.loaders.presets.batch_format import Tokens
from gear_data.loaders.presets.packed import SEGMENT_IDS
from gear_data.schema import Role

TOKENS = "tokens"
TARGETS = "target_mask"


def add_tokens(
    batch: dict[str, Any],
    *,
    tokens: Tokens,
    observations: Sequence[str],
    actions: Sequence[str],
    sequences: Sequence[str],
    pad_left: bool,
    mask_key: str | None,
    mask_valid: bool = True,
) -> dict[str, Any]:
    """Replaces the observations and actions of a batch by `tokens` and `target_mask`.

    A step has P tokens, and a sample has n valid steps. `tokens` is int64 [n * P] for each sample, `target_mask` is
    bool [n * P], True at actions. Ragged tokens, and the other sequences, are lists of B, and there is no mask. Else
    `tokens`, `target_mask` and the mask are [B, K * P].

    A batch with `segment_ids` int32 [B, L] has packed rows, which are never lists: `tokens`, `target_mask` and the mask
    are [B, L]. The K steps of a row are at most L tokens.

    Args:
        batch: key -> array [B, K, ...], and `valid_count` int64 [B].
        tokens: vocabulary and form.
        observations, actions: keys of [B, K] or [B, K, n]. Floats are continuous, integers and booleans are discrete.
        sequences: further keys of [B, K, ...], whose valid steps are the window's; ragged tokens make them lists, too.
        pad_left: whether padding is on the left.
        mask_key: the key of the mask, or None.
        mask_valid: its value at valid steps.

    Raises:
        NonFiniteError: a continuous value is NaN.
        InvalidArgumentError: a discrete value is not 0 to bins - 1.
    """
    rest = {key: value for key, value in batch.items() if key not in (*observations, *actions)}
    pieces = [_encode(batch[key], tokens, Role.OBSERVATION, key) for key in observations]
    lengths, (samples, context) = batch["valid_count"].tolist(), batch[(*observations, *actions)[0]].shape[:2]
    pieces.append(np.full((samples, context, 1), tokens.separator, np.int64))
    before = sum(piece.shape[2] for piece in pieces)
    pieces += [_encode(batch[key], tokens, Role.ACTION, key) for key in actions]
    steps = np.concatenate(pieces, 2)
    targets = np.zeros(steps.shape, np.bool_)
    targets[..., before:] = True
    width = steps.shape[2]
    if SEGMENT_IDS in batch:
        valid = batch[SEGMENT_IDS] > 0
        rest[TOKENS], rest[TARGETS] = np.full(valid.shape, tokens.padding, np.int64), np.zeros(valid.shape, np.bool_)
        for key, array in ((TOKENS, steps), (TARGETS, targets)):
            flat = array.reshape(samples, context * width)
            np.copyto(rest[key][:, : context * width], flat, where=valid[:, : context * width])
        if mask_key is not None:
            rest[mask_key] = (valid == mask_valid).astype(rest[mask_key].dtype)
        return rest
    spans = [slice(context - n, context) if pad_left else slice(0, n) for n in lengths]
    if tokens.ragged:
        for key in sequences:
            if key in rest:
                rest[key] = [rest[key][row, span] for row, span in enumerate(spans)]
        if mask_key is not None:
            del rest[mask_key]
        for key, array in ((TOKENS, steps), (TARGETS, targets)):
            values = array.reshape(len(array), context * width)
            rest[key] = [values[row, span.start * width : span.stop * width] for row, span in enumerate(spans)]
        return rest
    positions = np.arange(context)[None, :, None]
    valid = batch["valid_count"][:, None, None]
    padding = positions < context - valid if pad_left else positions >= valid
    rest[TOKENS] = np.where(padding, tokens.padding, steps).reshape(len(steps), context * width)
    rest[TARGETS] = (targets & ~padding).reshape(len(steps), context * width)
    if mask_key is not None:
        rest[mask_key] = rest[mask_key].repeat(steps.shape[2], 1)
    return rest


def _encode(values: npt.NDArray[Any], tokens: Tokens, role: Role, key: str) -> npt.NDArray[np.int64]:
    """Returns the tokens [B, K, n] of values [B, K] or [B, K, ...]."""
    # Not -1, which needs at least one row: a rank may have no row of a short batch.
    values = values.reshape(*values.shape[:2], math.prod(values.shape[2:]))
    if values.dtype.kind != "f":
        if values.size and (values.min() < 0 or values.max() >= tokens.bins):
            raise InvalidArgumentError(
                f"discrete values are {values.min()} to {values.max()}, and tokens have 0 to {tokens.bins - 1}",
                column=key,
                hint="choose more bins with BatchOptions(preset_options={'tokens': {'bins': ...}}), "
                "or convert the column to float",
            )
        return values.astype(np.int64)
    # In float64, like the reference: a bin must not depend on the column's precision.
    values = values.astype(np.float64)
    if np.isnan(values).any():
        raise NonFiniteError(
            "a value is NaN, which has no token", column=key, hint="replace NaN in the source, and convert it again"
        )
    if role.value in tokens.companded:
        scale = math.log(tokens.max_value * tokens.mu + 1.0)
        values = np.sign(values) * np.log(np.abs(values) * tokens.mu + 1.0) / scale
    bins = np.floor((np.clip(values, -1.0, 1.0) + 1.0) / 2.0 * tokens.bins).astype(np.int64)
    # The value 1 belongs to the last bin.
    encoded: npt.NDArray[np.int64] = np.minimum(bins, tokens.bins - 1) + tokens.first
    return encoded
