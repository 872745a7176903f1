"""Generations of a loader's datasets, the same on all ranks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, TypeVar

import numpy as np

from gear_data.common.distributed import all_gather, compute_on_rank_zero, is_distributed
from gear_data.dataset.dataset import Dataset
from gear_data.errors import DatasetReplacedError, GenerationGoneError, InvalidArgumentError

#: The hint for episodes that were evicted.
LARGER_LIMITS = (
    "keep generations for checkpoints: give the Writer larger limits (max_steps, max_bytes); "
    "or go on without the loader's state"
)

T = TypeVar("T")


def newest_generations(datasets: Sequence[Dataset], *, all_ranks: bool) -> list[Dataset]:
    """Returns the newest generation of each dataset, as rank 0 finds it.

    A dataset without a newer generation is returned itself. So is one that stays at its generation, such as a view of
    positions, if others do not.

    Args:
        datasets: the loader's datasets.
        all_ranks: whether the ranks of torch.distributed call this together.

    Raises:
        DatasetReplacedError: a rank found other episodes than rank 0.
        GearError: see `Dataset.refresh`. Every rank raises it.
    """
    if not all_ranks or not is_distributed():
        return _newest(datasets, {})
    # The ranks of a run that share the shards of a dataset agree by themselves: each of them refreshes it.
    shared = {number: _refreshed(each) for number, each in enumerate(datasets) if each.store.membership is not None}
    found: list[Dataset] = []

    def refresh() -> list[tuple[int, str]]:
        found[:] = _newest(datasets, shared)
        return [(each.generation, each.fingerprint) for each in found]

    wanted = compute_on_rank_zero(refresh)
    own = found or [shared[number].dataset if number in shared else each for number, each in enumerate(datasets)]
    return _as_rank_zero(own, wanted)


def same_generations(datasets: Sequence[Dataset]) -> list[Dataset]:
    """Returns rank 0's generation of each dataset. All ranks of torch.distributed call this together.

    Raises:
        DatasetReplacedError: a rank has other episodes than rank 0.
        GearError: see `Dataset.at_generation`. Every rank raises it.
    """
    wanted = compute_on_rank_zero(lambda: [(each.generation, each.fingerprint) for each in datasets])
    if not any(all_gather([each.generation for each in datasets] != [generation for generation, _ in wanted])):
        return list(datasets)
    return _as_rank_zero(datasets, wanted)


def _as_rank_zero(datasets: Sequence[Dataset], wanted: Sequence[tuple[int, str]]) -> list[Dataset]:
    """Returns the generations that rank 0 has. All ranks call this together."""

    def follow() -> list[Dataset]:
        found = []
        for each, (generation, fingerprint) in zip(datasets, wanted, strict=True):
            same = (each.generation, each.fingerprint) == (generation, fingerprint)
            found.append(each if same else each.at_generation(generation))
            _check_fingerprint(found[-1], fingerprint, "rank 0's")
        return found

    return together(follow, all_ranks=True)


class _Refreshed(NamedTuple):
    """A refreshed dataset; the dataset itself, and the reason, if it stays at its generation."""

    dataset: Dataset
    refusal: InvalidArgumentError | None = None


def _refreshed(dataset: Dataset) -> _Refreshed:
    try:
        return _Refreshed(dataset.refresh())
    except InvalidArgumentError as error:
        return _Refreshed(dataset, error)


def _newest(datasets: Sequence[Dataset], shared: Mapping[int, _Refreshed]) -> list[Dataset]:
    """Returns the newest generation of each dataset.

    Args:
        datasets: the datasets.
        shared: the number of a dataset -> the result, for those that are refreshed already.
    """
    found = [shared[number] if number in shared else _refreshed(each) for number, each in enumerate(datasets)]
    refusals = [each.refusal for each in found if each.refusal is not None]
    if len(refusals) == len(datasets):
        raise refusals[0]
    return [each.dataset for each in found]


def together(compute: Callable[[], T], *, all_ranks: bool) -> T:
    """Returns the result of a function. An error of any rank is raised on every rank.

    Args:
        compute: the function.
        all_ranks: whether the ranks of torch.distributed call this together.
    """
    problem: Exception | None = None
    result: list[T] = []
    try:
        result.append(compute())
    except Exception as error:  # raised below, on all ranks
        problem = error
    for each in all_gather(problem) if all_ranks else [problem]:
        if each is not None:
            raise each
    return result[0]


def open_generation(dataset: Dataset, generation: int, fingerprint: str, last_id: int) -> Dataset:
    """Returns a generation of a dataset.

    If its files are gone, and its episodes are not, they are a view of the given dataset.

    Args:
        dataset: the same or a later generation.
        generation: the number.
        fingerprint: of the generation.
        last_id: the id of its last episode.

    Raises:
        GenerationGoneError: the generation's episodes are gone.
        DatasetReplacedError: the generation has other episodes.
        GearError: see `Dataset.at_generation`.
    """
    if dataset.fingerprint == fingerprint:
        return dataset
    try:
        found = dataset.at_generation(generation)
    except GenerationGoneError as error:
        ids = np.arange(len(dataset)) if dataset.episode_ids is None else dataset.episode_ids
        rows = np.flatnonzero(ids <= last_id)
        view = dataset.select(rows) if len(rows) else None
        if view is None or view.fingerprint != fingerprint:
            raise GenerationGoneError(
                f"generation {generation} is gone, and the dataset no longer has all of its episodes",
                file=str(dataset.path),
                hint=LARGER_LIMITS,
            ) from error
        return view
    _check_fingerprint(found, fingerprint, "the saved")
    return found


def _check_fingerprint(dataset: Dataset, fingerprint: str, whose: str) -> None:
    if dataset.fingerprint != fingerprint:
        raise DatasetReplacedError(
            f"generation {dataset.generation} has other episodes than {whose}: the dataset was replaced, or "
            "the filters differ",
            file=str(dataset.path),
            hint="open the same dataset again on all ranks, with the same filters",
        )
