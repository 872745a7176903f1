"""LoaderComponent: one dataset of a loader, its windows and its outputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from gear_data.collection.output import Output, output_to_json
from gear_data.collection.plan import CollectSource
from gear_data.dataset.dataset import Dataset
from gear_data.loaders.normalization import MeanAndStd, normalization_json
from gear_data.loaders.presets.batch_format import BatchFormat
from gear_data.loaders.presets.choices import Choice
from gear_data.loaders.presets.facts import Fact
from gear_data.loaders.presets.offsets import offsets_to_json
from gear_data.loaders.presets.outputs import BatchRequest, Postprocess
from gear_data.loaders.presets.stacked import Parts, part_outputs, parts_json, renamed_schema, span_masks
from gear_data.loaders.window_source import WindowSelection
from gear_data.selection.goals import GoalSampler
from gear_data.selection.packing import PackedRows
from gear_data.selection.samplers import BuiltInSampler, Candidates, Selector, Weighted, WeightedSelector
from gear_data.selection.windows import Int64Array


@dataclass(frozen=True)
class ComponentGoals:
    """The goals of a dataset's windows.

    Attributes:
        sampler: draws the goals.
        output: the array of their values.
    """

    sampler: GoalSampler
    output: Output


#: Keys of a batch: the episode of each window, and the window's first step in the episode.
WINDOW_IDS = ("episode_id", "start")
#: Key of a batch: the number of the embodiment of each window's dataset.
EMBODIMENT = "embodiment"


@dataclass(frozen=True)
class ComponentRows:
    """The packed rows of a dataset.

    Attributes:
        selector: selects the windows of rows.
        steps: steps of a row.
        tokens: tokens of a row; without tokens, its steps.
        unit: tokens of a step.
    """

    selector: PackedRows
    steps: int
    tokens: int
    unit: int


@dataclass(frozen=True)
class LoaderComponent:
    """One dataset of a loader.

    Attributes:
        dataset: the dataset; its `returns_to_go` have the loader's discount.
        num_windows: number of windows in the dataset, one for each anchor.
        sampler: name of the sampler.
        selector: the sampler, bound to the dataset's anchors; selects the windows of a step.
        batch_format: the preset, with its options.
        request: the arguments for the preset.
        outputs: the arrays of a batch before the preset's postprocessing.
        variable: column of text or bytes -> its key in the batch.
        absent: columns of `variable` that only other datasets have.
        facts: the facts of the batch.
        choices: keys of the batch with one of several columns.
        hidden: keys of arrays that are collected for choices only.
        postprocess: turns a collected batch into the preset's batch; None: nothing is left to do.
        goals: the goals of the windows; None: batches have no goals.
        parts: stacked column -> the columns that the collector reads for it.
        window_ids: whether batches have the keys `WINDOW_IDS`.
        rename: column of the dataset -> its name everywhere else here.
        rows: the packed rows; None: each window is a row.
        clipped: keys of arrays that the preset's `clip` clips.
        task_goals: the arrays of the task's goals, which have steps of their own.
        letterboxed: cameras whose frames keep their proportions.
        tokenized: keys of arrays, texts and masks that the preset makes tokens of.
        embodiment: its number in the key `embodiment` of batches; None: they have no such key.
        alone: the component before its arrays got the layout of a mixture's `pad_to`; None: they have their own.
    """

    dataset: Dataset
    num_windows: int
    sampler: str
    selector: Selector
    batch_format: BatchFormat
    request: BatchRequest
    outputs: tuple[Output, ...]
    variable: Mapping[str, str]
    facts: tuple[Fact, ...]
    choices: tuple[Choice, ...]
    hidden: frozenset[str]
    postprocess: Postprocess | None
    goals: ComponentGoals | None
    parts: Parts
    window_ids: bool
    rename: Mapping[str, str]
    embodiment: int | None
    rows: ComponentRows | None
    clipped: frozenset[str] = frozenset()
    task_goals: tuple[Output, ...] = ()
    letterboxed: frozenset[str] = frozenset()
    tokenized: frozenset[str] = frozenset()
    alone: LoaderComponent | None = None
    absent: frozenset[str] = frozenset()

    @property
    def has_own_weights(self) -> bool:
        """See `WeightedSelector.has_own_weights`."""
        return isinstance(self.selector, WeightedSelector) and self.selector.has_own_weights

    @property
    def selection(self) -> WindowSelection:
        """The windows of the dataset, with their goals."""
        selector = self.selector if self.rows is None else self.rows.selector
        return WindowSelection(selector, None if self.goals is None else self.goals.sampler)

    @property
    def all_outputs(self) -> tuple[Output, ...]:
        """The arrays that collectors fill, with the array of goals."""
        return self.outputs if self.goals is None else (*self.outputs, self.goals.output)

    def collect_source(self, outputs: Sequence[Output] | None = None) -> CollectSource:
        """Returns the source for a collector of outputs; None: of the component's."""
        wanted = [o for o in (self.outputs if outputs is None else outputs) if o.camera is None]
        filled, joined = part_outputs([output.span for output in wanted], self.parts)
        listed = {number: output for number, output in enumerate(wanted) if output.steps is not None}
        masks = span_masks(listed, self.parts)
        schema = renamed_schema(self.dataset.schema, self.rename)
        return CollectSource(self.dataset.store.reader(), schema, filled, joined, listed, masks, self._stored)

    @cached_property
    def _stored(self) -> dict[str, str]:
        return {new: name for name, new in self.rename.items()}

    def stored_name(self, column: str) -> str:
        """Returns the name of a column in the dataset."""
        return self._stored.get(column, column)

    @property
    def cameras(self) -> tuple[Output, ...]:
        """The outputs that a decoder fills."""
        return tuple(output for output in self.outputs if output.camera is not None)

    @property
    def beside_tokens(self) -> tuple[Output, ...]:
        """The outputs of which no tokens are made."""
        return tuple(output for output in self.outputs if output.key not in self.tokenized)

    @property
    def row_bytes(self) -> int:
        """Bytes of one window in a batch."""
        return sum(output.row_bytes for output in self.outputs)

    def float_keys(self) -> frozenset[str]:
        """Returns the keys of float columns."""
        return frozenset(o.key for o in (*self.outputs, *self.task_goals) if is_float(o))

    def normalization_json(self) -> dict[str, list[Any]]:
        """Returns column -> [mean, std], JSON-able."""
        return normalization_json(self.request.normalize)

    def is_normalized_by(self, normalize: Mapping[str, MeanAndStd] | None) -> bool:
        """Returns whether the component has these column -> (mean, std); None: of its dataset."""
        return normalize is None or normalization_json(normalize) == self.normalization_json()

    def _facts(self, *, drawn: bool) -> list[Fact]:
        return [fact for fact in self.facts if fact.drawn == drawn]

    def _chosen(self) -> dict[str, list[str]]:
        """Returns key -> columns or facts, of which each window has one."""
        facts = {fact.key: list(fact.names) for fact in self._facts(drawn=True)}
        return {**facts, **{choice.key: list(choice.columns) for choice in self.choices}}

    def spec(self) -> dict[str, Any]:
        """Returns the contents of the component's batches, JSON-able."""
        request = self.request
        importance = self.selector.importance if isinstance(self.selector, WeightedSelector) else None
        return {
            **({} if importance is None else {"importance_weights": importance.to_json()}),
            "batch_format": self.batch_format.to_json(),
            "columns": None if request.columns is None else list(request.columns),
            **(
                {"facts": {fact.key: fact.names[0] for fact in facts}}
                if (facts := [fact for fact in self._facts(drawn=False) if fact.names])
                else {}
            ),
            **({"choose": chosen} if (chosen := self._chosen()) else {}),
            "offsets": offsets_to_json(request.offsets),
            "normalize": self.normalization_json(),
            "n_step": request.n_step,
            **({"stack": parts_json(self.parts)} if self.parts else {}),
            "outputs": [output_to_json(output) for output in self.outputs],
            **({"letterbox": sorted(self.letterboxed)} if self.letterboxed else {}),
            **({"clipped": sorted(self.clipped)} if self.clipped else {}),
            **({"rename": dict(self.rename)} if self.rename else {}),
            **({} if self.embodiment is None else {"embodiment": self.embodiment}),
            "window_ids": self.window_ids,
        }


@dataclass(frozen=True)
class Origin:
    """Parts of a component that an earlier generation of the dataset, or a state, has.

    Attributes:
        component: the component itself, if the dataset did not change; else None. Its windows stay.
        earlier: the selector of the earlier generation.
        step: updates of `earlier` that hold from a later step only hold from that step; None: there is no such update.
        normalize: column -> [mean, std], its normalisation; None: by the dataset's statistics.
        weights: `WeightedSelector.whole_state` of the selector; None: the sampler is bound to the dataset.
    """

    component: LoaderComponent | None = None
    earlier: Selector | None = None
    step: int | None = None
    normalize: Mapping[str, Sequence[Any]] | None = None
    weights: Mapping[str, Any] | None = None

    def selector(self, sampler: BuiltInSampler, candidates: Candidates, seed: int) -> Selector:
        """Returns the sampler bound to the dataset; weights that it had stay."""
        if self.component is not None:
            return self.component.selector
        if self.weights is not None and isinstance(sampler, Weighted):
            return sampler.restored(candidates, seed, self.weights)
        if isinstance(self.earlier, WeightedSelector) and self.earlier.has_own_weights:
            return self.earlier.carried(candidates.anchors, self.step)
        return sampler.bind(candidates, seed)


def episode_ids(components: Sequence[LoaderComponent], source: int | Int64Array, rows: Int64Array) -> Int64Array:
    """Returns the ids of episodes, int64 [n].

    Args:
        components: the loader's datasets.
        source: the number of the episodes' dataset, or int64 [n].
        rows: int64 [n], the rows of the episodes in their datasets, by which windows name them.
    """
    ids = [component.dataset.store.ids for component in components]
    if isinstance(source, int):
        own = ids[source]
        return rows if own is None else own[rows]
    result = rows.copy()
    for number, own in enumerate(ids):
        if own is not None:
            result[source == number] = own[rows[source == number]]
    return result


def is_float(output: Output) -> bool:
    """Returns whether an output is a column of floats."""
    return output.column and np.dtype(output.dtype).kind == "f"
