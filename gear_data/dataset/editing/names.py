"""Names of columns that an edit renames, drops or adds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import get_args

from gear_data.error_text import shown
from gear_data.errors import InvalidArgumentError, unknown_name
from gear_data.ingest.pipeline.names import DONES, INVALID_NAME, canonical_name, is_column_name
from gear_data.ingest.pipeline.stored_columns import RETURNS_TO_GO
from gear_data.schema import Role, Schema, mask_column
from gear_data.storage.edits.changes import END_FLAGS, Edit
from gear_data.storage.sidecar import REWARDS
from gear_data.words import NewRole

_MASKS = mask_column("").name
#: Role of a column -> the first part of its name.
_PREFIXES = {Role.OBSERVATION: "observations", Role.ACTION: "actions", Role.REWARD: REWARDS, Role.INFO: "infos"}


def renaming(schema: Schema, names: Mapping[str, str]) -> Edit:
    """Returns the edit that renames columns. See `Dataset.rename`."""
    if not isinstance(names, Mapping) or not names:
        raise InvalidArgumentError(
            f"names must map old names to new ones, not {shown(names)}", hint="such as {'actions': 'actions.raw'}"
        )
    for old in names:
        _check_free(schema, old, "renamed")
    gone = _computed(schema, names) - set(names)
    masks = {mask: mask_column(new).name for old, new in names.items() if (mask := _own_mask(schema, old)) is not None}
    new_names = {**names, **masks}
    kept = [old for old in schema.names if old not in gone]
    taken = [old for old in kept if old not in new_names]
    for old, new in names.items():
        check_new_name(new, taken)
        taken.append(new)
        if new == REWARDS and schema[old].variable_length:
            raise InvalidArgumentError("rewards are numbers", column=old, hint="choose another name")
    return Edit({new_names.get(old, old): old for old in kept})


def dropping(schema: Schema, names: str | Sequence[str]) -> Edit:
    """Returns the edit that drops columns. See `Dataset.drop`."""
    columns = [names] if isinstance(names, str) else list(names)
    if not columns:
        raise InvalidArgumentError("there are no columns to drop", hint="name some: ds.drop('infos.qpos')")
    for name in columns:
        _check_free(schema, name, "dropped")
    masks = {mask for name in columns if (mask := _own_mask(schema, name)) is not None}
    gone = {*columns, *masks, *_computed(schema, columns)}
    return Edit({name: name for name in schema.names if name not in gone})


def new_column(schema: Schema, name: str, role: str | None) -> str:
    """Returns the name of a column that is added. See `Dataset.with_column`."""
    if role is not None:
        known = {each: _PREFIXES.get(Role(each), "") for each in get_args(NewRole)}
        if role not in known:
            raise unknown_name("role", role, known)
        if isinstance(name, str) and known[role] and name.split(".", 1)[0] != known[role]:
            name = f"{known[role]}.{name}"
    check_new_name(name, schema.names)
    return name


def check_new_name(name: object, taken: Sequence[str]) -> None:
    """Checks a new name of a column.

    Raises:
        InvalidArgumentError: no column can have it, or another one has it.
    """
    if not isinstance(name, str) or not is_column_name(name):
        raise InvalidArgumentError(f"{shown(name)} cannot be the name of a column: it is no text, or {INVALID_NAME}")
    if name in taken:
        raise InvalidArgumentError(
            "the dataset has a column of this name", column=name, hint="choose another name, or drop that column first"
        )
    if canonical_name(name) == DONES:
        raise InvalidArgumentError(
            "a merge, or a conversion of an export, would read this column as an end flag and leave it out",
            column=name,
            hint=f"choose another name, such as 'infos.{name}'",
        )
    if canonical_name(name) != name:
        raise InvalidArgumentError(
            f"{name!r} would be read back as {canonical_name(name)!r} from an export",
            column=name,
            hint=f"use {canonical_name(name)!r}, or a name that has no canonical form",
        )
    if name == RETURNS_TO_GO or name.startswith(_MASKS):
        raise InvalidArgumentError(
            "gear-data computes columns of this name", column=name, hint=f"choose another name than {name!r}"
        )


def _check_free(schema: Schema, name: str, what: str) -> None:
    """Checks that a column exists and may leave or change its name."""
    if name not in schema:
        raise unknown_name("column", name, schema.names)
    if name in END_FLAGS:
        raise InvalidArgumentError(f"every dataset has this column: it cannot be {what}", column=name)
    if name.startswith(_MASKS) and _own_mask(schema, name.removeprefix(_MASKS)) is not None:
        raise InvalidArgumentError(
            f"is the mask of {name.removeprefix(_MASKS)}, and is {what} with it", column=name, hint="name that column"
        )
    if what == "renamed" and schema[name].derived:
        raise InvalidArgumentError("is computed from other columns: it cannot be renamed", column=name)


def _own_mask(schema: Schema, name: str) -> str | None:
    mask = mask_column(name).name
    return mask if name in schema and mask in schema else None


def _computed(schema: Schema, names: Sequence[str] | Mapping[str, str]) -> set[str]:
    """Returns the columns that are computed from some columns."""
    return {column.name for column in schema.columns if column.derived} if REWARDS in names else set()
