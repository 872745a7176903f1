"""Gymnasium environments whose steps are recorded."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt

from gear_data.recording.callbacks import EnvCallbacks
from gear_data.recording.nested_values import copy, row_of, rows, set_row
from gear_data.recording.step_infos import StepInfos, infos_of_environments
from gear_data.recording.writer import Writer

_log = logging.getLogger(__name__)


class RecordedEnv(gymnasium.Wrapper[Any, Any, Any, Any]):
    """An environment whose steps a `Writer` records. `close` makes the dataset.

    An episode that is reset before its end is recorded as truncated.

    Args:
        env: the environment.
        writer: records the steps. `close` seals it.
        callbacks: decide what is recorded. None: what the environment returns.
        rendered: the column of the frames that the environment renders before each step. None: nothing is rendered.
        record_infos: whether infos are recorded.
    """

    def __init__(
        self,
        env: gymnasium.Env[Any, Any],
        writer: Writer,
        callbacks: EnvCallbacks | None = None,
        rendered: str | None = None,
        *,
        record_infos: bool = False,
    ) -> None:
        super().__init__(env)
        self._writer, self._keeps_finals = writer, _keeps_finals(writer)
        self._infos = StepInfos(writer) if record_infos else None
        self._callbacks = callbacks or EnvCallbacks()
        self._rendered = rendered
        self._facts: dict[str, Any] = {}
        #: The observation before the next step. None: there is no episode.
        self._observation: Any = None
        self._steps = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Resets the environment, and begins an episode."""
        self._cut()
        observation, info = self.env.reset(seed=seed, options=options)
        self._observation = copy(self._callbacks.reset(self.env, observation, info))
        self._facts = {} if seed is None else {"seed": seed}
        return observation, info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Steps the environment, and records the step."""
        taken = copy(action)
        frames: dict[str, Any] = {} if self._rendered is None else {self._rendered: self.env.render()}
        observation, reward, terminated, truncated, info = self.env.step(action)
        after, terminates, truncates, columns = self._callbacks.step(
            env=self.env,
            obs=observation,
            info=info,
            action=taken,
            rew=reward,
            terminated=terminated,
            truncated=truncated,
        )
        steps = {"observations": self._observation, **columns, **frames}
        if self._infos is None:
            self._writer.append(**steps)
        else:
            self._infos.append([0], [steps.pop("infos")], steps, self._append)
        self._observation, self._steps = copy(after), self._steps + 1
        if terminates or truncates:
            self._end(terminated=terminates, truncated=truncates)
        return observation, reward, terminated, truncated, info

    def close(self) -> None:
        """Closes the environment, and makes the dataset of all episodes."""
        self._cut()
        self.env.close()  # type: ignore[no-untyped-call]
        self._writer.close()

    def _append(self, steps: Mapping[str, Any], infos: Mapping[str, Any]) -> None:
        self._writer.append(**steps, **{name: values[0] for name, values in infos.items()})

    def _cut(self) -> None:
        if self._steps:
            self._end(terminated=False, truncated=True)

    def _end(self, *, terminated: bool, truncated: bool) -> None:
        if self._infos is not None:
            self._infos.decide([0])
            self._facts |= self._infos.facts(0)
        # They stay if the episode cannot be written, for the next try.
        self._facts |= self._callbacks.facts(self._writer.episodes, truncated)
        final = self._observation if self._keeps_finals else None
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
        record_infos: whether infos are recorded.
    """

    def __init__(
        self, env: gymnasium.vector.VectorEnv[Any, Any, Any], writer: Writer, *, record_infos: bool = False
    ) -> None:
        super().__init__(env)
        self._writer, self._keeps_finals = writer, _keeps_finals(writer)
        self._infos = StepInfos(writer) if record_infos else None
        self._mode = _autoreset_mode(env)
        self._observations: Any = None
        #: bool [n]: environments whose episode ended with the last step.
        self._ended = np.zeros(env.num_envs, np.bool_)

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Resets the environments that `options["reset_mask"]` names, or all."""
        mask = np.asarray((options or {}).get("reset_mask", np.ones(self.num_envs, np.bool_)), np.bool_)
        self._cut(mask)
        observations, infos = self.env.reset(seed=seed, options=options)
        self._observations = copy(observations)
        self._ended[mask] = False
        return observations, infos

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Steps the environments, and records their steps."""
        taken = copy(actions)
        observations, rewards, terminated, truncated, infos = self.env.step(actions)
        ended = np.asarray(terminated, np.bool_) | np.asarray(truncated, np.bool_)
        stepped = np.flatnonzero(~self._ended)
        if len(stepped):
            final = _final_observations(observations, infos, ended) if self._mode == "SameStep" else observations
            steps = {
                "observations": rows(self._observations, stepped),
                "actions": rows(taken, stepped),
                "rewards": np.asarray(rewards, np.float64)[stepped],
            }
            ends = {
                "terminated": np.asarray(terminated, np.bool_)[stepped],
                "truncated": np.asarray(truncated, np.bool_)[stepped],
                "final": rows(final, stepped) if self._keeps_finals else None,
            }
            if self._infos is None:
                self._writer.append_batch(stepped.tolist(), **steps, **ends)
            else:
                found = infos_of_environments(infos, ended & (self._mode == "SameStep"))
                self._append_with_infos(self._infos, stepped.tolist(), steps, ends, [found[each] for each in stepped])
        self._observations = copy(observations)
        self._ended = ended & (self._mode != "SameStep")
        return observations, rewards, terminated, truncated, infos

    def _append_with_infos(
        self,
        infos: StepInfos,
        environments: list[int],
        steps: Mapping[str, Any],
        ends: Mapping[str, Any],
        found: Sequence[Mapping[str, Any]],
    ) -> None:
        """Appends a step of some environments, and ends episodes with facts.

        Args:
            infos: the recorded infos.
            environments: the environments.
            steps, ends: arguments of `Writer.append_batch`.
            found: the info of each environment.
        """

        def append(columns: Mapping[str, Any], more: Mapping[str, Any]) -> None:
            self._writer.append_batch(environments, **columns, **more)

        infos.append(environments, found, steps, append)
        ended = np.flatnonzero(ends["terminated"] | ends["truncated"]).tolist()
        if ended:
            infos.decide([environments[row] for row in ended])
        for row in ended:
            last: dict[str, Any] = {
                name: None if values is None else row_of(values, row) for name, values in ends.items()
            }
            self._writer.end_episode(environments[row], **last, **infos.facts(environments[row]))

    def close(self, **arguments: Any) -> None:
        """Closes the environments, and makes the dataset of all episodes."""
        self._cut(np.ones(self.num_envs, np.bool_))
        super().close(**arguments)
        self._writer.close()

    def _cut(self, mask: npt.NDArray[np.bool_]) -> None:
        """Ends the open episodes of some environments as truncated."""
        if self._infos is not None:
            self._infos.decide([])
        for environment in self._writer.open_episodes():
            if mask[environment]:
                final = row_of(rows(self._observations, np.array([environment])), 0) if self._keeps_finals else None
                facts = {} if self._infos is None else self._infos.facts(environment)
                self._writer.end_episode(environment, truncated=True, final=final, **facts)


def _keeps_finals(writer: Writer) -> bool:
    """Returns whether episodes can have final observations. A dataset that has none stays so."""
    columns = writer.columns
    if columns is None or any(column.has_final for column in columns):
        return True
    _log.warning("the dataset has no final observations: the final observations of the environment are left out")
    return False


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
    result = copy(observations)
    if ended.any():
        finals = infos["final_obs"]
        for environment in np.flatnonzero(ended).tolist():
            set_row(result, environment, row_of(finals, environment))
    return result
