"""TopK: uniform over the episodes with the largest values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import xxhash

from gear_data.common.keywords import suggest_fields
from gear_data.errors import InvalidArgumentError
from gear_data.kernels import cpu
from gear_data.selection.samplers.sampler import Candidates, Selector, check_by
from gear_data.selection.samplers.uniform import WindowSelector, uniform_window_sampler
from gear_data.selection.window_sampler import WindowSampler
from gear_data.selection.windows import Float64Array
from gear_data.words import By

if TYPE_CHECKING:
    import polars as pl


@suggest_fields
@dataclass(frozen=True, eq=False)
class TopK:
    """Draws uniformly from the k episodes with the largest value of an expression.

    Of episodes with the same value, the first ones in the order of the dataset are taken.

    Attributes:
        expression: over the episode table, a Polars expression or SQL.
        k: number of episodes.
        by: as for `Uniform`.

    Raises:
        InvalidArgumentError: k is below 1.
        UnknownNameError: another `by`.
    """

    expression: str | pl.Expr
    k: int
    by: By = "step"
    name = "topk"

    def __post_init__(self) -> None:
        check_by(self.by)
        if isinstance(self.k, bool) or not isinstance(self.k, int | np.integer) or self.k < 1:
            raise InvalidArgumentError(f"k is {self.k!r}, not an integer of 1 or more")

    def bind(self, candidates: Candidates, seed: int) -> Selector:
        """Returns the selector for these candidates.

        Raises:
            InvalidArgumentError: fewer than k episodes have an anchor and a value that is not null.
        """
        anchors = candidates.anchors
        values = candidates.evaluate(self.expression, "topk value")
        chosen = _largest(values, anchors.counts() > 0, self.k)
        digest = xxhash.xxh3_128(np.ascontiguousarray(chosen).data).hexdigest()
        identity = {"name": self.name, "by": self.by, "k": int(self.k), "chosen": digest}
        # A table of the chosen episodes only: it fits in a cache sooner, and a search in it is shorter.
        sampler = uniform_window_sampler(anchors.of(np.flatnonzero(chosen)), seed, self.by, cpu.random.DOMAIN_EPISODE)
        return _TopKSelector(sampler, identity, chosen)


class _TopKSelector(WindowSelector):
    """A `WindowSelector` of some of the episodes.

    chosen: bool [k], whether each episode is one of them.
    """

    def __init__(self, sampler: WindowSampler, identity: dict[str, Any], chosen: npt.NDArray[np.bool_]) -> None:
        super().__init__(sampler, identity)
        self._chosen = chosen

    def shares(self) -> Float64Array:
        shares = np.zeros(len(self._chosen))
        shares[self._chosen] = super().shares()
        return shares


def _largest(values: Float64Array, drawable: npt.NDArray[np.bool_], k: int) -> npt.NDArray[np.bool_]:
    """Returns bool [n], True for the k largest values of drawable episodes.

    NaN never counts, ties go to the first.
    """
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
