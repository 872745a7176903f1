"""WindowSampler: from quanta of episodes, drawn or given, to windows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from gear_data.selection.anchors import Anchors
from gear_data.selection.windows import ANCHORS, Float64Array, Int64Array, Windows


class IntWeightTable(Protocol):
    """Episodes' integer weights, where a kernel finds them: a PrefixTable or a WeightTree. An episode without an anchor
    has none."""

    def plan_fields(self) -> dict[int, int | npt.NDArray[Any]]:
        """The fields of a plan that say where they are: numbers, and arrays, which stand for their addresses."""

    def shares(self) -> Float64Array:
        """float64 [k], 1 in sum: each episode's part of the quanta."""


class WindowSampler:
    """Draws windows: a quantum, uniform below their number, leads to an episode, and to an anchor of it.

    Episodes so come in proportion to their quanta, whatever order those were summed in.

    Args:
        anchors: the episodes and their anchors.
        source: the episodes' quanta.
        seed: 0 to 2^64 - 1.
        domain: of the random numbers, see `gear_data.kernels.cpu.random`.
        within: how a quantum leads to an anchor of its episode, `gear_data.kernels.cpu.windows.WITHIN_...`.
        distinct: whether no episode comes twice in one batch.
        probability: whether drawn windows come with their probability; not with WITHIN_OFFSET.

    Attributes:
        rows: of what is drawn: 3, or 4 with the probability.
        distinct: see above.
        arrays: field of the plan -> the array whose address it has.
    """

    def __init__(
        self,
        anchors: Anchors,
        source: IntWeightTable,
        seed: int,
        domain: int,
        within: int,
        distinct: bool = False,
        probability: bool = False,
    ) -> None:
        # Bound here: importing in `draw` would cost as much as several draws.
        from gear_data.kernels.cpu.windows import PLAN_FIELDS, draw_windows

        self._draw_windows = draw_windows
        self._arguments = anchors, source, seed, domain, within, distinct, probability
        self._source = source
        self.rows = 4 if probability else 3
        self.distinct = distinct
        fields = _plan_fields(anchors, source, seed, domain, within, distinct)
        self.arrays = {field: value for field, value in fields.items() if isinstance(value, np.ndarray)}
        self._plan = plan = np.zeros(PLAN_FIELDS, np.int64)
        for field, value in fields.items():
            plan[field] = value.ctypes.data if isinstance(value, np.ndarray) else value

    def __reduce__(self) -> tuple[Any, ...]:
        # A plan holds addresses.
        return (WindowSampler, self._arguments)

    def shares(self) -> Float64Array:
        """float64 [k], 1 in sum: how much of what is drawn comes from each of the anchors' episodes."""
        return self._source.shares()

    def draw(self, step: int, count: int) -> Windows:
        """Draws the windows of slots 0 to count - 1 of `step`.

        A slot's window is a function of this object's arguments, `step` and the slot; if `distinct`, also of the slots
        before it.
        """
        out = np.empty((self.rows, count), np.int64)
        self._draw_windows(self._plan, step, out)
        return Windows(out[0], out[1], out[2], out[3].view(np.float64) if self.rows == 4 else None)

    def windows(self, numbers: Int64Array, step: int) -> Windows:
        """The windows of the quanta with these numbers, int64 [B], in slots 0 to B - 1 of `step`."""
        from gear_data.kernels.cpu.windows import windows_of_anchors

        out = np.empty((3, len(numbers)), np.int64)
        out[1] = numbers
        windows_of_anchors(self._plan, step, out)
        return Windows(out[0], out[1], out[2])

    def plan_at(self, addresses: Mapping[int, int]) -> Int64Array:
        """int64 [PLAN_FIELDS]: the plan where the arrays are elsewhere: field -> address."""
        plan = self._plan.copy()
        for field, address in addresses.items():
            plan[field] = address
        return plan


@dataclass(frozen=True)
class SamplingPlan:
    """How the windows of a selector are drawn, for those who draw them elsewhere.

    Attributes:
        sampler: what from.
        order: order(epoch, first, count) -> the quanta at these places of an epoch; None: every slot draws one.
        total: quanta of an epoch, where there is an order.
    """

    sampler: WindowSampler
    order: Callable[[int, int, int], Int64Array] | None = None
    total: int = 0

    def spans(self, position: int, count: int) -> Iterator[tuple[int, int, int]]:
        """(epoch, first place there, how many) of so many slots from `position` on."""
        last = position + count
        while position < last:
            epoch, first = divmod(position, self.total)
            taken = min(self.total - first, last - position)
            yield epoch, first, taken
            position += taken


def _plan_fields(
    anchors: Anchors, source: IntWeightTable, seed: int, domain: int, within: int, distinct: bool
) -> dict[int, int | npt.NDArray[Any]]:
    from gear_data.kernels.cpu import windows as kernels

    rule, mask = anchors.rule, anchors.eligible
    fields: dict[int, int | npt.NDArray[Any]] = {
        **source.plan_fields(),
        kernels.SEED: int(np.uint64(seed).astype(np.int64)),
        kernels.DOMAIN: domain,
        kernels.EPISODES: len(anchors),
        kernels.DISTINCT: distinct,
        kernels.WITHIN: within,
        kernels.COUNTS: anchors.prefix,
        kernels.OFFSETS: anchors.offsets,
        kernels.CONTEXT: rule.context,
        kernels.STRIDE: rule.stride,
        kernels.ORIGIN: rule.first_anchor,
        kernels.ANCHOR: ANCHORS.index(rule.anchor),
        kernels.SHORT: rule.short,
    }
    if anchors.ids is not None:
        fields[kernels.IDS] = anchors.ids
    if mask is not None:
        fields[kernels.WORDS] = mask.words
        fields[kernels.RANKS] = mask.ranks
        fields[kernels.FIRST] = anchors.first
    return fields
