"""Gymnasium environments whose steps are recorded."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt

from gear_data.errors import InvalidArgumentError, NodeUnreachableError
from gear_data.recording.callbacks import EnvCallbacks
from gear_data.recording.nested_values import batch_copy, copy, row_of, rows, set_row
from gear_data.recording.step_infos import StepInfos, infos_of_environments
from gear_data.recording.writer import Writer

_log = logging.getLogger(__name__)


class RecordedEnv(gymnasium.Wrapper[Any, Any, Any, Any]):
    """An environment whose steps a `Writer` records. `close` makes the dataset.

    An episode that is reset before its end is recorded as truncated. So is one in which a step failed, without a final
    observation. With the wrapper `Autoreset`, the step that only resets the environment is not recorded.

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
        #: Whether the Writer may have an open episode.
        self._has_steps = False
        #: How the open episode has ended: terminated, truncated. None: it has not.
        self._flags: tuple[bool, bool] | None = None
        #: Whether the environment resets itself, and whether it does so in the next step.
        self._autoresets, self._resets_next = _autoresets(env), False
        #: Whether a step failed. `_observation` may be of another moment then.
        self._lost = False

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Resets the environment, and begins an episode."""
        self._end()
        observation, info = self.env.reset(seed=seed, options=options)
        self._observation = copy(self._callbacks.reset(self.env, observation, info))
        self._facts = {} if seed is None else {"seed": seed}
        self._resets_next = self._lost = False
        return observation, info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Steps the environment, and records the step.

        Raises:
            InvalidArgumentError: an earlier step failed, and `reset` was not called since.
        """
        _refuse_lost(self._lost)
        if self._flags is not None:
            self._end()
        if not self._has_steps and 0 in self._writer.open_episodes():
            raise InvalidArgumentError(
                "the Writer has an open episode, of another environment or of append",
                hint="end it first, or give each environment a Writer of its own: they may have one path",
            )
        taken = copy(action)
        frames: dict[str, Any] = {} if self._rendered is None else {self._rendered: self.env.render()}
        self._lost = True
        observation, reward, terminated, truncated, info = self.env.step(action)
        resets, self._resets_next = self._resets_next, self._autoresets and bool(terminated or truncated)
        if resets:  # the environment ignored the action
            self._end()
            self._observation, self._lost = copy(self._callbacks.reset(self.env, observation, info)), False
            return observation, reward, terminated, truncated, info
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
        self._has_steps = True
        if self._infos is None:
            self._writer.append(**steps)
        else:
            self._infos.append([0], [steps.pop("infos")], steps, self._append)
        self._observation, self._lost = copy(after), False
        if terminates or truncates:
            self._flags = terminates, truncates
            self._end()
        return observation, reward, terminated, truncated, info

    def close(self) -> None:
        """Closes the environment, and makes the dataset of all episodes."""
        _end_all(self._writer, self._end)
        self.env.close()  # type: ignore[no-untyped-call]
        self._writer.close()

    def _append(self, steps: Mapping[str, Any], infos: Mapping[str, Any]) -> None:
        self._writer.append(**steps, **{name: values[0] for name, values in infos.items()})

    def _end(self) -> None:
        """Ends the open episode, if there is one.

        After an error or an interrupt, only the Writer knows. It may have ended the episode, or the next call ends it.
        """
        if not self._has_steps:
            return
        if self._infos is not None:
            self._infos.decide([0])
            self._facts |= self._infos.facts(0)
        if 0 in self._writer.open_episodes():
            terminated, truncated = self._flags or (False, True)
            # They stay if the episode cannot be written, for the next try.
            self._facts |= self._callbacks.facts(self._writer.episodes, truncated)
            final = self._observation if self._keeps_finals and not self._lost else None
            self._writer.end_episode(terminated=terminated, truncated=truncated, final=final, **self._facts)
        self._has_steps, self._flags, self._facts = False, None, {}


class RecordedVectorEnv(gymnasium.vector.VectorWrapper):
    """A vector environment whose steps a `Writer` records. `close` makes the dataset.

    Episodes end right in each mode of automatic resets (https://farama.org/Vector-Autoreset-Mode). With the mode of the
    next step, the step that only resets an environment is not recorded. With the mode of the same step, the final
    observation is `infos["final_obs"]`. Episodes that are open at `reset` or `close` are recorded as truncated; after a
    step that failed, without a final observation.

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
        #: Environment -> how its episode ended, if the Writer may not know: arguments of `Writer.end_episode`.
        self._ends: dict[int, dict[str, Any]] = {}
        #: Whether a step failed. `_observations` may be of another moment then.
        self._lost = False

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Resets the environments that `options["reset_mask"]` names, or all.

        Raises:
            InvalidArgumentError: a step failed, and not all environments are reset.
        """
        mask = np.asarray((options or {}).get("reset_mask", np.ones(self.num_envs, np.bool_)), np.bool_)
        _refuse_lost(self._lost and not mask.all())
        self._cut(mask)
        observations, infos = self.env.reset(seed=seed, options=options)
        self._observations = batch_copy(observations)
        self._ended[mask] = False
        self._lost = False
        return observations, infos

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Steps the environments, and records their steps.

        Raises:
            InvalidArgumentError: an earlier step failed, and `reset` was not called since.
        """
        _refuse_lost(self._lost)
        taken = batch_copy(actions)
        self._end()
        self._lost = True
        observations, rewards, terminated, truncated, infos = self.env.step(actions)
        flags = np.asarray(terminated, np.bool_), np.asarray(truncated, np.bool_)
        ended = flags[0] | flags[1]
        stepped = np.flatnonzero(~self._ended)
        final = after = batch_copy(observations)
        if len(stepped):
            if self._mode == "SameStep":
                final = _final_observations(after, infos, ended)
            steps = {
                "observations": rows(self._observations, stepped),
                "actions": rows(taken, stepped),
                "rewards": np.asarray(rewards, np.float64)[stepped],
            }
            if self._infos is None:
                self._writer.append_batch(stepped.tolist(), **steps)
            else:
                found = infos_of_environments(infos, ended & (self._mode == "SameStep"))
                append = partial(self._append, stepped.tolist())
                self._infos.append(stepped.tolist(), [found[each] for each in stepped], steps, append)
        for number in stepped[ended[stepped]].tolist():
            last = self._final(final, number)
            terminates, truncates = (bool(each[number]) for each in flags)
            self._ends[number] = {"terminated": terminates, "truncated": truncates, "final": last}
        self._observations = after
        self._ended = ended & (self._mode != "SameStep")
        self._lost = False
        self._end()
        return observations, rewards, terminated, truncated, infos

    def _append(self, environments: list[int], steps: Mapping[str, Any], infos: Mapping[str, Any]) -> None:
        self._writer.append_batch(environments, **steps, **infos)

    def _final(self, observations: Any, environment: int) -> Any:
        """Returns the final observation of an environment; None: episodes have none."""
        return copy(row_of(observations, environment)) if self._keeps_finals else None

    def _end(self) -> None:
        """Ends the episodes whose environments have ended them.

        After an error or an interrupt, the Writer may have some of them. The next call ends the others.
        """
        if not self._ends:
            return
        if self._infos is not None:
            self._infos.decide([*self._ends])
        is_open = set(self._writer.open_episodes())
        self._writer._begin_ends([environment for environment in self._ends if environment in is_open])
        for environment, end in [*self._ends.items()]:
            if self._infos is not None:
                end |= self._infos.facts(environment)
            if environment in is_open:
                self._writer.end_episode(environment, **end)
            del self._ends[environment]

    def close(self, **arguments: Any) -> None:
        """Closes the environments, and makes the dataset of all episodes."""
        _end_all(self._writer, partial(self._cut, np.ones(self.num_envs, np.bool_)))
        super().close(**arguments)
        self._writer.close()

    def _cut(self, mask: npt.NDArray[np.bool_]) -> None:
        """Ends the open episodes of some environments as truncated."""
        self._end()
        if self._infos is not None:
            self._infos.decide([])
        for environment in self._writer.open_episodes():
            if mask[environment]:
                last = None if self._lost else self._final(self._observations, environment)
                self._ends[environment] = {"terminated": False, "truncated": True, "final": last}
        self._end()


def _end_all(writer: Writer, end: Callable[[], None]) -> None:
    """Ends the open episodes before the Writer closes. As `close` of the Writer, it does not wait for training.

    An error may be about an earlier episode or publication, or about a disk that has the episode. So `end` is called
    again, as long as that ends episodes. `close` of the Writer raises errors about refused episodes.
    """
    writer._is_closing = True
    left: list[int] | None = None
    while True:
        try:
            return writer._past_refusals(end)
        except NodeUnreachableError:  # it has waited long
            raise
        except Exception:
            if (still := writer.open_episodes()) == left:
                raise
            left = still


def _refuse_lost(lost: bool) -> None:
    """Refuses what would record an observation and an action of different moments."""
    if lost:
        raise InvalidArgumentError(
            "the last step failed, and may not be recorded: the next one would begin at another observation",
            hint="call reset() of all environments; their episodes end as truncated before that step",
        )


def _keeps_finals(writer: Writer) -> bool:
    """Returns whether episodes can have final observations. A dataset that has none stays so."""
    columns = writer.columns
    if columns is None or any(column.has_final for column in columns):
        return True
    _log.warning("the dataset has no final observations: the final observations of the environment are left out")
    return False


def _autoresets(env: Any) -> bool:
    """Returns whether the step after an episode only resets an environment, as with the wrapper `Autoreset`."""
    while isinstance(env, gymnasium.Wrapper):
        if isinstance(env, gymnasium.wrappers.Autoreset):
            return True
        env = env.env
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
