"""The plan of the kernels that draw windows: one record.

The record holds everything that stays the same from batch to batch.

The Numba kernel (`gear_data.kernels.cpu.windows`) and the CUDA kernel (`cuda/select.cu`, `struct WindowPlan`) read the
same record. This module needs neither Numba nor CuPy.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

#: How a drawn point leads to an anchor of its episode.
WITHIN_OFFSET = 0  # the point's offset in the episode's interval is the anchor's index
WITHIN_QUOTIENT = 1  # the episode's interval is divided evenly among its anchors
WITHIN_DRAWN = 2  # a second draw selects the anchor
WITHIN_STEP = 3  # the table has an interval for each step, and not for each episode: the step is the anchor (CPU only)

#: Where in its window an anchor stands, in the order of `gear_data.selection.windows.ANCHORS`.
ANCHOR_START, ANCHOR_END, ANCHOR_RANDOM = range(3)

#: Addresses are of int64 arrays unless a comment says otherwise. k is the number of episodes.
_FIELDS = (
    "seed",  # uint64 bits
    "domain",  # random domain of the first draw, see `gear_data.kernels.cpu.random`
    "episodes",  # k
    "total",  # address of the total integer weight, int64 [1]
    "prefix",  # address of [k + 1], the integer weight before each episode; 0: the weights are in a tree
    "guide",  # address of uint32: entry b is the episode of point b << shift; the last entry is for the last point
    "shift",  # one entry of `guide` covers 2^shift points
    "nodes",  # address of a tree's nodes, see `gear_data.kernels.cpu.weight_tree`
    "starts",  # address of the first node of each level of the tree
    "levels",  # number of levels of the tree
    "find",  # address of the CPU's kernel `weight_tree.find`, for a tree
    "distinct",  # not 0: no episode occurs twice in one batch; address of the CPU's kernel `windows.make_distinct`
    "within",  # WITHIN_...
    "counts",  # address of [k + 1], the anchors before each episode
    "offsets",  # address of [k + 1], the steps before each episode
    "ids",  # address of [k], the episodes' ids; 0: an episode's id is its index
    "words",  # address of a step mask's uint64 words, whose set bits are the anchors; 0: anchors are evenly spaced
    "ranks",  # address of the mask's running counts
    "first",  # address of [k], the mask's bit of each episode's first step
    "context",  # the most steps of a window
    "stride",  # every stride-th step of an episode is an anchor
    "origin",  # the first step of an episode that can be an anchor
    "anchor",  # ANCHOR_...
    "allow_short",  # 1: windows may be shorter than the context
)
#: One record, every field int64. `struct WindowPlan` of `select.cu` has the same fields in the same order.
WINDOW_PLAN = np.dtype([(name, np.int64) for name in _FIELDS])

#: WINDOW_PLAN [1].
WindowPlanArray = npt.NDArray[Any]
