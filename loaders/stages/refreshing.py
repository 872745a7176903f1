"""Refreshing a loader: checks, and the agreement of all ranks."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Sequence

from gear_data.common.distributed import all_gather, is_distributed
from gear_data.common.keywords import check_range
from gear_data.dataset.dataset import Dataset
from gear_data.errors import InvalidArgumentError
from gear_data.loaders.arguments.config import LoaderConfig
from gear_data.loaders.component import Origin
from gear_data.loaders.frameworks.workers import get_worker_info
from gear_data.loaders.passes.progress import Progress
from gear_data.loaders.stages.agreement import agreed_step
from gear_data.loaders.stages.generations import newest_generations, together
from gear_data.loaders.stages.stage import later_stage
from gear_data.loaders.stages.timeline import Stages
from gear_data.loaders.window_source import WindowSource
from gear_data.selection.samplers import WeightedSelector


def refresh(stages: Stages, progress: Progress, starting: threading.Lock, from_step: int | None) -> int:
    """Takes the newest generation of a loader's datasets; see `SequenceLoader.refresh`.

    Args:
        stages: the loader's stages.
        progress: its position.
        starting: while this lock is held, no batch is started.
        from_step: the first step of the new generation; None: as soon as possible.

    Returns:
        The first step of the newest generation.
    """
    config = stages.newest.config
    all_ranks = config.rank is None
    # First, because the ranks of a run wait for each other with a limit there.
    followed = newest_generations(stages.followed, all_ranks=all_ranks)
    together(lambda: check_refreshable(config, progress, from_step), all_ranks=all_ranks)
    return enter(stages, followed, progress, starting, from_step)


def check_refreshable(config: LoaderConfig, progress: Progress, from_step: int | None) -> None:
    """Raises InvalidArgumentError if the datasets of a loader stay as they are.

    Args:
        config: the arguments of the loader.
        progress: its position.
        from_step: as the user gave it.
    """
    if from_step is not None:
        check_range("from_step", from_step, 0)
    if get_worker_info() is not None:
        raise InvalidArgumentError(
            "a loader cannot be refreshed inside a DataLoader's worker: the other workers would not know",
            hint="call refresh on a loader that is iterated without DataLoader workers",
        )
    if progress.shared().used:
        raise InvalidArgumentError(
            "a DataLoader's workers build the batches with their own copies of the dataset",
            hint="iterate the loader itself, with prefetch=, if the dataset grows",
        )
    if config.passes == "repeat":
        raise InvalidArgumentError(
            "with passes='repeat' every pass has the same batches, so no generation can begin at a step",
            hint="make a new loader with the new generation",
        )
    if config.epochs is not None:
        raise InvalidArgumentError(
            "with epochs= the number of batches of a pass depends on the dataset",
            hint="give steps=, or no end; or make a new loader with the new generation for the next epochs",
        )
    if config.membership is not None:
        raise InvalidArgumentError(
            "with selection='decentralized' the nodes' shards decide the windows",
            hint="use WindowOptions(selection='centralized'), or make a new loader with the new generation",
        )


def enter(
    stages: Stages, followed: Sequence[Dataset], progress: Progress, starting: threading.Lock, from_step: int | None
) -> int:
    """Makes other generations of the datasets hold from a step on.

    Args:
        stages: the loader's stages.
        followed: the generations.
        progress, starting, from_step: see `refresh`.

    Returns:
        The first step of the generations; of the newest stage, if they are its generations.
    """
    newest = stages.newest
    origins = []
    for each, dataset, component in zip(newest.config.datasets, followed, newest.components, strict=True):
        same = (each.dataset.generation, each.dataset.fingerprint) == (dataset.generation, dataset.fingerprint)
        origins.append(Origin(component=component) if same else Origin(earlier=component.selector))
    if all(origin.component is not None for origin in origins):
        stages.followed = list(followed)
        return newest.from_step
    all_ranks = newest.config.rank is None
    ask_rank_zero = all_ranks and is_distributed()
    stage = later_stage(newest, followed, origins, newest.from_step, ask_rank_zero=ask_rank_zero)
    for component, origin in zip(stage.components, origins, strict=True):
        if origin.component is None and component.selector.epoch_slots(1) is not None:
            raise InvalidArgumentError(
                f"sampler '{component.sampler}' has an order, and new episodes have no place in it",
                hint="use the sampler 'uniform' or Weighted(...), or make a new loader with the new generation",
            )
    # Prefetch threads start no batch until the stage is in place.
    with starting:
        soonest = max(progress.next_step, progress.started_step(), newest.from_step)
        first = agreed_step(all_gather((from_step, soonest)) if all_ranks else [(from_step, soonest)])
        own = _with_steps(origins, newest.source, first)
        if any(origin.step is not None for origin in own):
            stage = later_stage(newest, followed, own, first, ask_rank_zero=ask_rank_zero)
        stage.from_step = first
        stages.enter(stage, followed)
        stages.close_passed(progress.next_step)
    return stage.from_step


def _with_steps(origins: Sequence[Origin], source: WindowSource, first: int) -> list[Origin]:
    """Returns origins with the steps from which a generation holds, where weights have updates of later steps.

    Args:
        origins: of the datasets.
        source: samples the windows of the generation before.
        first: the first step of the generation.
    """
    found = []
    for number, origin in enumerate(origins):
        selector = origin.earlier
        if isinstance(selector, WeightedSelector) and selector.soonest > (step := source.selector_step(number, first)):
            origin = dataclasses.replace(origin, step=step)
        found.append(origin)
    return found
