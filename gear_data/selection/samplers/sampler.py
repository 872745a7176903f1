"""Sampler, which a user writes; BuiltInSampler and Selector, the two interfaces of a sampler of gear-data.

A sampler is a small frozen value that can be pickled. Bound to a dataset's anchors and a seed, it becomes a selector.
`CustomSampler` binds a user's sampler. Slot i of step t has the same window for every rank, world size, worker count
and prefetch depth, so a run resumes from the step number only.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, get_args, runtime_checkable

import numpy as np
import numpy.typing as npt

from gear_data.errors import unknown_name
from gear_data.selection.anchors import Anchors
from gear_data.selection.window_sampler import SamplingPlan
from gear_data.selection.windows import Float64Array, Int64Array, Windows
from gear_data.words import By

if TYPE_CHECKING:
    import polars as pl


@dataclass(frozen=True)
class Candidates:
    """The anchors that a sampler selects from.

    Attributes:
        anchors: the steps that position windows.
        evaluate: evaluate(expression, name) -> float64 [k], the value of an expression for each of the anchors' k
            episodes, null as NaN. `name` names the value in errors.
        agree: agree(make) -> the result of make() on rank 0, for all ranks that make the sampler together.
    """

    anchors: Anchors
    evaluate: Callable[[str | pl.Expr, str], Float64Array]
    agree: Callable[[Callable[[], Float64Array]], Float64Array] = operator.call


class Selector(Protocol):
    """A sampler bound to anchors and a seed."""

    def select(self, step: int, count: int, position: int) -> Windows:
        """Selects the windows of slots 0 to count - 1 of batch `step`.

        The windows are a pure function of the arguments.

        Args:
            step: the batch's step.
            count: slots of the batch.
            position: number of this selector's slots in all earlier batches. Samplers that go through the anchors in an
                order use it.
        """

    def sampling_plan(self, count: int) -> SamplingPlan | None:
        """Returns the plan by which a device draws batches of `count` slots.

        Returns None if only `select` can draw them.
        """

    def epoch_slots(self, epochs: int) -> int | None:
        """Returns the number of windows in `epochs` epochs.

        Returns None if epochs have no exact end.
        """

    def shares(self) -> Float64Array:
        """Returns each episode's share of the windows in the long run.

        The result is float64 [k] with a sum of 1.

        Shares use the last weights. Without replacement, they are the shares of the first draw of a batch.
        """

    def identity(self) -> dict[str, Any]:
        """Returns everything else that the windows depend on, JSON-able.

        The seed and the anchors are not included.
        """


@runtime_checkable
class BuiltInSampler(Protocol):
    """A rule that selects windows, of gear-data."""

    @property
    def name(self) -> str: ...

    def bind(self, candidates: Candidates, seed: int) -> Selector:
        """Returns the selector for these candidates. seed: 0 to 2^64 - 1."""


@runtime_checkable
class Sampler(Protocol):
    """A rule that selects windows, which you write: a frozen dataclass with a name and `draw`.

    Its fields are its parameters: numbers, texts, arrays of numbers, or lists and mappings of them. A loader's state
    holds the name and the parameters, of arrays a hash. A loader with others refuses the state.
    """

    @property
    def name(self) -> str:
        """The name in states and errors."""

    def draw(
        self, counts: Int64Array, seed: int, step: int, first: int, last: int
    ) -> tuple[npt.NDArray[np.integer[Any]], npt.NDArray[np.integer[Any]]]:
        """Returns the windows of the slots of one batch: their episodes, and their numbers in these episodes.

        The windows are a pure function of the arguments and the fields. So every rank draws the same global batch, and
        takes its own rows. Random numbers come from `numpy.random.default_rng([seed, step])`.

        Args:
            counts: int64 [episodes], read-only: the windows of each episode; 0 if a filter leaves none. They are the
                episodes' lengths, unless `stride`, `short`, or a step filter leaves out steps.
            seed: of the loader, 0 to 2^64 - 1; each dataset of a mixture has its own.
            step: the batch's step, counted over all passes.
            first: the first slot of the batch, counted over the slots of all batches from 0.
            last: the slot after the last one. In a joined mixture, a dataset has fewer slots than the batch.

        Returns:
            Integers [last - first] each: positions of episodes in the dataset, and window numbers, from 0 to
            counts[episode] - 1. A number is the first step of the window, if counts are lengths and the anchor is
            `start`.
        """


#: A sampler of gear-data, or a user's.
AnySampler = BuiltInSampler | Sampler


def check_by(by: str) -> None:
    """Raises UnknownNameError unless `by` is `step` or `episode`."""
    if by not in get_args(By):
        raise unknown_name("by", by, get_args(By))
