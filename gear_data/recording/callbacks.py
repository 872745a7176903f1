"""Callbacks of Minari's DataCollector: what is recorded of a step, and of an episode.

Classes derived from `minari.StepDataCallback` and `minari.EpisodeMetadataCallback` fit
(https://minari.farama.org/api/data_collector).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from gear_data.errors import InvalidArgumentError
from gear_data.recording.nested_values import copy, stacked

#: Takes env, obs, info, action, rew, terminated and truncated by keyword. It returns a mapping: observation, action,
#: reward, terminated, truncated, info, and further entries. After a reset there is no action.
StepDataCallback = Callable[..., Mapping[str, Any]]
#: Takes an episode as a mapping of arrays, and returns facts about it.
EpisodeMetadataCallback = Callable[[dict[str, Any]], Mapping[str, Any]]

#: The entries of a step that every callback returns.
_STEP = ("observation", "action", "reward", "terminated", "truncated", "info")


class EnvCallbacks:
    """The callbacks of one recorded environment, and the episode for the second one.

    Args:
        step_data: a `StepDataCallback`, or a class of them. None: a step is recorded as the environment returns it.
        episode_metadata: an `EpisodeMetadataCallback`, or a class of them. None: no facts. With it, the open episode
            is kept in memory a second time.
        record_infos: whether the column `infos` has what `step` returned as `info`.
    """

    def __init__(
        self,
        step_data: StepDataCallback | type[Any] | None = None,
        episode_metadata: EpisodeMetadataCallback | type[Any] | None = None,
        *,
        record_infos: bool = False,
    ) -> None:
        self._step_data: StepDataCallback = _called(step_data) or _plain_step
        self._episode_metadata: EpisodeMetadataCallback | None = _called(episode_metadata)
        self._record_infos = record_infos
        self._first: Any = None
        self._steps: list[Mapping[str, Any]] = []

    def reset(self, env: Any, observation: Any, info: Mapping[str, Any]) -> Any:
        """Returns the first observation of an episode, as the callback returns it."""
        self._first, self._steps = copy(self._called(env=env, obs=observation, info=info)["observation"]), []
        return self._first

    def step(self, **transition: Any) -> tuple[Any, bool, bool, dict[str, Any]]:
        """Returns how a step is recorded.

        Args:
            transition: env, obs, info, action, rew, terminated, truncated.

        Returns:
            The observation after the step, terminated, truncated, and column -> value of the other columns.
        """
        data = self._called(**transition)
        if self._episode_metadata is not None:
            kept = _STEP if self._record_infos else _STEP[:-1]
            self._steps.append({name: copy(data[name]) for name in kept})
        columns = {"actions": data["action"], "rewards": float(data["reward"])}
        if self._record_infos:
            columns["infos"] = data["info"]
        columns |= {name: value for name, value in data.items() if name not in _STEP}
        return data["observation"], bool(data["terminated"]), bool(data["truncated"]), columns

    def facts(self, number: int, truncated: bool) -> dict[str, Any]:
        """Returns the facts about the steps since the last call.

        Args:
            number: of the episode, from 0.
            truncated: how it ended.
        """
        if self._episode_metadata is None or not self._steps:
            return {}
        steps, self._steps = self._steps, []
        truncations = np.array([bool(each["truncated"]) for each in steps])
        truncations[-1] = truncated
        episode = {
            "id": number,
            "observations": stacked([self._first, *(each["observation"] for each in steps)]),
            "actions": stacked([each["action"] for each in steps]),
            "rewards": np.array([float(each["reward"]) for each in steps]),
            "terminations": np.array([bool(each["terminated"]) for each in steps]),
            "truncations": truncations,
            "infos": stacked([each["info"] for each in steps]) if self._record_infos else {},
        }
        self._first = steps[-1]["observation"]
        facts = self._episode_metadata(episode)
        return {name: value.item() if isinstance(value, np.generic) else value for name, value in facts.items()}

    def _called(self, **transition: Any) -> Mapping[str, Any]:
        data = self._step_data(**transition)
        missing = [name for name in _STEP if not isinstance(data, Mapping) or name not in data]
        if missing:
            raise InvalidArgumentError(
                f"step_data_callback returned {data!r:.80}, without {', '.join(missing)}",
                hint="return the mapping that minari.StepDataCallback returns",
            )
        return data


def _called(callback: Any) -> Any:
    """Returns an object of a class, as Minari makes it; another callback as it is."""
    return callback() if isinstance(callback, type) else callback


def _plain_step(
    *, env: Any, obs: Any, info: Any, action: Any = None, rew: Any = None, terminated: Any = None, truncated: Any = None
) -> Mapping[str, Any]:
    values = (obs, action, rew, terminated, truncated, info)
    return dict(zip(_STEP, values, strict=True))
