"""Gymnasium environments whose steps are recorded."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt

from gear_data.recording.writer import Writer


class RecordedEnv(gymnasium.Wrapper[Any, Any, Any, Any]):
    """An environment whose steps a `Writer` records. `close` makes the dataset.

    An episode that is reset before its end is recorded as truncated.

    Args:
        env: the environment.
        writer: records the steps. `close` seals it.
    """

    def __init__(self, env: gymnasium.Env[Any, Any], writer: Writer) -> None:
        super().__init__(env)
        self._writer = writer
        self._facts: dict[str, Any] = {}
        #: The observation before the next step. None: there is no episode.
        self._observation: Any = None
        self._steps = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Resets the environment, and begins an episode."""
        self._cut()
        observation, info = self.env.reset(seed=seed, options=options)
        self._observation = _copy(observation)
        self._facts = {} if seed is None else {"seed": seed}
        return observation, info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Steps the environment, and records the step."""
        taken = _copy(action)
        observation, reward, terminated, truncated, info = self.env.step(action)
        self._writer.append(observations=self._observation, actions=taken, rewards=float(reward))
        self._observation, self._steps = _copy(observation), self._steps + 1
        if terminated or truncated:
            self._end(terminated=bool(terminated), truncated=bool(truncated))
        return observation, reward, terminated, truncated, info

    def close(self) -> None:
        """Closes the environment, and makes the dataset of all episodes."""
        self._cut()
        self.env.close()  # type: ignore[no-untyped-call]
        self._writer.close()

    def _cut(self) -> None:
        if self._steps:
            self._end(terminated=False, truncated=True)

    def _end(self, *, terminated: bool, truncated: bool) -> None:
        final = self._observation
        self._writer.end_episode(terminated=terminated, truncated=truncated, final=final, **self._facts)
        self._steps, self._facts = 0, {}


class RecordedVectorEnv(gymnasium.vector.VectorWrapper):
    """A vector environment whose steps a `Writer` records. `close` makes the dataset.

    Episodes end right in each mode of automatic resets (https://farama.org/Vector-Autoreset-Mode). With the mode of the
    next step, the step that only resets an environment is not recorded. With the mode of the same step, the final
    observation is `infos["final_obs"]`. Episodes that are open at `reset` or `close` are recorded as truncated.

    Args:
        env: the vector environment.
        writer: records the steps. `close` seals it.
    """

    def __init__(self, env: gymnasium.vector.VectorEnv[Any, Any, Any], writer: Writer) -> None:
        super().__init__(env)
        self._writer = writer
        self._mode = _autoreset_mode(env)
        self._observations: Any = None
        #: bool [n]: environments whose episode ended with the last step.
        self._ended = np.zeros(env.num_envs, np.bool_)

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Resets the environments that `options["reset_mask"]` names, or all."""
        mask = np.asarray((options or {}).get("reset_mask", np.ones(self.num_envs, np.bool_)), np.bool_)
        self._cut(mask)
        observations, infos = self.env.reset(seed=seed, options=options)
        self._observations = _copy(observations)
        self._ended[mask] = False
        return observations, infos

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Steps the environments, and records their steps."""
        taken = _copy(actions)
        observations, rewards, terminated, truncated, infos = self.env.step(actions)
        ended = np.asarray(terminated, np.bool_) | np.asarray(truncated, np.bool_)
        stepped = np.flatnonzero(~self._ended)
        if len(stepped):
            final = _final_observations(observations, infos, ended) if self._mode == "SameStep" else observations
            self._writer.append_batch(
                stepped.tolist(),
                observations=_rows(self._observations, stepped),
                actions=_rows(taken, stepped),
                rewards=np.asarray(rewards, np.float64)[stepped],
                terminated=np.asarray(terminated, np.bool_)[stepped],
                truncated=np.asarray(truncated, np.bool_)[stepped],
                final=_rows(final, stepped),
            )
        self._observations = _copy(observations)
        self._ended = ended & (self._mode != "SameStep")
        return observations, rewards, terminated, truncated, infos

    def close(self, **arguments: Any) -> None:
        """Closes the environments, and makes the dataset of all episodes."""
        self._cut(np.ones(self.num_envs, np.bool_))
        super().close(**arguments)
        self._writer.close()

    def _cut(self, mask: npt.NDArray[np.bool_]) -> None:
        """Ends the open episodes of some environments as truncated."""
        for environment in self._writer.open_episodes():
            if mask[environment]:
                final = _rows(self._observations, np.array([environment]))
                self._writer.end_episode(environment, truncated=True, final=_first(final))


def _autoreset_mode(env: gymnasium.vector.VectorEnv[Any, Any, Any]) -> str:
    """Returns `NextStep`, `SameStep` or `Disabled`.

    Gymnasium 1.0 has only the first mode, and does not name it.
    """
    mode = env.metadata.get("autoreset_mode")
    return "NextStep" if mode is None else str(getattr(mode, "value", mode))


def _final_observations(observations: Any, infos: Mapping[str, Any], ended: npt.NDArray[np.bool_]) -> Any:
    """Returns the observations after a step, of ended episodes the final ones.

    `infos["final_obs"]` has an object for each environment, or a mapping of arrays for a Dict space.
    """
    result = _copy(observations)
    if ended.any():
        finals = infos["final_obs"]
        for environment in np.flatnonzero(ended).tolist():
            _set_row(result, environment, _row_of(finals, environment))
    return result


def _row_of(values: Any, row: int) -> Any:
    if isinstance(values, Mapping):
        return {name: _row_of(each, row) for name, each in values.items()}
    if isinstance(values, tuple):
        return tuple(_row_of(each, row) for each in values)
    return values[row]


def _set_row(values: Any, row: int, new: Any) -> None:
    if isinstance(values, Mapping):
        for name, each in values.items():
            _set_row(each, row, new[name])
    elif isinstance(values, tuple):
        for each, part in zip(values, new, strict=True):
            _set_row(each, row, part)
    else:
        values[row] = new


def _rows(values: Any, rows: npt.NDArray[np.intp]) -> Any:
    """Returns some rows of a batch of observations or actions."""
    if isinstance(values, Mapping):
        return {name: _rows(each, rows) for name, each in values.items()}
    if isinstance(values, tuple):
        return tuple(_rows(each, rows) for each in values)
    return np.asarray(values)[rows]


def _first(values: Any) -> Any:
    return _row_of(values, 0)


def _copy(values: Any) -> Any:
    """Returns a copy: environments may change their arrays."""
    if isinstance(values, Mapping):
        return {name: _copy(each) for name, each in values.items()}
    if isinstance(values, tuple):
        return tuple(_copy(each) for each in values)
    return values if isinstance(values, str | bytes) else np.array(values)
