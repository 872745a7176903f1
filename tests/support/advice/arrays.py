"""Errors of NumPy files, replay buffers and arrays in memory, with the advice that each gives."""

from __future__ import annotations

import gzip
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from gear_data import EpisodeBoundaries, TableOptions
from gear_data.errors import (
    BadEpisodeError,
    CorruptSourceError,
    EmptySourceError,
    InvalidArgumentError,
    UnknownFormatError,
    UnsupportedColumnError,
)
from tests.support.advice.rows import END, NAMES, Advice, again, file_of, folders, npz, steps

FIRSTS = np.arange(12) % 6 == 0
OGBENCH = {**NAMES, "qpos": np.zeros((12, 2))}
BUFFER = {
    "observations": np.zeros((6, 2, 3)),
    "next_observations": np.ones((6, 2, 3)),
    "actions": np.zeros((6, 2, 1)),
    "rewards": np.zeros((6, 2)),
    "dones": np.zeros((6, 2)),
    "timeouts": np.zeros((6, 2)),
    "pos": 0,
    "full": True,
}
UNCLEAR = {
    "observations": np.ones((6, 4, 3)),
    "actions": np.ones((6, 4, 1)),
    "rewards": np.ones((6, 4)),
    "dones": np.ones((6, 4)),
}
DREAMER = {"image": np.ones((12, 3)), "action": np.ones((12, 1)), "reward": np.zeros(12), "is_first": FIRSTS}
BOTH_ENDS = {"observations": np.ones((13, 3)), "actions": np.ones((12, 1)), "terminals": END}
SIDE = np.eye(12) + 1


def saved(source: Path, **columns: Any) -> Path:
    """Writes the arrays of an archive again, with these in the place of theirs. A value of None leaves one out."""
    with np.load(source, allow_pickle=True) as archive:
        arrays = {**archive, **columns}
    np.savez(source, **{name: values for name, values in arrays.items() if values is not None})
    return source


def changed(**columns: Any) -> Callable[[Path], Path]:
    return lambda source: saved(source, **columns)


def npy(**arrays: Any) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        for name, values in arrays.items():
            np.save(folder / name, values)
        return folder

    return make


def npz_files(*files: dict[str, Any], **named: dict[str, Any]) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        for name, columns in {**{str(i): each for i, each in enumerate(files)}, **named}.items():
            np.savez(folder / f"{name}.npz", **columns)
        return folder

    return make


def part_of(name: str) -> Callable[[Path], Path]:
    return lambda source: source / name


def without(name: str) -> Callable[[Path], Path]:
    """Returns a change that moves a file, or a folder, out of the source."""

    def change(source: Path) -> Path:
        shutil.move(source / name, source.parent / "elsewhere")
        return source

    return change


def value(values: Any) -> Callable[[Path], Any]:
    """Returns a maker of a source in memory."""
    return lambda _: values() if callable(values) else values


def given(values: Any) -> Callable[[Any], Any]:
    """Returns the source that the advice asks for, in the place of the first one."""
    return lambda _: values() if callable(values) else values


def calvin(*, without: str = "", **ranges: list[list[int]]) -> Callable[[Path], Path]:
    """Returns a maker of splits of CALVIN, of six steps each."""

    def make(folder: Path) -> Path:
        for split, rows in ranges.items():
            (folder / split).mkdir(parents=True)
            np.save(folder / split / "ep_start_end_ids.npy", np.array(rows))
            for i in range(6):
                arrays = {"rel_actions": np.zeros(7), "robot_obs": np.full(15, float(i))}
                np.savez(folder / split / f"episode_{i:07d}.npz", **arrays)
        if without:
            (folder / without).unlink()
        return folder

    return make


def dqn(game: str = "", *, rows: int = 12, without: str = "", **stores: Any) -> Callable[[Path], Path]:
    """Returns a maker of a checkpoint of DQN Replay. A value of None leaves a store out."""

    def make(folder: Path) -> Path:
        values: dict[str, Any] = {
            "observation": np.ones((rows, 4, 4), np.uint8),
            "action": np.zeros(rows, np.int32),
            "reward": np.zeros(rows, np.float32),
            "terminal": END.astype(np.uint8)[:rows],
            **stores,
        }
        target = folder / game
        target.mkdir(parents=True, exist_ok=True)
        for name, array in values.items():
            if array is not None:
                with gzip.open(target / f"$store$_{name}_ckpt.0.gz", "wb") as stream:
                    np.save(stream, array)
        return folder

    return make


def no_limit(source: Path) -> Path:
    return saved(source, robot_obs=np.zeros((12, 3)))


ARRAYS: dict[str, Advice] = {
    "npz, Fortran order": Advice(
        npz(**steps(timeouts=END, pixels=np.asfortranarray(np.arange(24.0).reshape(12, 2)))),
        UnsupportedColumnError,
        "np.ascontiguousarray",
        source=changed(pixels=np.arange(24.0).reshape(12, 2)),
    ),
    "CALVIN, Python objects in a step": Advice(
        lambda folder: saved(
            calvin(training=[[0, 5]])(folder) / "training/episode_0000003.npz", robot_obs=np.array([None] * 15)
        ).parents[1],
        CorruptSourceError,
        "as numbers of one dtype in all files",
        source=lambda source: saved(source / "training/episode_0000003.npz", robot_obs=np.zeros(15)).parents[1],
        steps=6,
    ),
    "npz, axes that mean several things: steps": Advice(
        npz(**{name: UNCLEAR[name] for name in ("observations", "actions")}),
        UnknownFormatError,
        "--format npz",
        "--format npz",
        {"episodes": EpisodeBoundaries(max_episode_steps=3)},
        steps=6,
        given="--max-episode-steps 3",
    ),
    "npz, axes that mean several things: padded episodes": Advice(
        npz(**UNCLEAR),
        UnknownFormatError,
        "add 'episode_lengths'",
        source=changed(episode_lengths=[2] * 6),
    ),
    "npz, axes that mean several things: environments": Advice(
        npz(**UNCLEAR),
        UnknownFormatError,
        "--format stable-baselines3",
        "--format stable-baselines3",
        steps=24,
    ),
    "npz, steps first": Advice(
        npz(observations=np.ones((6, 2, 3)), rewards=np.ones((6, 2)), episode_lengths=[6, 6]),
        UnknownFormatError,
        "np.swapaxes(array, 0, 1)",
        source=changed(observations=np.ones((2, 6, 3)), rewards=np.ones((2, 6))),
    ),
    "npz, a length for each step": Advice(
        npz(observations=np.ones((4, 6, 3)), rewards=np.ones((4, 6)), episode_lengths=[1] * 4),
        UnknownFormatError,
        "array[:, :1]",
        source=changed(observations=np.ones((4, 1, 3)), rewards=np.ones((4, 1))),
        steps=4,
    ),
    "npz, a value a step or an element": Advice(
        npz(**{"observations": SIDE, "actions": np.ones((12, 1)), "timeouts": END, "mean": np.ones(12)}),
        UnknownFormatError,
        "--columns",
        "--columns observations,actions,timeouts",
    ),
    "npz files, a dtype that does not hold all": Advice(
        npz_files(
            {**steps(timeouts=END), "rewards": np.ones(12, np.int64)},
            {**steps(timeouts=END), "rewards": np.full(12, 2.5)},
        ),
        CorruptSourceError,
        "--dtype rewards=float64",
        "--dtype rewards=float64",
        steps=24,
    ),
    "npz, a dtype that is too small": Advice(
        npz(**steps(timeouts=END, level=np.full(12, 300))),
        BadEpisodeError,
        "--dtype level=",
        "--dtype level=int64",
        {"tables": TableOptions(dtype={"level": "uint8"})},
    ),
    "npz, an end flag that is a vector": Advice(
        npz(**steps(timeouts=np.ones((12, 2)), dones=END)),
        UnsupportedColumnError,
        "--rename",
        "--rename timeouts=infos.limits",
    ),
    "npz, an id that is a fact": Advice(
        npz(**steps(timeouts=END, seed=7)),
        InvalidArgumentError,
        "leave --episode-column and --step-column out",
        refused={"episodes": EpisodeBoundaries(episode_column="seed")},
    ),
    "npz, first rows: steps": Advice(
        npz(observations=np.ones((12, 3)), actions=np.ones((12, 1)), rewards=np.ones(12), is_first=FIRSTS, is_last=END),
        UnknownFormatError,
        "--rename is_last=",
        "--rename is_last=dones",
    ),
    "npz, a reward at the first observation: with the observation that it led to": Advice(
        npz(**DREAMER | {"reward": np.ones(12)}),
        BadEpisodeError,
        "store each reward with the observation that it led to",
        source=changed(reward=np.where(FIRSTS, 0, 1)),
        steps=10,
    ),
    "npz, first rows and usual names: the final observation": Advice(
        npz(observations=np.ones((12, 3)), actions=np.ones((12, 1)), rewards=np.ones(12), is_first=FIRSTS, is_last=END),
        UnknownFormatError,
        "call the arrays observation, action and reward",
        source=changed(
            observations=None,
            actions=None,
            rewards=None,
            observation=np.ones((12, 3)),
            action=np.ones((12, 1)),
            reward=np.ones(12),
        ),
        steps=10,
    ),
    "npz, obs of each step": Advice(
        npz(obs=np.ones((12, 3)), action=np.ones((12, 1)), is_first=FIRSTS),
        UnknownFormatError,
        "--rename obs=observations",
        "--rename obs=observations",
    ),
    "npz, obs of Dreamer": Advice(
        npz(obs=np.ones((12, 3)), action=np.ones((12, 1)), is_first=FIRSTS),
        UnknownFormatError,
        "--rename obs=observations.obs",
        "--rename obs=observations.obs",
        steps=10,
    ),
    "npz, T + 1 rows with ends in between: episodes": Advice(
        npz(**BOTH_ENDS),
        UnknownFormatError,
        "--end-column terminals",
        "--end-column terminals",
    ),
    "npz, T + 1 rows with ends in between: one episode": Advice(
        npz(**BOTH_ENDS),
        UnknownFormatError,
        "--rename terminals=infos.terminals",
        "--rename terminals=infos.terminals",
    ),
    "npy, no array": Advice(
        lambda folder: file_of("rewards.npy", b"no array")(npy(**steps(timeouts=END))(folder)).parent,
        CorruptSourceError,
        "np.save",
        source=lambda source: npy(rewards=np.ones(12))(source),
    ),
    "npy, a header without an end": Advice(
        lambda folder: (
            file_of("rewards.npy", b"\x93NUMPY\x02\x00\xff\xff\xff\x0f{}")(npy(**steps(timeouts=END))(folder)).parent
        ),
        CorruptSourceError,
        "write it again with np.save",
        source=lambda source: npy(rewards=np.ones(12))(source),
    ),
    "npz, of another format": Advice(
        npz(**steps(timeouts=END)), UnknownFormatError, "leave --format out", refused={"format": "ogbench"}
    ),
    "npz, of no robot": Advice(
        npz(**steps(timeouts=END)), UnknownFormatError, "leave --format out", refused={"format": "robomimic"}
    ),
    "OGBench, two datasets": Advice(
        npz_files(**{"cube-single-play-v0": NAMES, "puzzle-3x3-play-v0": NAMES}),
        UnknownFormatError,
        "give a file, such as cube-single-play-v0.npz",
        source=part_of("cube-single-play-v0.npz"),
        steps=10,
    ),
    "numpy files, flags of two shifts": Advice(
        npz_files(
            {**DREAMER, "action": np.where(FIRSTS, 0.0, 1.0)[:, None]},
            {**DREAMER, "action": np.ones((12, 1))},
        ),
        CorruptSourceError,
        "convert the files that differ separately",
        source=part_of("1.npz"),
        steps=10,
    ),
    "numpy files, a column in the first only": Advice(
        npz_files(steps(timeouts=END, extra=np.ones(12)), steps(timeouts=END)),
        CorruptSourceError,
        "--columns",
        "--columns observations,actions,rewards,timeouts",
        steps=24,
    ),
    "numpy files, two shapes": Advice(
        npz_files(steps(timeouts=END), {**steps(timeouts=END), "actions": np.zeros((12, 2))}),
        CorruptSourceError,
        "convert the files to one dtype and shape first",
        source=lambda source: saved(source / "1.npz", actions=np.zeros((12, 1))).parent,
        steps=24,
    ),
    "Stable-Baselines3, a cursor outside": Advice(
        npz(**BUFFER | {"pos": 9, "full": False}),
        CorruptSourceError,
        "save buffer.pos and buffer.full",
        source=changed(pos=0, full=True),
    ),
    "Stable-Baselines3, observations of two shapes": Advice(
        npz(**BUFFER | {"next_observations": np.ones((6, 2, 4))}),
        BadEpisodeError,
        "save both arrays of the same buffer",
        source=changed(next_observations=np.ones((6, 2, 3))),
    ),
    "Stable-Baselines3, a flag of 2": Advice(
        npz(**BUFFER | {"timeouts": np.full((6, 2), 2)}),
        BadEpisodeError,
        "--rename",
        "--rename timeouts=infos.timeouts",
    ),
    "Stable-Baselines3, no environments": Advice(
        npz(**steps(next_observations=np.ones((12, 3)), dones=END)),
        UnknownFormatError,
        "leave --format out if the arrays have no axis of environments",
        refused={"format": "stable-baselines3"},
    ),
    "CALVIN, no list": Advice(
        calvin(training=[[0, 5]], without="training/ep_start_end_ids.npy"),
        UnknownFormatError,
        "copy it to this folder",
        "",
        {"format": "calvin"},
        lambda source: calvin(training=[[0, 5]])(source.parent / "whole"),
        6,
    ),
    "CALVIN, two datasets": Advice(
        folders(a=calvin(training=[[0, 5]]), b=calvin(training=[[0, 5]])),
        UnknownFormatError,
        "convert one at a time: give its folder",
        source=part_of("b"),
        steps=6,
    ),
    "CALVIN, a number twice": Advice(
        lambda folder: (
            calvin(training=[[0, 5]])(folder),
            shutil.copy(folder / "training/episode_0000001.npz", folder / "training/episode_1.npz"),
        )[0],
        CorruptSourceError,
        "move one of them away",
        source=without("training/episode_1.npz"),
        steps=6,
    ),
    "CALVIN, a recording of steps that are missing": Advice(
        calvin(training=[[0, 2], [3, 5]], without="training/episode_0000001.npz"),
        BadEpisodeError,
        "--on-bad-episode skip",
        "--on-bad-episode skip",
        steps=3,
    ),
    "CALVIN, no recording whose steps exist": Advice(
        calvin(training=[[7, 9]]),
        EmptySourceError,
        "download the steps again",
        "",
        {"on_bad_episode": "skip"},
        lambda source: calvin(training=[[0, 5]])(source.parent / "whole"),
        6,
    ),
    "DQN Replay, two games": Advice(
        lambda folder: dqn("Pong/1")(dqn("Qbert/1")(folder)),
        UnknownFormatError,
        "convert one game at a time",
        source=part_of("Pong"),
        steps=11,
    ),
    "DQN Replay, no rewards": Advice(
        dqn(reward=None),
        CorruptSourceError,
        "download it",
        source=again(lambda folder: dqn()(folder / "source")),
        steps=11,
    ),
    "DQN Replay, stores of two lengths": Advice(
        dqn(reward=np.zeros(9, np.float32)),
        CorruptSourceError,
        "download them again",
        source=again(lambda folder: dqn()(folder / "source")),
        steps=11,
    ),
    "DQN Replay, a flag of 2": Advice(
        dqn(terminal=np.full(12, 2, np.uint8)),
        BadEpisodeError,
        "download the file again",
        source=again(lambda folder: dqn()(folder / "source")),
        steps=11,
    ),
}
