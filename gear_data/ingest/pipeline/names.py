"""Column names: from a source's own to the Gymnasium/D4RL plural form."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from gear_data.common.paths import is_utf8
from gear_data.errors import InvalidArgumentError

#: The flag of sources that do not tell termination from truncation. It becomes `terminated`.
DONES = "dones"

#: What a name is that cannot be stored.
INVALID_NAME = "empty, or holds what is not UTF-8 or NUL"

_CANONICAL = {
    "observation": "observations",
    "obs": "observations",
    "observation.state": "observations",
    "continuous_observations": "observations",
    "discrete_observations": "observations.discrete",
    "image_observations": "observations.image",
    "text_observations": "observations.text",
    "next_obs": "next_observations",
    "next_observation": "next_observations",
    "next.observation": "next_observations",
    "action": "actions",
    "acts": "actions",
    "continuous_actions": "actions",
    "discrete_actions": "actions",
    "reward": "rewards",
    "rews": "rewards",
    "next.reward": "rewards",
    "done": DONES,
    "next.done": DONES,
    "terminal": "terminated",
    "terminals": "terminated",
    "terminations": "terminated",
    "timeout": "truncated",
    "timeouts": "truncated",
    "truncations": "truncated",
    "next.terminated": "terminated",
    "next.truncated": "truncated",
}

_PREFIXES = (("observation.", "observations."), ("obs.", "observations."), ("action.", "actions."), ("info.", "infos."))


def canonical_name(name: str) -> str:
    """`observation.images.top` -> `observations.images.top`, `infos/qpos` -> `infos.qpos`, `timeouts` -> `truncated`,
    `steps.reward` (a row an episode, its steps a list of structs) -> `rewards`.

    Unknown names stay as they are.
    """
    dotted = name.replace("/", ".").removeprefix("steps.")
    if dotted in _CANONICAL:
        return _CANONICAL[dotted]
    for prefix, replacement in _PREFIXES:
        if dotted.startswith(prefix):
            return replacement + dotted.removeprefix(prefix)
    return dotted


def is_storable(name: str) -> bool:
    """Whether a name can be stored: it is not empty, and UTF-8 without NUL."""
    return bool(name) and is_utf8(name) and "\0" not in name


def is_column_name(name: str) -> bool:
    """Whether a name can be a step column's: it can be stored, and has no empty part where it has dots."""
    return is_storable(name) and all(name.split("."))


def name_map(names: Iterable[str], rename: Mapping[str, str] | None) -> dict[str, str]:
    """Source name -> canonical name, `rename` (source -> canonical) first.

    Raises:
        InvalidArgumentError: `rename` names a column that is not there, or two columns would get one name.
    """
    names = list(names)
    rename = dict(rename or {})
    for name in rename:
        if name not in names:
            raise InvalidArgumentError(
                "rename: the source has no such column", column=name, hint=f"it has: {', '.join(sorted(names))}"
            )
    result: dict[str, str] = {}
    taken: dict[str, str] = {}
    for name in names:
        target = rename[name] if name in rename else canonical_name(name)
        if canonical_name(target) != target:
            raise InvalidArgumentError(
                f"rename: '{target}' would be read back as '{canonical_name(target)}' from an export",
                column=name,
                hint=f"use '{canonical_name(target)}', or a name that stands for nothing else",
            )
        if target in taken:
            raise InvalidArgumentError(
                f"the source's columns '{taken[target]}' and '{name}' would both become '{target}'",
                hint=f"give one of them another name: --rename {name}=OTHER",
            )
        result[name] = target
        taken[target] = name
    return result
