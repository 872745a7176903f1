"""Choices: keys of a batch whose windows have the value of one of several columns or facts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import xxhash

from gear_data.error_text import shown
from gear_data.errors import InvalidArgumentError
from gear_data.kernels import cpu
from gear_data.loaders.presets.batch_format import BatchFormat
from gear_data.schema import Role, Schema
from gear_data.selection.windows import Int64Array

#: Key of the batch -> the columns or facts, of which each window has one.
Choose: TypeAlias = "Mapping[str, str | Sequence[str]]"


@dataclass(frozen=True)
class Choice:
    """A key of the batch whose windows have the values of one of several columns.

    Attributes:
        key: key of the batch.
        columns: the columns, of text or of bytes.
    """

    key: str
    columns: tuple[str, ...]


def check_choose(choose: Any) -> dict[str, tuple[str, ...]]:
    """Returns the argument `choose`: key -> names.

    Raises:
        InvalidArgumentError: the argument is of another form.
    """
    found = {}
    for key, names in choose.items() if isinstance(choose, Mapping) else [(None, choose)]:
        each = (names,) if isinstance(names, str) else tuple(names) if isinstance(names, list | tuple) else ()
        if not isinstance(key, str) or not each or not all(isinstance(name, str) for name in each):
            raise InvalidArgumentError(
                f"choose maps keys of the batch to a name or a list of names, and is {shown(choose)}",
                hint='for example choose={"instruction": ["language_instruction", "language_instruction_2"]}',
            )
        if len({*each}) < len(each):
            raise InvalidArgumentError(f"choose has a name twice: {', '.join(each)}", column=key)
        found[key] = each
    return found


def text_choice(batch_format: BatchFormat, schema: Schema, key: str, columns: Sequence[str]) -> Choice:
    """Returns the choice among columns of text or of bytes.

    Raises:
        InvalidArgumentError: the columns are of other kinds, or of several.
    """
    specs = [schema[name] for name in columns]
    kinds = {spec.name: spec.dtype for spec in specs}
    if len({*kinds.values()}) > 1 or not all(spec.variable_length for spec in specs):
        raise InvalidArgumentError(
            f"choose= draws among columns of text, or of bytes, and these are {kinds}", column=key,
            hint="name columns of one kind",
        )  # fmt: skip
    if len({batch_format.first_step_only(spec.role) for spec in specs}) > 1:
        raise InvalidArgumentError(
            f"preset '{batch_format.name}' takes all steps of some of these columns, and the first step of others",
            column=key,
            hint="name columns of one role",
        )
    if batch_format.transitions is not None and any(spec.role is Role.OBSERVATION for spec in specs):
        raise InvalidArgumentError(
            f"preset '{batch_format.name}' has two states in a row, and choose= draws one value",
            column=key,
            hint="name columns that are no observations",
        )
    return Choice(key, tuple(columns))


def drawn_numbers(seed: int, key: str, step: int, row: int, counts: Int64Array) -> Int64Array:
    """Returns a number from 0 to counts[i] - 1 for each window, int64 [B].

    Window i is row + i of the global batch. The number is a function of (seed, key, step, row + i, counts[i]).

    Args:
        seed: seed of the loader.
        key: key of the batch; each key has numbers of its own.
        step: the batch's step.
        row: the row of the global batch at which the windows begin.
        counts: int64 [B], at least 1.
    """
    random = cpu.random
    seed_of_key = np.uint64(
        random.word64(np.uint64(seed), random.DOMAIN_CHOICE, 0, xxhash.xxh32_intdigest(key.encode()), 0)
    )
    numbers = np.zeros(len(counts), np.int64)
    # The rows of all ranks before this one are drawn, too.
    every = np.empty(row + len(counts), np.int64)
    for count in np.unique(counts).tolist():
        random.draw_below(seed_of_key, random.DOMAIN_CHOICE, step, count, every)
        chosen = counts == count
        numbers[chosen] = every[row:][chosen]
    return numbers
