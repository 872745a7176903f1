"""Small sources, and the row of the list of errors: what makes each row's source fail."""

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
from gear_data.cli import main
from gear_data.errors import GearError
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


def several_sources(folder: Path) -> Path:
    (folder / "all/arrays").mkdir(parents=True, exist_ok=True)
    npz(**steps(timeouts=END))(folder / "all/arrays")
    return parquet()(folder / "all").parent


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
    """An error of a conversion, and what its hint says.

    Attributes:
        make: writes the source into an empty folder.
        error: the type of the error.
        hint: text that the hint has.
        options: options of `gear-data convert`, which the hint names.
        refused: arguments of `convert` with which the error is raised.
        source: returns the source as the hint says to change it; None: as it is.
        steps: the steps of the dataset that the advice leads to.
        arguments: arguments of `convert` as the hint names them, instead of `options`.
        given: options that the user gives from the beginning, as `refused` has them.
        limits: constants by module and name, and the values that they have while the error is raised.
    """

    make: Callable[[Path], Any]
    error: type[GearError]
    hint: str
    options: str = ""
    refused: Mapping[str, Any] = field(default_factory=dict)
    source: Callable[[Any], Any] | None = None
    steps: int = 12
    arguments: Mapping[str, Any] = field(default_factory=dict)
    given: str = ""
    limits: Mapping[str, Any] = field(default_factory=dict)

    def raised(self, folder: Path) -> tuple[Any, str]:
        """Raises the error in an empty folder, and returns the source and the hint."""
        (folder / "source").mkdir()
        source = self.make(folder / "source")
        with pytest.MonkeyPatch.context() as patch, pytest.raises(self.error) as error:
            for name, limit in self.limits.items():
                patch.setattr(name, limit)
            gear_data.convert(source, folder / "refused", progress=False, **self.refused)
        hint = str(error.value.hint)
        assert self.hint in hint
        return source, hint

    def follow(self, folder: Path) -> str:
        """Raises the error in an empty folder, follows its advice, and returns the hint."""
        source, hint = self.raised(folder)
        options = shlex.split(self.options)
        assert all(option in hint for option in options if option.startswith("--"))
        if self.source is not None:
            source = self.source(source)
        shutil.rmtree(folder / "refused", ignore_errors=True)
        if isinstance(source, Path) and not self.arguments:
            assert main(["convert", str(source), str(folder / "followed"), *options, *shlex.split(self.given)]) == 0
        else:
            gear_data.convert(source, folder / "followed", progress=False, **self.arguments)
        expected = self.steps if self.steps >= 0 else sum(len(each) for each in make_rollouts(3, seed=1))
        assert gear_data.open(folder / "followed").num_steps == expected
        return hint


@dataclass(frozen=True)
class Scene:
    """An error of another call than `convert`, or of one that needs other things than a source.

    Attributes:
        refused: raises the error, in an empty folder.
        error: the type of the error.
        hint: text that the hint has.
        followed: does what the hint says, and returns a dataset, or its folder.
        steps: the steps of this dataset.
    """

    refused: Callable[[Path], Any]
    error: type[GearError]
    hint: str
    followed: Callable[[Path], Any]
    steps: int = 12

    def raised(self, folder: Path) -> tuple[None, str]:
        with pytest.raises(self.error) as error:
            self.refused(folder)
        hint = str(error.value.hint)
        assert self.hint in hint
        return None, hint

    def follow(self, folder: Path) -> str:
        _, hint = self.raised(folder)
        followed = self.followed(folder)
        dataset = gear_data.open(followed) if isinstance(followed, Path) else followed
        assert dataset.num_steps == self.steps
        return hint


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
