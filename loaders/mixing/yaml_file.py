"""mix.yaml: the datasets of a mixture with their shares, filters and options."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import yaml

from gear_data.common.paths import is_remote, join, plain_path
from gear_data.common.typed_json import is_json, parse_yaml
from gear_data.dataset.dataset import Dataset
from gear_data.dataset.open import open_dataset
from gear_data.dataset.steps.expression import Satisfying
from gear_data.dataset.steps.idle import Moving
from gear_data.dataset.steps.ranges import KeptRanges
from gear_data.dataset.views import Filter, StepFilter
from gear_data.error_text import shown
from gear_data.errors import GearError, InvalidArgumentError, LoaderConfigError, closest_name
from gear_data.ingest.cached.entries import read_header
from gear_data.ingest.cached.source_state import is_hub_id
from gear_data.ingest.convert_options import ConvertOptions
from gear_data.relative import Relative
from gear_data.selection.samplers import KINDS
from gear_data.storage.edits.files import EditedFiles
from gear_data.storage.manifest import STEP_MASK
from gear_data.storage.remote.object_store import open_file_store
from gear_data.storage.writing.file_store import put_single_text

#: A dataset, its proportion, and its options.
Component = tuple[Dataset, Any, Mapping[str, Any]]
#: Arguments of a mixture, which are keys of the document; and keys of a dataset in it, beside its options.
_ARGUMENTS, _DATASET_KEYS = ("join", "pad_to", "statistics"), ("path", "convert", "share", "filters")
#: Filter: a method of `Dataset` whose first argument is the key's value -> its further arguments, which are keys, too.
_FILTERS: dict[str, tuple[str, ...]] = {
    "filter": (),
    "filter_steps": ("mode",),
    "keep_ranges": ("mode",),
    "drop_idle": ("threshold", "seconds", "fps", "mode"),
}
#: Largest size of a file.
_MAX_BYTES = 64 << 20
Mixture = TypeVar("Mixture")
_EXAMPLE = "such as 'datasets: [{path: a/, share: 0.7}, {path: b/, share: 0.3}]'"


def read_mixture(
    path: str | os.PathLike[str], options: Sequence[str], make: Callable[[list[Component], dict[str, Any]], Mixture]
) -> Mixture:
    """Opens the mixture of a file. See `Mixture.from_yaml`.

    Args:
        path: the file.
        options: names of the options of a dataset.
        make: makes the mixture of its datasets and further arguments.
    """
    file = plain_path(path)
    folder, name = os.path.split(file)
    try:
        text = open_file_store(folder or ".").read(name, _MAX_BYTES)
    except FileNotFoundError as error:
        raise LoaderConfigError("no such file", file=file, hint="check the path") from error
    except OSError as error:
        if isinstance(error, GearError):
            raise
        raise LoaderConfigError(f"cannot be read: {error}", file=file, hint="check the path") from error
    document = _mapping(
        parse_yaml(text, error=LoaderConfigError, file=file), "the file", ("datasets", *_ARGUMENTS), file
    )
    entries = document.get("datasets")
    if not isinstance(entries, list) or not entries:
        raise LoaderConfigError(f"its datasets are {shown(entries)}, not a list", file=file, hint=_EXAMPLE)
    components = [_component(entry, options, f"datasets[{number}]", file) for number, entry in enumerate(entries)]
    others = {key: value for key, value in document.items() if key != "datasets"}
    mixture: Mixture = _made(lambda: make(components, others), "the mixture", file)
    return mixture


def write_mixture(path: str | os.PathLike[str], components: Sequence[Component], arguments: Mapping[str, Any]) -> None:
    """Writes a mixture to a file. See `Mixture.to_yaml`.

    Args:
        path: the file.
        components: the datasets.
        arguments: further arguments of the mixture; those that are None or false are left out.
    """
    file = plain_path(path)
    folder, name = os.path.split(file)
    entries = [
        _entry(component, f"dataset {number} ({component[0].path})", folder)
        for number, component in enumerate(components)
    ]
    given = {name: value for name, value in arguments.items() if value is not None and value is not False}
    document = {"datasets": entries, **given}
    put_single_text(open_file_store(folder or "."), name, yaml.safe_dump(document, sort_keys=False, allow_unicode=True))


def _mapping(value: Any, place: str, known: Sequence[str], file: str) -> Mapping[str, Any]:
    """Returns a mapping of known keys."""
    if not isinstance(value, Mapping):
        raise LoaderConfigError(f"{place} is {shown(value)}, not a mapping", file=file, hint=_EXAMPLE)
    for key in value:
        if key not in known:
            hint = closest_name(str(key), known)
            raise LoaderConfigError(f"{place} has the unknown key '{key}'", file=file, hint=hint)
    return value


def _made(make: Callable[[], Any], place: str, file: str) -> Any:
    """Returns what a function makes; its errors name the place in the file."""
    try:
        return make()
    except GearError as error:
        error.message = f"{place} of {file}: {error.message}"
        raise
    except TypeError as error:
        raise LoaderConfigError(f"{place}: {error}", file=file, hint=_EXAMPLE) from error


def _component(entry: Any, names: Sequence[str], place: str, file: str) -> Component:
    """Returns the dataset of an entry, its share and its options of these names."""
    fields = _mapping(entry, place, (*_DATASET_KEYS, *names), file)
    path, filters = fields.get("path"), fields.get("filters", [])
    if not isinstance(path, str) or not path:
        raise LoaderConfigError(f"the path of {place} is {shown(path)}", file=file, hint="give a folder or a URL")
    if not isinstance(filters, list):
        hint = "such as 'filters: [{filter: length >= 40}, {filter_steps: rewards > 0, mode: all}]'"
        raise LoaderConfigError(f"the filters of {place} are {shown(filters)}, not a list", file=file, hint=hint)
    convert = fields.get("convert")
    dataset: Dataset = _made(
        lambda: open_dataset(
            _source_place(path, file), convert=None if convert is None else ConvertOptions.parse(convert)
        ),
        place,
        file,
    )
    for number, each in enumerate(filters):
        dataset = _filtered(dataset, each, f"{place}.filters[{number}]", file)
    options = {name: fields[name] for name in names if name in fields}
    if isinstance(options.get("sampler"), Mapping):
        options["sampler"] = _made(lambda: _sampler(options["sampler"], place, file), place, file)
    return dataset, fields.get("share", 1), options


def _filtered(dataset: Dataset, entry: Any, place: str, file: str) -> Dataset:
    """Returns the view of one filter."""
    methods = [name for name in _FILTERS if isinstance(entry, Mapping) and name in entry]
    if len(methods) != 1:
        raise LoaderConfigError(
            f"{place} is {shown(entry)}, not one filter", file=file,
            hint=f"give one of {', '.join(_FILTERS)}: such as {{filter: length >= 40}}",
        )  # fmt: skip
    method = methods[0]
    fields = _mapping(entry, place, (method, *_FILTERS[method]), file)
    first, *others = (fields[name] for name in (method, *(name for name in _FILTERS[method] if name in fields)))
    if method == "keep_ranges" and isinstance(first, str):
        first = _place(first, file)
    arguments = dict(zip((name for name in _FILTERS[method] if name in fields), others, strict=True))
    view: Dataset = _made(lambda: getattr(dataset, method)(first, **arguments), place, file)
    return view


def _sampler(entry: Mapping[str, Any], place: str, file: str) -> Any:
    """Returns the sampler of a mapping with its name and its arguments."""
    kind = KINDS.get(str(entry.get("name")))
    if kind is None:
        raise LoaderConfigError(
            f"the sampler of {place} has the name {shown(entry.get('name'))}",
            file=file,
            hint=f"give 'name', one of: {', '.join(KINDS)}; and the sampler's arguments",
        )
    fields = [each.name for each in dataclasses.fields(kind)]
    return kind(
        **{name: value for name, value in _mapping(entry, place, ("name", *fields), file).items() if name != "name"}
    )


def _source_place(path: str, file: str) -> str:
    """Returns the place of a source: as `_place`, or an id of the hub, which only a file of this machine can have."""
    folder = os.path.dirname(file)
    return path if not is_remote(folder) and is_hub_id(path, folder) else _place(path, file)


def _place(path: str, file: str) -> str:
    """Returns a path or URL that is written in a file: relative to the file's folder."""
    folder = os.path.dirname(file)
    if is_remote(path) or os.path.isabs(path):
        return path
    return join(folder, path) if is_remote(folder) else os.path.join(folder, path)


def _written_place(path: str, folder: str) -> str:
    """Returns the path or URL to write into a file in a folder: relative to the folder if it is inside."""
    if is_remote(path):
        return path
    absolute = os.path.abspath(path)
    if is_remote(folder):
        return absolute
    relative = os.path.relpath(absolute, os.path.abspath(folder))
    return absolute if relative.startswith(os.pardir) else relative


def _entry(component: Component, name: str, folder: str) -> dict[str, Any]:
    """Returns the entry of a dataset."""
    dataset, share, options = component
    if callable(share):
        raise InvalidArgumentError(
            f"the proportion of {name} is a function, and a file holds numbers",
            hint="give breakpoints: [(step, proportion), ...]",
        )
    if isinstance(dataset.store.files, EditedFiles):
        raise InvalidArgumentError(
            f"{name} has edits that were not saved, and a file names the dataset without them",
            hint="save the edited dataset, Dataset.save, and mix that",
        )
    entry = _entry_of_source(dataset, name, folder) or {"path": _written_place(str(dataset.path), folder)}
    entry["share"] = _plain(share)
    if filters := _filters(dataset, name, folder):
        entry["filters"] = filters
    for option, value in options.items():
        plain = _plain_sampler(value) if option == "sampler" else _plain(value)
        if not is_json(plain):
            raise InvalidArgumentError(
                f"a file cannot hold {option}={shown(value)} of {name}",
                hint="give SQL text, names and numbers; or leave the option out, and give it to the loader",
            )
        entry[option] = plain
    return entry


def _entry_of_source(dataset: Dataset, name: str, folder: str) -> dict[str, Any] | None:
    """Returns the entry of a dataset that is a source in the cache; None for another one."""
    header = read_header(Path(dataset.path).parent) if isinstance(dataset.path, Path) else None
    if header is None:
        return None
    if len(header.places) != 1:
        raise InvalidArgumentError(
            f"{name} is of {header.source}, and a file holds one path for each dataset",
            hint="convert it with gear_data.convert, and mix that dataset",
        )
    place = header.places[0]
    of_hub = not (os.path.isabs(place) or is_remote(place))
    if of_hub and (is_remote(folder) or not is_hub_id(place, folder)):
        raise InvalidArgumentError(
            f"{name} is the hub's dataset {place}, and a file in this folder would read a path beside it",
            hint="write the mixture into another folder of this machine, or convert the dataset and mix that",
        )
    entry: dict[str, Any] = {"path": _written_place(place, folder) if os.path.isabs(place) else place}
    return {**entry, "convert": header.options} if header.options else entry


def _filters(dataset: Dataset, name: str, folder: str) -> list[dict[str, Any]]:
    """Returns the filters that made a view."""
    view, found = dataset.view, []
    if view.made_by is None or dataset.discount != 1 or (view.mask is None and STEP_MASK in dataset.manifest.tables):
        raise InvalidArgumentError(
            f"{name} is a view of positions (select, split, drop_outliers, drop_duplicates, on_bad_shard='skip'), of "
            "another discount, or without a saved filter of steps, and a file holds filters",
            hint="save the view as a dataset, Dataset.save, and mix that",
        )
    for each in view.made_by:
        rule = each.expression if isinstance(each, Filter) else each.rule
        text = rule.expression if isinstance(rule, Satisfying) else rule
        if isinstance(text, str):
            entry: dict[str, Any] = {"filter" if isinstance(each, Filter) else "filter_steps": text}
        elif isinstance(rule, KeptRanges):
            entry = {"keep_ranges": rule.to_json() if rule.file is None else _written_place(rule.file, folder)}
        elif isinstance(rule, Moving):
            entry = {"drop_idle": rule.column, "threshold": rule.threshold, "seconds": rule.seconds}
            entry |= {} if rule.fps is None else {"fps": rule.fps}
        else:
            raise InvalidArgumentError(
                f"{name} has the filter {shown(str(text))}, and a file holds SQL",
                hint="filter with SQL text, such as 'length >= 40'; or save the view, and mix that",
            )
        found.append(entry | ({"mode": view.mode} if isinstance(each, StepFilter) else {}))
    return found


def _plain_sampler(sampler: Any) -> Any:
    """Returns a sampler as its name, or as a mapping with its arguments that are not the defaults."""
    if type(sampler) not in KINDS.values():
        return sampler
    given = {
        field.name: _plain(getattr(sampler, field.name))
        for field in dataclasses.fields(sampler)
        if field.default is dataclasses.MISSING or getattr(sampler, field.name) is not field.default
    }
    return {"name": sampler.name, **given} if given else sampler.name


def _plain(value: Any) -> Any:
    """Returns a value with lists, mappings and numbers of Python."""
    if isinstance(value, Relative):
        return value.to_json()
    if isinstance(value, Mapping):
        return {name: _plain(each) for name, each in value.items()}
    if isinstance(value, tuple | list):
        return [_plain(each) for each in value]
    return value.tolist() if isinstance(value, np.generic | np.ndarray) else value
