"""d3rlpy: a batch of transitions as the TransitionMiniBatch that `update` takes.

iql.create_impl(observation_shape=(11,), action_size=3)
for batch in gear_data.SequenceLoader(dataset, preset="transitions"):
    iql.update(to_mini_batch(batch))
"""

# mypy: disable-error-code="import-not-found, import-untyped"

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from gear_data.loaders.presets.transitions import check_transitions

if TYPE_CHECKING:
    from d3rlpy.dataset import TransitionMiniBatch


def to_mini_batch(batch: Mapping[str, Any]) -> TransitionMiniBatch:
    """Returns a batch of transitions as d3rlpy's algorithms for Q-learning take it.

    All arrays are float32. Several columns of observations become a list, in the order of the batch. Discrete actions
    become [B, 1]. `intervals` is 1 without `n_step`; give the loader the algorithm's gamma as `discount`.

    `next_actions` need `columns=["next_actions"]`. Without that, they are NaN, so that an algorithm that reads them
    (ReBRAC) has a loss of NaN. The rewards to the end of the episode, which CalQL reads, are not in the batch.

    Args:
        batch: of preset `transitions`: key -> tensor or array [B, ...], on the CPU.

    Raises:
        MissingColumnError: the batch is not of transitions.
    """
    from d3rlpy.dataset import TransitionMiniBatch

    check_transitions(batch)
    actions, rewards = _columns(batch["actions"]), _columns(batch["rewards"])
    one = np.ones_like(rewards)
    return TransitionMiniBatch(
        observations=_observations(batch, "observations"),
        actions=actions,
        rewards=rewards,
        next_observations=_observations(batch, "next_observations"),
        next_actions=_columns(batch["next_actions"]) if "next_actions" in batch else np.full_like(actions, np.nan),
        terminals=_columns(batch["terminated"]),
        intervals=_columns(batch["intervals"]) if "intervals" in batch else one,
        transitions=(),
    )


def _columns(values: Any) -> npt.NDArray[np.float32]:
    """Returns float32 [B, ...]; [B, 1] of [B]."""
    array: npt.NDArray[np.float32] = np.asarray(values).astype(np.float32, copy=False)
    return array[:, None] if array.ndim == 1 else array


def _observations(batch: Mapping[str, Any], name: str) -> Any:
    keys = [key for key in batch if key == name or key.startswith(f"{name}.")]
    found = [_columns(batch[key]) for key in keys if not _is_mask(key, batch)]
    return found[0] if len(found) == 1 else found


def _is_mask(key: str, batch: Mapping[str, Any]) -> bool:
    """Returns whether a key is the mask of another one. `observations.action_mask` may be an observation."""
    column = key.removesuffix("_mask")
    return column != key and any(other == column or other.startswith(f"{column}.") for other in batch)
