"""Errors of tables, NumPy files, HDF5 files and LeRobot folders, with the advice that each gives."""

from __future__ import annotations

import numpy as np

from gear_data import EpisodeBoundaries
from gear_data.errors import (
    BadEpisodeError,
    CorruptSourceError,
    InvalidArgumentError,
    SplitNeededError,
    UnknownFormatError,
    UnsupportedColumnError,
)
from tests.support.advice.rows import (
    DEMO,
    END,
    FLAT,
    NAMES,
    NONE,
    ROW,
    TORN,
    V1,
    WHOLE_HDF5,
    WHOLE_NPZ,
    Advice,
    again,
    cut,
    d3rlpy,
    file_of,
    folders,
    hdf5,
    jsonl,
    lerobot,
    mixed,
    npz,
    parquet,
    parquet_files,
    pass_episodes,
    rows_of,
    several_sources,
    sort_rows,
    spread_rewards,
    steps,
    two_kinds,
    unpack,
    without_videos,
    zipped,
)

FILES: dict[str, Advice] = {
    "robomimic, states that run on: without them": Advice(
        hdf5("data/demo_{}/", DEMO, DEMO), BadEpisodeError, "--columns", "--columns actions,observations.x"
    ),
    "robomimic, one demonstration of another length: without it": Advice(
        hdf5("data/demo_{}/", {"actions": np.zeros((6, 2)), "states": np.zeros((6, 4))}, DEMO),
        BadEpisodeError, "--on-bad-episode skip", "--on-bad-episode skip", steps=6,
    ),
    "table, a null: without the column": Advice(
        parquet(observations=[None, *range(11)]), BadEpisodeError, "--columns actions", "--columns actions"
    ),
    "table, a null: without the episode": Advice(
        parquet(observations=[None, *range(11)]), BadEpisodeError, "--on-bad-episode skip", "--on-bad-episode skip",
        steps=6,
    ),
    "table, ragged vectors: without the column": Advice(
        parquet(observations=TORN), BadEpisodeError, "--columns actions", "--columns actions"
    ),
    "table, text as rewards": Advice(
        parquet(rewards=["good"] * 12), UnsupportedColumnError, "--columns", "--columns observations,actions"
    ),
    "table, episodes out of order": Advice(
        parquet(episode=[0] * 3 + [1] * 6 + [0] * 3, frame_index=[0, 1, 2, *range(6), 3, 4, 5]),
        BadEpisodeError, "sort the rows by episode and step", source=sort_rows,
    ),
    "table, ids that come back: a flag": Advice(
        parquet(episode=[0] * 3 + [1] * 3 + [0] * 6, over=END), BadEpisodeError, "name it with --end-column",
        "--end-column over",
    ),
    "table, no episode column": Advice(
        parquet(episode=None, run=[0] * 6 + [1] * 6), UnknownFormatError, "--episode-column run", "--episode-column run"
    ),
    "table, an end flag of 2": Advice(
        parquet(terminated=[0] * 5 + [2] + [0] * 6), BadEpisodeError, "rename it with --rename",
        "--rename terminated=infos.level",
    ),
    "npz, no ends: a limit": Advice(
        npz(**steps()), UnknownFormatError, "--max-episode-steps", "--max-episode-steps 6"
    ),
    "npz, no ends: a column": Advice(
        npz(**steps(over=END)), UnknownFormatError, "--end-column", "--end-column over"
    ),
    "npz, another length": Advice(
        npz(**steps(timeouts=END, extra=np.zeros(5))), BadEpisodeError, "--columns", "--columns observations,actions"
    ),
    "npz, episodes that do not begin with row 0": Advice(
        npz(**steps(episode_starts=np.array([1, 6]), episode=np.arange(12) // 6)),
        BadEpisodeError, "--episode-column", "--episode-column episode --columns observations,actions",
    ),
    "npz, terminals that mean two things: flags": Advice(
        npz(**NAMES), UnknownFormatError, "--end-column terminals", "--end-column terminals"
    ),
    "npz, terminals that mean two things: OGBench": Advice(
        npz(**NAMES), UnknownFormatError, "--format ogbench", "--format ogbench", steps=10
    ),
    "npz, cut off": Advice(cut(WHOLE_NPZ), CorruptSourceError, "download it again", source=again(WHOLE_NPZ)),
    "HDF5, cut off": Advice(cut(WHOLE_HDF5), CorruptSourceError, "download it again", source=again(WHOLE_HDF5)),
    "Parquet, cut off": Advice(cut(parquet()), CorruptSourceError, "download it again", source=again(parquet())),
    "a pointer of Git LFS": Advice(
        file_of("a.parquet", b"version https://git-lfs.github.com/spec/v1\n"), CorruptSourceError, "git lfs pull",
        source=again(parquet()),
    ),
    "D4RL, no ends": Advice(
        hdf5("", {**FLAT, "terminals": np.zeros(12, bool)}), UnknownFormatError, "--max-episode-steps",
        "--max-episode-steps 6",
    ),
    "two formats in a folder": Advice(
        mixed, UnknownFormatError, "--format step-rows leaves them out", "--format step-rows"
    ),
    "sources of several formats in a folder: one": Advice(
        several_sources, UnknownFormatError, "give one of them, or several", source=lambda source: source / "arrays"
    ),
    "sources of several formats in a folder: a format": Advice(
        several_sources, UnknownFormatError, "--format step-rows reads only files of this format",
        "--format step-rows",
    ),
    "two kinds of tables": Advice(
        two_kinds, UnknownFormatError, "give one file", source=lambda source: source / "a.csv"
    ),
    "two splits": Advice(
        folders(train=parquet(), test=parquet()), SplitNeededError, "--split (split=)", "--split train"
    ),
    "two splits, all of them": Advice(
        folders(train=parquet(), test=parquet()), SplitNeededError, "--split all", "--split all", steps=24
    ),
    "two datasets in a folder": Advice(
        folders(a=npz(**steps(timeouts=END)), b=npz(**{**steps(timeouts=END), "observations": np.zeros((12, 2))})),
        CorruptSourceError, "convert one folder at a time: a, b", source=lambda source: source / "b",
    ),
    "two columns of one name": Advice(
        parquet(action=[0.0] * 12), InvalidArgumentError, "--rename action=OTHER", "--rename action=infos.action"
    ),
    "D4RL, another length": Advice(
        hdf5("", {**FLAT, "terminals": END, "timeouts": END & False, "extra": np.zeros(5)}), BadEpisodeError,
        "--columns", "--columns observations,actions,rewards",
    ),
    "D4RL, columns of ids": Advice(
        hdf5("", {**FLAT, "terminals": END, "seed": np.arange(12) // 6, "number": np.arange(12) // 3}),
        InvalidArgumentError, "--format tree", "--format tree --episode-column seed --episode-column number",
        {"episodes": EpisodeBoundaries(episode_column=("seed", "number"))},
    ),
    "npz, complex numbers": Advice(
        npz(**steps(timeouts=END, signal=np.zeros(12, complex))), UnsupportedColumnError, "--columns",
        "--columns observations,actions",
    ),
    "robomimic, another shape: without it": Advice(
        hdf5("data/demo_{}/", DEMO | {"states": np.zeros((6, 2))}, DEMO | {"states": np.zeros((6, 3))}),
        BadEpisodeError, "--columns", "--columns actions,observations.x",
    ),
    "robomimic, a missing dataset: without it": Advice(
        hdf5("data/demo_{}/", DEMO | {"states": np.zeros((6, 2))}, {name: DEMO[name] for name in ("actions", "obs/x")}),
        BadEpisodeError, "--columns", "--columns actions,observations.x",
    ),
    "LeRobot, no videos: without the camera": Advice(
        without_videos, CorruptSourceError, "leave the camera out with --columns",
        "--columns observations,actions,rewards,terminated,truncated,timestamp,task_index", steps=-1,
    ),
    "table, whole numbers in the first file": Advice(
        parquet_files(rewards=([1] * 6, [0.5] * 6)), CorruptSourceError, "--dtype rewards=float64",
        "--dtype rewards=float64",
    ),
    "robomimic, whole numbers in the first demonstration": Advice(
        hdf5("data/demo_{}/", {"actions": np.zeros((6, 2), int)}, {"actions": np.full((6, 2), 0.5)}),
        BadEpisodeError, "--dtype actions=float64", "--dtype actions=float64",
    ),
    "HDF5, fractions of float64 after float32": Advice(
        hdf5("ep_{}/", {"actions": np.zeros((6, 2), "f4")}, {"actions": np.full((6, 2), 0.1)}),
        BadEpisodeError, "--dtype actions=float64", "--dtype actions=float64",
    ),
    "HDF5, whole numbers in the observations after each step": Advice(
        hdf5("ep_{}/", *[{"actions": END, "state": np.ones((12, 2)), "next_state": np.ones((12, 2), int)}]),
        UnsupportedColumnError, "--rename next_state=infos.next_state", "--rename next_state=infos.next_state",
    ),
    "d3rlpy, whole numbers in the first episode": Advice(
        d3rlpy(np.ones((6, 1), int), np.full((6, 1), 0.5)), BadEpisodeError, "--dtype rewards=float64",
        "--dtype rewards=float64",
    ),
    "d3rlpy, a reward of the whole episode": Advice(
        d3rlpy(np.full((1, 1), 2.5), np.zeros((1, 1))), BadEpisodeError, "give it one row a step: 0, and the reward",
        source=spread_rewards,
    ),
    "a row an episode, one without steps": Advice(
        jsonl(ROW, NONE, ROW), BadEpisodeError, "--on-bad-episode skip", "--on-bad-episode skip"
    ),
    "robomimic, one without steps": Advice(
        hdf5("data/demo_{}/", *[{"actions": np.zeros((n, 2))} for n in (6, 0, 6)]),
        BadEpisodeError, "--on-bad-episode skip", "--on-bad-episode skip",
    ),
    "HDF5, one without steps": Advice(
        hdf5("ep_{}/", *[{"actions": np.zeros((n, 2))} for n in (6, 0, 6)]),
        BadEpisodeError, "--on-bad-episode skip", "--on-bad-episode skip",
    ),
    "a row an episode, another length: without the column": Advice(
        jsonl(*[{"path": [0.0] * 4, **ROW}] * 2), BadEpisodeError, "--columns observations,actions,rewards",
        "--columns observations,actions,rewards",
    ),
    "table, a last row that may be no step": Advice(
        parquet(is_first=(np.arange(12) % 6 == 0), is_last=END, is_terminal=END), UnknownFormatError,
        "--rename is_last=dones", "--rename is_last=dones",
    ),
    "HDF5, a last row that may be no step": Advice(
        hdf5("ep_{}/", *[{"actions": np.zeros((6, 2)), "is_first": END[:6], "is_last": END[:6]}] * 2),
        UnknownFormatError, "--rename is_last=dones", "--rename is_last=dones",
    ),
    "table, masks that are no flags": Advice(
        parquet(masks=[3] * 12), BadEpisodeError, "rename it with --rename", "--rename masks=infos.masks"
    ),
    "npz, ids of another length": Advice(
        npz(**steps(timeouts=END, episode=np.zeros(7, int), run=np.arange(12) // 6)), BadEpisodeError,
        "--episode-column", "--episode-column run --columns observations,actions,rewards,timeouts",
    ),
    "an archive": Advice(zipped, UnknownFormatError, "unpack it first", source=unpack),
    "LeRobot, info.json is no JSON: rows": Advice(
        lerobot(info_json="{'fps': 30}"), CorruptSourceError, "correct the JSON",
        source=again(lerobot()), steps=-1,
    ),
    "LeRobot, an impossible number: rows": Advice(
        lerobot(info_json='{"codebase_version": "v2.1", "total_frames": "many"}'), CorruptSourceError,
        "the folder data/ with --format step-rows", "--format step-rows", source=rows_of, steps=-1,
    ),
    "LeRobot, an entry without its number: rows": Advice(
        lerobot(episodes_jsonl='{"length": 4}\n'), CorruptSourceError, "the folder data/ with --format step-rows",
        "--format step-rows", source=rows_of, steps=-1,
    ),
    "LeRobot, a list of episodes that is no JSON": Advice(
        lerobot(episodes_jsonl='{"length": 4\n'), CorruptSourceError, "write one JSON object per line",
        source=again(lerobot(episodes_jsonl='{"episode_index": 0}\n')), steps=-1,
    ),
    "LeRobot v1: rows": Advice(
        lerobot(info_json=V1), UnknownFormatError, "the folder data/ with --format step-rows", "--format step-rows",
        source=rows_of, steps=-1,
    ),
    "a bag of ROS": Advice(
        file_of("run.mcap", b"\x89MCAP0\r\n"), UnknownFormatError, "pass the episodes to gear_data.convert",
        source=pass_episodes, steps=10,
    ),
    "a bag of ROS 1": Advice(
        file_of("run.bag", b"#ROSBAG"), UnknownFormatError, "pass the episodes to gear_data.convert",
        source=pass_episodes, steps=10,
    ),
    "a pickle": Advice(
        file_of("run.pkl", b"\x80\x04."), UnknownFormatError, "pass the episodes to gear_data.convert",
        source=pass_episodes, steps=10,
    ),
}  # fmt: skip
