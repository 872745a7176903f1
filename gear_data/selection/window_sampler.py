"""WindowSampler: draws windows from episodes with integer weights."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from gear_data.kernels import cpu
from gear_data.kernels.window_plan import WINDOW_PLAN, WindowPlanArray
from gear_data.selection.anchors import Anchors
from gear_data.selection.windows import ANCHORS, Float64Array, Int64Array, Windows


class IntWeightTable(Protocol):
    """The episodes' integer weights, in a form that kernels can search.

    `PrefixTable` and `WeightTree` implement it. An episode without an anchor has the weight 0.
    """

    def plan_fields(self) -> dict[str, int | npt.NDArray[Any]]:
        """Returns field of WINDOW_PLAN -> value, for the fields that describe the table.

        For a field that holds an address, the value is the array.
        """

    def shares(self) -> Float64Array:
        """Returns each episode's share of the total weight, float64 [k], with a sum of 1."""


class WindowSampler:
    """Draws windows in proportion to integer weights.

    A uniform point below the total integer weight leads to an episode, and to one of its anchors.

    The integer weights of all episodes, laid end to end, divide the points into one interval for each episode. So
    episodes are drawn in proportion to their weights, in whatever order the weights were summed.

    Args:
        anchors: the episodes and their anchors.
        table: the episodes' integer weights.
        seed: 0 to 2^64 - 1.
        domain: the random domain of the first draw, see `gear_data.kernels.cpu.random`.
        within: WITHIN_... of `gear_data.kernels.window_plan`: how a point leads to an anchor of its episode.
        distinct: whether no episode occurs twice in one batch.
        probability: whether drawn windows carry their probability; not with WITHIN_OFFSET.

    Attributes:
        rows: rows of the array that a draw fills: 3, or 4 with the probability.
        distinct: whether no episode occurs twice in one batch.
        arrays: field of WINDOW_PLAN -> the array whose address it holds.
        plan_address: address of the WINDOW_PLAN, valid as long as this object lives.
    """

    def __init__(
        self,
        anchors: Anchors,
        table: IntWeightTable,
        seed: int,
        domain: int,
        within: int,
        distinct: bool = False,
        probability: bool = False,
    ) -> None:
        self._arguments = anchors, table, seed, domain, within, distinct, probability
        self._table = table
        self.rows = 4 if probability else 3
        self.distinct = distinct
        fields = _plan_fields(anchors, table, seed, domain, within, distinct)
        self.arrays = {field: value for field, value in fields.items() if isinstance(value, np.ndarray)}
        self._plan: WindowPlanArray = np.zeros(1, WINDOW_PLAN)
        for field, value in fields.items():
            self._plan[field] = value.ctypes.data if isinstance(value, np.ndarray) else value
        self.plan_address = int(self._plan.ctypes.data)

    def __reduce__(self) -> tuple[Any, ...]:
        # The plan holds addresses, so it is built again.
        return (WindowSampler, self._arguments)

    def shares(self) -> Float64Array:
        """Returns each episode's share of the drawn windows, float64 [k], with a sum of 1."""
        return self._table.shares()

    def draw(self, step: int, count: int) -> Windows:
        """Draws the windows of slots 0 to count - 1 of `step`.

        A slot's window is a function of this object's arguments, `step` and the slot; if `distinct`, also of the slots
        before it.
        """
        out = np.empty((self.rows, count), np.int64)
        cpu.windows.draw_windows(self.plan_address, step, out)
        return Windows(out[0], out[1], out[2], out[3].view(np.float64) if self.rows == 4 else None)

    def windows(self, points: Int64Array, step: int) -> Windows:
        """Returns the windows of given points, int64 [B], in slots 0 to B - 1 of `step`."""
        out = np.empty((3, len(points)), np.int64)
        out[1] = points
        cpu.windows.windows_of_points(self.plan_address, step, out)
        return Windows(out[0], out[1], out[2])

    def plan_at(self, addresses: Mapping[str, int]) -> WindowPlanArray:
        """Returns the plan for copies of the arrays at other addresses: field -> address."""
        plan = self._plan.copy()
        for field, address in addresses.items():
            plan[field] = address
        return plan


@dataclass(frozen=True)
class SamplingPlan:
    """Everything that a device needs to draw the windows of a selector.

    Attributes:
        sampler: the window sampler.
        order: order(epoch, first, count) -> the points at positions first to first + count - 1 of an epoch; None:
            every slot draws a point.
        total: points of an epoch, if there is an order.
    """

    sampler: WindowSampler
    order: Callable[[int, int, int], Int64Array] | None = None
    total: int = 0

    def spans(self, position: int, count: int) -> Iterator[tuple[int, int, int]]:
        """Yields (epoch, first position in the epoch, count) for a range of slots.

        The slots are position to position + count - 1, counted over all epochs.
        """
        last = position + count
        while position < last:
            epoch, first = divmod(position, self.total)
            taken = min(self.total - first, last - position)
            yield epoch, first, taken
            position += taken


def _plan_fields(
    anchors: Anchors, table: IntWeightTable, seed: int, domain: int, within: int, distinct: bool
) -> dict[str, int | npt.NDArray[Any]]:
    rule, mask = anchors.rule, anchors.eligible
    fields: dict[str, int | npt.NDArray[Any]] = {
        **table.plan_fields(),
        "seed": int(np.uint64(seed).astype(np.int64)),
        "domain": domain,
        "episodes": len(anchors),
        "distinct": cpu.windows.make_distinct() if distinct else 0,
        "within": within,
        "counts": anchors.prefix,
        "offsets": anchors.offsets,
        "context": rule.context,
        "stride": rule.stride,
        "origin": rule.first_anchor,
        "anchor": ANCHORS.index(rule.anchor),
        "allow_short": rule.short,
    }
    if anchors.ids is not None:
        fields["ids"] = anchors.ids
    if mask is not None:
        fields["words"] = mask.words
        fields["ranks"] = mask.ranks
        fields["first"] = anchors.first
    return fields
