"""LoaderComponent: one dataset of a loader, its windows and its outputs."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from gear_data.collection.output import Output, check_batch_bytes, output_to_json
from gear_data.collection.plan import CollectSource
from gear_data.common.distributed import compute_on_rank_zero
from gear_data.dataset.dataset import Dataset
from gear_data.dataset.window_anchors import anchors_of, ends_without_state
from gear_data.errors import DatasetReplacedError, InvalidArgumentError
from gear_data.kernels import cpu
from gear_data.loaders.arguments.config import LoaderConfig
from gear_data.loaders.arguments.pack import Pack
from gear_data.loaders.mixture import MixtureComponent
from gear_data.loaders.node_local import node_local_selector, node_seed, own_episodes
from gear_data.loaders.normalization import (
    MeanAndStd,
    NormalizedDataset,
    by_range,
    normalization_json,
    normalization_statistics,
    restored_statistics,
)
from gear_data.loaders.presets.batch_format import BatchFormat
from gear_data.loaders.presets.choices import Choice, array_choice, padded_choice, text_choice
from gear_data.loaders.presets.column_outputs import column_steps
from gear_data.loaders.presets.facts import Fact, batch_facts, fact_name, format_facts, present_facts, split_columns
from gear_data.loaders.presets.gato.counts import TokenCounts, token_counts
from gear_data.loaders.presets.goals import goal_output
from gear_data.loaders.presets.offsets import ColumnSteps, ColumnWeights, dataset_steps, offsets_to_json
from gear_data.loaders.presets.outputs import (
    BatchRequest,
    Postprocess,
    batch_outputs,
    column_keys,
    next_state,
    preset_postprocess,
    step_tokens,
    text_columns,
    token_columns,
)
from gear_data.loaders.presets.packed import check_packed, packed_format
from gear_data.loaders.presets.policies.octo import task_goals
from gear_data.loaders.presets.policies.outputs import history_steps
from gear_data.loaders.presets.relative import relative_columns
from gear_data.loaders.presets.seconds import DatasetRate, check_interpolated
from gear_data.loaders.presets.stacked import (
    Parts,
    check_absolute,
    part_outputs,
    parts_json,
    renamed_schema,
    span_masks,
    stacked_schema,
)
from gear_data.loaders.presets.unlike import (
    DatasetOutputs,
    PadTo,
    check_shapes,
    dim_mask_of,
    joint_outputs,
    padded_like,
)
from gear_data.loaders.video.resize import LETTERBOX, Size, camera_sizes, check_cameras, resized
from gear_data.loaders.window_source import WindowSelection
from gear_data.relative import check_relative
from gear_data.schema import Role, Schema, role_of
from gear_data.selection.goals import Goals, GoalSampler
from gear_data.selection.packing import PackedRows, RowSize, packed_rows
from gear_data.selection.samplers import BuiltInSampler, Candidates, Selector, Weighted, WeightedSelector, as_sampler
from gear_data.selection.windows import Float64Array, Int64Array, WindowRule

if TYPE_CHECKING:
    import polars as pl


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
        return frozenset(o.key for o in (*self.outputs, *self.task_goals) if _is_float(o))

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
        normalize: column -> [mean, std], its normalisation; None: by the dataset's statistics.
        weights: `WeightedSelector.whole_state` of the selector; None: the sampler is bound to the dataset.
    """

    component: LoaderComponent | None = None
    earlier: Selector | None = None
    normalize: Mapping[str, Sequence[Any]] | None = None
    weights: Mapping[str, Any] | None = None

    def selector(self, sampler: BuiltInSampler, candidates: Candidates, seed: int) -> Selector:
        """Returns the sampler bound to the dataset; weights that it had stay."""
        if self.component is not None:
            return self.component.selector
        if self.weights is not None and isinstance(sampler, Weighted):
            return sampler.restored(candidates, seed, self.weights)
        if isinstance(self.earlier, WeightedSelector) and self.earlier.has_own_weights:
            return self.earlier.carried(candidates.anchors)
        return sampler.bind(candidates, seed)


def make_components(
    config: LoaderConfig, *, ask_rank_zero: bool, origins: Sequence[Origin] | None = None
) -> tuple[LoaderComponent, ...]:
    """Makes the components of a loader, one for each dataset.

    If the datasets share batches, a preset of all columns takes the columns that all datasets have; with `pad_to`, the
    columns that a dataset has.

    Args:
        config: the loader's arguments; options of a mixture's dataset replace them.
        ask_rank_zero: whether rank 0 evaluates expressions for all ranks.
        origins: for each dataset, the parts of its component that exist; None: there are none.

    Raises:
        GearError: see `SequenceLoader`.
    """
    datasets = config.datasets
    origins = [Origin()] * len(datasets) if origins is None else origins
    owns = [
        config.with_options(each.options, config.seed if len(datasets) == 1 else _component_seed(config.seed, number))
        for number, each in enumerate(datasets)
    ]
    schemas = [_schema(each.dataset, own)[0] for each, own in zip(datasets, owns, strict=True)]
    check_cameras(schemas, config.resize)
    names = [f"dataset {number} ({each.dataset.path})" for number, each in enumerate(datasets)]
    elements = frozenset(name for schema in schemas for spec in schema for name in spec.element_names)
    if config.pad_to is not None:
        found = [frozenset(present_facts(each.dataset)) for each in datasets]
        owns = [_own_columns(own, datasets[number], schemas, found, number) for number, own in enumerate(owns)]
    elif config.joined and any(_takes_all_columns(own) for own in owns):
        shared = _shared_columns(schemas, names)
        owns = [dataclasses.replace(own, columns=shared) if _takes_all_columns(own) else own for own in owns]
    together: Sequence[dict[str, MeanAndStd] | None] = [None] * len(datasets)
    if config.shared_statistics and any(origin.normalize is None for origin in origins):
        together = _shared_statistics(datasets, owns, names, elements)
    counted = config.packing is not None and _counts_tokens(config, owns, schemas)
    components = []
    for name, each, own, origin, statistics in zip(names, datasets, owns, origins, together, strict=True):
        normalize = statistics if origin.normalize is None else restored_statistics(origin.normalize)
        if origin.component is not None and origin.component.is_normalized_by(normalize):
            components.append(origin.component.alone or origin.component)
        else:
            described = _described(name, each.dataset, own, elements)
            components.append(_make_component(described, own, ask_rank_zero, origin, normalize, counted=counted))
    if config.pad_to is not None:
        return _padded(components, names, config.pad_to, config.batch_size)
    if config.joined:
        tokens = components[0].batch_format.tokens is not None
        if tokens:
            _check_tokens(components, names, counted=counted)
        check_shapes([DatasetOutputs(n, each.beside_tokens) for n, each in zip(names, components, strict=True)])
        if tokens:
            return tuple(components)
        return tuple(_in_order(each, components[0].outputs) for each in components)
    return tuple(components)


def _counts_tokens(config: LoaderConfig, owns: Sequence[LoaderConfig], schemas: Sequence[Schema]) -> bool:
    """Returns whether packed rows count tokens, as steps have unlike numbers of them."""
    if any(own.batch_format.tokens is None for own in owns):
        return False
    requests = [BatchRequest(schema, 1, None, {}, {}, None) for schema in schemas]
    formats = [own.batch_format for own in owns]
    pairs = list(zip(formats, requests, strict=True))
    if any(item.spec.variable_length for each in pairs for item, _ in token_columns(*each)):
        return True
    return config.joined and len({step_tokens(*each) for each in pairs}) > 1


def _check_tokens(components: Sequence[LoaderComponent], names: Sequence[str], *, counted: bool) -> None:
    """Raises InvalidArgumentError if tokens of several datasets do not fit in one batch.

    Args:
        components: the datasets.
        names: their names, for errors.
        counted: whether packed rows count tokens.
    """
    first, *others = components
    for name, other in zip(names[1:], others, strict=True):
        formats = first.batch_format, other.batch_format
        if formats[0].tokens != formats[1].tokens or formats[0].side != formats[1].side:
            raise InvalidArgumentError(
                f"{names[0]} and {name} have other options of preset '{formats[0].name}'",
                hint="give all datasets the same preset_options",
            )
        mine, yours = ({o.key for o in each.beside_tokens} for each in (first, other))
        if mine != yours:
            key = min(mine ^ yours)
            raise InvalidArgumentError(
                f"batches of {names[0] if key in mine else name} have it beside the tokens, and others do not",
                column=key,
                hint="give preset_options={'tokens': {'patch': 16}} for images as tokens, or columns that all datasets "
                "have",
            )
    beside = [output for output in first.beside_tokens if output.column]
    if counted and beside:
        raise InvalidArgumentError(
            "packed rows of datasets with unlike steps have only tokens",
            column=beside[0].source,
            hint="leave the column out of columns, or give join=False",
        )


def _in_order(component: LoaderComponent, outputs: Sequence[Output]) -> LoaderComponent:
    """Returns the component with its arrays in the order of other outputs: a batch is filled by position."""
    place = {output.key: number for number, output in enumerate(outputs)}
    own = tuple(sorted(component.outputs, key=lambda output: place.get(output.key, len(place))))
    return component if own == component.outputs else dataclasses.replace(component, outputs=own)


def _takes_all_columns(config: LoaderConfig) -> bool:
    return config.columns is None and config.batch_format.roles is None


def _own_columns(
    config: LoaderConfig,
    component: MixtureComponent,
    schemas: Sequence[Schema],
    facts: Sequence[frozenset[str]],
    number: int,
) -> LoaderConfig:
    """Returns the arguments of a dataset without the columns and facts that only other datasets of the mixture have.

    Args:
        config: the arguments, with the dataset's options.
        component: the dataset, with its options, whose columns are all its own.
        schemas: the columns of all datasets.
        facts: the facts of all datasets.
        number: of the dataset.
    """
    every = list(dict.fromkeys(name for schema in schemas for name in schema.names))
    own, options = schemas[number], component.options

    def has(name: Any) -> bool:
        # A name that no dataset has is an error of this dataset.
        base = name.removeprefix("next_") if isinstance(name, str) else name
        return name in own or base in own or (name not in every and base not in every and not lacks_fact(name))

    def lacks_fact(name: Any) -> bool:
        fact = fact_name(name) if isinstance(name, str) else name
        return fact not in facts[number] and any(fact in each for each in facts)

    changes: dict[str, Any] = {}
    if config.offsets:
        changes["offsets"] = {name: steps for name, steps in config.offsets.items() if has(name)}
    if "relative" not in options and config.relative:
        changes["relative"] = {name: value for name, value in config.relative.items() if has(name)}
    columns, normalize = config.columns, config.normalize
    if "columns" not in options and isinstance(columns, list | tuple):
        changes["columns"] = [name for name in columns if has(name) or name in facts[number]]
    if "choose" not in options:
        changes["choose"] = {
            key: names for key, names in config.choose.items() if not all(lacks_fact(name) for name in names)
        }
    if "normalize" not in options:
        if isinstance(normalize, Mapping):
            changes["normalize"] = {name: value for name, value in normalize.items() if has(name)}
        elif isinstance(normalize, list | tuple):
            changes["normalize"] = [name for name in normalize if has(name)]
        elif isinstance(normalize, str) and normalize in every and normalize not in own:
            changes["normalize"] = None
    return dataclasses.replace(config, **changes)


def _padded(
    components: Sequence[LoaderComponent], names: Sequence[str], pad_to: PadTo, batch_size: int
) -> tuple[LoaderComponent, ...]:
    """Returns the components with arrays of one layout.

    Raises:
        UnknownNameError, InvalidArgumentError: see `joint_outputs`. Also if a preset makes tokens, or if datasets have
            different columns of text or bytes.
    """
    for each in components:
        if each.batch_format.tokens is not None:
            raise InvalidArgumentError(
                f"preset '{each.batch_format.name}' makes tokens, and pad_to is {pad_to!r}",
                hint="leave pad_to out; tokens of datasets with unlike shapes need no padding of elements",
            )
    formats = [each.batch_format for each in components]
    described = [
        DatasetOutputs(
            name,
            each.outputs,
            frozenset((own.mask_key, own.timesteps_key, "loss_weight")),
            each.variable,
            frozenset(fact.key for fact in each.facts),
        )
        for name, each, own in zip(names, components, formats, strict=True)
    ]
    joint = []
    variable = {column: key for each in components for column, key in each.variable.items()}
    facts = {fact.key: fact for each in reversed(components) for fact in each.facts}
    every = joint_outputs(described, pad_to)
    keys = {*(output.key for output in every[0]), *variable.values()}
    for name, component, outputs in zip(names, components, every, strict=True):
        choices = tuple(padded_choice(choice, outputs, name) for choice in component.choices)
        hidden = component.hidden & {output.key for output in outputs}
        hidden |= {mask for key in hidden if (mask := dim_mask_of(key)) in keys}
        own = [fact.key for fact in component.facts]
        lacking = [fact.as_absent() for key, fact in facts.items() if key not in own]
        added = [*own, *(key for choice in choices for key in choice.keys)]
        taken = next((key for key in added if key in keys), None)
        if taken is not None:
            raise InvalidArgumentError(
                f"{name} has a fact or a choice with this key, and another dataset has a column",
                column=taken,
                hint="give the column another name with rename, or the choice another key; 'facts.NAME' is a fact, too",
            )
        goals = component.goals
        if goals is not None:
            goals = dataclasses.replace(goals, output=padded_like(goals.output, outputs))
        absent = frozenset(variable) - frozenset(component.variable)
        if absent and component.batch_format.transitions is not None:
            raise InvalidArgumentError(
                f"{name} lacks the column, and preset '{component.batch_format.name}' needs text of all datasets",
                column=min(absent),
                hint="leave the column out with columns= of the other datasets, or give another preset",
            )
        joint.append(
            dataclasses.replace(
                component,
                outputs=outputs,
                goals=goals,
                variable=variable,
                absent=absent,
                alone=component,
                facts=(*component.facts, *lacking),
                choices=choices,
                hidden=hidden,
            )
        )
        check_batch_bytes(joint[-1].all_outputs, batch_size)
    return tuple(joint)


@dataclass(frozen=True)
class _Described:
    """A dataset with the columns of its batches.

    Attributes:
        columns: the dataset, its columns, and how they are normalised.
        offsets: the offsets of columns, in steps.
        weights: the columns whose steps are interpolated.
    """

    columns: NormalizedDataset
    offsets: ColumnSteps
    weights: ColumnWeights


def _described(name: str, dataset: Dataset, config: LoaderConfig, elements: frozenset[str]) -> _Described:
    """Returns the columns of a dataset's batches.

    Args:
        name: the dataset, for errors.
        dataset: the dataset.
        config: the arguments, with the dataset's options.
        elements: the names of elements that any dataset of the loader has.
    """
    columns = config.columns
    if columns is not None and (isinstance(columns, str) or not all(isinstance(name, str) for name in columns)):
        raise InvalidArgumentError(f"columns must be a list of names, not {columns!r}")
    if config.returns.discount != 1:
        dataset = dataset.with_discount(config.returns.discount)
    batch_format, context = config.batch_format, config.rule.context
    schema, parts = _schema(dataset, config)
    offsets, weights = dataset_steps(config.checked_offsets, DatasetRate(dataset, config.rename, config.fps))
    offsets = history_steps(batch_format, schema, context, offsets, config.choose)
    relative = relative_columns(
        dataset, schema, check_relative(config.relative), elements,
        lambda spec: column_steps(batch_format, offsets, context, spec), weights,
    )  # fmt: skip
    normalized = NormalizedDataset(name, dataset, schema, parts, config.normalize, config.rename, relative)
    return _Described(normalized, offsets, weights)


def _shared_statistics(
    datasets: Sequence[MixtureComponent], owns: Sequence[LoaderConfig], names: Sequence[str], elements: frozenset[str]
) -> list[dict[str, MeanAndStd] | None]:
    """Returns for each dataset column -> (mean, std), where datasets of one embodiment share their statistics."""
    described = [
        _described(name, each.dataset, own, elements).columns
        for name, each, own in zip(names, datasets, owns, strict=True)
    ]
    found: list[dict[str, MeanAndStd] | None] = [None] * len(datasets)
    for embodiment in {own.embodiment for own in owns}:
        numbers = [number for number, own in enumerate(owns) if own.embodiment == embodiment]
        statistics = normalization_statistics([described[number] for number in numbers])
        for number, own in zip(numbers, statistics, strict=True):
            found[number] = own
    return found


def _make_component(
    described: _Described,
    config: LoaderConfig,
    ask_rank_zero: bool,
    origin: Origin,
    normalize: dict[str, MeanAndStd] | None,
    *,
    counted: bool,
) -> LoaderComponent:
    columns, offsets, weights = config.columns, described.offsets, described.weights
    dataset, schema, parts = described.columns.dataset, described.columns.schema, described.columns.parts
    relative = described.columns.relative
    batch_format, rule, packing = config.batch_format, config.rule, config.packing
    steps, requested_facts = (None, {}) if columns is None else split_columns(dataset, schema, columns)
    requested_facts = {**format_facts(dataset, batch_format), **requested_facts}
    check_absolute(parts, {name: each.to for name, each in relative.items()})
    request = BatchRequest(
        schema=schema,
        context=rule.context,
        columns=steps,
        offsets=offsets,
        weights=weights,
        normalize=normalization_statistics([described.columns])[0] if normalize is None else normalize,
        float_dtype=config.batch.float_dtype,
        n_step=config.returns.n_step,
        discount=config.returns.discount,
        relative={name: each.to for name, each in relative.items()},
        chosen=config.choose,
    )
    unit, counts = 1, None
    texts = _token_texts(batch_format, request, config)
    if packing is not None:
        batch_format, unit = packed_format(batch_format), step_tokens(batch_format, request)
        if counted:
            stored = {new: name for name, new in config.rename.items()}
            columns_of = {name: stored.get(name, name) for name in texts}
            counts = token_counts(dataset, columns_of, config.decoders, packing.length, unit)
        rule = _packed_rule(dataset, config, packing, unit, counts)
        request = dataclasses.replace(request, context=packing.length // unit)
    postprocess = preset_postprocess(batch_format, request)
    chosen, chosen_facts = _chosen(dataset, schema, config.choose)
    hidden: frozenset[str] = frozenset()
    if packing is not None and (arrays := [key for key, names in chosen.items() if not _is_text(schema, names)]):
        raise InvalidArgumentError(
            "choose= draws one array for a window, and pack= puts several windows into one",
            column=arrays[0],
            hint="leave the key out of choose, or leave pack out",
        )
    if chosen:
        request, hidden = _with_columns(batch_format, request, chosen)
    outputs = tuple(batch_outputs(batch_format, request))
    if config.batch.half is not None and postprocess is None:
        outputs = tuple(dataclasses.replace(o, half=config.batch.dtype_name) if _is_float(o) else o for o in outputs)
    check_batch_bytes(outputs, config.batch_size)
    variable = text_columns(batch_format, request)
    check_interpolated(outputs, variable, weights, str(dataset.path))
    _check_window_keys(config, [*(output.key for output in outputs), *variable.values()])
    if packing is not None:
        keys = [*(output.key for output in outputs), *variable.values()]
        decoded = [name for name in variable if name in config.decoders and name not in texts]
        check_packed(outputs, decoded, request.context, keys)
    sampler = as_sampler(config.sampler)
    state = next_state(batch_format, request)
    excluded = None
    if state is not None and batch_format.transitions is not None and batch_format.transitions.missing_next == "drop":
        excluded = ends_without_state(dataset, finals=state.finals is not None)
    anchors = anchors_of(dataset, rule, excluded)

    def agree(make: Callable[[], Float64Array]) -> Float64Array:
        if not ask_rank_zero:
            return make()
        # The ranks open the dataset one after another. It may be replaced in between.
        of_rank_zero, values = compute_on_rank_zero(lambda: (dataset.fingerprint, make()))
        if dataset.fingerprint != of_rank_zero:
            raise DatasetReplacedError(
                "this rank has other episodes than rank 0; the dataset was replaced meanwhile, or the views differ",
                file=str(dataset.path),
                hint="open the same dataset again on all ranks",
            )
        return values

    def evaluate(expression: str | pl.Expr, purpose: str) -> Float64Array:
        return agree(lambda: dataset.evaluate(expression, purpose))

    selector = origin.selector(sampler, Candidates(anchors, evaluate, agree), config.seed)
    if config.membership is not None and origin.component is None:
        selector = node_local_selector(dataset, config.membership, anchors, sampler, selector, evaluate, config.seed)
    rows = None
    if packing is not None:
        size, longest = RowSize(request.context, request.context), None
        if counts is not None:
            size, longest = RowSize(request.context, packing.length, counts), counts.most_of_step * rule.context
        of_rows = packed_rows(selector, anchors, config.seed, size, split=packing.split, longest=longest)
        rows = ComponentRows(of_rows, request.context, packing.length, unit)
    goals = None
    if config.goals is not None:
        if batch_format.transitions is not None and config.returns.n_step is not None:
            raise InvalidArgumentError(
                f"goals relabel the reward of one step, and n_step is {config.returns.n_step}",
                hint="leave n_step or goals out",
            )
        output = goal_output(config.goals.goal_column, batch_format, request, outputs)
        check_batch_bytes((*outputs, *[output] * len(config.goals.keys)), config.batch_size)
        goals = ComponentGoals(_goal_sampler(dataset, schema, config.goals, config), output)
    facts: tuple[Fact, ...] = ()
    choices: tuple[Choice, ...] = ()
    if requested_facts or config.choose:
        taken = [*(output.key for output in outputs), *variable.values()]
        taken += () if config.goals is None else config.goals.keys
        taken += () if config.embodiment is None else (EMBODIMENT,)
        choices = tuple(
            text_choice(batch_format, schema, key, names)
            if _is_text(schema, names)
            else array_choice(batch_format, request, outputs, key, names)
            for key, names in chosen.items()
        )
        added = [key for choice in choices for key in choice.keys]
        facts = batch_facts(dataset, requested_facts, chosen_facts, taken, added)
    return LoaderComponent(
        dataset, anchors.total, sampler.name, selector, batch_format, request, outputs, variable, facts, choices,
        hidden.intersection(output.key for output in outputs), postprocess, goals, parts, config.batch.window_ids,
        config.rename, config.embodiment, rows, _clipped(batch_format, config, schema, outputs),
        _task_goals(batch_format, config, outputs),
        frozenset(name for name, size in _sizes(schema, config).items() if LETTERBOX in size),
        frozenset(item.key for item, _ in token_columns(batch_format, request)) | _mask_key(batch_format),
    )  # fmt: skip


def _task_goals(batch_format: BatchFormat, config: LoaderConfig, outputs: Sequence[Output]) -> tuple[Output, ...]:
    """Returns the outputs of the task's goals.

    Raises:
        InvalidArgumentError: rows would lose a text that a decoder has read, or observations are drawn.
    """
    found = task_goals(batch_format, outputs)
    text = batch_format.facts.get("task", "")
    if found and text in config.decoders:
        raise InvalidArgumentError(
            "with goals, some rows have no text, and a decoder reads the texts before",
            column=text,
            hint="leave the decoder out, and tokenise the texts in transform=",
        )
    if found and any(key.startswith("observation.") for key in config.choose):
        raise InvalidArgumentError(
            f"preset '{batch_format.name}' has goals, and choose= draws the observations",
            column=min(key for key in config.choose if key.startswith("observation.")),
            hint="leave the key out of choose, or give preset_options={'goals': ''}",
        )
    return found


def _clipped(
    batch_format: BatchFormat, config: LoaderConfig, schema: Schema, outputs: Sequence[Output]
) -> frozenset[str]:
    """Returns the keys of the normalised arrays that the preset's `clip` clips."""
    if not batch_format.clip:
        return frozenset()
    return frozenset(
        output.key
        for output in outputs
        if output.column
        and output.mean is not None
        and output.camera is None
        and (schema[output.source].role is Role.ACTION or by_range(config.normalize, output.source))
    )


def _mask_key(batch_format: BatchFormat) -> frozenset[str]:
    """Returns the key of the mask of steps that tokens replace."""
    found = batch_format.mask_key if batch_format.tokens is not None else None
    return frozenset() if found is None else frozenset((found,))


def _token_texts(batch_format: BatchFormat, request: BatchRequest, config: LoaderConfig) -> list[str]:
    """Returns the columns of text that become tokens.

    Raises:
        InvalidArgumentError: a column of text or encoded images has no decoder.
    """
    found = []
    for item, column in token_columns(batch_format, request):
        if not item.spec.variable_length:
            continue
        if item.name not in config.decoders:
            what = "a tokenizer" if column.kind == "text" else "gear_data.loaders.decoding.images.ImageDecoder()"
            raise InvalidArgumentError(
                f"preset '{batch_format.name}' makes tokens of the column, and it has no decoder",
                column=item.name,
                hint=f"give decoders={{'{item.name}': {what}}}",
            )
        if column.kind == "text":
            found.append(item.name)
    return found


def _packed_rule(
    dataset: Dataset, config: LoaderConfig, packing: Pack, unit: int, counts: TokenCounts | None
) -> WindowRule:
    """Returns the rule that cuts windows for packed rows.

    Args:
        dataset: the dataset.
        config: the arguments, with the dataset's options.
        packing: the rows.
        unit: tokens of a step; with `counts`, the fewest.
        counts: the tokens of windows; None: all steps have `unit`.

    Raises:
        InvalidArgumentError: a window is longer than a row. Also without replacement, as a step has no fixed number of
            windows.
    """
    steps = packing.length // unit
    if isinstance(config.sampler, Weighted) and not config.sampler.replacement:
        raise InvalidArgumentError(
            "replacement=False draws a fixed number of windows, and with pack= a batch has as many as fit",
            hint="give Weighted(..., replacement=True), or sampler='shuffle'",
        )
    if counts is not None:
        return _counted_rule(dataset, config, packing, counts)
    of_a_row = f"pack={packing.length}" + ("" if unit == 1 else f" tokens, {steps} steps of {unit} tokens")
    if packing.split and steps:
        longest = int(dataset.lengths.max(initial=1))
        return WindowRule(longest, longest) if config.context is None else config.rule
    if config.context is not None:
        if config.rule.context > steps:
            raise InvalidArgumentError(
                f"context is {config.rule.context}, and a row has {of_a_row}: a window does not fit",
                file=str(dataset.path),
                hint=f"give context={steps} or less, a larger pack, or Pack(length, split=True)"
                if steps
                else "give a larger pack",
            )
        return config.rule
    longest = int(dataset.lengths.argmax()) if len(dataset) else 0
    if not steps or (len(dataset) and dataset.lengths[longest] > steps and not packing.cut):
        number = longest if dataset.episode_ids is None else int(dataset.episode_ids[longest])
        raise InvalidArgumentError(
            f"episode {number} has {dataset.lengths[longest]} steps, and a row has {of_a_row}: a window does not fit",
            file=str(dataset.path),
            hint="give a larger pack, context=, or Pack(length, cut=True), which cuts longer episodes"
            if steps
            else "give a larger pack",
        )
    return WindowRule(steps, steps)


def _counted_rule(dataset: Dataset, config: LoaderConfig, packing: Pack, counts: TokenCounts) -> WindowRule:
    """Returns the rule of `_packed_rule` for steps with unlike numbers of tokens."""
    if packing.split:
        raise InvalidArgumentError(
            "split=True cuts windows between steps, and steps have unlike numbers of tokens",
            hint="leave split out",
        )
    episodes = np.arange(len(counts.first) - 1) if dataset.view.rows is None else np.asarray(dataset.view.rows)
    steps = packing.length // counts.most_of_step
    context = int(dataset.lengths.max(initial=1)) if config.context is None else config.rule.context
    if config.context is None and packing.cut:
        context = min(context, steps)
    most, episode = counts.longest(episodes, context) if context and len(episodes) else (counts.most_of_step, 0)
    if most > packing.length or not context:
        ids = dataset.store.ids
        number = episode if ids is None else int(ids[episode])
        raise InvalidArgumentError(
            f"{'a window of ' if config.context else ''}episode {number} has {most} tokens, and a row has "
            f"pack={packing.length} tokens: a window does not fit",
            file=str(dataset.path),
            hint=("give a larger pack, context=, or Pack(length, cut=True), which cuts longer episodes" if steps else
                  "give a larger pack") if config.context is None else "give a larger pack, or a smaller context",
        )  # fmt: skip
    return WindowRule(context, context) if config.context is None else config.rule


def _is_text(schema: Schema, names: Sequence[str]) -> bool:
    return schema[names[0]].variable_length


def _check_window_keys(config: LoaderConfig, keys: Sequence[str]) -> None:
    """Raises InvalidArgumentError if a column has the key of a number that each window has."""
    reasons = dict.fromkeys(WINDOW_IDS, "window_ids=True") if config.batch.window_ids else {}
    if config.embodiment is not None:
        reasons[EMBODIMENT] = "the option embodiment"
    if len(config.datasets) > 1:
        reasons["source"] = "a mixture"
    for key, reason in reasons.items():
        if key in keys:
            raise InvalidArgumentError(
                f"{reason} adds the key '{key}', which the batch already has",
                column=key,
                hint="choose other columns with columns=, or give a mixture's dataset the option rename",
            )


def _with_columns(
    batch_format: BatchFormat, request: BatchRequest, chosen: Mapping[str, Sequence[str]]
) -> tuple[BatchRequest, frozenset[str]]:
    """Returns a request with the columns of numbers and cameras that choices need, too.

    Also returns the keys that their arrays and masks have in the batch.
    """
    needed = [name for names in chosen.values() for name in names if not request.schema[name].variable_length]
    known = column_keys(batch_format, request)
    missing = tuple(dict.fromkeys(name for name in needed if name not in known))
    if missing:
        request = dataclasses.replace(request, columns=(*(request.columns or ()), *missing))
    keys = column_keys(batch_format, request)
    return request, frozenset(key for name in missing for key in keys[name])


def _chosen(
    dataset: Dataset, schema: Schema, choose: Mapping[str, Sequence[str]]
) -> tuple[dict[str, Sequence[str]], dict[str, Sequence[str]]]:
    """Returns key -> columns, and key -> facts, of the argument `choose`."""
    columns: dict[str, Sequence[str]] = {}
    facts: dict[str, Sequence[str]] = {}
    for key, names in choose.items():
        steps, of_episodes = split_columns(dataset, schema, names)
        if steps and of_episodes:
            raise InvalidArgumentError(
                f"choose= draws among columns or among facts, and {steps[0]} is a column, {min(of_episodes)} a fact",
                column=key,
                hint="name only columns, or only facts; facts.NAME is the fact of a column's name",
            )
        if steps:
            columns[key] = steps
        else:
            facts[key] = tuple(of_episodes.values())
    return columns, facts


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


def _schema(dataset: Dataset, config: LoaderConfig) -> tuple[Schema, Parts]:
    """Returns the columns as batches have them, and the parts of stacked columns."""
    schema, parts = stacked_schema(renamed_schema(dataset.schema, config.rename), config.batch.stack)
    return resized(schema, _sizes(schema, config)), parts


def _sizes(schema: Schema, config: LoaderConfig) -> dict[str, Size]:
    return camera_sizes(schema, config.resize, config.batch_format, config.choose)


def _goal_sampler(dataset: Dataset, schema: Schema, goals: Goals, config: LoaderConfig) -> GoalSampler:
    """Returns the sampler of goals.

    With `decentralized` selection, random goals are on this process's node.
    """
    seed, candidates = config.seed, dataset
    if config.membership is not None:
        seed = node_seed(seed, config.membership)
        candidates = dataset.select(own_episodes(dataset, config.membership))
    store, final_rows = dataset.store, None
    if goals.future and schema[goals.goal_column].has_final:
        final_rows = np.full(len(store.lengths), -1, np.int64)
        final_rows[store.finals[0]] = np.arange(len(store.finals[0]))
    anchors = anchors_of(candidates, WindowRule(1))
    return GoalSampler(goals, anchors, store.lengths, final_rows, seed, config.rule.anchor == "end")


def _is_float(output: Output) -> bool:
    return output.column and np.dtype(output.dtype).kind == "f"


def _shared_columns(schemas: Sequence[Schema], datasets: Sequence[str]) -> tuple[str, ...]:
    """Returns the columns that all datasets have.

    Args:
        schemas: the columns of each dataset.
        datasets: the datasets, for errors.

    Raises:
        InvalidArgumentError: there is no such column; or there are none of the observations, or of the actions, and all
            datasets have some.
    """
    first, *others = schemas
    names = tuple(name for name in first.names if all(name in schema for schema in others))
    for role in (Role.OBSERVATION, Role.ACTION):
        own = [[name for name in schema.names if role_of(name) is role] for schema in schemas]
        if all(own) and not any(role_of(name) is role for name in names):
            other = next(n for n, found in enumerate(own) if own[0][0] not in found)
            raise InvalidArgumentError(
                f"the datasets have no {role.value}s of one name: {datasets[0]} has {', '.join(own[0])}, and "
                f"{datasets[other]} has {', '.join(own[other])}",
                column=own[0][0],
                hint=f"give a dataset the option {{'rename': {{'{own[other][0]}': '{own[0][0]}'}}}}, or give "
                "Mixture(..., pad_to='largest') for the columns of all datasets, or columns= for others",
            )
    if not names:
        raise InvalidArgumentError(
            f"the {len(schemas)} datasets of this mixture have no column of the same name",
            hint="give a dataset the option {'rename': {OLD: NEW}}, or give join=False",
        )
    return names


def _component_seed(seed: int, number: int) -> int:
    """Returns the seed of dataset `number` of a mixture.

    All datasets number their slots from 0, so one seed would give all of them the same random numbers.
    """
    return int(cpu.random.word64(np.uint64(seed), cpu.random.DOMAIN_MIXTURE, 0, number, 0))
