"""StepInfos: the entries of a step's info become columns, masks and facts."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from gear_data.errors import InvalidArgumentError, UnsupportedColumnError
from gear_data.recording.acceptance.facts import is_fact
from gear_data.recording.step_columns import checked_value, flat_step, infer_columns
from gear_data.recording.writer import Writer
from gear_data.schema import ColumnSpec, Role, mask_column

#: Steps that wait for the decision have at most so many bytes of arrays.
_WAITING_BYTES = 64 << 20
#: A fact of the episode: the entries of its infos that were left out.
LEFT_OUT = "infos_left_out"

_log = logging.getLogger(__name__)

#: Appends a step to a Writer. Takes the other columns, and the columns of the infos: name -> values of environments.
Append = Callable[[Mapping[str, Any], Mapping[str, Any]], None]


@dataclass(frozen=True)
class _Step:
    """A step of some environments that waits for the decision."""

    environments: Sequence[int]
    infos: Sequence[dict[str, Any]]
    steps: Mapping[str, Any]
    append: Append


class StepInfos:
    """Records what environments return as `info`.

    The first episode decides. An entry that all its steps have becomes a column `infos.NAME`. An entry that some steps
    have becomes a column with zeros, and a column `masks.infos.NAME`. An entry that only the last step has becomes a
    fact of each episode. Steps wait in memory until then. If the Writer has a schema, or its dataset has episodes, they
    decide.

    A later entry without a column becomes a fact, too: its last value. If other steps had the entry, or no fact can
    hold the value, then the fact `infos_left_out` and a line in the log name the entry.

    Args:
        writer: records the steps.
    """

    def __init__(self, writer: Writer) -> None:
        self._columns: dict[str, ColumnSpec] | None = None
        self._masked: set[str] = set()
        if (known := writer.columns) is not None:
            self._columns = {column.name: column for column in known if column.role is Role.INFO}
            names = {column.name for column in known}
            self._masked = {name for name in self._columns if mask_column(name).name in names}
        self._waiting: list[_Step] = []
        self._bytes = 0
        #: Environment -> entries of its open episode that have no column, and those that an earlier step has, too.
        self._others: dict[int, dict[str, Any]] = {}
        self._earlier: dict[int, set[str]] = {}
        self._logged: set[str] = set()

    def append(
        self, environments: Sequence[int], infos: Sequence[Any], steps: Mapping[str, Any], append: Append
    ) -> None:
        """Appends a step of some environments, now or when the columns are decided.

        Args:
            environments: the environments.
            infos: the info of each environment.
            steps: the other columns.
            append: appends them to the Writer.

        Raises:
            InvalidArgumentError: an entry is missing that all earlier steps have, or a value has another dtype or
                shape.
        """
        flat = [{name: each for name, each in flat_step({"infos": info}).items() if each is not None} for info in infos]
        if self._columns is not None:
            self._append(_Step(environments, flat, steps, append), self._columns)
            return
        step = _Step(environments, [_kept(each) for each in flat], _kept(steps), append)
        self._waiting.append(step)
        self._bytes += sum(np.asarray(value).nbytes for value in flat_step(step.steps).values())
        if self._bytes > _WAITING_BYTES:
            self.decide([])

    def decide(self, ended: Sequence[int]) -> None:
        """Decides the columns if they are not decided, and appends the steps that wait.

        Args:
            ended: environments whose episode ends with the last step.
        """
        if self._columns is not None or not self._waiting:
            return
        self._columns = {}
        last = {
            environment: info
            for step in self._waiting
            for environment, info in zip(step.environments, step.infos, strict=True)
        }
        lasts = [last[environment] for environment in ended if environment in last]
        infos = [info for step in self._waiting for info in step.infos]
        for name in dict.fromkeys(name for info in infos for name in info):
            values = [info[name] for info in infos if name in info]
            only_last = len(values) == sum(name in info for info in lasts)
            if only_last and len(infos) > len(lasts) and all(_is_fact(each) for each in values):
                continue
            try:
                (column,) = infer_columns({name: values[0]}, "the info of a step")
            except UnsupportedColumnError:
                continue
            self._columns[name] = column
            # If each step is the first and the last one, they do not show which entries later steps have.
            if len(values) < len(infos) or only_last or len(self._waiting) == 1:
                self._masked.add(name)
        waiting, self._waiting = self._waiting, []
        for step in waiting:
            self._append(step, self._columns)

    def facts(self, environment: int) -> dict[str, Any]:
        """Returns the facts of an environment's episode, whose steps were all appended."""
        others, lost = self._others.pop(environment, {}), self._earlier.pop(environment, set())
        facts = {name: _plain(value) for name, value in others.items() if _is_fact(value)}
        lost |= others.keys() - facts.keys()
        if lost:
            facts[LEFT_OUT] = ", ".join(sorted(lost))
        if new := sorted(lost - self._logged):
            self._logged |= lost
            _log.warning(
                "%s: no column; the last value of an episode is a fact if it is one number or text. "
                "A schema of the Writer that names the columns keeps all values", ", ".join(new),
            )  # fmt: skip
        return facts

    def _append(self, step: _Step, columns: Mapping[str, ColumnSpec]) -> None:
        values: dict[str, Any] = {}
        for name, column in columns.items():
            present = np.array([name in info for info in step.infos])
            mask = mask_column(name)
            if name in self._masked:
                values[mask.name] = present
            elif not present.all():
                raise InvalidArgumentError(
                    f"the info of a step lacks {name}, which is a column of all steps",
                    hint="let step_data_callback return it for every step, or record into another path with a "
                    f"gear_data.Writer whose schema has all columns and '{mask.name}': ('bool', ())",
                )
            values[name] = [
                checked_value(info[name], column, "the info of a step") if name in info else _zero(column)
                for info in step.infos
            ]
        step.append(step.steps, values)
        for environment, info in zip(step.environments, step.infos, strict=True):
            if others := self._others.get(environment):
                self._earlier.setdefault(environment, set()).update(others)
            if more := {name: value for name, value in info.items() if name not in columns}:
                self._others.setdefault(environment, {}).update(_kept(more))


def infos_of_environments(infos: Mapping[str, Any], ended: npt.NDArray[np.bool_]) -> list[dict[str, Any]]:
    """Returns the info of each environment of a vector environment.

    Entries have an array with a value for each environment, and a mask: `NAME` and `_NAME`.

    Args:
        infos: of the vector environment.
        ended: bool [n], environments that were reset in the same step. The info of the step is `final_info` then.
    """
    result = [_info_of(infos, number, len(ended)) for number in range(len(ended))]
    if "final_info" in infos:
        for number in np.flatnonzero(ended).tolist():
            result[number] = _info_of({"final_info": infos["final_info"]}, number, len(ended))["final_info"]
    for info in result:
        info.pop("final_info", None)
        info.pop("final_obs", None)
    return result


def _info_of(infos: Mapping[str, Any], number: int, count: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in infos.items():
        if name.startswith("_") and name[1:] in infos:
            continue
        mask = infos.get(f"_{name}")
        if mask is not None and not mask[number]:
            continue
        if isinstance(value, Mapping):
            found[name] = _info_of(value, number, count)
        elif isinstance(value, np.ndarray | list | tuple) and len(value) == count:
            found[name] = value[number]
        else:
            found[name] = value
    return found


def _kept(value: Any) -> Any:
    """Returns values with copies of their arrays: environments may change arrays."""
    if isinstance(value, Mapping):
        return {name: _kept(each) for name, each in value.items()}
    if isinstance(value, tuple):
        return tuple(_kept(each) for each in value)
    return value.copy() if isinstance(value, np.ndarray) else value


def _zero(column: ColumnSpec) -> Any:
    if column.variable_length:
        return "" if column.dtype == "string" else b""
    return np.zeros(column.shape, column.numpy_dtype)


def _plain(value: Any) -> Any:
    """Returns a number of NumPy as one of Python, and other values as they are."""
    return value.item() if isinstance(value, np.generic | np.ndarray) and value.ndim == 0 else value


def _is_fact(value: Any) -> bool:
    return is_fact(_plain(value))
