"""Stage: the datasets of a loader from one step to another, opened."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np

from gear_data.common.typed_json import Count, resolved
from gear_data.dataset.dataset import Dataset
from gear_data.loaders.arguments.config import LoaderConfig
from gear_data.loaders.batch_source import BatchSource
from gear_data.loaders.component import LoaderComponent, Origin
from gear_data.loaders.decoding.variable import check_decoders, check_joined
from gear_data.loaders.passes.layout import NO_END, PassLayout, pass_layout
from gear_data.loaders.stages.components import make_components
from gear_data.loaders.window_source import WindowSource, make_window_source
from gear_data.selection.samplers import WeightedSelector


@resolved
class StageRecord(msgspec.Struct, frozen=True):
    """Everything that is needed to make a stage again, JSON-able.

    Attributes:
        from_step: the first step of the stage.
        generations: the generation of each dataset.
        fingerprints: their fingerprints.
        last_ids: the id of each dataset's last episode.
        selection: identity of the windows' source.
        normalize: for each dataset, column -> [mean, std].
        weights: for each dataset, `WeightedSelector.whole_state`, or None without weights. None: the weights are those
            of the samplers' arguments.
        lost: whether weights of the stage are gone: they were given as numbers, or updated.
        episodes: the number of episodes of each dataset; None in older states.
    """

    from_step: Count
    generations: list[Count]
    fingerprints: list[str]
    last_ids: list[int]
    selection: Any
    normalize: list[dict[str, list[Any]] | None]
    weights: list[dict[str, Any] | None] | None = None
    lost: bool = False
    episodes: list[Count] | None = None

    def is_gone(self, followed: Sequence[Dataset]) -> bool:
        """Returns whether later generations of the datasets no longer have all episodes of the stage."""
        return self.episodes is not None and any(
            episodes_until(dataset, last) < count
            for dataset, last, count in zip(followed, self.last_ids, self.episodes, strict=True)
        )


@dataclass(eq=False)
class Stage:
    """The datasets of a loader from a step on.

    Attributes:
        config: the loader's arguments, with the stage's datasets.
        components: the datasets.
        source: samples their windows.
        batches: builds their batches.
        from_step: the first step of the stage.
        end: the first step of the next stage.
        generations: the generation of each dataset. A dataset may be a view of a later one that has its episodes.
    """

    config: LoaderConfig
    components: tuple[LoaderComponent, ...]
    source: WindowSource
    batches: BatchSource
    from_step: int = 0
    end: int = NO_END
    generations: Sequence[int] = ()

    def __post_init__(self) -> None:
        self.generations = self.generations or [each.dataset.generation for each in self.config.datasets]

    def record(self) -> StageRecord:
        """Returns the record of the stage, without weights."""
        datasets = [each.dataset for each in self.config.datasets]
        return StageRecord(
            self.from_step,
            list(self.generations),
            [dataset.fingerprint for dataset in datasets],
            [last_id(dataset) for dataset in datasets],
            self.source.identity()["selection"],
            [component.normalization_json() for component in self.components],
            lost=self.has_own_weights,
            episodes=[len(dataset) for dataset in datasets],
        )

    def saved_record(self, known: set[int]) -> StageRecord:
        """Returns the record of the stage, with weights.

        Args:
            known: identities of the selectors whose weights an earlier stage has; these are added.
        """
        weights: list[dict[str, Any] | None] = []
        for component in self.components:
            selector = component.selector
            own = isinstance(selector, WeightedSelector) and selector.has_own_weights and id(selector) not in known
            weights.append(selector.whole_state() if own and isinstance(selector, WeightedSelector) else None)
            known.add(id(selector))
        return msgspec.structs.replace(self.record(), weights=weights, lost=False)

    @property
    def has_own_weights(self) -> bool:
        """Whether some weights are more than the values of expressions."""
        selectors = (component.selector for component in self.components)
        return any(isinstance(each, WeightedSelector) and each.has_own_weights for each in selectors)


def last_id(dataset: Dataset) -> int:
    """Returns the id of the last episode."""
    ids = dataset.episode_ids
    return len(dataset) - 1 if ids is None else int(ids[-1])


def episodes_until(dataset: Dataset, last: int) -> int:
    """Returns the number of episodes with an id of at most `last`."""
    ids = dataset.episode_ids
    return min(len(dataset), last + 1) if ids is None else int(np.searchsorted(ids, last, side="right"))


def first_stage(config: LoaderConfig, *, ask_rank_zero: bool) -> tuple[Stage, PassLayout]:
    """Returns the stage with which a loader begins, and the steps of its passes.

    Args:
        config: the loader's arguments.
        ask_rank_zero: see `make_components`.

    Raises:
        GearError: see `SequenceLoader`.
    """
    components = make_components(config, ask_rank_zero=ask_rank_zero)
    check_decoders(components, config.decoders)
    if config.joined or config.pad_to is not None:
        check_joined(components)
    layout = pass_layout(config, components[0].selection.selector, components[0].num_windows)
    config.resolved_framework.check_last_batch(layout.last_rows)
    selections = tuple(component.selection for component in components)
    source = make_window_source(selections, layout, config.proportions, join=config.joined)
    return Stage(config, components, source, BatchSource(config, components, source)), layout


def later_stage(
    before: Stage, datasets: Sequence[Dataset], origins: Sequence[Origin], from_step: int, *, ask_rank_zero: bool
) -> Stage:
    """Returns a stage with other generations of the datasets.

    Args:
        before: another stage of the loader.
        datasets: the datasets in the loader's order.
        origins: see `make_components`.
        from_step: the first step of the stage.
        ask_rank_zero: see `make_components`.

    Raises:
        GearError: as for a new loader.
    """
    config = before.config.with_datasets(datasets)
    components = make_components(config, ask_rank_zero=ask_rank_zero, origins=origins)
    source = before.source.with_selections(tuple(component.selection for component in components))
    batches = BatchSource(config, components, source, before.batches.builders)
    return Stage(config, components, source, batches, from_step)
