"""Weight updates: checks, and the agreement of all ranks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from gear_data.common.distributed import all_gather, is_distributed
from gear_data.common.keywords import check_range
from gear_data.dataset.dataset import Dataset
from gear_data.errors import InvalidArgumentError
from gear_data.loaders.component import LoaderComponent
from gear_data.loaders.frameworks.workers import get_worker_info
from gear_data.loaders.passes.progress import Progress
from gear_data.loaders.stages.agreement import agreed_step
from gear_data.loaders.stages.stage import last_id
from gear_data.loaders.stages.timeline import Stages
from gear_data.loaders.window_source import WindowSource
from gear_data.selection.samplers.weighted_selector import WeightedSelector

#: After an update of weights, the weights of this many steps before the next step are kept, for `windows`.
_STEPS_KEPT = 1024
#: Episode ids, int64 [n]; weights, float64 [n]; and steps in these episodes, int64 [n], or None.
Update = tuple[npt.NDArray[np.int64], npt.NDArray[np.float64], npt.NDArray[np.int64] | None]


def check_updatable(components: Sequence[LoaderComponent], dataset: int, progress: Progress) -> None:
    """Checks that weights can change.

    Args:
        components: the loader's datasets.
        dataset: the number of one of them.
        progress: says whether DataLoader workers build the batches.

    Raises:
        InvalidArgumentError: the dataset has no weights, this process is a DataLoader's worker, or workers build the
            batches.
    """
    worker = get_worker_info()
    if worker is not None:
        raise InvalidArgumentError(
            "weights cannot be updated inside a DataLoader's worker: the other workers would not know",
            hint="call update_weights on a loader that is iterated without DataLoader workers",
        )
    if dataset.__class__ is not int or not 0 <= dataset < len(components):  # no call in most updates
        check_range("dataset", dataset, 0, len(components) - 1)
    selector = components[dataset].selector
    if not isinstance(selector, WeightedSelector):
        raise InvalidArgumentError(
            "only the sampler Weighted has weights to update, and only with selection='centralized'",
            hint="give sampler=gear_data.Weighted(expression)",
        )
    if progress.shared_in(worker).used:
        raise InvalidArgumentError(
            "a DataLoader's workers build the batches with their own copies of the weights",
            hint="iterate the loader itself, with prefetch=, if weights change",
        )


@dataclass(slots=True)
class _Held:
    """A selector, and the steps for which it selects."""

    selector: WeightedSelector
    source: WindowSource
    first: int
    end: int


def _held_selectors(stages: Stages, dataset: int) -> list[_Held]:
    """Returns the selectors of a dataset in all open stages, in order; stages may share one."""
    held: list[_Held] = []
    for stage in stages.opened:
        selector = stage.components[dataset].selector
        if held and held[-1].selector is selector:
            held[-1].end = stage.end
        elif isinstance(selector, WeightedSelector):
            held.append(_Held(selector, stage.source, stage.from_step, stage.end))
    return held


def apply_update(
    stages: Stages,
    dataset: int,
    update: tuple[Any, Any, Any],
    from_step: int | None,
    progress: Progress,
) -> int:
    """Changes weights; no batch may be started meanwhile.

    An episode may be in some of the generations of the coming steps only. Its weight changes in these.

    Args:
        stages: the stages of the loader.
        dataset: number of the dataset whose weights change.
        update: this rank's episode ids, weights, and steps in the episodes or None.
        from_step: the first step with these weights; None: as soon as possible.
        progress: the position of the loader.

    Returns:
        The first step with these weights.
    """
    held, newest = _held_selectors(stages, dataset), stages.newest
    next_step = soonest = progress.next_step
    if progress.current is not None:
        soonest = max(soonest, progress.started_step())
    for each in held:
        # An update that a later generation has from its first step on hinders no update before.
        own_soonest = each.selector.soonest
        if own_soonest > each.source.selector_step(dataset, max(soonest, each.first)):
            soonest = each.source.loader_step(dataset, own_soonest)
    if newest.config.rank is None and is_distributed():
        (ids, weights, of_steps), first_step = _agreed_update(*update, from_step, soonest)
    else:
        ids, weights, of_steps = _checked(*update, from_step)
        first_step = soonest if from_step is None else agreed_step([(from_step, soonest)])
    kept = max(0, next_step - _STEPS_KEPT)
    if len(held) == 1 and not newest.generations[dataset]:
        [only] = held
        source = only.source
        step = source.selector_step(dataset, max(first_step, only.first))
        only.selector.update(step, ids, weights, of_steps, source.selector_step(dataset, kept) if kept else 0)
        return first_step
    chosen = _episodes_of(held, ids, newest.components[dataset].dataset)
    changed: list[WeightedSelector] = []
    try:
        # The newest generation first: it finds wrong values.
        for each, own in zip(reversed(held), reversed(chosen), strict=True):
            if each.end <= first_step:
                continue
            step = each.source.selector_step(dataset, max(first_step, each.first))
            own_steps = None if of_steps is None else of_steps[own]
            each.selector.update(step, ids[own], weights[own], own_steps, each.source.selector_step(dataset, kept))
            changed.append(each.selector)
    except InvalidArgumentError:
        # An earlier generation may have no other episode with a positive weight.
        for selector in changed:
            selector.take_back()
        raise
    return first_step


def _episodes_of(held: Sequence[_Held], ids: npt.NDArray[np.int64], newest: Dataset) -> list[Any]:
    """Returns which of the episodes each selector gets, as an index of `ids`.

    The newest selector gets the ids that nobody knows, too, and refuses them. But an episode that left the dataset has
    no weight.
    """
    known = [each.selector.known(ids) for each in held]
    anywhere = np.logical_or.reduce(known)
    if newest.generation:
        anywhere |= (ids >= 0) & (ids <= last_id(newest))
    known[-1] = known[-1] | ~anywhere
    return known


def _agreed_update(
    episode_ids: Any, values: Any, steps: Any, from_step: int | None, soonest: int
) -> tuple[Update, int]:
    """Joins the updates of all ranks, in the order of the ranks.

    Args:
        episode_ids, values, steps: this rank's update.
        from_step: the step from which it holds; None: as soon as possible.
        soonest: the first step that this rank has not started.

    Returns:
        The joined update, and the step from which it holds.

    Raises:
        InvalidArgumentError: an update of any rank is wrong; every rank raises the error.
    """
    problem, own = None, None
    try:
        own = _checked(episode_ids, values, steps, from_step)
    except InvalidArgumentError as error:
        problem = error
    ranks = all_gather((problem, own, from_step, soonest))
    for error_of_rank, *_ in ranks:
        if error_of_rank is not None:
            raise error_of_rank
    first_step = agreed_step([rank[2:] for rank in ranks])
    updates = [rank[1] for rank in ranks if rank[1] is not None]
    of_steps = [own_steps for *_, own_steps in updates if own_steps is not None]
    if of_steps and len(of_steps) < len(updates):
        raise InvalidArgumentError("some ranks give steps, and others do not", hint="give steps= on all ranks or none")
    joined = (
        np.concatenate([ids for ids, *_ in updates]),
        np.concatenate([weights for _, weights, _ in updates]),
        np.concatenate(of_steps) if of_steps else None,
    )
    return joined, first_step


def _checked(episode_ids: Any, values: Any, steps: Any, from_step: int | None) -> Update:
    try:
        ids, weights = np.asarray(episode_ids), np.asarray(values, np.float64)
        of_steps = None if steps is None else np.asarray(steps)
    except (TypeError, ValueError, RuntimeError) as error:  # torch's, for a tensor with a gradient
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
    if from_step is not None:
        check_range("from_step", from_step, 0)
    if of_steps is not None:
        of_steps = of_steps.astype(np.int64, copy=False)
    return ids.astype(np.int64, copy=False), weights, of_steps
