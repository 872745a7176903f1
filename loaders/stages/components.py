"""The components of a loader: the selector and the outputs of each of its datasets."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Container, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from gear_data.collection.output import Output, check_batch_bytes
from gear_data.common.distributed import compute_on_rank_zero
from gear_data.dataset.dataset import Dataset
from gear_data.dataset.relative.chunks import check_present
from gear_data.dataset.window_anchors import anchors_of, ends_without_state
from gear_data.errors import DatasetReplacedError, InvalidArgumentError, naming
from gear_data.kernels import cpu
from gear_data.loaders.arguments.config import LoaderConfig
from gear_data.loaders.component import (
    EMBODIMENT,
    WINDOW_IDS,
    ComponentGoals,
    ComponentRows,
    LoaderComponent,
    Origin,
    is_float,
)
from gear_data.loaders.mixture import MixtureComponent, dataset_name
from gear_data.loaders.node_local import node_local_selector, node_seed, own_episodes
from gear_data.loaders.normalization import (
    MeanAndStd,
    NormalizedDataset,
    by_range,
    normalization_statistics,
    restored_statistics,
)
from gear_data.loaders.presets.batch_format import BatchFormat
from gear_data.loaders.presets.choices import Choice, array_choice, text_choice
from gear_data.loaders.presets.column_outputs import column_steps
from gear_data.loaders.presets.facts import Fact, batch_facts, format_facts, present_facts, split_columns
from gear_data.loaders.presets.gato.counts import token_counts
from gear_data.loaders.presets.goals import goal_output
from gear_data.loaders.presets.offsets import ColumnSteps, ColumnWeights, dataset_steps
from gear_data.loaders.presets.outputs import (
    BatchRequest,
    batch_outputs,
    column_keys,
    next_state,
    preset_postprocess,
    step_tokens,
    text_columns,
    token_columns,
    token_keys,
)
from gear_data.loaders.presets.packed import PACKED_KEYS, check_packed, packed_format
from gear_data.loaders.presets.policies.octo import task_goals
from gear_data.loaders.presets.policies.outputs import history_steps
from gear_data.loaders.presets.relative import relative_columns
from gear_data.loaders.presets.seconds import DatasetRate, check_interpolated
from gear_data.loaders.presets.stacked import Parts, check_absolute, renamed_schema, stacked_schema
from gear_data.loaders.presets.unlike import DatasetOutputs, check_shapes
from gear_data.loaders.stages.alike import (
    check_tokens,
    counts_tokens,
    own_columns,
    padded,
    shared_columns,
    takes_all_columns,
)
from gear_data.loaders.stages.packed_windows import packed_rule, token_texts
from gear_data.loaders.video.resize import LETTERBOX, Size, camera_sizes, check_cameras, resized
from gear_data.relative import check_relative
from gear_data.schema import Role, Schema
from gear_data.selection.goals import Goals, GoalSampler
from gear_data.selection.packing import RowSize, packed_rows
from gear_data.selection.samplers import Candidates, Weighted, as_sampler
from gear_data.selection.windows import Float64Array, WindowRule

if TYPE_CHECKING:
    import polars as pl


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
    names = [dataset_name(number, each.dataset) for number, each in enumerate(datasets)]
    owns, schemas = [], []
    for number, each in enumerate(datasets):
        seed = config.seed if len(datasets) == 1 else _component_seed(config.seed, number)
        with _naming(names, number, each.dataset):
            owns.append(config.with_options(each.options, seed))
            schemas.append(_schema(each.dataset, owns[-1])[0])
    check_cameras(schemas, config.resize)
    elements = frozenset(name for schema in schemas for spec in schema for name in spec.element_names)
    if config.pad_to is not None:
        found = [frozenset(present_facts(each.dataset)) for each in datasets]
        owns = [own_columns(own, datasets[number], schemas, found, number) for number, own in enumerate(owns)]
    elif config.joined and any(takes_all_columns(own) for own in owns):
        shared = shared_columns(schemas, names)
        owns = [dataclasses.replace(own, columns=shared) if takes_all_columns(own) else own for own in owns]
    together: Sequence[dict[str, MeanAndStd] | None] = [None] * len(datasets)
    if config.shared_statistics and any(origin.normalize is None for origin in origins):
        together = _shared_statistics(datasets, owns, names, elements)
    counted = config.packing is not None and counts_tokens(config, owns, schemas)
    weighted = [own.sampler if isinstance(own.sampler, Weighted) else None for own in owns]
    components = []
    for number, (each, own, origin, statistics) in enumerate(zip(datasets, owns, origins, together, strict=True)):
        normalize = statistics if origin.normalize is None else restored_statistics(origin.normalize)
        if origin.component is not None and origin.component.is_normalized_by(normalize):
            components.append(origin.component.alone or origin.component)
            continue
        with _naming(names, number, each.dataset):
            described = _described(names[number], each.dataset, own, elements)
            made = _make_component(described, own, ask_rank_zero, origin, normalize, counted=counted)
            _check_window_keys(own, made, weighted if config.joined else weighted[number : number + 1])
            components.append(made)
    if config.pad_to is not None:
        return padded(components, names, config.pad_to, config.choose, config.batch_size)
    if config.joined:
        tokens = components[0].batch_format.tokens is not None
        if tokens:
            check_tokens(components, names, counted=counted)
        check_shapes([DatasetOutputs(n, each.beside_tokens) for n, each in zip(names, components, strict=True)])
        if tokens:
            return tuple(components)
        return tuple(_in_order(each, components[0]) for each in components)
    return tuple(components)


def _naming(names: Sequence[str], number: int, dataset: Dataset) -> AbstractContextManager[None]:
    """Lets errors name the dataset, if there are several."""
    return naming(names[number], dataset.path) if len(names) > 1 else nullcontext()


def _in_order(component: LoaderComponent, other: LoaderComponent) -> LoaderComponent:
    """Returns the component with its arrays in the order of another's: a batch is filled by position."""
    outputs = _sorted_like(component.outputs, other.outputs)
    goals = _sorted_like(component.task_goals, other.task_goals)
    if (outputs, goals) == (component.outputs, component.task_goals):
        return component
    return dataclasses.replace(component, outputs=outputs, task_goals=goals)


def _sorted_like(outputs: Sequence[Output], others: Sequence[Output]) -> tuple[Output, ...]:
    place = {output.key: number for number, output in enumerate(others)}
    return tuple(sorted(outputs, key=lambda output: place.get(output.key, len(place))))


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
    is_list = isinstance(columns, Collection) and not isinstance(columns, str)
    if columns is not None and not (is_list and all(isinstance(name, str) for name in columns)):
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
    if batch_format.pad_left and context > 1:
        _check_steps_in_place(normalized, offsets, batch_format.name)
    for column, each in relative.items():
        check_present(dataset, [part.name for of in (column, each.to.source) for part in normalized.stored_parts(of)])
    return _Described(normalized, offsets, weights)


def _check_steps_in_place(normalized: NormalizedDataset, offsets: Container[str], preset: str) -> None:
    """Raises InvalidArgumentError if statistics of single steps would be applied to other steps.

    Args:
        normalized: a dataset whose windows have padding before their steps.
        offsets: columns that have each step at its own position.
        preset: for errors.
    """
    ways = normalized.ways()
    for column, each in normalized.relative.items():
        if each.per_step and isinstance(ways.get(column), str) and column not in offsets:
            raise InvalidArgumentError(
                f"per_step has statistics of each step of a window, and preset '{preset}' moves the steps of short "
                "windows behind their padding",
                column=column,
                hint="give preset_options={'side': 'right'}, or offsets of the column, or leave per_step out",
            )


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
    texts = token_texts(batch_format, request, config)
    if packing is not None:
        batch_format, unit = packed_format(batch_format), step_tokens(batch_format, request)
        if counted:
            stored = {new: name for name, new in config.rename.items()}
            columns_of = {name: stored.get(name, name) for name in texts}
            counts = token_counts(dataset, columns_of, config.decoders, packing.length, unit)
        rule = packed_rule(dataset, config, packing, unit, counts)
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
        outputs = tuple(dataclasses.replace(o, half=config.batch.dtype_name) if is_float(o) else o for o in outputs)
    check_batch_bytes(outputs, config.batch_size)
    variable = text_columns(batch_format, request)
    check_interpolated(outputs, variable, weights, str(dataset.path))
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
        taken = [*(output.key for output in outputs), *variable.values(), *token_keys(batch_format)]
        taken += () if packing is None else PACKED_KEYS
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


def _is_text(schema: Schema, names: Sequence[str]) -> bool:
    return schema[names[0]].variable_length


def _check_window_keys(config: LoaderConfig, component: LoaderComponent, samplers: Sequence[Weighted | None]) -> None:
    """Raises InvalidArgumentError if a column has the key of a number, or of a goal, that each window has.

    Args:
        config: the arguments, with the dataset's options.
        component: the dataset.
        samplers: those of the datasets of a batch; None: of another kind.
    """
    reasons = dict.fromkeys(WINDOW_IDS, "window_ids=True") if config.batch.window_ids else {}
    for sampler in filter(None, samplers):
        reasons |= dict.fromkeys(("probability", "weights_version"), "the sampler Weighted")
        if sampler.beta is not None:
            reasons["importance_weights"] = "Weighted(beta=...)"
    if config.goals is not None:
        reasons |= dict.fromkeys(config.goals.keys, "goals=")
    if config.embodiment is not None:
        reasons[EMBODIMENT] = "the option embodiment"
    if len(config.datasets) > 1:
        reasons["source"] = "a mixture"
    keys = {*(output.key for output in component.outputs), *component.variable.values()}
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


def _component_seed(seed: int, number: int) -> int:
    """Returns the seed of dataset `number` of a mixture.

    All datasets number their slots from 0, so one seed would give all of them the same random numbers.
    """
    return int(cpu.random.word64(np.uint64(seed), cpu.random.DOMAIN_MIXTURE, 0, number, 0))
