"""evaluate: returns of a policy in an environment."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Never, Protocol

import numpy as np
import numpy.typing as npt

from gear_data.common.extras import import_extra
from gear_data.common.keywords import check_range, refuse_keywords_of
from gear_data.common.progress import progress_bar
from gear_data.errors import InvalidArgumentError
from gear_data.evaluation.reference_scores import normalized_scores, reference_returns
from gear_data.evaluation.rollout import Rollout


class Policy(Protocol):
    """Chooses actions in one episode after another."""

    def reset(self, observation: Any) -> None:
        """Begins an episode."""

    def act(self) -> Any:
        """Returns the action of the current step."""

    def update(self, action: Any, reward: float, observation: Any) -> None:
        """Ends a step, and begins the next one."""


class SequencePolicy:
    """A policy of a sequence model.

    Args:
        predict: takes the inputs, arrays [1, ...], and returns actions [1, K, A], as the batches have them.
        rollout: makes the inputs.
    """

    def __init__(self, predict: Callable[[dict[str, npt.NDArray[Any]]], npt.ArrayLike], rollout: Rollout) -> None:
        self._predict = predict
        self.rollout = rollout

    def reset(self, observation: Any) -> None:
        self.rollout.reset(observation)

    def act(self) -> npt.NDArray[Any]:
        return self.rollout.action(self._predict(self.rollout.inputs()))

    def update(self, action: Any, reward: float, observation: Any) -> None:
        self.rollout.update(action, reward, observation)


class _Function:
    """A policy that takes an observation and returns an action."""

    def __init__(self, function: Callable[[Any], Any]) -> None:
        self._function = function

    def reset(self, observation: Any) -> None:
        self._observation = observation

    def act(self) -> Any:
        return self._function(self._observation)

    def update(self, action: Any, reward: float, observation: Any) -> None:
        self._observation = observation


@dataclass(frozen=True)
class Evaluation:
    """The episodes of a policy.

    Attributes:
        returns: float64 [episodes], sums of rewards.
        lengths: int64 [episodes], numbers of steps.
        terminated: bool [episodes], whether the environment ended the episode. The others were truncated.
        scores: float64 [episodes], D4RL's normalised scores; None if D4RL has no reference returns.
    """

    returns: npt.NDArray[np.float64]
    lengths: npt.NDArray[np.int64]
    terminated: npt.NDArray[np.bool_]
    scores: npt.NDArray[np.float64] | None

    def to_json(self) -> dict[str, Any]:
        """Returns the arrays as lists, and the means."""
        return {
            "return_mean": float(self.returns.mean()),
            "return_std": float(self.returns.std()),
            "score_mean": None if self.scores is None else float(self.scores.mean()),
            "returns": self.returns.tolist(),
            "lengths": self.lengths.tolist(),
            "terminated": self.terminated.tolist(),
            "scores": None if self.scores is None else self.scores.tolist(),
        }


def evaluate(
    policy: Policy | Callable[[Any], Any],
    env: Any,
    *,
    episodes: int = 10,
    seed: int = 0,
    reference: str | None = None,
    progress: bool | None = None,
    **unknown: Never,
) -> Evaluation:
    """Runs a policy for some episodes.

    Args:
        policy: a function of an observation that returns an action, or a `Policy`.
        env: a Gymnasium environment, or the id of one, which is made and closed.
        episodes: number of episodes.
        seed: episode i begins with `env.reset(seed=seed + i)`.
        reference: the environment or dataset whose D4RL reference returns define the score. None: the environment's id.
        progress: whether to show a progress bar; None: on a terminal.

    Raises:
        InvalidArgumentError: `episodes` or `seed` is out of its range, the policy has no method of a policy, or
            Gymnasium cannot make the environment.
        UnknownNameError: D4RL has no reference returns for `reference`.
        UnknownArgumentError: there is no argument of a name.
        MissingExtraError: `env` is an id, and Gymnasium is not installed.
    """
    refuse_keywords_of(evaluate, unknown)
    check_range("episodes", episodes, 1)
    check_range("seed", seed, 0)
    chosen = _as_policy(policy)
    if reference is not None:
        normalized_scores(np.empty(0), reference)  # an unknown name would lose the episodes
    made = make_environment(env) if isinstance(env, str) else env
    try:
        with progress_bar(episodes, "evaluate", "episode", progress) as bar:
            results = []
            for number in range(episodes):
                results.append(_episode(chosen, made, int(seed) + number))
                bar.update(1)
        name = reference if reference is not None else getattr(getattr(made, "spec", None), "id", "")
    finally:
        if made is not env:
            made.close()
    returns, lengths, terminated = (np.array(values) for values in zip(*results, strict=True))
    scores = normalized_scores(returns, name) if reference is not None or reference_returns(name) else None
    return Evaluation(returns.astype(np.float64), lengths.astype(np.int64), terminated.astype(np.bool_), scores)


def make_environment(env_id: str, **options: Any) -> Any:
    """Returns the environment that `gymnasium.make` makes of an id.

    Args:
        env_id: such as `CartPole-v1`, or `module:CartPole-v1` for the environments of a package.
        options: further arguments of `gymnasium.make`.

    Raises:
        InvalidArgumentError: there is no such environment, or what it needs is not installed.
        MissingExtraError: Gymnasium is not installed.
    """
    gymnasium = import_extra("gymnasium", "gym")
    try:
        return gymnasium.make(env_id, **options)
    except (gymnasium.error.Error, ImportError) as error:
        raise InvalidArgumentError(
            f"gymnasium.make cannot make '{env_id}': {error}",
            hint="gymnasium.pprint_registry() lists the environments; 'module:ID' imports the module first",
        ) from error


def _episode(policy: Policy, env: Any, seed: int) -> tuple[float, int, bool]:
    """Returns an episode's return, its length, and whether the environment ended it."""
    observation, _ = env.reset(seed=seed)
    policy.reset(observation)
    total, length = 0.0, 0
    while True:
        action = policy.act()
        observation, reward, terminated, truncated, _ = env.step(action)
        total, length = total + float(reward), length + 1
        if terminated or truncated:
            return total, length, bool(terminated)
        policy.update(action, float(reward), observation)


def _as_policy(policy: Policy | Callable[[Any], Any]) -> Policy:
    if all(callable(getattr(policy, name, None)) for name in ("reset", "act", "update")):
        return policy  # type: ignore[return-value]
    if callable(policy):
        return _Function(policy)
    raise InvalidArgumentError(
        f"policy must be a function of an observation, or have reset, act and update, not {type(policy).__name__}"
    )
