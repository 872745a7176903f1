"""record: the steps of an environment become a dataset."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any, Never

from gear_data.cluster.addresses import is_cluster
from gear_data.common.extras import import_extra
from gear_data.common.keywords import check_range, refuse_keywords_of
from gear_data.common.progress import progress_bar
from gear_data.errors import DatasetNotFoundError, EmptySourceError, InvalidArgumentError
from gear_data.evaluation.episodes import make_environment
from gear_data.growing.publish import Publication
from gear_data.recording.callbacks import EnvCallbacks, EpisodeMetadataCallback, StepDataCallback
from gear_data.recording.cameras.camera import Camera
from gear_data.recording.writer import Writer
from gear_data.storage.dataset_files import open_files
from gear_data.words import Durability

#: The camera of rendered frames.
_RENDERED = "observations.images.render"


def record(
    env: Any,
    path: str | os.PathLike[str] | Writer,
    *,
    durability: Durability = "episode",
    cameras: Mapping[str, Camera] | None = None,
    step_data_callback: StepDataCallback | type[Any] | None = None,
    episode_metadata_callback: EpisodeMetadataCallback | type[Any] | None = None,
    record_infos: bool = False,
    **unknown: Never,
) -> Any:
    """Records the steps of a Gymnasium environment as a dataset.

        env = gear_data.record(gymnasium.make("CartPole-v1"), "cartpole/")

    Every finished episode is on disk at once: see `Writer`. `env.close()` makes the dataset. After a crash, the same
    call continues, or `gear_data.Writer("cartpole/").close()` publishes the finished episodes.

    Args:
        env: a `gymnasium.Env` or a `gymnasium.vector.VectorEnv`.
        path: the folder or URL of the dataset: see `Writer`. Or a Writer, which has its own durability and cameras,
            such as `Writer("runs/", publish_every=10.0)`.
        durability: see `Writer`.
        cameras: columns of image observations that become video: see `Writer`. Such as `observations.image` for the
            entry `image` of a Dict space, or `observations`.
        step_data_callback: as `minari.DataCollector` has it: a function, or a class without arguments. It takes env,
            obs, info, action, rew, terminated and truncated by keyword, and returns a mapping with the entries
            observation, action, reward, terminated, truncated and info. Further entries become columns.
        episode_metadata_callback: as `minari.DataCollector` has it: a function, or a class without arguments. It takes
            an episode as a mapping of arrays, and returns facts about the episode. They become columns of the episode
            table.
        record_infos: record what `step` returns as `info`. Entries that all steps have become columns `infos.NAME`.
            Entries that some steps have become a column and a mask, `masks.infos.NAME`. Entries that only the last step
            has become facts of the episode. The first episode decides.

    Returns:
        The environment, wrapped.

    Raises:
        InvalidArgumentError: `env` is no environment of Gymnasium, or a vector environment has callbacks, or a Writer
            and its options are given.
        UnknownArgumentError: there is no argument of a name.
        MissingExtraError: Gymnasium is not installed.
        GearError: the errors of `Writer`.
    """
    refuse_keywords_of(record, unknown)
    gymnasium = import_extra("gymnasium", "gym")
    from gear_data.recording.environments import RecordedEnv, RecordedVectorEnv

    if isinstance(env, gymnasium.vector.VectorEnv):
        if step_data_callback is not None or episode_metadata_callback is not None:
            raise InvalidArgumentError(
                "a vector environment has no callbacks", hint="record its environments one by one, or leave them out"
            )
        return RecordedVectorEnv(env, _writer(path, durability, cameras), record_infos=record_infos)
    if isinstance(env, gymnasium.Env):
        callbacks = EnvCallbacks(step_data_callback, episode_metadata_callback, record_infos=record_infos)
        return RecordedEnv(env, _writer(path, durability, cameras), callbacks, record_infos=record_infos)
    raise InvalidArgumentError(
        f"record needs a gymnasium.Env or gymnasium.vector.VectorEnv, not {type(env).__name__}",
        hint="wrap an environment of gym with shimmy, or append steps to gear_data.Writer",
    )


def _writer(
    path: str | os.PathLike[str] | Writer,
    durability: Durability,
    cameras: Mapping[str, Camera] | None,
) -> Writer:
    if not isinstance(path, Writer):
        return Writer(path, durability=durability, cameras=cameras)
    if durability != "episode" or cameras is not None:
        raise InvalidArgumentError(
            "durability and cameras are given beside a Writer", hint="give them to the Writer: it has its own"
        )
    return path


def record_episodes(
    env_id: str,
    path: str,
    episodes: int,
    *,
    policy: Callable[[Any], Any] | None = None,
    seed: int = 0,
    camera: bool = False,
    progress: bool | None = None,
) -> Publication | None:
    """Records episodes of an environment, and returns the generation that has them.

    A recording that was killed continues with its next episode. Episodes are appended to a dataset that exists.

    Args:
        env_id: the id of the environment, for `gymnasium.make`.
        path: the folder or URL of the dataset, or a server: see `Writer`.
        episodes: number of episodes.
        policy: takes an observation and returns an action. None draws actions from the environment's space.
        seed: the episode with id i is reset with seed + i, and its actions are drawn with the same seed.
        camera: record what the environment renders before each step, as the camera `observations.images.render`.
        progress: show a bar; None shows one on a terminal.

    Returns:
        The generation; None: a server makes the dataset.

    Raises:
        InvalidArgumentError: `episodes` is below 1, `seed` is below 0, or Gymnasium cannot make the environment.
        MissingExtraError: Gymnasium is not installed.
        GearError: the errors of `Writer`.
    """
    if episodes < 1:
        raise InvalidArgumentError(f"episodes must be at least 1, not {episodes}")
    check_range("seed", seed, 0)
    made = make_environment(env_id, render_mode="rgb_array" if camera else None)
    from gear_data.recording.environments import RecordedEnv

    rendered = _RENDERED if camera else None
    cameras = {_RENDERED: Camera(made.metadata.get("render_fps", 30))} if camera else None
    with Writer(path, cameras=cameras) as writer, progress_bar(episodes, "episodes", "episode", progress) as bar:
        first = seed + _next_id(path)
        env = RecordedEnv(made, writer, rendered=rendered)
        bar.update(writer.episodes)
        while writer.episodes < episodes:
            number = first + writer.episodes
            observation, _ = env.reset(seed=number)
            env.action_space.seed(number)
            ended = False
            while not ended:
                action = env.action_space.sample() if policy is None else policy(observation)
                observation, _, terminated, truncated, _ = env.step(action)
                ended = terminated or truncated
            bar.update(1)
        env.env.close()  # type: ignore[no-untyped-call]
        publication = writer.close()
    if publication is None and not is_cluster(path):
        raise EmptySourceError("no episode was recorded", file=path)
    return publication


def _next_id(path: str) -> int:
    """Returns the id of the next episode of a dataset; 0 if there is none, or a server makes it."""
    try:
        return 0 if is_cluster(path) else open_files(path).manifest().next_id
    except DatasetNotFoundError:
        return 0
