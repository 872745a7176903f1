"""Gato's tokens: observations and actions as one sequence of integers.

After Reed et al., "A Generalist Agent" (2022). Section 2.1 and appendix B define the tokens of values and the mu-law.
Section 2.2 defines a step: its observations in the order of their names, a separator, its actions. A text has the ids
of its tokenizer, an image a token for each patch, row by row. By section 2.3 the loss applies to actions.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from gear_data.errors import InvalidArgumentError, NonFiniteError
from gear_data.loaders.presets.batch_format import Tokens
from gear_data.loaders.presets.gato.patches import cut_patches, image_shape, patch_positions, position_intervals
from gear_data.loaders.presets.packed import SEGMENT_IDS
from gear_data.schema import Role
from gear_data.selection.windows import Int64Array

TOKENS, TARGETS = "tokens", "target_mask"
PATCHES, PATCH_ROWS, PATCH_COLUMNS = "patches", "patch_rows", "patch_columns"

Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class BatchRows:
    """The rows of a batch among those of all ranks.

    Attributes:
        seed: seed of the loader.
        step: the batch's step.
        numbers: int64 [B], the row of the global batch; of a packed row, the number of windows before it.
    """

    seed: int
    step: int
    numbers: Int64Array


@dataclass(frozen=True)
class TokenColumn:
    """A column that becomes tokens.

    Attributes:
        key: its key in the batch.
        role: `Role.OBSERVATION` or `Role.ACTION`.
        kind: `values`, `text` or `images`.
    """

    key: str
    role: Role
    kind: Literal["values", "text", "images"] = "values"


@dataclass
class _Steps:
    """The tokens of a batch, step by step.

    Attributes:
        rest: the rest of the batch.
        tokens: int64 [B, K, P].
        targets: bool [B, K, P], whether a token is of an action.
        kept: bool [B, K, P], whether a token is in the sequence; None: all are.
        images: key -> images [B, K, ...], in order.
        spans: the valid steps of each row.
    """

    rest: dict[str, Any]
    tokens: Int64Array
    targets: Mask
    kept: Mask | None
    images: list[tuple[str, npt.NDArray[Any]]]
    spans: list[slice]


@dataclass(frozen=True)
class GatoPostprocess:
    """Replaces the observations and actions of a batch by `tokens` and `target_mask`. Picklable.

    A step has some tokens: P, if no text is among them. A sample has n valid steps. `tokens` is int64 [n * P] for each
    sample, `target_mask` is bool [n * P], True at actions. Ragged tokens, and the other sequences, are lists of B, and
    there is no mask. Else `tokens`, `target_mask` and the mask are [B, K * P]; with text, as wide as the longest sample
    of the batch.

    A batch with `segment_ids` int32 [B, L] has packed rows, which are never lists: `tokens`, `target_mask` and the mask
    are [B, L].

    With patches, there are `patches` uint8 [m, patch, patch, channels], `patch_rows` and `patch_columns` int64 [m]: the
    m patches of a sample, in the order of its tokens. They are lists of B, or the patches of all rows.

    Attributes:
        tokens: vocabulary and form.
        columns: the columns, in order: the observations, then the actions.
        sequences: further keys of [B, K, ...], whose valid steps are the window's; ragged tokens make them lists, too.
        pad_left: whether padding is on the left.
        mask_key: the key of the mask, or None.
        mask_dtype: its dtype.
        mask_valid: its value at valid steps.
        width: tokens of a padded row; None: as many as the longest has.
    """

    tokens: Tokens
    columns: tuple[TokenColumn, ...]
    sequences: tuple[str, ...]
    pad_left: bool
    mask_key: str | None
    mask_dtype: str = "bool"
    mask_valid: bool = True
    width: int | None = None

    def __call__(self, batch: dict[str, Any], rows: BatchRows) -> dict[str, Any]:
        """Returns the batch with tokens; see `encoded` and `arranged`."""
        steps = self._steps(batch)
        if steps.kept is None and not self.tokens.ragged and SEGMENT_IDS not in batch:
            return self._padded(steps, rows)
        return self.arranged(self._lists(steps, rows))

    def encoded(self, batch: dict[str, Any], rows: BatchRows) -> dict[str, Any]:
        """Returns the batch with tokens, targets and patches as lists of B.

        Args:
            batch: key -> array [B, K, ...], and `valid_count` int64 [B]; or packed rows, with `segment_ids`.
            rows: the rows of the batch.

        Raises:
            NonFiniteError: a continuous value is NaN.
            InvalidArgumentError: a discrete value is not 0 to bins - 1, or a text's token is not below `first`.
        """
        return self._lists(self._steps(batch), rows)

    def _steps(self, batch: dict[str, Any]) -> _Steps:
        """Takes the columns out of a batch, and returns their tokens."""
        packed = batch.get(SEGMENT_IDS)
        batch = dict(batch)
        count, context = next(batch[each.key].shape[:2] for each in self.columns if each.role is Role.ACTION)
        pieces: list[Int64Array] = []
        keeps: list[Mask | None] = []
        images: list[tuple[str, npt.NDArray[Any]]] = []
        before = None
        for each in self.columns:
            if each.role is Role.ACTION and before is None:
                pieces.append(np.full((count, context, 1), self.tokens.separator, np.int64))
                keeps.append(None)
                before = len(pieces)
            keep = None
            if each.kind == "text":
                piece, keep = _text(batch, each.key, self.tokens, (count, context))
            elif each.kind == "images":
                values = batch.pop(each.key)
                images.append((each.key, values))
                size = len(_intervals(values, self.tokens, each.key)[0])
                piece = np.full((count, context, size), self.tokens.image, np.int64)
            else:
                piece = _encode(batch.pop(each.key), self.tokens, each.role, each.key)
            pieces.append(piece)
            keeps.append(keep)
        steps = np.concatenate(pieces, 2)
        targets = np.zeros(steps.shape, np.bool_)
        targets[..., sum(piece.shape[2] for piece in pieces[:before]) :] = True
        kept = None
        if any(keep is not None for keep in keeps):
            kept = np.concatenate(
                [np.ones(p.shape, np.bool_) if k is None else k for p, k in zip(pieces, keeps, strict=True)], 2
            )
        if packed is not None:
            spans = [slice(0, n) for n in _steps_of(packed, steps, kept)]
        else:
            lengths = batch["valid_count"].tolist()
            spans = [slice(context - n, context) if self.pad_left else slice(0, n) for n in lengths]
        if self.mask_key is not None:
            del batch[self.mask_key]
        return _Steps(batch, steps, targets, kept, images, spans)

    def _lists(self, steps: _Steps, rows: BatchRows) -> dict[str, Any]:
        """Returns the batch with the tokens of each row."""
        batch, kept = steps.rest, steps.kept
        for key, array in ((TOKENS, steps.tokens), (TARGETS, steps.targets)):
            batch[key] = [
                array[row, span].reshape(-1) if kept is None else array[row, span][kept[row, span]]
                for row, span in enumerate(steps.spans)
            ]
        if self.tokens.patch:
            batch.update(self._patches(steps.images, steps.spans, rows))
        if self.tokens.ragged and SEGMENT_IDS not in batch:
            for key in self.sequences:
                if key in batch:
                    batch[key] = [batch[key][row, span] for row, span in enumerate(steps.spans)]
        return batch

    def _padded(self, steps: _Steps, rows: BatchRows) -> dict[str, Any]:
        """Returns the batch with padded rows, if all steps have P tokens: `arranged`, with fewer copies."""
        batch, (count, context, size) = steps.rest, steps.tokens.shape
        positions, valid = np.arange(context)[None, :, None], batch["valid_count"][:, None, None]
        padding = positions < context - valid if self.pad_left else positions >= valid
        batch[TOKENS] = np.where(padding, self.tokens.padding, steps.tokens).reshape(count, context * size)
        batch[TARGETS] = (steps.targets & ~padding).reshape(count, context * size)
        if self.mask_key is not None:
            mask: Mask = padding[..., 0] != self.mask_valid
            batch[self.mask_key] = mask.astype(self.mask_dtype).repeat(size, 1)
        if self.tokens.patch:
            batch.update(self._flat(self._patches(steps.images, steps.spans, rows)))
        return batch

    def _patches(
        self, images: Sequence[tuple[str, npt.NDArray[Any]]], spans: Sequence[slice], rows: BatchRows
    ) -> dict[str, list[npt.NDArray[Any]]]:
        """Returns the patches of each row, and their positions."""
        side, found = self.tokens.patch, {}
        patches = [np.empty((0, side, side, self.tokens.channels), np.uint8) for _ in spans]
        positions = [np.empty((0, 2), np.int64) for _ in spans]
        if images:
            intervals = [_intervals(values, self.tokens, key) for key, values in images]
            first, size = (np.concatenate(each) for each in zip(*intervals, strict=True))
            for row, span in enumerate(spans):
                cut = [cut_patches(values[row, span], self.tokens, key) for key, values in images]
                patches[row] = np.concatenate(cut, 1).reshape(-1, side, side, self.tokens.channels)
                draws = (rows.seed, rows.step, int(rows.numbers[row])) if self.tokens.sample else None
                positions[row] = patch_positions(first, size, len(cut[0]), draws)
        found[PATCHES] = patches
        for axis, key in enumerate((PATCH_ROWS, PATCH_COLUMNS)):
            found[key] = [np.ascontiguousarray(each[:, axis]) for each in positions]
        return found

    def arranged(self, batch: dict[str, Any]) -> dict[str, Any]:
        """Returns the batch of `encoded` in its form: lists, padded rows or packed rows."""
        segments = batch.get(SEGMENT_IDS)
        if self.tokens.ragged and segments is None:
            return batch
        rows: list[Int64Array] = batch[TOKENS]
        if segments is not None:
            width = segments.shape[1]
        else:
            width = max(map(len, rows), default=0) if self.width is None else self.width
        valid = np.zeros((len(rows), width), np.bool_)
        tokens, targets = np.full(valid.shape, self.tokens.padding, np.int64), np.zeros(valid.shape, np.bool_)
        for row, (own, own_targets) in enumerate(zip(rows, batch[TARGETS], strict=True)):
            left = self.pad_left and segments is None
            span = slice(width - len(own), width) if left else slice(0, len(own))
            tokens[row, span], targets[row, span], valid[row, span] = own, own_targets, True
        batch[TOKENS], batch[TARGETS] = tokens, targets
        if self.mask_key is not None:
            batch[self.mask_key] = (valid == self.mask_valid).astype(self.mask_dtype)
        if self.tokens.patch:
            batch |= self._flat({key: batch[key] for key in (PATCHES, PATCH_ROWS, PATCH_COLUMNS)})
        return batch

    def _flat(self, patches: Mapping[str, list[npt.NDArray[Any]]]) -> dict[str, npt.NDArray[Any]]:
        """Returns the patches of all rows as arrays."""
        nothing, side = np.empty(0, np.int64), self.tokens.patch
        none = {PATCHES: np.empty((0, side, side, self.tokens.channels), np.uint8)}
        return {key: np.concatenate([none.get(key, nothing), *each]) for key, each in patches.items()}


def check_vocabulary(tokens: Tokens, column: str) -> None:
    """Raises InvalidArgumentError if a value of a column could have the token of the separator or of a patch.

    Args:
        tokens: the vocabulary.
        column: a column of floats, whose values become tokens.
    """
    after = tokens.first + tokens.bins
    for name, token in (("separator", tokens.separator), *((("image", tokens.image),) if tokens.patch else ())):
        if tokens.first <= token < after:
            raise InvalidArgumentError(
                f"the tokens of values are {tokens.first} to {after - 1}, and the option '{name}' is {token}",
                column=column,
                hint=f"give preset_options={{'tokens': {{'separator': {after}, 'image': {after + 1}}}}}",
            )


def _intervals(values: npt.NDArray[Any], tokens: Tokens, key: str) -> tuple[Int64Array, Int64Array]:
    """Returns the intervals of the patches of images [B, K, ...]; see `position_intervals`."""
    if values.dtype != np.uint8 or values.ndim < 4:
        raise InvalidArgumentError(
            f"patches are of images of uint8, and a step is {values.dtype} {list(values.shape[2:])}",
            column=key,
            hint="leave the column out of normalize, and let a decoder return uint8",
        )
    height, width, _ = image_shape(values.shape[2:], tokens.channels, key)
    return position_intervals(height, width, tokens)


def _steps_of(segments: npt.NDArray[np.int32], steps: Int64Array, kept: Mask | None) -> list[int]:
    """Returns the steps of each packed row.

    Args:
        segments: int32 [B, L], 0 in the rest of a row.
        steps: int64 [B, K, P], the tokens.
        kept: bool [B, K, P], which of them are in the sequence; None: all.
    """
    filled = (segments > 0).sum(1)
    if kept is None:
        return (filled // steps.shape[2]).tolist()  # type: ignore[no-any-return]
    return [int(np.searchsorted(own.sum(1).cumsum(), count, "right")) for own, count in zip(kept, filled, strict=True)]


def text_ids(values: dict[str, Any], key: str) -> tuple[npt.NDArray[Any], Mask | None]:
    """Takes the arrays of a decoded text out of a batch.

    Returns:
        The tokens, [..., n], and which of them are the text's; None: all.
    """
    mapping = [name for name in values if name.startswith(f"{key}.")]
    name = f"{key}.input_ids" if f"{key}.input_ids" in values else key
    mask, lengths = values.get(f"{key}.attention_mask"), values.get(f"{name}_length")
    if name not in values:
        raise InvalidArgumentError(
            f"its decoder returns {', '.join(mapping) or 'nothing'}, and no input_ids",
            column=key,
            hint="let the decoder return the ids of each text, or a mapping with input_ids",
        )
    ids = values[name]
    for taken in (name, f"{name}_length", *mapping):
        values.pop(taken, None)
    if ids.dtype.kind not in "iu":
        raise InvalidArgumentError(f"tokens of text are integers, and its decoder returns {ids.dtype}", column=key)
    if mask is not None:
        return ids, mask.astype(np.bool_)
    return ids, None if lengths is None else np.arange(ids.shape[-1]) < lengths[..., None]


def _text(batch: dict[str, Any], key: str, tokens: Tokens, shape: tuple[int, int]) -> tuple[Int64Array, Mask | None]:
    """Returns the tokens of texts [B, K, n], and which of them are in the sequence; takes them out of the batch."""
    ids, keep = text_ids(batch, key)
    if not shape[0]:
        return np.empty((*shape, 0), np.int64), np.empty((*shape, 0), np.bool_)
    encoded = ids.reshape(*shape, -1).astype(np.int64) + tokens.text_first
    # A decoder that returns an array has as many tokens for each text; padding has none.
    keep = np.ones(encoded.shape, np.bool_) if keep is None else keep.reshape(encoded.shape)
    own = encoded[keep]
    if own.size and (own.min() < 0 or own.max() >= tokens.first):
        raise InvalidArgumentError(
            f"tokens of text are {own.min()} to {own.max()}, and the tokens of values begin at {tokens.first}",
            column=key,
            hint="give preset_options={'tokens': {'first': ..., 'separator': ..., 'image': ...}} larger numbers",
        )
    return encoded, keep


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


def joined(parts: Sequence[tuple[Mapping[str, Any], Int64Array]], rows: int) -> dict[str, Any]:
    """Returns the arrays and lists of several datasets in the order of their rows.

    Args:
        parts: for each dataset its batch, of `GatoPostprocess.encoded`, and int64 [r], the rows that its rows are.
        rows: rows of the batch.
    """
    result: dict[str, Any] = {}
    for key in parts[0][0]:
        values = [part[key] for part, _ in parts]
        if isinstance(values[0], list):
            whole: Any = [None] * rows
            for own, (_, places) in zip(values, parts, strict=True):
                for place, value in zip(places.tolist(), own, strict=True):
                    whole[place] = value
        else:
            whole = np.empty((rows, *values[0].shape[1:]), values[0].dtype)
            for own, (_, places) in zip(values, parts, strict=True):
                whole[places] = own
        result[key] = whole
    return result
