"""Transitions as outputs: a step, its reward, and its next state.

`gear_data.kernels.cpu.transitions` defines the next state, n steps ahead.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from gear_data.collection.output import NextState, Output
from gear_data.errors import InvalidArgumentError, MissingColumnError
from gear_data.schema import ColumnSpec

REWARDS, TERMINATED = "rewards", "terminated"
MASKS, DISCOUNTS, INTERVALS = "masks", "discounts", "intervals"
_NEEDED = ("actions", REWARDS, TERMINATED)


def check_transitions(batch: Mapping[str, Any]) -> None:
    """Raises MissingColumnError unless a batch is of transitions."""
    for name in _NEEDED:
        if name not in batch:
            raise MissingColumnError(
                f"a batch of transitions has {', '.join(_NEEDED)}; this one has {', '.join(batch)}",
                column=name,
                hint="give preset='transitions' to the loader",
            )


def next_state(observations: Sequence[ColumnSpec], n_step: int | None) -> NextState:
    """Returns the next state of a transition.

    Final observations are states only if all columns of the observation have them.

    Args:
        observations: the columns of the observation.
        n_step: steps to the next state; None: 1.
    """
    whole = bool(observations) and all(spec.has_final for spec in observations)
    return NextState(n_step or 1, TERMINATED, observations[0].name if whole else None)


def transition_outputs(
    outputs: Sequence[Output], state: NextState, keys: Mapping[str, str], *, n_step: int | None, discount: float,
    dtype: str,
) -> list[Output]:  # fmt: skip
    """Returns the outputs of a batch of transitions.

    Args:
        outputs: the columns and masks; outputs of a next step have `shift` 1.
        state: the next state.
        keys: column -> its key, of the preset's own columns.
        n_step, discount: n and the discount of the rewards' sum. None: a reward is the step's own.
        dtype: dtype of rewards, masks and discounts.

    Raises:
        InvalidArgumentError: the rewards cannot be summed.
    """
    # Options of the preset may have renamed them. A format without them has those that the request adds.
    rewards, terminated = (keys.get(name, name) for name in (REWARDS, TERMINATED))
    hops = np.arange(state.most + 1)
    both = np.ones((2, 1))
    result = []
    for output in outputs:
        if output.shift > 0:
            output = replace(output, next_state=state, within_window=False)
        elif output.key == rewards:
            # One number for each row, also if a step of the source has an array of one number.
            shape = () if output.shape == (1,) else output.shape
            output = replace(output, dtype=dtype, shape=shape)
            if n_step is not None:
                output = _summed(output, state, discount)
        elif output.key == terminated and n_step is not None:
            output = _of_hop(output.key, output.dtype, state, np.array([[0], [1]]) * np.ones_like(hops))
        result.append(output)
    ended = np.array([[1.0], [0.0]])
    result.append(_of_hop(MASKS, dtype, state, ended * np.ones_like(hops)))
    if n_step is not None:
        # Without a next state there is nothing to discount.
        factors = np.where(hops > 0, discount ** hops.astype(np.float64), 0.0)
        result.append(_of_hop(DISCOUNTS, dtype, state, ended * factors))
        result.append(_of_hop(INTERVALS, "int64", state, both * hops))
    return result


def _summed(output: Output, state: NextState, discount: float) -> Output:
    if output.mean is not None:
        raise InvalidArgumentError(
            "rewards cannot be normalised and summed over several steps", column=REWARDS,
            hint="leave rewards out of normalize, or leave n_step out",
        )  # fmt: skip
    return replace(output, next_state=state, discounts=tuple(discount**j for j in range(state.most)))


def _of_hop(key: str, dtype: str, state: NextState, table: npt.NDArray[np.generic]) -> Output:
    """Returns an output [B] whose value depends only on the hop."""
    return Output(key, state.ends, dtype, (), 0, 1, next_state=state, table=table, squeeze_time=True)
