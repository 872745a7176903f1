"""Advice that works: each error of the list is raised, and its advice is followed literally.

A case has a source, the error, and the advice: options of `gear-data convert` that the hint names, or a change of the
source that the hint asks for. To add an error, add a case.
"""

from __future__ import annotations

import json
import shlex
import shutil
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import gear_data
from gear_data import EpisodeBoundaries
from gear_data.cli import main
from gear_data.errors import (
    BadEpisodeError,
    CorruptSourceError,
    GearError,
    InvalidArgumentError,
    SplitNeededError,
    UnknownFormatError,
    UnsupportedColumnError,
)
from tests.support.rollouts import make_rollouts, write_lerobot

Make = Callable[[Path], Path]
Array = npt.NDArray[Any]
END = np.arange(12) % 6 == 5


def steps(**more: Any) -> dict[str, Array]:
    """Returns twelve steps, without ends."""
    rng = np.random.default_rng(0)
    return {
        "observations": rng.normal(size=(12, 3)),
        "actions": rng.normal(size=(12, 1)),
        "rewards": np.ones(12),
        **more,
    }


def npz(**columns: Any) -> Make:
    def make(folder: Path) -> Path:
        np.savez(folder / "data.npz", **columns)
        return folder / "data.npz"

    return make


def parquet(**more: Any) -> Make:
    """Returns a maker of a table of two episodes; a value of None leaves a column out."""
    columns = {"episode": [0] * 6 + [1] * 6, "observations": np.arange(12.0), "actions": [0.5] * 12, **more}

    def make(folder: Path) -> Path:
        pq.write_table(
            pa.table({name: each for name, each in columns.items() if each is not None}), folder / "a.parquet"
        )
        return folder / "a.parquet"

    return make


def hdf5(name: str, *groups: dict[str, Array]) -> Make:
    def make(folder: Path) -> Path:
        with h5py.File(folder / "data.hdf5", "w") as file:
            for i, group in enumerate(groups):
                for path, values in group.items():
                    file[f"{name.format(i)}{path}"] = values
        return folder / "data.hdf5"

    return make


def lerobot(**files: str) -> Make:
    """Returns a maker of a LeRobot folder of three episodes. `info_json="{"` is the text of `meta/info.json`."""

    def make(folder: Path) -> Path:
        shutil.rmtree(folder / "robot", ignore_errors=True)
        write_lerobot(folder / "robot", make_rollouts(3, seed=1))
        for name, text in files.items():
            (folder / "robot/meta" / name.replace("_", ".")).write_text(text)
        return folder / "robot"

    return make


def folders(**makers: Make) -> Make:
    """Returns a maker of a folder that has a folder of each name."""

    def make(folder: Path) -> Path:
        for name, each in makers.items():
            (folder / "all" / name).mkdir(parents=True)
            each(folder / "all" / name)
        return folder / "all"

    return make


def two_kinds(folder: Path) -> Path:
    rows = [{"episode": i // 6, "observations": i, "actions": 0.5} for i in range(12)]
    (folder / "a.csv").write_text("episode,observations,actions\n" + "".join(f"{i // 6},{i},0.5\n" for i in range(12)))
    (folder / "b.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def without_videos(folder: Path) -> Path:
    source = lerobot()(folder)
    info = json.loads((source / "meta/info.json").read_text())
    info["features"]["observation.images.cam"] = {"dtype": "video", "shape": [4, 4, 3]}
    (source / "meta/info.json").write_text(json.dumps(info))
    return source


def mixed(folder: Path) -> Path:
    npz(**steps(timeouts=END))(folder)
    parquet()(folder)
    return folder


def cut(make: Make, share: float = 0.5) -> Make:
    """Returns a maker of a file of which only the first part was downloaded."""

    def made(folder: Path) -> Path:
        path = make(folder)
        path.write_bytes(path.read_bytes()[: int(path.stat().st_size * share)])
        return path

    return made


def file_of(name: str, data: bytes) -> Make:
    def make(folder: Path) -> Path:
        (folder / name).write_bytes(data)
        return folder / name

    return make


def zipped(folder: Path) -> Path:
    path = npz(**steps(timeouts=END))(folder)
    with zipfile.ZipFile(folder / "data.zip", "w") as archive:
        archive.write(path, "data.npz")
    path.unlink()
    return folder / "data.zip"


def unpack(source: Path) -> Path:
    with zipfile.ZipFile(source) as archive:
        archive.extractall(source.parent / "unpacked")
    return source.parent / "unpacked"


def sort_rows(source: Path) -> Path:
    pq.write_table(pq.read_table(source).sort_by([("episode", "ascending"), ("frame_index", "ascending")]), source)
    return source


def again(make: Make) -> Callable[[Path], Path]:
    """Returns what a download would give: the whole file."""
    return lambda source: make(source.parent)


def d3rlpy(*rewards: Array) -> Make:
    """Returns a maker of d3rlpy's file of episodes of six steps with these rewards."""

    def make(folder: Path) -> Path:
        episodes = [{"observations": np.ones((6, 3)), "actions": np.ones((6, 2)), "rewards": each} for each in rewards]
        with h5py.File(folder / "data.h5", "w") as file:
            file["columns"], file["num_episodes"], file["version"] = [*episodes[0], "terminated"], len(episodes), "2.1"
            for i, episode in enumerate(episodes):
                for name, values in {**episode, "terminated": i == 0}.items():
                    file[f"{name}_{i}"] = values
        return folder / "data.h5"

    return make


def spread_rewards(source: Path) -> Path:
    """Gives the reward of each episode to its last step."""
    with h5py.File(source, "r+") as file:
        for i in range(2):
            reward = file.pop(f"rewards_{i}")[...]
            file[f"rewards_{i}"] = np.concatenate([np.zeros((5, 1)), reward])
    return source


def rows_of(source: Path) -> Path:
    return source / "data"


def pass_episodes(source: Path) -> Any:
    """Returns the episodes of a recording, as a user's own decoder gives them."""
    assert source.exists()
    return [{"observations": np.zeros((5, 2)), "actions": np.zeros(5)} for _ in range(2)]


@dataclass(frozen=True)
class Advice:
    """An error, and what its hint says.

    Attributes:
        make: writes the source into an empty folder.
        error: the type of the error.
        hint: text that the hint has.
        options: options of `gear-data convert`, which the hint names.
        refused: arguments of `convert` with which the error is raised.
        source: returns the source as the hint says to change it; None: as it is.
        steps: the steps of the dataset that the advice leads to.
    """

    make: Make
    error: type[GearError]
    hint: str
    options: str = ""
    refused: Mapping[str, Any] = field(default_factory=dict)
    source: Callable[[Path], Any] | None = None
    steps: int = 12


def parquet_files(**values: Any) -> Make:
    """Returns a maker of a folder with two Parquet files, an episode each. A list has the values of both files."""

    def make(folder: Path) -> Path:
        for i in range(2):
            table = {"episode": [i] * 6, "observations": np.arange(6.0), "actions": [0.5] * 6}
            table |= {name: pair[i] for name, pair in values.items()}
            pq.write_table(pa.table(table), folder / f"{i}.parquet")
        return folder

    return make


def jsonl(*rows: dict[str, Any]) -> Make:
    return file_of("data.jsonl", "".join(json.dumps(row) + "\n" for row in rows).encode())


ROW = {"observations": [[0.0, 1.0]] * 6, "actions": [[0.5]] * 6, "rewards": [1.0] * 6}
NONE = {name: [] for name in ROW}
DEMO = {"actions": np.zeros((6, 2)), "obs/x": np.zeros((6, 3)), "states": np.zeros((67, 4))}
TORN = [[1.0]] * 3 + [[1.0, 2.0]] + [[1.0]] * 8
NAMES = {"observations": np.ones((12, 2)), "actions": np.ones((12, 1)), "terminals": END}
FLAT = {"observations": np.ones((12, 2)), "actions": np.ones((12, 1)), "rewards": np.ones(12)}
WHOLE_NPZ, WHOLE_HDF5 = npz(**steps(timeouts=END)), hdf5("data/demo_{}/", *[{"actions": np.zeros((6, 2))}] * 2)
V1 = json.dumps({"codebase_version": "v1.6", "fps": 30})

ADVICE: dict[str, Advice] = {
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


@pytest.mark.parametrize("name", ADVICE)
def test_the_advice_works(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    advice = ADVICE[name]
    (tmp_path / "source").mkdir()
    source: Any = advice.make(tmp_path / "source")
    with pytest.raises(advice.error) as error:
        gear_data.convert(source, tmp_path / "refused", progress=False, **advice.refused)
    hint = str(error.value.hint)
    assert advice.hint in hint
    options = shlex.split(advice.options)
    assert all(option in hint for option in options if option.startswith("--"))
    if advice.source is not None:
        source = advice.source(source)
    shutil.rmtree(tmp_path / "refused", ignore_errors=True)
    if isinstance(source, Path):
        assert main(["convert", str(source), str(tmp_path / "followed"), *options]) == 0, capsys.readouterr().err
    else:
        gear_data.convert(source, tmp_path / "followed", progress=False)
    expected = advice.steps if advice.steps >= 0 else sum(len(each) for each in make_rollouts(3, seed=1))
    assert gear_data.open(tmp_path / "followed").num_steps == expected


PRETTY = (
    json.dumps({"task_index": 0, "task": "lift"}, indent=2)
    + "\n"
    + json.dumps({"task_index": 1, "task": "lay"}, indent=2)
)
ARRAY = json.dumps([{"task_index": 0, "task": "lift"}, {"task_index": 1, "task": "lay"}])


@pytest.mark.parametrize("text", [PRETTY, ARRAY, json.dumps(json.loads(ARRAY), indent=1), f"{ARRAY}\n\n"])
def test_hand_written_lists_of_lerobot_are_read(text: str, tmp_path: Path) -> None:
    source = lerobot(tasks_jsonl=text)(tmp_path)
    gear_data.convert(source, tmp_path / "d", progress=False)
    assert gear_data.open(tmp_path / "d").episodes["task"].to_list() == ["lift", "lay", "lift"]


@pytest.mark.parametrize(
    "starts",
    [np.array([0, 5, 9]), np.isin(np.arange(12), [0, 5, 9]), np.isin(np.arange(12), [0, 5, 9]).astype(np.uint8)],
)
def test_first_rows_of_episodes(starts: Array, tmp_path: Path) -> None:
    """Row numbers, or flags per row as in the expert files of Stable-Baselines2."""
    source = npz(obs=np.ones((12, 2)), actions=np.ones((12, 1)), episode_starts=starts, episode_returns=np.arange(3.0))
    gear_data.convert(source(tmp_path), tmp_path / "d", progress=False)
    ds = gear_data.open(tmp_path / "d")
    assert ds.episodes["length"].to_list() == [5, 4, 3]
    assert ds.episodes["episode_returns"].to_list() == [0, 1, 2]
    assert ds.schema.names[:2] == ("observations", "actions")
