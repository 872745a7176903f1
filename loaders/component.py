"""A part: one dataset as a loader draws from it, with its windows, its outputs and its normalisation."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from gear_data.collection.output import Output, check_batch_bytes
from gear_data.collection.plan import CollectSource
from gear_data.common.distributed import compute_on_rank_zero
from gear_data.dataset.dataset import Dataset
from gear_data.dataset.internals import anchors_of, store_of
from gear_data.errors import InvalidArgumentError
from gear_data.loaders.arguments import normalization_statistics
from gear_data.loaders.mixture import MixtureComponent
from gear_data.loaders.node_local import node_local_selector
from gear_data.loaders.presets.batch_format import BatchFormat, resolve_preset
from gear_data.loaders.presets.outputs import BatchRequest, batch_outputs, preset_postprocess, text_columns
from gear_data.selection.samplers import Candidates, Sampler, Selector, as_sampler
from gear_data.selection.windows import Float64Array, WindowRule

if TYPE_CHECKING:
    import polars as pl

    from gear_data.cluster.rendezvous import Membership

Normalize = bool | str | Sequence[str] | Mapping[str, tuple[Any, Any]] | None


@dataclass(frozen=True)
class ComponentArguments:
    """What a loader is told about each dataset; a mixture's options replace the first four. `member` is this process
    where nodes draw by themselves."""

    columns: Sequence[str] | None
    normalize: Normalize
    preset_options: Mapping[str, Any] | None
    sampler: str | Sampler
    batch_size: int
    preset: str | BatchFormat
    rule: WindowRule
    offsets: Mapping[str, tuple[int, int]]
    float_dtype: str | None
    half: torch.dtype | None
    n_step: int | None
    discount: float
    member: Membership | None


@dataclass(frozen=True)
class LoaderComponent:
    """One dataset of a loader.

    Attributes:
        dataset: it; its `returns_to_go` are of the loader's discount.
        num_windows: how many windows there are to draw.
        sampler: its sampler's name.
        selector: chooses its windows.
        convention: its preset, with its options.
        request: what was asked of the preset.
        outputs: what the collector fills.
        variable: columns of text or bytes -> their keys.
        finish: what is left to do with a collected batch; None: nothing.
    """

    dataset: Dataset
    num_windows: int
    sampler: str
    selector: Selector
    batch_format: BatchFormat
    request: BatchRequest
    outputs: tuple[Output, ...]
    variable: Mapping[str, str]
    finish: Callable[[dict[str, Any]], dict[str, Any]] | None

    def share(self) -> CollectSource:
        return CollectSource(store_of(self.dataset).reader(), self.dataset.schema, self.outputs)

    def float_keys(self) -> frozenset[str]:
        """Keys of columns that are floats."""
        return frozenset(o.key for o in self.outputs if _is_float(o))


def _is_float(output: Output) -> bool:
    return output.column and np.dtype(output.dtype).kind == "f"


def component_spec(part: LoaderComponent) -> dict[str, Any]:
    """What a part's batches hold, JSON-able."""
    request = part.request
    return {
        "batch_format": part.batch_format.to_json(),
        "columns": None if request.columns is None else list(request.columns),
        "offsets": {name: list(span) for name, span in request.offsets.items()},
        "normalize": {name: [mean.tolist(), std.tolist()] for name, (mean, std) in request.normalize.items()},
        "n_step": request.n_step,
    }


def make_components(
    components: Sequence[MixtureComponent],
    arguments: ComponentArguments,
    seed: int,
    *,
    join: bool,
    ask_first_rank: bool,
) -> tuple[LoaderComponent, ...]:
    """The parts of a loader.

    Args:
        components: one dataset, or those of a mixture.
        join: whether they share batches: a preset of every column then takes those that all of them have.
        ask_first_rank: whether expressions are evaluated on rank 0 for all.
    """
    shared = _shared_columns([component.dataset for component in components]) if join else None
    parts = []
    for number, component in enumerate(components):
        own = dataclasses.replace(arguments, **component.options)
        if shared is not None and own.columns is None and resolve_preset(own.preset, own.preset_options).roles is None:
            own = dataclasses.replace(own, columns=shared)
        own_seed = seed if len(components) == 1 else _seed_of_component(seed, number)
        parts.append(_make_part(component.dataset, own, own_seed, ask_first_rank))
    return tuple(parts)


def _make_part(dataset: Dataset, arguments: ComponentArguments, seed: int, ask_first_rank: bool) -> LoaderComponent:
    columns = arguments.columns
    if columns is not None and (isinstance(columns, str) or not all(isinstance(name, str) for name in columns)):
        raise InvalidArgumentError(f"columns is a list of names, not {columns!r}")
    if arguments.discount != 1:
        dataset = dataset.with_discount(arguments.discount)
    batch_format = resolve_preset(arguments.preset, arguments.preset_options)
    request = BatchRequest(
        schema=dataset.schema,
        context=arguments.rule.context,
        columns=None if arguments.columns is None else tuple(arguments.columns),
        offsets=arguments.offsets,
        normalize=normalization_statistics(dataset, arguments.normalize),
        float_dtype=arguments.float_dtype,
        n_step=arguments.n_step,
        discount=arguments.discount,
    )
    finish = preset_postprocess(batch_format, request)
    outputs = tuple(batch_outputs(batch_format, request))
    if arguments.half is not None and finish is None:
        half = str(arguments.half).removeprefix("torch.")
        outputs = tuple(dataclasses.replace(o, half=half) if _is_float(o) else o for o in outputs)

    def evaluate(expression: str | pl.Expr, what: str) -> Float64Array:
        if not ask_first_rank:
            return dataset.evaluate(expression, what)
        return compute_on_rank_zero(lambda: dataset.evaluate(expression, what))

    check_batch_bytes(outputs, arguments.batch_size)
    sampler = as_sampler(arguments.sampler)
    anchors = anchors_of(dataset, arguments.rule)
    selector = sampler.bind(Candidates(anchors, evaluate), seed)
    if arguments.member is not None:
        selector = node_local_selector(dataset, arguments.member, anchors, sampler, selector, evaluate, seed)
    variable = text_columns(batch_format, request)
    return LoaderComponent(
        dataset, anchors.total, sampler.name, selector, batch_format, request, outputs, variable, finish
    )


def _shared_columns(datasets: Sequence[Dataset]) -> tuple[str, ...]:
    """Columns that all datasets have, in one shape.

    Raises:
        InvalidArgumentError: there is none.
    """
    first, *others = (dataset.schema for dataset in datasets)
    names = tuple(
        column.name
        for column in first
        if all(
            column.name in schema
            and schema[column.name].shape == column.shape
            and schema[column.name].variable_length == column.variable_length
            for schema in others
        )
    )
    if not names:
        raise InvalidArgumentError("the datasets of this mixture have no column in common")
    return names


def _seed_of_component(seed: int, number: int) -> int:
    """A seed of its own for each dataset: they number their slots alike."""
    from gear_data.kernels.cpu.random import DOMAIN_MIXTURE, word64

    return int(word64(np.uint64(seed), DOMAIN_MIXTURE, 0, number, 0))
