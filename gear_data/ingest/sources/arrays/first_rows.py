"""Conventions of rows, if `is_first` says where episodes begin.

- STEPS: each row is a step, as in arrays with usual names (`observations`, `acts`, `terminals`).
- RLDS: the last row of an episode is only its final observation; its action and reward are not valid. The array of
  observations is called `observation`: https://github.com/google-research/rlds.
- DREAMER: a row holds an observation and the reward that came with it: https://github.com/danijar/dreamerv3. Early
  files, also V-D4RL's, have no `is_first`: a file is an episode.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from enum import Enum

from gear_data.errors import UnknownFormatError
from gear_data.ingest.pipeline.columns import END_FLAGS
from gear_data.ingest.pipeline.names import DONES, canonical_name

_OLD_DREAMER = frozenset({"image", "action", "reward", "discount"})
_FLAGS = {"is_last": DONES, "is_terminal": "terminated"}
_DREAMER_NAMES = {**_FLAGS, "action": "actions", "reward": "rewards", "discount": "discount"}
_DREAMER_STEPS = frozenset({"action", "reward"})
#: Its meaning depends on the other names.
_OBS = "obs"


class RowConvention(Enum):
    """What the rows of an episode are."""

    STEPS = "steps"
    RLDS = "rlds"
    DREAMER = "dreamer"


def is_old_dreamer(names: Collection[str]) -> bool:
    """Returns whether arrays are an episode of DreamerV2 without `is_first`."""
    return "is_first" not in names and _OLD_DREAMER.issubset(names)


def row_convention(names: Sequence[str], rename: Mapping[str, str]) -> RowConvention:
    """Returns the convention that the names of the arrays beside `is_first` belong to.

    Args:
        names: the names.
        rename: the user's names.

    Raises:
        UnknownFormatError: the names fit two conventions.
    """

    def unclear(reading: str, hint: str) -> UnknownFormatError:
        message = f"could mean two things: {reading}"
        return UnknownFormatError(message, column="is_first", hint=hint)

    # A new name of one of Dreamer's other arrays, such as `vector`, changes no convention.
    given = {} if _DREAMER_STEPS & {*names} else rename
    usual = {name for name in names if _is_usual(given.get(name, name))}
    ends = {canonical_name(rename.get(name, name)) for name in (*usual, *_FLAGS)} & END_FLAGS
    last = next((name for name in _FLAGS if name in names), None)
    if usual and last is not None and not ends:
        raise unclear(
            f"beside {', '.join(sorted(usual))}, the row of '{last}' may be a step, or only the final observation "
            "(RLDS)",
            f"if it is a step: --rename {last}={_FLAGS[last]}; if it is the final observation, call the arrays "
            "observation, action and reward, as RLDS does",
        )
    if usual:
        return RowConvention.STEPS
    if any(_is_rlds(name) for name in names):
        return RowConvention.RLDS
    if _OBS in names and _OBS not in rename:
        raise unclear(
            f"beside '{_OBS}', each row may be a step, or an observation and the reward that came with it (Dreamer)",
            f"if each row is a step: --rename {_OBS}=observations; if the rows are Dreamer's: "
            f"--rename {_OBS}=observations.{_OBS}",
        )
    return RowConvention.STEPS if rename.get(_OBS) == "observations" else RowConvention.DREAMER


def _is_rlds(name: str) -> bool:
    return name.replace("/", ".").partition(".")[0] == "observation"


def _is_usual(name: str) -> bool:
    """Returns whether a name is usual for arrays whose rows are steps, and not Dreamer's or RLDS's."""
    group = canonical_name(name).partition(".")[0]
    is_step = group in {"observations", "next_observations", "actions", "rewards", *END_FLAGS}
    return is_step and name not in {*_DREAMER_STEPS, _OBS} and not _is_rlds(name)


def convention_names(names: Sequence[str], rows_are: RowConvention, rename: Mapping[str, str]) -> dict[str, str]:
    """Returns source name -> canonical name, where a convention or the user gives one."""
    if rows_are is RowConvention.DREAMER:
        return {name: _dreamer_name(name) for name in names} | dict(rename)
    others = {canonical_name(rename.get(name, name)) for name in names if name not in _FLAGS}
    flags = {} if others & END_FLAGS else {name: flag for name, flag in _FLAGS.items() if name in names}
    return flags | dict(rename)


def _dreamer_name(source: str) -> str:
    """Returns Dreamer's canonical name.

    All arrays that are not known or logged are parts of the observation.
    """
    if source in _DREAMER_NAMES:
        return _DREAMER_NAMES[source]
    return f"infos.{source}" if source.startswith("log_") else f"observations.{source}"
