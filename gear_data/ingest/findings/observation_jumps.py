"""Finds episodes that look like two joined rollouts.

In such an episode the observation jumps once, and far.

The rule was measured on real rollouts and on joined pairs of them (docs/reference/findings.md has the rates). Its
values, for element e of the observation o at step t:

- d[t, e] is |o[t + 1, e] - o[t, e]|.
- m[e] is the mean of d over t.
- r[e] is the range of o over t.

The rule:

- Only elements that move in more than half of the steps count. A goal or a phase that changes once is not a jump.
- The movement of step t is s[t] = sum over e of w[e] d[t, e] / m[e]. The weights w[e] are proportional to r[e] / m[e]
  and sum to 1. So elements that move smoothly through a wide range (positions) count more than noisy elements (contact
  forces).
- s[t] is a jump if three conditions hold:
  - It exceeds `_TIMES_USUAL` times the episode's 98% quantile of s (in short episodes, the second largest s). An
    environment whose states often leap has no jumps.
  - It exceeds `_TIMES_NEAR` times every s up to `_NEAR` steps away. A fast movement does not exceed them.
  - The w-weighted mean of d[t, e] / r[e] exceeds `_RANGE_SHARE`. A dropped frame does not move that far.

Episodes shorter than `_SHORTEST` steps and elements with NaN or Inf are not checked.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from gear_data.storage.episode_block import offsets_of

_TIMES_USUAL = 2.0
_QUANTILE = 0.98
_TIMES_NEAR = 2.5
_NEAR = 3
_RANGE_SHARE = 0.16
_SHORTEST = 32

#: Wider vectors are not checked: images, feature maps and tables do not move like a body's coordinates.
MAX_ELEMENTS = 512

#: Elements checked at a time: few enough to stay in the processor's cache.
_CHUNK_ELEMENTS = 1 << 17

_Floats = npt.NDArray[np.floating[Any]]


def find_jumps(values: _Floats, lengths: npt.NDArray[np.int64]) -> list[tuple[int, int]]:
    """Returns jumps in order, as (episode, step before the jump).

    Args:
        values: the observations of whole episodes, float [sum(lengths), E].
        lengths: the lengths of the episodes, int64 [n].
    """
    offsets = offsets_of(lengths)
    checked = np.flatnonzero(lengths >= _SHORTEST)
    found: list[tuple[int, int]] = []
    budget = _CHUNK_ELEMENTS // values.shape[1]
    first = 0
    while first < len(checked):
        last = first + 1
        # Only consecutive episodes are contiguous in memory and can be checked together without a copy.
        while (
            last < len(checked)
            and checked[last] == checked[last - 1] + 1
            and offsets[checked[last] + 1] - offsets[checked[first]] <= budget
        ):
            last += 1
        episodes = checked[first:last]
        part = values[offsets[episodes[0]] : offsets[episodes[-1] + 1]]
        found += [(int(episodes[i]), step) for i, step in _jumps(part, lengths[episodes])]
        first = last
    return found


def _jumps(values: _Floats, lengths: npt.NDArray[np.int64]) -> list[tuple[int, int]]:
    dtype = np.float64 if values.dtype == np.float64 else np.float32
    by_element = np.ascontiguousarray(values.T, dtype)  # [E, steps]: one element of one episode is contiguous
    starts = offsets_of(lengths)[:-1]
    with np.errstate(all="ignore"):
        moved = np.empty_like(by_element)
        np.subtract(by_element[:, 1:], by_element[:, :-1], out=moved[:, :-1])
        np.abs(moved, out=moved)
        moved[:, starts + lengths - 1] = 0  # from the last step of an episode to the first step of the next
        mean = np.add.reduceat(moved, starts, axis=1) / (lengths - 1)
        span = np.maximum.reduceat(by_element, starts, axis=1) - np.minimum.reduceat(by_element, starts, axis=1)
        # Counts in floats are exact up to 2^24 steps per episode, and precise enough for "more than half" above.
        steady = np.add.reduceat((moved > 0).astype(np.float32), starts, axis=1) > (lengths - 1) / 2
        judged = steady & (mean > 0) & np.isfinite(mean) & np.isfinite(span)
        weight = np.where(judged, span / mean, 0)
        weight /= np.maximum(weight.sum(axis=0), np.finfo(dtype).tiny)
        if not np.isfinite(mean).all():  # NaN would spoil the sum in spite of its weight of 0
            np.nan_to_num(moved, copy=False, nan=0, posinf=0, neginf=0)
        factor = np.where(judged, weight / mean, 0)
        score = np.einsum("es,es->s", moved, np.repeat(factor, lengths, axis=1))
    # Scores between episodes are 0. The mean score is 1, and the quantile is rarely lower. So few candidates remain.
    candidate = score > _TIMES_USUAL
    candidate[1:] &= score[1:] > _TIMES_NEAR * score[:-1]
    candidate[:-1] &= score[:-1] > _TIMES_NEAR * score[1:]
    found = []
    for index in np.flatnonzero(candidate).tolist():
        i = int(np.searchsorted(starts, index, side="right")) - 1
        begin, count = int(starts[i]), int(lengths[i]) - 1
        own, step = score[begin : begin + count], index - begin
        near = np.concatenate([own[max(0, step - _NEAR) : step], own[step + 1 : step + 1 + _NEAR]])
        if own[step] <= _TIMES_NEAR * near.max():
            continue
        rank = min(int(_QUANTILE * count), count - 2)
        if own[step] <= _TIMES_USUAL * max(np.partition(own, rank)[rank], 1):
            continue
        counts = judged[:, i]
        if weight[counts, i] @ (moved[counts, index] / span[counts, i]) > _RANGE_SHARE:
            found.append((i, step))
    return found
