"""Gato's tokens: a batch's observations and actions as one sequence of integers a sample.

After Reed et al., "A Generalist Agent" (2022): section 2.1 (what becomes which token; mu-law in appendix B), 2.2 (a
step is its observations in the order of their names, a separator, its actions) and 2.3 (the loss is taken on actions).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from gear_data.errors import InvalidArgumentError, NonFiniteError
from gear_data.loaders.presets.batch_format import Tokens
from gear_data.schema import Role

TOKENS = "tokens"
TARGETS = "target_mask"


def finish(
    batch: dict[str, Any],
    *,
    tokens: Tokens,
    observations: Sequence[str],
    actions: Sequence[str],
    sequences: Sequence[str],
    pad_left: bool,
    mask_key: str | None,
) -> dict[str, Any]:
    """The batch with `tokens` and `target_mask` in place of its observations and actions.

    Of P tokens a step, and n valid steps: `tokens` int64 [n * P] a sample, `target_mask` bool, True at actions. Ragged:
    they, and the other sequences, are lists of B, and there is no mask. Else `tokens` and `target_mask` are [B, K * P],
    and so is the mask.

    Args:
        batch: key -> tensor [B, K, ...], and `valid_count` int64 [B].
        tokens: vocabulary and form.
        observations, actions: keys of [B, K] or [B, K, n]; floats are continuous, integers and booleans discrete.
        sequences: keys of [B, K, ...] whose valid steps are the window's.
        pad_left: where padding stands.
        mask_key: which of the keys is the mask, if any.

    Raises:
        NonFiniteError: NaN in a continuous value.
        InvalidArgumentError: a discrete value that is not 0 to bins - 1.
    """
    rest = {key: value for key, value in batch.items() if key not in (*observations, *actions)}
    # NumPy, whose loops stay in this thread: torch's pool would fight prefetching for the cores.
    parts = [_encode(batch[key].numpy(), tokens, Role.OBSERVATION, key) for key in observations]
    lengths, context = batch["valid_count"].tolist(), batch[(*observations, *actions)[0]].shape[1]
    parts.append(np.full((len(lengths), context, 1), tokens.separator, np.int64))
    before = sum(part.shape[2] for part in parts)
    parts += [_encode(batch[key].numpy(), tokens, Role.ACTION, key) for key in actions]
    steps = np.concatenate(parts, 2)
    targets = np.zeros(steps.shape, np.bool_)
    targets[..., before:] = True
    width = steps.shape[2]
    spans = [slice(context - n, context) if pad_left else slice(0, n) for n in lengths]
    if tokens.ragged:
        for key in sequences:
            if key in rest:
                rest[key] = [rest[key][row, span] for row, span in enumerate(spans)]
        if mask_key is not None:
            del rest[mask_key]
        for key, array in ((TOKENS, steps), (TARGETS, targets)):
            values = torch.from_numpy(array.reshape(len(array), context * width))
            rest[key] = [values[row, span.start * width : span.stop * width] for row, span in enumerate(spans)]
        return rest
    places = np.arange(context)[None, :, None]
    valid = batch["valid_count"].numpy()[:, None, None]
    padding = places < context - valid if pad_left else places >= valid
    rest[TOKENS] = torch.from_numpy(np.where(padding, tokens.padding, steps).reshape(len(steps), context * width))
    rest[TARGETS] = torch.from_numpy((targets & ~padding).reshape(len(steps), context * width))
    if mask_key is not None:
        rest[mask_key] = rest[mask_key].repeat_interleave(steps.shape[2], 1)
    return rest


def _encode(values: npt.NDArray[Any], tokens: Tokens, role: Role, key: str) -> npt.NDArray[np.int64]:
    """[B, K, n], of values [B, K] or [B, K, ...]."""
    # Not -1: a rank may have no row of a short batch.
    values = values.reshape(*values.shape[:2], math.prod(values.shape[2:]))
    if values.dtype.kind != "f":
        if values.size and (values.min() < 0 or values.max() >= tokens.bins):
            raise InvalidArgumentError(
                f"a discrete value is outside 0 to {tokens.bins - 1}",
                column=key,
                hint="choose more bins with preset_options={'tokens': {'bins': ...}}, or convert the column to float",
            )
        return values.astype(np.int64)
    # In float64, as the reference computes: a bin must not depend on the column's precision.
    values = values.astype(np.float64)
    if np.isnan(values).any():
        raise NonFiniteError("NaN has no token", column=key)
    if role.value in tokens.companded:
        scale = math.log(tokens.max_value * tokens.mu + 1.0)
        values = np.sign(values) * np.log(np.abs(values) * tokens.mu + 1.0) / scale
    bins = np.floor((np.clip(values, -1.0, 1.0) + 1.0) / 2.0 * tokens.bins).astype(np.int64)
    # 1 itself belongs to the last bin.
    encoded: npt.NDArray[np.int64] = np.minimum(bins, tokens.bins - 1) + tokens.first
    return encoded
