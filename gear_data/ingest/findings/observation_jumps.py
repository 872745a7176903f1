"""Where an episode looks like two rollouts glued together: its observation jumps once, and far.

The rule is our own, measured on real rollouts and on pairs of them glued together (docs/reference/findings.md has the
rates). Of each episode, with d[t, e] = |o[t + 1, e] - o[t, e]|, m[e] the mean of d over t and r[e] the range of o over
t:

- Only elements that move in more than half of the steps count: a goal or a phase that changes once is no jump.
- The movement of step t is s[t] = sum over e of w[e] d[t, e] / m[e], with w[e] in proportion to r[e] / m[e] and 1 in
  sum: elements that move smoothly through a wide range (positions) count more than those that are all jumps anyway
  (contact forces, noise).
- s[t] is a jump where it is more than `_TIMES_USUAL` the episode's 98% quantile of s (in short episodes the second
  largest), so that an environment whose states often leap has none;
- where it stands alone, more than `_TIMES_NEAR` every s up to `_NEAR` steps away, as a fast movement does not; and
- where it goes far: the w-weighted mean of d[t, e] / r[e] is more than `_PART`. A dropped frame goes not so far.

Episodes of fewer than `_SHORTEST` steps are not judged, nor are elements with NaN or Inf.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from gear_data.storage.block import offsets_of

_TIMES_USUAL = 2.0
_QUANTILE = 0.98
_TIMES_NEAR = 2.5
_NEAR = 3
_PART = 0.16
_SHORTEST = 32

#: Wider vectors are not looked at: they are images, feature maps or tables, whose elements do not move like a body's.
MAX_ELEMENTS = 512

#: What is looked at at once: few enough elements to stay in the processor's cache.
_CHUNK_ELEMENTS = 1 << 17

_Floats = npt.NDArray[np.floating[Any]]


def find_jumps(values: _Floats, lengths: npt.NDArray[np.int64]) -> list[tuple[int, int]]:
    """Jumps as (episode, step after which the observation jumps), in order.

    Args:
        values: float [sum(lengths), E], the observations of whole episodes.
        lengths: int64 [n].
    """
    offsets = offsets_of(lengths)
    wanted = np.flatnonzero(lengths >= _SHORTEST)
    found: list[tuple[int, int]] = []
    budget = _CHUNK_ELEMENTS // values.shape[1]
    first = 0
    while first < len(wanted):
        last = first + 1
        # Only neighbours can be looked at together, without copying what lies between.
        while (
            last < len(wanted)
            and wanted[last] == wanted[last - 1] + 1
            and offsets[wanted[last] + 1] - offsets[wanted[first]] <= budget
        ):
            last += 1
        episodes = wanted[first:last]
        part = values[offsets[episodes[0]] : offsets[episodes[-1] + 1]]
        found += [(int(episodes[i]), step) for i, step in _jumps(part, lengths[episodes])]
        first = last
    return found


def _jumps(values: _Floats, lengths: npt.NDArray[np.int64]) -> list[tuple[int, int]]:
    dtype = np.float64 if values.dtype == np.float64 else np.float32
    by_element = np.ascontiguousarray(values.T, dtype)  # [E, steps], so that an episode's element is one run
    starts = offsets_of(lengths)[:-1]
    with np.errstate(all="ignore"):
        moved = np.empty_like(by_element)
        np.subtract(by_element[:, 1:], by_element[:, :-1], out=moved[:, :-1])
        np.abs(moved, out=moved)
        moved[:, starts + lengths - 1] = 0  # from an episode's last step to the next one's first
        mean = np.add.reduceat(moved, starts, axis=1) / (lengths - 1)
        span = np.maximum.reduceat(by_element, starts, axis=1) - np.minimum.reduceat(by_element, starts, axis=1)
        # Counted in floats, exact up to 2^24 steps an episode and good enough for "more than half" beyond.
        steady = np.add.reduceat((moved > 0).astype(np.float32), starts, axis=1) > (lengths - 1) / 2
        judged = steady & (mean > 0) & np.isfinite(mean) & np.isfinite(span)
        weight = np.where(judged, span / mean, 0)
        weight /= np.maximum(weight.sum(axis=0), np.finfo(dtype).tiny)
        if not np.isfinite(mean).all():  # what is NaN would spoil the sum in spite of its weight of 0
            np.nan_to_num(moved, copy=False, nan=0, posinf=0, neginf=0)
        factor = np.where(judged, weight / mean, 0)
        score = np.einsum("es,es->s", moved, np.repeat(factor, lengths, axis=1))
    # Between episodes stands a 0. The mean score is 1, and the quantile hardly ever below it: what is sorted is little.
    alone = score > _TIMES_USUAL
    alone[1:] &= score[1:] > _TIMES_NEAR * score[:-1]
    alone[:-1] &= score[:-1] > _TIMES_NEAR * score[1:]
    found = []
    for place in np.flatnonzero(alone).tolist():
        i = int(np.searchsorted(starts, place, side="right")) - 1
        begin, count = int(starts[i]), int(lengths[i]) - 1
        own, step = score[begin : begin + count], place - begin
        near = np.concatenate([own[max(0, step - _NEAR) : step], own[step + 1 : step + 1 + _NEAR]])
        if own[step] <= _TIMES_NEAR * near.max():
            continue
        rank = min(int(_QUANTILE * count), count - 2)
        if own[step] <= _TIMES_USUAL * max(np.partition(own, rank)[rank], 1):
            continue
        counts = judged[:, i]
        if weight[counts, i] @ (moved[counts, place] / span[counts, i]) > _PART:
            found.append((i, step))
    return found
