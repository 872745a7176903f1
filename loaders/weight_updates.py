"""Updates of weights, agreed on by all ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from torch.utils.data import get_worker_info

from gear_data.common.distributed import all_gather, is_distributed
from gear_data.errors import InvalidArgumentError
from gear_data.loaders.arguments import check_range
from gear_data.loaders.component import LoaderComponent
from gear_data.loaders.shared_state import SharedResumeState
from gear_data.selection.samplers.weighted import WeightedSelector

#: int64 [n] and float64 [n].
Update = tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]


def check_updatable(parts: Sequence[LoaderComponent], dataset: int, mark: SharedResumeState) -> WeightedSelector:
    """The selector whose weights change.

    Raises:
        InvalidArgumentError: there is none, this is a DataLoader's worker, or by the mark workers make the batches.
    """
    if get_worker_info() is not None:
        raise InvalidArgumentError(
            "weights cannot be updated inside a DataLoader's worker: the others would not know",
            hint="call update_weights on a loader that is iterated without DataLoader workers",
        )
    check_range("dataset", dataset, 0, len(parts) - 1)
    selector = parts[dataset].selector
    if not isinstance(selector, WeightedSelector):
        raise InvalidArgumentError(
            "only the sampler Weighted has weights to update, and with selection='centralized'",
            hint="sampler=gear_data.Weighted(expression)",
        )
    if mark.used:
        raise InvalidArgumentError(
            "a DataLoader's workers make the batches, and the weights are theirs too",
            hint="iterate the loader itself, with prefetch=, where weights change",
        )
    return selector


def spread_update(
    episode_ids: Any, values: Any, from_step: int | None, soonest: int, *, spread: bool
) -> tuple[Update, int]:
    """(the updates of all ranks, in rank order, as one; the step from which it holds).

    Args:
        soonest: the first step that this rank has not begun.
        spread: whether the ranks of torch.distributed update together.

    Raises:
        InvalidArgumentError: on every rank, what is wrong on any of them.
    """
    problem, mine = None, None
    try:
        mine = _checked(episode_ids, values)
        if from_step is not None:
            check_range("from_step", from_step, 0)
    except InvalidArgumentError as error:
        problem = error
    own = (problem, mine, from_step, soonest)
    ranks = all_gather(own) if spread and is_distributed() else [own]
    for wrong, *_ in ranks:
        if wrong is not None:
            raise wrong
    asked = {wanted for *_, wanted, _ in ranks}
    if len(asked) > 1:
        raise InvalidArgumentError(f"the ranks give different from_step: {sorted(map(str, asked))}")
    soonest = max(rank[3] for rank in ranks)
    if from_step is not None and from_step < soonest:
        raise InvalidArgumentError(
            f"from_step is {from_step}, and batches up to step {soonest - 1} are made already",
            hint=f"give {soonest} or more, or leave it out",
        )
    updates = [rank[1] for rank in ranks if rank[1] is not None]
    together = np.concatenate([ids for ids, _ in updates]), np.concatenate([weights for _, weights in updates])
    return together, int(soonest if from_step is None else from_step)


def _checked(episode_ids: Any, values: Any) -> Update:
    try:
        ids, weights = np.asarray(episode_ids), np.asarray(values, np.float64)
    except (TypeError, ValueError) as error:
        raise InvalidArgumentError(f"update_weights takes integers [n] and numbers [n]: {error}") from error
    if ids.size == 0:
        ids = ids.astype(np.int64)
    if ids.ndim != 1 or ids.shape != weights.shape or ids.dtype.kind not in "iu":
        raise InvalidArgumentError(
            f"update_weights takes integers [n] and numbers [n], not {ids.dtype} {ids.shape} and {weights.shape}"
        )
    return ids.astype(np.int64), weights
