"""Recorded environments against the definition of their episodes."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt
import pytest

import gear_data
from gear_data.errors import EpisodeRefusedError, InvalidArgumentError, StorageFullError, UnwritableError
from gear_data.recording.sinks.journal_sink import JournalSink
from gear_data.storage.journal.record import RecordedEpisode

ENVIRONMENTS, STEPS = 3, 60


class Counter(gymnasium.Env[Any, Any]):
    """Counts up.

    Its number says how long its episodes are, and whether they terminate.
    """

    observation_space = gymnasium.spaces.Dict(
        {"count": gymnasium.spaces.Box(0, 1e6, (2,), np.float32), "pair": gymnasium.spaces.Discrete(1000)}
    )
    action_space = gymnasium.spaces.Box(-1, 1, (1,), np.float32)

    def __init__(self, number: int) -> None:
        self.number, self.episode, self.step_number = number, -1, 0
        #: The same array in every step, as some simulators have it.
        self._count = np.zeros(2, np.float32)

    def _observation(self) -> dict[str, Any]:
        self._count[:] = [100 * self.episode + self.step_number, self.number]
        return {"count": self._count, "pair": np.int64(self.step_number)}

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.episode, self.step_number = self.episode + 1, 0
        return self._observation(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.step_number += 1
        length = 3 + 2 * self.number + self.episode % 3
        ended = self.step_number == length
        terminates = self.number % 2 == 0
        return self._observation(), float(action[0]), ended and terminates, ended and not terminates, {}


def actions(t: int) -> npt.NDArray[np.float32]:
    return np.linspace(-1, 1, ENVIRONMENTS, dtype=np.float32)[:, None] * (t % 7) / 7


class Vector(gymnasium.vector.VectorEnv[Any, Any, Any]):
    """Counters in one of the three modes of automatic resets.

    https://farama.org/Vector-Autoreset-Mode says how they differ.
    """

    num_envs = ENVIRONMENTS

    def __init__(self, mode: str | None) -> None:
        self.envs = [Counter(number) for number in range(ENVIRONMENTS)]
        self.mode = mode or "NextStep"
        self.metadata = {} if mode is None else {"autoreset_mode": SimpleNamespace(value=mode)}
        self.ended = np.zeros(ENVIRONMENTS, bool)
        self.observations: list[Any] = [None] * ENVIRONMENTS

    def _batch(self) -> dict[str, Any]:
        return {name: np.stack([each[name] for each in self.observations]) for name in ("count", "pair")}

    def _reset(self, number: int) -> None:
        observation, _ = self.envs[number].reset()
        self.observations[number] = {name: np.array(value) for name, value in observation.items()}

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        for number in np.flatnonzero((options or {}).get("reset_mask", np.ones(ENVIRONMENTS, bool))):
            self._reset(number)
            self.ended[number] = False
        return self._batch(), {}

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        rewards, flags = np.zeros(ENVIRONMENTS), np.zeros((2, ENVIRONMENTS), bool)
        finals = np.full(ENVIRONMENTS, None, object)
        for number, env in enumerate(self.envs):
            if self.mode == "NextStep" and self.ended[number]:
                self._reset(number)
                self.ended[number] = False
                continue
            observation, rewards[number], flags[0, number], flags[1, number], _ = env.step(actions[number])
            self.observations[number] = {name: np.array(value) for name, value in observation.items()}
            self.ended[number] = flags[:, number].any()
            if self.mode == "SameStep" and self.ended[number]:
                finals[number] = self.observations[number]
                self._reset(number)
        infos = {}
        if self.mode == "SameStep" and flags.any():
            infos = {"final_obs": finals, "_final_obs": flags.any(0)}
        return self._batch(), rewards, flags[0], flags[1], infos


def expected_episodes(number: int, counts: list[int]) -> Iterator[dict[str, Any]]:
    """Yields the episodes of a counter, by its definition.

    Args:
        number: of the counter.
        counts: steps of the loop at which each step of the counter was taken.
    """
    episode = 0
    while counts:
        length = 3 + 2 * number + episode % 3
        taken, counts = counts[:length], counts[length:]
        yield {
            "count": np.array([[100 * episode + t, number] for t in range(len(taken) + 1)], np.float32),
            "rewards": np.array([actions(t)[number, 0] for t in taken]),
            "terminated": len(taken) == length and number % 2 == 0,
            "end": taken[-1] if len(taken) == length else STEPS,
        }
        episode += 1


def steps_of(number: int, mode: str) -> list[int]:
    """Returns the steps of the loop that step a counter.

    With the next-step mode, one step between two episodes resets the counter.
    """
    found: list[int] = []
    t = episode = 0
    while t < STEPS:
        length = 3 + 2 * number + episode % 3
        found += range(t, min(STEPS, t + length))
        t += length + (mode == "NextStep")
        episode += 1
    return found


@pytest.mark.parametrize("mode", [None, "NextStep", "SameStep", "Disabled"])
def test_vector_environments(tmp_path: Path, mode: str | None) -> None:
    env = gear_data.record(Vector(mode), tmp_path / "recorded", durability="os")
    env.reset()
    for t in range(STEPS):
        _, _, terminated, truncated, _ = env.step(actions(t))
        if mode == "Disabled" and (terminated | truncated).any():
            env.reset(options={"reset_mask": terminated | truncated})
    env.close()
    expected = [
        each
        for number in range(ENVIRONMENTS)
        for each in expected_episodes(number, steps_of(number, mode or "NextStep"))
    ]
    expected.sort(key=lambda each: each["end"])
    ds = gear_data.open(tmp_path / "recorded")
    assert len(ds) == len(expected) > 20
    assert ds.episodes["terminated"].to_list() == [each["terminated"] for each in expected]
    assert (ds.episodes["truncated"] | ds.episodes["terminated"]).all()
    for number, each in enumerate(expected):
        np.testing.assert_array_equal(ds[number]["observations.count"], each["count"][:-1])
        np.testing.assert_array_equal(ds[number]["observations.pair"], np.arange(len(each["rewards"])))
        np.testing.assert_array_equal(ds.final(number)["observations.count"], each["count"][-1])
        np.testing.assert_array_equal(ds[number]["rewards"], each["rewards"])
        np.testing.assert_array_equal(ds[number]["actions"][:, 0], each["rewards"].astype(np.float32))


def test_an_environment(tmp_path: Path) -> None:
    """A reset before the end of an episode truncates it."""
    with gear_data.record(Counter(1), tmp_path / "recorded") as env:
        env.reset(seed=7)
        for t in range(12):
            *_, terminated, truncated, _ = env.step(actions(t)[1])
            if terminated or truncated:
                env.reset()
        env.reset(seed=8)
        env.step(actions(0)[1])
    ds = gear_data.open(tmp_path / "recorded")
    assert ds.episodes["length"].to_list() == [5, 6, 1, 1]
    assert ds.episodes["truncated"].to_list() == [True] * 4
    assert ds.episodes["seed"].to_list() == [7, None, None, 8]
    assert ds.final(2)["observations.count"].tolist() == [201, 1]
    assert ds[0]["observations.count"][:, 0].tolist() == [0, 1, 2, 3, 4]


def test_an_environment_that_resets_itself(tmp_path: Path) -> None:
    """The step that only resets it is not recorded, as in vector environments."""
    env = gear_data.record(gymnasium.wrappers.Autoreset(Counter(0)), tmp_path / "recorded")
    env.reset()
    for t in range(11):
        env.step(actions(t)[0])
        if t == 7:  # at the end of an episode: the next step does not reset it again
            env.reset()
    env.close()
    ds = gear_data.open(tmp_path / "recorded")
    assert ds.episodes["length"].to_list() == [3, 4, 3]
    assert ds[1]["observations.count"][:, 0].tolist() == [100, 101, 102, 103]
    assert [ds.final(number)["observations.count"][0] for number in range(3)] == [3, 104, 203]


def test_two_environments_of_one_writer_take_turns(tmp_path: Path) -> None:
    """They have episodes of their own: the second one waits for the end of the episode of the first one."""
    writer = gear_data.Writer(tmp_path / "recorded", durability="os")
    first, second = (gear_data.record(Counter(0), writer) for _ in range(2))
    first.reset()
    second.reset()
    first.step(actions(0)[0])
    with pytest.raises(InvalidArgumentError, match="of another environment"):
        second.step(actions(0)[0])
    for t in range(1, 3):
        first.step(actions(t)[0])
    second.step(actions(0)[0])
    second.close()
    assert gear_data.open(tmp_path / "recorded").episodes["length"].to_list() == [3, 1]


class Worded(Counter):
    """Its observations have a text, too, as those of MiniGrid."""

    observation_space = gymnasium.spaces.Dict(
        {
            "count": gymnasium.spaces.Box(0, 1e6, (2,), np.float32),
            "pair": gymnasium.spaces.Discrete(1000),
            "mission": gymnasium.spaces.Text(20),
        }
    )

    def _observation(self) -> dict[str, Any]:
        return {**super()._observation(), "mission": f"step {self.step_number}"}


@pytest.mark.parametrize("vector", [False, True])
def test_text_in_observations(vector: bool, tmp_path: Path) -> None:
    """It is a column of the steps. The final observation has none."""
    envs = gymnasium.vector.SyncVectorEnv([lambda: Worded(0), lambda: Worded(0)])
    env: Any = gear_data.record(envs if vector else Worded(0), tmp_path / "recorded")
    env.reset()
    for _ in range(3):
        env.step(np.zeros((2, 1) if vector else 1, np.float32))
    env.close()
    ds = gear_data.open(tmp_path / "recorded")
    assert ds.episodes["terminated"].to_list() == [True] * (2 if vector else 1)
    for number, episode in enumerate(ds):
        assert episode["observations.mission"].tolist() == ["step 0", "step 1", "step 2"]
        assert ds.final(number)["observations.count"].tolist() == [3, 0]


def test_gymnasiums_own_environments(tmp_path: Path) -> None:
    """Returns and lengths are those that the wrappers of Gymnasium count."""
    plain = gymnasium.wrappers.vector.RecordEpisodeStatistics(gymnasium.make_vec("CartPole-v1", num_envs=4))
    env = gear_data.record(plain, tmp_path / "recorded", durability="os")
    env.reset(seed=3)
    env.action_space.seed(3)
    counted = []
    for _ in range(120):
        *_, infos = env.step(env.action_space.sample())
        for number in np.flatnonzero(infos.get("_episode", [])):
            counted.append((infos["episode"]["r"][number], infos["episode"]["l"][number]))
    env.close()
    ds = gear_data.open(tmp_path / "recorded")
    assert ds.episodes.select("return", "length").rows()[: len(counted)] == counted
    assert len(counted) > 10 and len(ds) <= len(counted) + 4


def test_others_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match=r"needs a gymnasium\.Env"):
        gear_data.record(object(), tmp_path / "recorded")
    assert list(tmp_path.iterdir()) == []


def test_a_writer_in_place_of_a_path(tmp_path: Path) -> None:
    writer = gear_data.Writer(tmp_path / "d", durability="os", max_steps=1000)
    env = gear_data.record(Counter(0), writer)
    for _ in range(2):
        env.reset()
        while not any(env.step(np.zeros(1, np.float32))[2:4]):
            pass
    assert writer.episodes == 2
    env.close()
    with pytest.raises(InvalidArgumentError, match="the Writer is closed"):
        writer.append(observations=0)
    assert gear_data.open(tmp_path / "d").episodes["length"].to_list() == [3, 4]
    with pytest.raises(InvalidArgumentError, match="beside a Writer"):
        gear_data.record(Counter(0), writer, durability="flush")


@pytest.mark.parametrize("vector", [False, True])
def test_a_step_that_is_not_recorded_ends_the_episode(
    vector: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next transition would have the observation before that step, and the action after it."""
    name = "append_batch" if vector else "append"
    real, calls = getattr(gear_data.Writer, name), itertools.count()

    def append(writer: gear_data.Writer, *arguments: Any, **steps: Any) -> None:
        if next(calls) == 2:
            raise StorageFullError("no space left on the device")
        real(writer, *arguments, **steps)

    monkeypatch.setattr(gear_data.Writer, name, append)
    env: Any = gear_data.record(Vector("NextStep") if vector else Counter(1), tmp_path / "recorded")
    env.reset()
    step = [actions(t) if vector else actions(t)[1] for t in range(5)]
    env.step(step[0])
    env.step(step[1])
    with pytest.raises(StorageFullError):
        env.step(step[2])
    with pytest.raises(InvalidArgumentError, match="the last step failed"):
        env.step(step[3])
    if vector:
        with pytest.raises(InvalidArgumentError, match="reset"):
            env.reset(options={"reset_mask": np.array([True, False, False])})
    env.reset()
    env.step(step[4])
    env.close()
    ds = gear_data.open(tmp_path / "recorded")
    count = ENVIRONMENTS if vector else 1
    assert ds.episodes["length"].to_list() == [2] * count + [1] * count
    assert not ds.episodes["terminated"].any()
    for number in range(count):
        first, second = ds[number], ds[count + number]
        assert first["observations.count"][:, 0].tolist() == [0, 1]
        assert second["observations.count"][:, 0].tolist() == [100]
        assert ds.final(number) is None
        assert ds.final(count + number)["observations.count"][0] == 101


@pytest.mark.parametrize("has_episode", [False, True])
def test_an_error_at_the_end_of_an_episode(has_episode: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`close` records the episode as it ended. If the journal has it, the episode is not recorded again."""
    errors, real = [StorageFullError("no space left on the device")], JournalSink.append

    def append(sink: JournalSink, episode: RecordedEpisode) -> None:
        if has_episode or not errors:
            real(sink, episode)
        if errors:
            raise errors.pop()

    monkeypatch.setattr(JournalSink, "append", append)
    env = gear_data.record(Counter(0), tmp_path / "recorded")
    env.reset(seed=3)
    with pytest.raises(StorageFullError):
        for t in range(3):
            env.step(actions(t)[0])
    env.close()
    ds = gear_data.open(tmp_path / "recorded")
    assert ds.episodes.select("length", "terminated", "truncated", "seed").rows() == [(3, True, False, 3)]
    assert ds.final(0)["observations.count"].tolist() == [3, 0]


@pytest.mark.parametrize("vector", [False, True])
@pytest.mark.parametrize("error", ["publication", "disk", "refused"])
def test_errors_about_other_episodes_do_not_end_close(
    error: str, vector: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = gear_data.Writer(tmp_path / "recorded")
    env: Any = gear_data.record(Vector("NextStep") if vector else Counter(1), writer)
    env.reset()
    for t in range(2):
        env.step(actions(t) if vector else actions(t)[0])
    refused = EpisodeRefusedError("refused episode 7 of this Writer")
    refused.sequence = 7
    if error == "disk":
        monkeypatch.setattr(JournalSink, "sync", lambda _: fail(StorageFullError("no space left on the device")))
    else:
        writer._sink._error = refused if error == "refused" else UnwritableError("a generation")  # type: ignore[attr-defined]
    with pytest.raises(EpisodeRefusedError) if error == "refused" else nullcontext():
        env.close()
    ds = gear_data.open(tmp_path / "recorded")
    assert ds.episodes["length"].to_list() == [2] * (ENVIRONMENTS if vector else 1)
    assert all(ds.final(number) is not None for number in range(len(ds)))
    assert not (tmp_path / "recorded.journal").exists()


def fail(error: Exception) -> None:
    raise error


def test_a_discarded_episode_has_no_end(tmp_path: Path) -> None:
    writer = gear_data.Writer(tmp_path / "recorded")
    env = gear_data.record(Counter(0), writer)
    for t in range(2):
        env.reset(seed=t)
        env.step(actions(t)[0])
        if not t:
            writer.discard()
    env.close()
    assert gear_data.open(tmp_path / "recorded").episodes["seed"].to_list() == [1]


@pytest.mark.parametrize("mode", ["NextStep", "SameStep"])
def test_errors_at_the_ends_of_episodes_change_none_of_them(
    mode: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The program goes on after each error. Some journals have the episode, and some do not."""
    real, calls = JournalSink.append, itertools.count()

    def append(sink: JournalSink, episode: RecordedEpisode) -> None:
        place = next(calls) % 10  # the next call of the three environments succeeds
        if place != 0:
            real(sink, episode)
        if place in (0, 5):
            raise StorageFullError("no space left on the device")

    def record(name: str) -> int:
        env, errors = gear_data.record(Vector(mode), tmp_path / name, durability="os"), 0
        env.reset()
        for t in range(STEPS):
            try:
                env.step(actions(t))
            except StorageFullError:
                errors += 1
        monkeypatch.undo()
        env.close()
        return errors

    assert record("whole") == 0
    monkeypatch.setattr(JournalSink, "append", append)
    assert record("failed") > 3
    whole, failed = (gear_data.open(tmp_path / name) for name in ("whole", "failed"))
    assert failed.fingerprint == whole.fingerprint
    assert failed.episodes["terminated"].to_list() == whole.episodes["terminated"].to_list()
