"""Infos that all steps have, that some have, and that only the last one has."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

import gear_data
from gear_data.errors import InvalidArgumentError
from gear_data.recording import step_infos
from gear_data.recording.step_infos import infos_of_environments

LENGTHS = (6, 4, 7)


class Contact(gymnasium.Env[Any, Any]):
    """Counts steps. Every third step has a contact, and the last one a result."""

    observation_space = gymnasium.spaces.Box(0, 100, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, lengths: tuple[int, ...] = LENGTHS, first: int = 0) -> None:
        self.lengths, self.episode, self.first = lengths, -1, first

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.episode, self.t = self.episode + 1, self.first
        return np.full(1, self.first, np.float32), {"resets": 1}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.t += 1
        ended = self.t == self.first + self.lengths[self.episode % len(self.lengths)]
        return np.full(1, self.t, np.float32), 1.0, ended, False, info_of(self.t, ended)


def info_of(t: int, ended: bool) -> dict[str, Any]:
    info: dict[str, Any] = {"time": t / 10}
    if t % 3 == 0:
        info["contact"] = {"force": np.full(2, t, np.float32), "body": f"body {t}"}
    if ended:
        info |= {"success": t % 2 == 0, "map": np.full((2, 2), t)}
    return info


def run(env: Any, episodes: int) -> None:
    for _ in range(episodes):
        env.reset()
        while not any(env.step(0)[2:4]):
            pass


def check(ds: gear_data.Dataset, lengths: list[int]) -> None:
    """Checks episodes of `Contact` by the definition of its infos."""
    assert ds.episodes["length"].to_list() == lengths
    assert ds.episodes["infos.success"].to_list() == [length % 2 == 0 for length in lengths]
    assert "infos.success" not in ds.schema.names and "masks.infos.time" not in ds.schema.names
    for episode, length in zip(ds, lengths, strict=True):
        infos = [info_of(t, t == length) for t in range(1, length + 1)]
        contacts = np.array(["contact" in info for info in infos])
        assert episode["infos.time"].tolist() == [info["time"] for info in infos]
        assert np.array_equal(episode["masks.infos.contact.force"], contacts)
        forces = [info["contact"]["force"] if "contact" in info else np.zeros(2) for info in infos]
        np.testing.assert_array_equal(episode["infos.contact.force"], np.array(forces, np.float32))
        assert episode["infos.contact.body"].tolist() == [info.get("contact", {}).get("body", "") for info in infos]
        assert episode["masks.infos.map"].tolist() == [False] * (length - 1) + [True]
        assert (episode["infos.map"][-1] == length).all() and not episode["infos.map"][:-1].any()


def test_an_environment(tmp_path: Path) -> None:
    env = gear_data.record(Contact(), tmp_path / "d", record_infos=True)
    run(env, 3)
    env.close()
    check(gear_data.open(tmp_path / "d"), list(LENGTHS))


def test_a_second_recording_keeps_the_columns(tmp_path: Path) -> None:
    """Its first episode has no contact, and would decide something else."""
    for lengths in (LENGTHS, (2, 6)):
        env = gear_data.record(Contact(lengths), tmp_path / "d", record_infos=True)
        run(env, len(lengths))
        env.close()
    check(gear_data.open(tmp_path / "d"), [*LENGTHS, 2, 6])


def test_a_recording_that_was_cut_off_keeps_the_columns(tmp_path: Path) -> None:
    """Only its journal is left, and no dataset."""
    writer = gear_data.Writer(tmp_path / "d", durability="os")
    run(gear_data.record(Contact(), writer, record_infos=True), 2)
    writer._sink._publisher.close()  # type: ignore[attr-defined]
    env = gear_data.record(Contact((2,)), tmp_path / "d", record_infos=True)
    run(env, 1)
    env.close()
    check(gear_data.open(tmp_path / "d"), [*LENGTHS[:2], 2])


@pytest.mark.parametrize("most", [100, 1 << 20])
def test_a_vector_environment(most: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The columns are those of each environment. With a small limit, the first three steps decide."""
    monkeypatch.setattr(step_infos, "_WAITING_BYTES", most)
    envs = gymnasium.vector.SyncVectorEnv([lambda: Contact((5, 3), first=2), lambda: Contact((4, 6), first=2)])
    env = gear_data.record(envs, tmp_path / "d", record_infos=True)
    env.reset()
    for _ in range(11):
        env.step(np.zeros(2, int))
    env.close()
    ds = gear_data.open(tmp_path / "d")
    assert ds.episodes["length"].to_list() == [4, 5, 3, 6, 1]
    assert ds.episodes["infos.success"].to_list() == [True, False, False, True, None]
    for episode in ds:
        times = episode["observations"][:, 0] + 1
        np.testing.assert_allclose(episode["infos.time"], times / 10)
        assert np.array_equal(episode["masks.infos.contact.force"], times % 3 == 0)
        assert episode["infos.contact.body"].tolist() == [f"body {t:.0f}" if t % 3 == 0 else "" for t in times]


def test_statistics_of_gymnasium(tmp_path: Path) -> None:
    plain = gymnasium.wrappers.RecordEpisodeStatistics(gymnasium.make("CartPole-v1"))
    env = gear_data.record(plain, tmp_path / "d", record_infos=True)
    for seed in range(4):
        env.reset(seed=seed)
        while not any(env.step(seed % 2)[2:4]):
            pass
    env.close()
    episodes = gear_data.open(tmp_path / "d").episodes
    assert episodes["infos.episode.l"].to_list() == episodes["length"].to_list()
    assert episodes["infos.episode.r"].to_list() == episodes["return"].to_list()


def test_a_first_episode_of_one_step_decides_for_nothing(tmp_path: Path) -> None:
    """Its only step is the last one: each entry may be missing later, and none is lost."""
    env = gear_data.record(Contact((1, 6)), tmp_path / "d", record_infos=True)
    run(env, 2)
    env.close()
    ds = gear_data.open(tmp_path / "d")
    assert ds[1]["masks.infos.time"].all() and ds[1]["masks.infos.success"].tolist() == [False] * 5 + [True]
    assert ds.episodes["infos_left_out"].to_list() == [None, "infos.contact.body, infos.contact.force"]


def test_later_entries_are_facts_or_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    class Later(Contact):
        def step(self, action: Any) -> Any:
            *transition, info = super().step(action)
            if self.episode == 1 and self.t > 1:
                info |= {"late": self.t, "object": object(), "nothing": None}
            return (*transition, info)

    env = gear_data.record(Later(), tmp_path / "d", record_infos=True)
    with caplog.at_level(logging.WARNING):
        run(env, 3)
    env.close()
    assert len(caplog.records) == 1
    assert "infos.late, infos.object" in caplog.text
    episodes = gear_data.open(tmp_path / "d").episodes
    assert episodes["infos.late"].to_list() == [None, LENGTHS[1], None]
    assert episodes["infos_left_out"].to_list() == [None, "infos.late, infos.object", None]


def test_a_column_that_a_step_lacks(tmp_path: Path) -> None:
    """The advice of the error works."""

    class Lacking(Contact):
        def step(self, action: Any) -> Any:
            *transition, info = super().step(action)
            if self.episode == 1 and self.t == 2:
                del info["time"]
            return (*transition, {"time": info["time"]} if "time" in info else {})

    env = gear_data.record(Lacking(), tmp_path / "d", record_infos=True)
    with pytest.raises(InvalidArgumentError, match=r"lacks infos\.time") as error:
        run(env, 2)
    assert "'masks.infos.time': ('bool', ())" in str(error.value.hint)
    schema = {
        "observations": ("float32", (1,)),
        "actions": ("int64", ()),
        "rewards": ("float64", ()),
        "infos.time": ("float64", ()),
        "masks.infos.time": ("bool", ()),
    }
    env = gear_data.record(Lacking(), gear_data.Writer(tmp_path / "other", schema=schema), record_infos=True)
    run(env, 2)
    env.close()
    assert gear_data.open(tmp_path / "other")[1]["masks.infos.time"].tolist() == [True, False, True, True]


def test_infos_of_the_step_before_a_reset() -> None:
    """With automatic resets in the same step, the info of the step is `final_info`."""
    mask = np.array([False, True])
    infos = {
        "time": np.array([3.0, 0.0]), "_time": np.array([True, True]), "shared": "text",
        "final_info": {"time": np.array([0.0, 7.0]), "_time": mask, "deep": {"a": np.array([0, 5]), "_a": mask},
                       "_deep": mask},
        "_final_info": mask, "final_obs": np.array([None, None], object), "_final_obs": mask,
    }  # fmt: skip
    assert infos_of_environments(infos, mask) == [{"time": 3.0, "shared": "text"}, {"time": 7.0, "deep": {"a": 5}}]
