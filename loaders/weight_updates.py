"""Weight updates: checks, and the agreement of all ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from gear_data.common.distributed import all_gather, is_distributed
from gear_data.errors import InvalidArgumentError
from gear_data.loaders.arguments import check_range
from gear_data.loaders.component import LoaderComponent
from gear_data.loaders.frameworks.workers import get_worker_info
from gear_data.loaders.passes.progress import Progress
from gear_data.loaders.passes.shared_passes import SharedPasses
from gear_data.loaders.window_source import WindowSource
from gear_data.selection.samplers.weighted import WeightedSelector

#: After an update of weights, the weights of this many steps before the next step are kept, for `windows`.
_STEPS_KEPT = 1024
#: Episode ids, int64 [n]; weights, float64 [n]; and steps in these episodes, int64 [n], or None.
Update = tuple[npt.NDArray[np.int64], npt.NDArray[np.float64], npt.NDArray[np.int64] | None]


def check_updatable(components: Sequence[LoaderComponent], dataset: int, shared: SharedPasses) -> WeightedSelector:
    """Returns the selector whose weights change.

    Args:
        components: the loader's datasets.
        dataset: the number of one of them.
        shared: says whether DataLoader workers build the batches.

    Raises:
        InvalidArgumentError: the dataset has no weights, this process is a DataLoader's worker, or workers build the
            batches.
    """
    if get_worker_info() is not None:
        raise InvalidArgumentError(
            "weights cannot be updated inside a DataLoader's worker: the other workers would not know",
            hint="call update_weights on a loader that is iterated without DataLoader workers",
        )
    check_range("dataset", dataset, 0, len(components) - 1)
    selector = components[dataset].selector
    if not isinstance(selector, WeightedSelector):
        raise InvalidArgumentError(
            "only the sampler Weighted has weights to update, and only with selection='centralized'",
            hint="give sampler=gear_data.Weighted(expression)",
        )
    if shared.used:
        raise InvalidArgumentError(
            "a DataLoader's workers build the batches with their own copies of the weights",
            hint="iterate the loader itself, with prefetch=, if weights change",
        )
    return selector


def apply_update(
    selector: WeightedSelector,
    dataset: int,
    update: tuple[Any, Any, Any],
    from_step: int | None,
    progress: Progress,
    source: WindowSource,
    *,
    all_ranks: bool,
) -> int:
    """Changes weights; no batch may be started meanwhile.

    Args:
        selector: the selector whose weights change.
        dataset: number of its dataset.
        update: this rank's episode ids, weights, and steps in the episodes or None.
        from_step: the first step with these weights; None: as soon as possible.
        progress: the position of the loader.
        source: samples the windows of the loader.
        all_ranks: whether the ranks of torch.distributed update together.

    Returns:
        The first step with these weights.
    """
    soonest = max(progress.next_step, progress.started_step(), source.loader_step(dataset, selector.soonest))
    (ids, weights, of_steps), first_step = agree_on_update(*update, from_step, soonest, all_ranks=all_ranks)
    selector.update(source.selector_step(dataset, first_step), ids, weights, of_steps)
    selector.compact(source.selector_step(dataset, max(0, progress.next_step - _STEPS_KEPT)))
    return first_step


def agree_on_update(
    episode_ids: Any, values: Any, steps: Any, from_step: int | None, soonest: int, *, all_ranks: bool
) -> tuple[Update, int]:
    """Joins the updates of all ranks, in the order of the ranks.

    Args:
        episode_ids, values, steps: this rank's update.
        from_step: the step from which it holds; None: as soon as possible.
        soonest: the first step that this rank has not started.
        all_ranks: whether the ranks of torch.distributed update together.

    Returns:
        The joined update, and the step from which it holds.

    Raises:
        InvalidArgumentError: an update of any rank is wrong; every rank raises the error.
    """
    problem, own = None, None
    try:
        own = _checked(episode_ids, values, steps)
        if from_step is not None:
            check_range("from_step", from_step, 0)
    except InvalidArgumentError as error:
        problem = error
    proposal = (problem, own, from_step, soonest)
    ranks = all_gather(proposal) if all_ranks and is_distributed() else [proposal]
    for error_of_rank, *_ in ranks:
        if error_of_rank is not None:
            raise error_of_rank
    first_steps = {first_step for *_, first_step, _ in ranks}
    if len(first_steps) > 1:
        raise InvalidArgumentError(
            f"the ranks give different from_step: {sorted(map(str, first_steps))}", hint="give one value on all ranks"
        )
    soonest = max(rank[3] for rank in ranks)
    if from_step is not None and from_step < soonest:
        raise InvalidArgumentError(
            f"from_step is {from_step}, and batches up to step {soonest - 1} are already built",
            hint=f"give {soonest} or more, or leave it out",
        )
    updates = [rank[1] for rank in ranks if rank[1] is not None]
    of_steps = [own_steps for *_, own_steps in updates if own_steps is not None]
    if of_steps and len(of_steps) < len(updates):
        raise InvalidArgumentError("some ranks give steps, and others do not", hint="give steps= on all ranks or none")
    joined = (
        np.concatenate([ids for ids, *_ in updates]),
        np.concatenate([weights for _, weights, _ in updates]),
        np.concatenate(of_steps) if of_steps else None,
    )
    return joined, int(soonest if from_step is None else from_step)


def _checked(episode_ids: Any, values: Any, steps: Any) -> Update:
    try:
        ids, weights = np.asarray(episode_ids), np.asarray(values, np.float64)
        of_steps = None if steps is None else np.asarray(steps)
    except (TypeError, ValueError) as error:
        raise InvalidArgumentError(f"update_weights takes integers [n] and numbers [n]: {error}") from error
    if ids.size == 0:
        ids = ids.astype(np.int64)
    if of_steps is not None and of_steps.size == 0:
        of_steps = of_steps.astype(np.int64)
    if of_steps is not None and (of_steps.shape != ids.shape or of_steps.dtype.kind not in "iu"):
        raise InvalidArgumentError(
            f"update_weights takes one integer step for each of {list(ids.shape)} episodes, not {of_steps.dtype} "
            f"{list(of_steps.shape)}"
        )
    if ids.ndim != 1 or ids.shape != weights.shape or ids.dtype.kind not in "iu":
        raise InvalidArgumentError(
            f"update_weights takes integers [n] and numbers [n], not {ids.dtype} {ids.shape} and {weights.shape}"
        )
    return ids.astype(np.int64), weights, None if of_steps is None else of_steps.astype(np.int64)
