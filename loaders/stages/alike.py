"""Datasets of a mixture that share batches: the columns and tokens that they have in common."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from gear_data.collection.output import Output, check_batch_bytes
from gear_data.errors import InvalidArgumentError
from gear_data.loaders.arguments.config import LoaderConfig
from gear_data.loaders.component import LoaderComponent
from gear_data.loaders.mixture import MixtureComponent
from gear_data.loaders.presets.choices import Choice, joint_choice
from gear_data.loaders.presets.facts import fact_name
from gear_data.loaders.presets.outputs import BatchRequest, step_tokens, token_columns
from gear_data.loaders.presets.policies.octo import task_goals
from gear_data.loaders.presets.unlike import DatasetOutputs, PadTo, dim_mask_of, joint_outputs, padded_like, present_of
from gear_data.schema import Role, Schema, role_of


def counts_tokens(config: LoaderConfig, owns: Sequence[LoaderConfig], schemas: Sequence[Schema]) -> bool:
    """Returns whether packed rows count tokens, as steps have unlike numbers of them."""
    if any(own.batch_format.tokens is None for own in owns):
        return False
    requests = [BatchRequest(schema, 1, None, {}, {}, None) for schema in schemas]
    formats = [own.batch_format for own in owns]
    pairs = list(zip(formats, requests, strict=True))
    if any(item.spec.variable_length for each in pairs for item, _ in token_columns(*each)):
        return True
    return config.joined and len({step_tokens(*each) for each in pairs}) > 1


def check_tokens(components: Sequence[LoaderComponent], names: Sequence[str], *, counted: bool) -> None:
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


def takes_all_columns(config: LoaderConfig) -> bool:
    return config.columns is None and config.batch_format.roles is None


def own_columns(
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
        chosen = {
            key: tuple(name for name in names if has(name) or name in facts[number])
            for key, names in config.choose.items()
        }
        changes["choose"] = {key: names for key, names in chosen.items() if names}
    if "normalize" not in options:
        if isinstance(normalize, Mapping):
            changes["normalize"] = {name: value for name, value in normalize.items() if has(name)}
        elif isinstance(normalize, list | tuple):
            changes["normalize"] = [name for name in normalize if has(name)]
        elif isinstance(normalize, str) and normalize in every and normalize not in own:
            changes["normalize"] = None
    return dataclasses.replace(config, **changes)


def padded(
    components: Sequence[LoaderComponent],
    names: Sequence[str],
    pad_to: PadTo,
    choose: Mapping[str, Sequence[str]],
    batch_size: int,
) -> tuple[LoaderComponent, ...]:
    """Returns the components with arrays of one layout.

    Args:
        components: the datasets.
        names: their names, for errors.
        pad_to: the argument of the mixture.
        choose: the argument of the loader.
        batch_size: windows of a batch.

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
    chosen = {choice.key for each in components for choice in each.choices}
    described = [
        DatasetOutputs(
            name,
            # A preset's camera that this dataset lacks, and of which others have several, is absent like its columns.
            [output for output in each.outputs if not (output.absent and output.key in chosen)],
            frozenset((own.mask_key, own.timesteps_key, "loss_weight")),
            each.variable,
            frozenset((*(fact.key for fact in each.facts), *(choice.key for choice in each.choices))),
            {own.element_mask: own.keys.get("actions", "actions")} if own.element_mask else {},
        )
        for name, each, own in zip(names, components, formats, strict=True)
    ]
    joint = []
    variable = {column: key for each in components for column, key in each.variable.items()}
    facts = {fact.key: fact for each in reversed(components) for fact in each.facts}
    every = joint_outputs(described, pad_to)
    keys = {*(output.key for output in every[0]), *variable.values()}
    every_choices, hidden = _joint_choices(components, every, choose, names), _hidden(components, keys)
    for name, component, outputs, choices in zip(names, components, every, every_choices, strict=True):
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
                task_goals=task_goals(component.batch_format, outputs),
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


def _joint_choices(
    components: Sequence[LoaderComponent],
    outputs: Sequence[Sequence[Output]],
    choose: Mapping[str, Sequence[str]],
    names: Sequence[str],
) -> list[tuple[Choice, ...]]:
    """Returns the choices of each dataset, of which each has those of the loader's argument `choose`.

    Args:
        components: the datasets.
        outputs: their arrays, padded.
        choose: the argument.
        names: the datasets, for errors.
    """
    tables = [{choice.key: choice for choice in each.choices} for each in components]
    keys = list(dict.fromkeys(key for table in tables for key in table))
    for key in keys:
        choices = [table.get(key) for table in tables]
        columns = choose.get(key) or next(each.columns for each in choices if each is not None)
        _check_kinds(key, choices, components, names)
        together = all(
            key in choose if each is None else each.columns == tuple(name for name in columns if name in each.columns)
            for each in choices
        )
        for number, each in enumerate(choices):
            if together:
                tables[number][key] = joint_choice(key, columns, choices, outputs[number])
            elif each is not None:  # of the dataset's own option: `check_joined` compares it with the others
                tables[number][key] = joint_choice(key, each.columns, [each], outputs[number])
    return [tuple(table[key] for key in keys if key in table) for table in tables]


def _check_kinds(
    key: str, choices: Sequence[Choice | None], components: Sequence[LoaderComponent], names: Sequence[str]
) -> None:
    """Raises InvalidArgumentError if a key has arrays in one dataset, and text or facts in another."""
    kinds = {}
    for name, choice, each in zip(names, choices, components, strict=True):
        if choice is not None:
            spec = each.request.schema[choice.columns[0]]
            steps = "one step" if each.batch_format.first_step_only(spec.role) else "all steps"
            kinds[name] = "arrays" if choice.arrays else f"values of type {spec.dtype}, {steps}"
        elif any(fact.key == key for fact in each.facts):
            kinds[name] = "a fact"
    if len({*kinds.values()}) > 1:
        raise InvalidArgumentError(
            "choose= draws among values of one kind, and they are "
            + ", ".join(f"{kind} in {name}" for name, kind in kinds.items()),
            column=key,
            hint="name columns of one kind, or give them other names with the option rename",
        )


def _hidden(components: Sequence[LoaderComponent], keys: Collection[str]) -> frozenset[str]:
    """Returns the keys of arrays that are collected for choices only, with their masks; keys: of all arrays."""
    arrays = {output.key for each in components for output in each.outputs}
    shown = {output.key for each in components for output in each.outputs if output.key not in each.hidden}
    hidden = arrays - shown
    masks = {mask for key in hidden for mask in (dim_mask_of(key), present_of(key)) if mask in keys}
    return frozenset(hidden | (masks - arrays))


def shared_columns(schemas: Sequence[Schema], datasets: Sequence[str]) -> tuple[str, ...]:
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
