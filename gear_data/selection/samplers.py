"""Samplers: which windows a batch is made of, as pure functions of (seed, step).

A sampler is a small frozen value that can be pickled; bound to a dataset's anchors and a seed it becomes a selector.
Slot i of step t is the same for any rank, world size, worker count and prefetch depth, so a run resumes from the step
number alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt

from gear_data.errors import InvalidArgumentError, unknown_name
from gear_data.selection.anchors import Anchors
from gear_data.selection.integer_weights import check_weights
from gear_data.selection.orders import OrderSelector, Permuted, in_order
from gear_data.selection.prefix_table import PrefixTable
from gear_data.selection.weighted import WeightedSelector
from gear_data.selection.window_sampler import SamplingPlan, WindowSampler
from gear_data.selection.windows import Float64Array, Windows
from gear_data.storage.block import offsets_of

if TYPE_CHECKING:
    import polars as pl

_BY = ("step", "episode")


@dataclass(frozen=True)
class Candidates:
    """What a sampler chooses from.

    Attributes:
        anchors: the steps that windows hang on.
        evaluate: evaluate(expression, what) -> float64 [k], the value of an expression for each of the anchors'
            episodes, null as NaN; `what` says in errors what it is for.
    """

    anchors: Anchors
    evaluate: Callable[[str | pl.Expr, str], Float64Array]


class Selector(Protocol):
    """A sampler bound to anchors and a seed."""

    def select(self, step: int, count: int, position: int) -> Windows:
        """The windows of slots 0 to count - 1 of batch `step`: a pure function of the selector and the arguments.

        Args:
            position: how many slots there were before slot 0; for samplers that go through the anchors in an order.
        """

    def sampling_plan(self, count: int) -> SamplingPlan | None:
        """How kernels elsewhere draw the windows of batches of so many slots from now on; None: only `select` does."""

    def epoch_slots(self, epochs: int) -> int | None:
        """How many windows so many epochs have, exactly; None if epochs have no exact end."""

    def shares(self) -> Float64Array:
        """float64 [k], 1 in sum: how much of very many windows comes from each of the anchors' episodes, by the last
        weights; without replacement within a batch, as if it were with."""

    def identity(self) -> dict[str, Any]:
        """JSON-able: what else than the seed and the anchors the windows depend on."""


class Sampler(Protocol):
    """Says how windows are chosen."""

    @property
    def name(self) -> str: ...

    def bind(self, candidates: Candidates, seed: int) -> Selector:
        """The selector for these candidates; seed: 0 to 2^64 - 1."""


@dataclass(frozen=True)
class Uniform:
    """Every anchor equally often (`by="step"`), or every episode, and then every anchor of it (`by="episode"`); with
    replacement.

    Raises:
        UnknownNameError: another `by`.
    """

    by: str = "step"
    name = "uniform"

    def __post_init__(self) -> None:
        _check_by(self.by)

    def bind(self, candidates: Candidates, seed: int) -> Selector:
        from gear_data.kernels.cpu.random import DOMAIN_UNIFORM

        sampler = _window_sampler(candidates.anchors, seed, self.by, DOMAIN_UNIFORM, None)
        return _DrawSelector(sampler, {"name": self.name, "by": self.by})


@dataclass(frozen=True, eq=False)
class TopK:
    """Uniform over the k episodes with the largest value of an expression; of equal values the first in order.

    Attributes:
        expression: over the episode table, a Polars expression or SQL.
        k: how many episodes.
        by: as for Uniform.

    Raises:
        InvalidArgumentError: k is below 1.
        UnknownNameError: another `by`.
    """

    expression: str | pl.Expr
    k: int
    by: str = "step"
    name = "topk"

    def __post_init__(self) -> None:
        _check_by(self.by)
        if isinstance(self.k, bool) or not isinstance(self.k, int | np.integer) or self.k < 1:
            raise InvalidArgumentError(f"k is {self.k!r}, not an integer from 1 on")

    def bind(self, candidates: Candidates, seed: int) -> Selector:
        """Raises InvalidArgumentError where fewer than k episodes have an anchor and a value that is not null."""
        from gear_data.kernels.cpu.random import DOMAIN_EPISODE

        anchors = candidates.anchors
        values = candidates.evaluate(self.expression, "topk value")
        chosen = _largest(values, anchors.counts() > 0, self.k)
        sampler = _window_sampler(anchors, seed, self.by, DOMAIN_EPISODE, chosen)
        return _DrawSelector(sampler, {"name": self.name, "by": self.by, "k": int(self.k), "chosen": _digest(chosen)})


@dataclass(frozen=True, eq=False)
class Weighted:
    """Episodes, or steps, in proportion to weights.

    Attributes:
        expression: the weight of an episode over the episode table, a Polars expression or SQL; finite, not negative.
        by: `episode`: an episode comes in proportion to its weight, and then each of its anchors equally often; `step`:
            each anchor comes in proportion to the weight of its episode.
        replacement: if not, no episode comes twice in one batch: slots take episodes one after the other, in
            proportion to the weights of those left.

    Raises:
        UnknownNameError: another `by`.
    """

    expression: str | pl.Expr
    by: str = "episode"
    replacement: bool = True
    name = "weighted"

    def __post_init__(self) -> None:
        _check_by(self.by)

    def bind(self, candidates: Candidates, seed: int) -> WeightedSelector:
        """Raises InvalidArgumentError at a weight that is null, NaN, infinite or negative, or if all are zero."""
        weights = candidates.evaluate(self.expression, "weight")
        check_weights(weights, "weight", candidates.anchors.ids)
        return WeightedSelector(candidates.anchors, weights, seed, self.by == "step", self.replacement)


@dataclass(frozen=True)
class Fifo:
    """Every anchor once an epoch, in the order of the dataset."""

    name = "fifo"

    def bind(self, candidates: Candidates, seed: int) -> Selector:
        return OrderSelector(candidates.anchors, seed, in_order, self.name)


@dataclass(frozen=True)
class Shuffle:
    """Every anchor once an epoch, in an order of its own for every epoch; batches run across epoch ends.

    The order is a keyed permutation computed in place (a Feistel network), so 10^11 anchors take no memory.
    """

    name = "shuffle"

    def bind(self, candidates: Candidates, seed: int) -> Selector:
        anchors = candidates.anchors
        return OrderSelector(anchors, seed, Permuted(seed, anchors.total), self.name)


class _DrawSelector:
    """Every slot a draw of its own."""

    def __init__(self, sampler: WindowSampler, identity: dict[str, Any]) -> None:
        self._sampler = sampler
        self._identity = identity

    def select(self, step: int, count: int, position: int) -> Windows:
        return self._sampler.draw(step, count)

    def sampling_plan(self, count: int) -> SamplingPlan | None:
        return SamplingPlan(self._sampler)

    def shares(self) -> Float64Array:
        return self._sampler.shares()

    def epoch_slots(self, epochs: int) -> int | None:
        return None

    def identity(self) -> dict[str, Any]:
        return dict(self._identity)


def _check_by(by: str) -> None:
    if by not in _BY:
        raise unknown_name("by", by, _BY)


def _largest(values: Float64Array, drawable: npt.NDArray[np.bool_], k: int) -> npt.NDArray[np.bool_]:
    """bool [n]: the k largest values that are not NaN, of drawable episodes; of equal ones the first."""
    usable = drawable & ~np.isnan(values)
    pool = values[usable]
    if k > len(pool):
        raise InvalidArgumentError(
            f"k is {k}, but {len(pool)} episodes have a window and a value", hint="take a smaller k"
        )
    pool.partition(len(pool) - k)
    least = pool[len(pool) - k]
    chosen: npt.NDArray[np.bool_] = usable & (values > least)
    chosen[np.flatnonzero(usable & (values == least))[: k - np.count_nonzero(chosen)]] = True
    return chosen


def _window_sampler(
    anchors: Anchors, seed: int, by: str, domain: int, chosen: npt.NDArray[np.bool_] | None
) -> WindowSampler:
    """One quantum an anchor, or an episode with one, of the chosen episodes; None: of all."""
    from gear_data.kernels.cpu.windows import WITHIN_DRAWN, WITHIN_OFFSET, WITHIN_QUOTIENT

    if by == "step" and chosen is None:
        return WindowSampler(anchors, PrefixTable(anchors.prefix), seed, domain, WITHIN_OFFSET)
    int_weights = anchors.counts()
    if by == "episode":
        np.minimum(int_weights, 1, out=int_weights)
    if chosen is not None:
        int_weights *= chosen
    source = PrefixTable(offsets_of(int_weights))
    return WindowSampler(anchors, source, seed, domain, WITHIN_QUOTIENT if by == "step" else WITHIN_DRAWN)


def _digest(values: npt.NDArray[Any]) -> str:
    import xxhash

    return xxhash.xxh3_128(np.ascontiguousarray(values).data).hexdigest()


#: Name -> sampler, as `sampler=` takes them; weighted and topk need an expression, so they have no default.
SAMPLERS: dict[str, Sampler | None] = {
    "uniform": Uniform(),
    "shuffle": Shuffle(),
    "fifo": Fifo(),
    "weighted": None,
    "topk": None,
}


def as_sampler(sampler: str | Sampler) -> Sampler:
    """A sampler by name, or itself.

    Raises:
        UnknownNameError: no such name; lists the samplers.
        InvalidArgumentError: a name that needs arguments, or no sampler.
    """
    if not isinstance(sampler, str):
        if isinstance(sampler, type) or not callable(getattr(sampler, "bind", None)):
            raise InvalidArgumentError(
                f"sampler must be a name or a sampler, not {sampler!r}", hint=f"names: {', '.join(SAMPLERS)}"
            )
        return sampler
    if sampler not in SAMPLERS:
        raise unknown_name("sampler", sampler, SAMPLERS)
    found = SAMPLERS[sampler]
    if found is None:
        example = "Weighted(pl.col('return') + 1)" if sampler == "weighted" else "TopK(pl.col('return'), k=100)"
        raise InvalidArgumentError(f"sampler '{sampler}' needs arguments", hint=f"give an instance: {example}")
    return found
