"""Datasets of unlike shape in one batch: padded arrays, arrays of zeros, and the masks that say so."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from gear_data.collection.output import MASK, Output
from gear_data.common.keywords import check_range
from gear_data.errors import InvalidArgumentError, unknown_name
from gear_data.stacking import ALONE

#: Column -> elements of its last axis; or `largest`: the most that a dataset has.
PadTo = Mapping[str, int] | Literal["largest"]

#: Keys of an array's masks.
_DIM_MASK, _PRESENT = "{}_dim_mask", "{}_present"


def check_pad_to(pad_to: Any) -> PadTo | None:
    """Returns the argument `pad_to`; raises InvalidArgumentError if it is of another form."""
    if pad_to is None or pad_to == "largest":
        return pad_to  # type: ignore[no-any-return]
    if not isinstance(pad_to, Mapping) or not all(isinstance(name, str) for name in pad_to):
        raise InvalidArgumentError(
            f"pad_to must map columns to numbers of elements, or be 'largest', not {pad_to!r}",
            hint='such as pad_to={"actions": 32}',
        )
    for name, width in pad_to.items():
        check_range(f"pad_to['{name}']", width, 1)
    return {name: int(width) for name, width in pad_to.items()}


@dataclass(frozen=True)
class DatasetOutputs:
    """The arrays of one dataset's batches.

    Attributes:
        name: the dataset, for errors.
        outputs: the arrays.
        common: keys of masks and numbers that belong to no column.
        text: column of text or bytes -> its key.
        facts: keys of facts.
        elements: key of a mask of elements -> key of the array that has these elements.
    """

    name: str
    outputs: Sequence[Output]
    common: frozenset[str | None] = frozenset()
    text: Mapping[str, str] = field(default_factory=dict)
    facts: frozenset[str] = frozenset()
    elements: Mapping[str, str] = field(default_factory=dict)


def check_shapes(datasets: Sequence[DatasetOutputs]) -> None:
    """Raises InvalidArgumentError if a column of two datasets has several shapes; the message says what to give."""
    for having in _by_key(datasets).values():
        _check_layout(datasets, having, None, "leave the column out with columns=, or give join=False")


def joint_outputs(datasets: Sequence[DatasetOutputs], pad_to: PadTo) -> list[tuple[Output, ...]]:
    """Returns the arrays of each dataset, brought to one layout.

    The last axis of a padded column gets zeros, and the batch gets KEY_dim_mask, bool [B, elements]: true for elements
    of the dataset. A mask of elements that the preset itself has is padded like its column, with false. If a dataset
    lacks a column, its rows hold zeros, and KEY_present, bool [B], is false.

    Raises:
        UnknownNameError: `pad_to` names a column that no batch has.
        InvalidArgumentError: a column has more elements than `pad_to` says, or differs in more than its last axis. Also
            if a dataset lacks an array that is no column's, or a mask would have the key of another array.
    """
    tables = _by_key(datasets)
    widths = _widths(datasets, pad_to)
    joint: list[list[Output]] = [[] for _ in datasets]
    masks: list[list[Output]] = [[] for _ in datasets]
    of_elements = {mask: key for each in datasets for mask, key in each.elements.items()}
    for key, having in tables.items():
        first = next(iter(having.values()))
        padded = next(iter(tables.get(of_elements.get(key, key), having).values()))
        width = widths.get(padded.source) if _can_be_padded(padded) else None
        widen = widened if first.column else _widened_mask
        _check_layout(datasets, having, width, "leave the column out with columns=")
        absent = [number for number in range(len(datasets)) if number not in having]
        if absent and any(key in each.common for each in datasets):
            raise InvalidArgumentError(
                f"{datasets[absent[0]].name} has no array '{key}', and others have one",
                hint="give all datasets the same preset_options",
            )
        target = widen(first, width)
        for number in range(len(datasets)):
            own = having.get(number)
            joint[number].append(target.as_absent() if own is None else widen(own, width))
            if width is not None and first.column:
                real = np.arange(width) < (0 if own is None else own.real or own.shape[-1])
                masks[number].append(constant(_DIM_MASK.format(key), real))
            if absent and first.column:
                masks[number].append(constant(_PRESENT.format(key), np.array(own is not None)))
    text = _text_keys(datasets, tables)
    for key, numbers in text.items():
        if len(numbers) < len(datasets):
            for number in range(len(datasets)):
                masks[number].append(constant(_PRESENT.format(key), np.array(number in numbers)))
    facts = dict.fromkeys(key for each in datasets for key in sorted(each.facts))
    for key in facts:
        if not all(key in each.facts for each in datasets):
            for number, each in enumerate(datasets):
                masks[number].append(constant(_PRESENT.format(key), np.array(key in each.facts)))
    for mask in masks[0]:
        if mask.key in tables or mask.key in text or mask.key in facts:
            raise InvalidArgumentError(
                f"pad_to adds the key '{mask.key}', which the batch already has",
                column=mask.key,
                hint="leave the column of this name out with columns=, or give it another name with rename",
            )
    return [(*arrays, *added) for arrays, added in zip(joint, masks, strict=True)]


def dim_mask_of(key: str) -> str:
    """Returns the key of an array's mask of elements, if it is padded."""
    return _DIM_MASK.format(key)


def present_of(key: str) -> str:
    """Returns the key that says which rows have an array, if a dataset lacks it."""
    return _PRESENT.format(key)


def padded_like(output: Output, outputs: Sequence[Output]) -> Output:
    """Returns an output as wide as the outputs of its column: an array of goals, for example."""
    widths = {other.source: other.shape[-1] for other in outputs if other.real is not None}
    return widened(output, widths.get(output.source))


def _by_key(datasets: Sequence[DatasetOutputs]) -> dict[str, dict[int, Output]]:
    """Returns key of the batch -> number of a dataset -> its output."""
    tables: dict[str, dict[int, Output]] = {}
    for number, dataset in enumerate(datasets):
        for output in dataset.outputs:
            tables.setdefault(output.key, {})[number] = output
    return tables


def _text_keys(
    datasets: Sequence[DatasetOutputs], tables: Mapping[str, Mapping[int, Output]]
) -> dict[str, dict[int, str]]:
    """Returns key of text or bytes -> number of a dataset -> its column; the arrays have other keys."""
    found: dict[str, dict[int, str]] = {}
    for number, dataset in enumerate(datasets):
        for column, key in dataset.text.items():
            if key in tables:
                other = next(iter(tables[key]))
                raise InvalidArgumentError(
                    f"the datasets differ in how a step is stored: {dataset.name} has text or bytes, and "
                    f"{datasets[other].name} has numbers",
                    column=column,
                    hint="give one of the columns another name with rename, or leave it out with columns=",
                )
            found.setdefault(key, {})[number] = column
    return found


def _can_be_padded(output: Output) -> bool:
    return output.column and output.camera is None and output.discounts is None and output.table is None


def _widths(datasets: Sequence[DatasetOutputs], pad_to: PadTo) -> dict[str, int]:
    """Returns column -> elements of its last axis, of the columns to pad."""
    shapes: dict[str, dict[int, tuple[int, ...]]] = {}
    for number, dataset in enumerate(datasets):
        for output in filter(_can_be_padded, dataset.outputs):
            shapes.setdefault(output.source, {})[number] = output.shape
    if pad_to == "largest":
        unlike = {name: set(found.values()) for name, found in shapes.items() if len(set(found.values())) > 1}
        return {name: max(shape[-1] for shape in found) for name, found in unlike.items() if () not in found}
    for name, width in pad_to.items():
        if name not in shapes:
            raise unknown_name("column of pad_to", name, shapes)
        for number, shape in shapes[name].items():
            if not shape:
                raise InvalidArgumentError(
                    f"pad_to is {width}, and the column has one number a step in {datasets[number].name}",
                    column=name,
                    hint="leave it out of pad_to"
                    if name in ALONE
                    else f"make a vector of it with the option {{'stack': {{'{name}': ['{name}']}}}} of this dataset",
                )
            if shape[-1] > width:
                raise InvalidArgumentError(
                    f"pad_to is {width}, and {datasets[number].name} has {shape[-1]} elements",
                    column=name,
                    hint=f"give pad_to={{'{name}': {max(each[-1] for each in shapes[name].values() if each)}}} or more",
                )
    return dict(pad_to)


def widened(output: Output, width: int | None) -> Output:
    """Returns an output whose last axis has zeros behind the column's elements."""
    if width is None or output.shape[-1] == width:
        return output
    return dataclasses.replace(output, shape=(*output.shape[:-1], width), real=output.real or output.shape[-1])


def _widened_mask(mask: Output, width: int | None) -> Output:
    """Returns a mask of elements that is false, or 0, behind its own elements."""
    if width is None or mask.shape[-1] == width:
        return mask
    added = (0, width - mask.shape[-1])
    valid, fill = (np.pad(each, added) if np.ndim(each) else each for each in (mask.valid, mask.fill))
    return dataclasses.replace(mask, shape=(width,), valid=valid, fill=fill)


def constant(key: str, values: np.ndarray[Any, Any]) -> Output:
    """Returns the output of one value for all rows of a dataset."""
    return Output(
        key, MASK, str(values.dtype), values.shape, 0, 1, column=False, valid=values, fill=values, squeeze_time=True
    )


def _check_layout(
    datasets: Sequence[DatasetOutputs], having: Mapping[int, Output], width: int | None, leave_out: str
) -> None:
    """Checks that the arrays of one key fit in one batch.

    Args:
        datasets: the datasets.
        having: number of a dataset -> its output.
        width: elements to which the last axis is padded; None: it is not padded.
        leave_out: what else the user can do.
    """
    (number, first), *others = having.items()
    for other, output in others:
        for what, (mine, yours), hint in _differences(first, output, width, leave_out):
            if mine != yours:
                raise InvalidArgumentError(
                    f"the datasets differ in {what}: {datasets[number].name} has {mine}, and "
                    f"{datasets[other].name} has {yours}",
                    column=first.source if first.column else first.key,
                    hint=hint,
                )


def _differences(
    one: Output, two: Output, width: int | None, leave_out: str
) -> Iterator[tuple[str, tuple[Any, Any], str]]:
    """Yields what two outputs of one key must have in common: its name, both values, and what to do."""
    if not (one.absent or two.absent):
        yield f"the column of '{one.key}'", (one.source, two.source), "give the columns one name with rename"
    frames = [each.camera is not None for each in (one, two)]
    kinds = tuple("frames of a video" if each else "an array" for each in frames)
    yield "how a step is stored", (kinds[0], kinds[1]), "convert both with --videos frames, or " + leave_out
    if any(frames):
        hint = f"give the loader resize=(H, W), or resize={{'{one.source}': (H, W)}}; or {leave_out}"
        yield "the shape of a frame", (list(one.shape), list(two.shape)), hint
    axes = [list(each.shape if width is None else each.shape[:-1]) for each in (one, two)]
    if axes[0] != axes[1]:
        hint = leave_out
        if one.source not in ALONE and (not one.shape or not two.shape):
            hint = (
                f"make a vector of a number with the option {{'stack': {{'{one.source}': ['{one.source}']}}}} of its "
            )
            hint += f"dataset; or {leave_out}"
        elif width is None and one.shape and two.shape and one.shape[:-1] == two.shape[:-1]:
            most = max(one.shape[-1], two.shape[-1])
            hint = f"pad both with Mixture(..., pad_to={{'{one.source}': {most}}}) or pad_to='largest'; or {leave_out}"
        yield "the shape of a step", (list(one.shape), list(two.shape)), hint
    # Shapes that are padded differ in their last axis.
    dtypes = (one.half or one.dtype, two.half or two.dtype)
    yield "the dtype", dtypes, "give batch=BatchOptions(dtype='float32') for floats, or " + leave_out
    yield "their steps", (one.width, two.width), "give all datasets the same preset_options"
