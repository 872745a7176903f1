"""Column names: maps a source's names to the Gymnasium/D4RL plural form."""

from __future__ import annotations

import difflib
import re
import shlex
from collections.abc import Container, Iterable, Mapping
from functools import lru_cache

from gear_data.common.paths import is_utf8
from gear_data.errors import InvalidArgumentError, UnknownNameError, closest_name

#: The end flag of sources that do not distinguish termination from truncation.
DONES = "dones"

#: The reason why a name cannot be stored, for messages.
INVALID_NAME = "empty, not UTF-8, or contains NUL"

_CANONICAL = {
    name: canonical
    for canonical, names in {
        "observations": ("observation", "obs", "observation.state", "continuous_observations"),
        "observations.discrete": ("discrete_observations",),
        "observations.image": ("image_observations",),
        "observations.text": ("text_observations",),
        "actions": ("action", "acts", "continuous_actions", "discrete_actions"),
        "rewards": ("reward", "rews", "next.reward"),
        DONES: ("done", "next.done", "episode_terminals"),
        "terminated": ("terminal", "terminals", "terminations", "next.terminated"),
        "truncated": ("timeout", "timeouts", "truncations", "next.truncated"),
    }.items()
    for name in names
}

_PREFIXES = (("observation.", "observations."), ("obs.", "observations."), ("action.", "actions."), ("info.", "infos."))

#: The name of a column with the value of another column after each step.
_NEXT = re.compile(r"next[._](.+)", re.DOTALL)
#: Columns that are observations, or elements of them, under names which may also mean something else.
_STATE = re.compile(r"(obs|observation|state)s?([._]?\d+|[._].+)?")
#: Of these, the names of a whole observation.
_STATES = ("state", "states")

#: Usual names of actions, in lower case, that have no canonical name because they may mean something else.
_NEARLY_ACTIONS = re.compile(r"(a|u|act|action|control|controls|ctrl|command|commands)s?[_\d]*|actions?_.*")

#: Column name -> the presets whose batches have another array of that name. Other presets leave such a column out.
_BATCH_KEYS = {"mask": ("raw",), "timesteps": ("raw",), "valid_count": ("raw", "lerobot")}
#: The end of the names of arrays that the preset `lerobot` adds.
_PAD_SUFFIX = "_is_pad"


def conflicting_presets(name: str) -> tuple[str, ...]:
    """Returns the presets that cannot feed a column of this name.

    Their batches have another array of that name.
    """
    return ("lerobot",) if name.endswith(_PAD_SUFFIX) else _BATCH_KEYS.get(name, ())


@lru_cache(maxsize=1024)
def canonical_name(name: str) -> str:
    """Returns the canonical name of a column. Unknown names do not change.

    Examples: `observation.images.top` -> `observations.images.top`, `infos/qpos` -> `infos.qpos`, `timeouts` ->
    `truncated`, `next_obs.rgb` -> `next_observations.rgb`. In a table with one row per episode and a list of structs
    `steps`: `steps.reward` -> `rewards`.
    """
    dotted = name.replace("/", ".").removeprefix("steps.")
    if dotted in _CANONICAL:
        return _CANONICAL[dotted]
    for prefix, replacement in _PREFIXES:
        if dotted.startswith(prefix):
            return replacement + dotted.removeprefix(prefix)
    if (found := _NEXT.fullmatch(dotted)) and is_observation(before := canonical_name(found[1])):
        return f"next_{before}"
    return dotted


def usual_name(name: str, rename: Mapping[str, str] | None) -> str:
    """Returns the canonical name of a column that the user may have renamed."""
    return (rename or {}).get(name) or canonical_name(name)


def is_observation(name: str) -> bool:
    """Returns whether a canonical name is `observations` or below it."""
    return name.split(".", 1)[0] == "observations"


def is_next(name: str) -> bool:
    """Returns whether a canonical name is the name of observations after each step."""
    found = _NEXT.fullmatch(name)
    return found is not None and (is_observation(found[1]) or _STATE.fullmatch(found[1]) is not None)


def observations_before(name: str, columns: Container[str]) -> str | None:
    """Returns the column of which a column holds the value after each step.

    Args:
        name: the canonical name of the column, such as `next_observations.image`, `next_state` or `next_obs_3`.
        columns: the canonical names of the columns that there are.

    Returns:
        A name in `columns`, such as `observations.image`; None if there is no such column.
    """
    if not is_next(name):
        return None
    before = name[len("next_") :]
    candidates = (before, "observations") if before in _STATES else (before,)
    return next((each for each in candidates if each in columns), None)


def is_nearly_actions(name: str) -> bool:
    """Returns whether a name looks like the name of actions, such as `act`."""
    last = name.replace("/", ".").rpartition(".")[2].lower()
    return bool(_NEARLY_ACTIONS.fullmatch(last) or difflib.get_close_matches(last, ["action", "actions"], cutoff=0.8))


def is_storable(name: str) -> bool:
    """Returns whether a name can be stored: non-empty UTF-8 without NUL."""
    return bool(name) and is_utf8(name) and "\0" not in name


def is_column_name(name: str) -> bool:
    """Returns whether a name is storable and has no empty dotted part."""
    return is_storable(name) and all(name.split("."))


def name_map(names: Iterable[str], rename: Mapping[str, str] | None) -> dict[str, str]:
    """Returns source name -> canonical name for all columns.

    Args:
        names: the source's names.
        rename: source name -> canonical name. It takes precedence.

    Raises:
        UnknownNameError: `rename` names a column that does not exist.
        InvalidArgumentError: two columns would get the same name.
    """
    names = list(names)
    rename = dict(rename or {})
    for name in rename:
        if name not in names:
            raise UnknownNameError("rename: the source has no such column", column=name, hint=closest_name(name, names))
    result: dict[str, str] = {}
    taken: dict[str, str] = {}
    for name in names:
        target = rename[name] if name in rename else canonical_name(name)
        check_lasts(name, target)
        if target in taken:
            raise InvalidArgumentError(
                f"the source's columns '{taken[target]}' and '{name}' would both become '{target}'",
                hint=f"rename one of them: --rename {shlex.quote(name)}=OTHER",
            )
        result[name] = target
        taken[target] = name
    return result


def check_lasts(source: str, name: str) -> None:
    """Raises InvalidArgumentError if a column of a source would lose its new name."""
    if (read := canonical_name(name)) != name:
        raise InvalidArgumentError(
            f"rename: '{name}' would be read back as '{read}' from an export",
            column=source,
            hint=f"use '{read}', or a name that has no canonical form",
        )
