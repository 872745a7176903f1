"""Errors of robots' files, trees and videos, with the advice that each gives."""

from __future__ import annotations

import json
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import gear_data
from gear_data import EpisodeBoundaries, VideoStorage
from gear_data.errors import (
    BadEpisodeError,
    CorruptSourceError,
    InvalidArgumentError,
    MappingError,
    UnknownFormatError,
    UnsupportedColumnError,
)
from gear_data.ingest.lint import suggest_mapping
from gear_data.ingest.sources.hdf5.chunk_checks import WRITE_AGAIN
from tests.support.advice.arrays import npz_files, part_of, without
from tests.support.advice.places import ARRAYS_OF_STEPS, convert, converted
from tests.support.advice.rows import (
    END,
    FLAT,
    Advice,
    Scene,
    again,
    d3rlpy,
    file_of,
    folders,
    hdf5,
    lerobot,
    npz,
    parquet,
    rows_of,
    steps,
)
from tests.support.rollouts import make_rollouts
from tests.support.source_makers import MAKERS

ACTIONS = {"actions": np.zeros((6, 2))}


def made(name: str) -> Callable[[Path], Path]:
    """Returns a maker of a source of a format, of three episodes."""

    def make(folder: Path) -> Path:
        shutil.rmtree(folder, ignore_errors=True)
        MAKERS[name](folder, make_rollouts(3, seed=1))
        return folder

    return make


def both(*makers: Callable[[Path], Any]) -> Callable[[Path], Path]:
    """Returns a maker of a folder with the files of several makers."""

    def make(folder: Path) -> Path:
        for each in makers:
            each(folder)
        return folder

    return make


def edited(make: Callable[[Path], Path], change: Callable[[h5py.File], Any]) -> Callable[[Path], Path]:
    """Returns a maker of an HDF5 file that is changed after it is written."""

    def made(folder: Path) -> Path:
        path = make(folder)
        with h5py.File(path, "r+") as file:
            change(file)
        return path

    return made


def edit(change: Callable[[h5py.File], Any]) -> Callable[[Path], Path]:
    """Returns a change of an HDF5 file."""
    return lambda source: edited(lambda _: source, change)(source)


def linked_actions(folder: Path) -> Path:
    path = hdf5("data/demo_{}/", *[{**ACTIONS, "obs/x": np.zeros((6, 3))}] * 2)(folder)
    with h5py.File(folder / "other.bin", "w") as file:
        file["x"] = np.zeros((6, 3))
    with h5py.File(path, "r+") as file:
        for i in range(2):
            del file[f"data/demo_{i}/obs/x"]
            file[f"data/demo_{i}/obs/x"] = h5py.ExternalLink("other.bin", "x")
    return path


def without_links(file: h5py.File) -> None:
    for i in range(2):
        data = file[f"data/demo_{i}/obs/x"][...]
        del file[f"data/demo_{i}/obs/x"]
        file[f"data/demo_{i}/obs/x"] = data


def lerobot_rows(**columns: Any) -> Callable[[Path], Path]:
    """Returns a maker of a LeRobot folder whose tables have these columns. A value of None leaves one out."""

    def make(folder: Path) -> Path:
        source = lerobot()(folder)
        for file in (source / "data").rglob("*.parquet"):
            table = pq.read_table(file)
            names = {name: table.column(name) for name in table.column_names} | {
                name: None if each is None else table.column(each) for name, each in columns.items()
            }
            pq.write_table(pa.table({name: each for name, each in names.items() if each is not None}), file)
        return source

    return make


def pack(file: h5py.File, **options: Any) -> None:
    """Adds a packed dataset to each episode."""
    for i in range(2):
        file.create_dataset(f"data/demo_{i}/level", data=np.arange(12).reshape(6, 2), chunks=(6, 2), **options)


def follow_statements(source: Path) -> Path:
    """Executes the statements of the advice for each dataset that is packed."""
    for i in range(2):
        statements = f"{WRITE_AGAIN}, compression='gzip')"
        exec(statements, {"h5py": h5py, "FILE": source, "COLUMN": f"data/demo_{i}/level"})
    with h5py.File(source) as file:
        assert file["data/demo_1/level"][...].tolist() == np.arange(12).reshape(6, 2).tolist()
    return source


def without_file(folder: Path) -> Path:
    """Writes a LeRobot dataset that lists its episodes, of which the file of one is missing."""
    listed = "".join(json.dumps({"episode_index": i}) + "\n" for i in range(3))
    source = lerobot(episodes_jsonl=listed)(folder)
    next(source.rglob("episode_000002.parquet")).unlink()
    return source


ROBOTS: dict[str, Advice | Scene] = {
    "LeRobot, an episode that is not listed: others": Advice(
        lerobot(),
        InvalidArgumentError,
        "give other numbers in only_episodes (--only-episodes)",
        "--only-episodes 0",
        {"episodes": EpisodeBoundaries(only_episodes=(0, 9))},
        steps=1,
    ),
    "LeRobot, an episode that is not listed: all": Advice(
        lerobot(),
        InvalidArgumentError,
        "or leave it out",
        refused={"episodes": EpisodeBoundaries(only_episodes=(0, 9))},
        steps=-1,
    ),
    "LeRobot, the file of a chosen episode": Advice(
        without_file,
        CorruptSourceError,
        "restore the folder data/",
        "",
        {"episodes": EpisodeBoundaries(only_episodes=(2,))},
        again(lerobot()),
        len(make_rollouts(3, seed=1)[2]),
        given="--only-episodes 2",
    ),
    "robomimic and another layout": Advice(
        lambda folder: (
            (hdf5("data/demo_{}/", ACTIONS)(folder).rename(folder / "a.hdf5"), hdf5("ep_{}/", ACTIONS)(folder))[
                1
            ].parent
        ),
        UnknownFormatError,
        "",
        source=part_of("a.hdf5"),
        steps=6,
    ),
    "robomimic, a link to another file: copied": Advice(
        linked_actions,
        UnsupportedColumnError,
        "copy the data behind the link into the file",
        source=edit(without_links),
    ),
    "robomimic, a link to another file: without": Advice(
        linked_actions, UnsupportedColumnError, "--columns", "--columns actions"
    ),
    "D4RL, a link to another file: copied": Advice(
        edited(
            hdf5("", {**FLAT, "terminals": END, "timeouts": END & False}),
            lambda file: file.__setitem__("infos/x", h5py.ExternalLink("other.bin", "x")),
        ),
        UnsupportedColumnError,
        "copy the data behind the link into the file",
        source=edit(lambda file: (file.__delitem__("infos/x"), file.__setitem__("infos/x", np.zeros(12)))),
    ),
    "HDF5, data in other files": Advice(
        edited(
            hdf5("data/demo_{}/", ACTIONS, ACTIONS),
            lambda file: [
                file.create_dataset(f"data/demo_{i}/obs/x", (6,), "u1", external=[("outside.bin", 0, 6)])
                for i in range(2)
            ],
        ),
        CorruptSourceError,
        "write it into one file",
        source=edit(
            lambda file: [
                (file.__delitem__(f"data/demo_{i}/obs/x"), file.__setitem__(f"data/demo_{i}/obs/x", np.zeros(6)))
                for i in range(2)
            ]
        ),
    ),
    **{
        f"HDF5, packed with {name}": Advice(
            edited(hdf5("data/demo_{}/", ACTIONS, ACTIONS), lambda file, options=options: pack(file, **options)),
            CorruptSourceError,
            "write it again with h5py",
            source=follow_statements,
        )
        for name, options in {"scale-offset": {"scaleoffset": 0}, "SZIP": {"compression": "szip"}}.items()
        if name != "SZIP" or h5py.h5z.filter_avail(h5py.h5z.FILTER_SZIP)
    },
    "D4RL, without rewards: renamed": Advice(
        edited(hdf5("", {**FLAT, "terminals": END, "timeouts": END}), lambda file: file.move("rewards", "payoff")),
        UnknownFormatError,
        "--rename NAME=rewards",
        "--rename payoff=rewards",
        {"format": "d4rl"},
        given="--format d4rl",
    ),
    "D4RL, a limit that is no number": Advice(
        edited(
            hdf5("", {**FLAT, "terminals": END & False}),
            lambda file: file.__setitem__("metadata/max_episode_steps", "many"),
        ),
        CorruptSourceError,
        "--max-episode-steps",
        "--max-episode-steps 6",
    ),
    "d3rlpy, a count that is too large": Advice(
        edited(
            d3rlpy(np.ones((6, 1)), np.ones((6, 1))),
            lambda file: (file.__delitem__("num_episodes"), file.__setitem__("num_episodes", 10**6)),
        ),
        CorruptSourceError,
        "download it again",
        source=again(d3rlpy(np.ones((6, 1)), np.ones((6, 1)))),
    ),
    "d3rlpy, complex numbers": Advice(
        edited(
            d3rlpy(np.ones((6, 1)), np.ones((6, 1))),
            lambda file: [
                (file.__delitem__(f"actions_{i}"), file.__setitem__(f"actions_{i}", np.zeros((6, 2), complex)))
                for i in range(2)
            ],
        ),
        UnsupportedColumnError,
        "and without its name in 'columns'",
        source=edit(
            lambda file: (
                file.__delitem__("columns"),
                file.__setitem__("columns", ["observations", "rewards", "terminated"]),
                [file.__delitem__(f"actions_{i}") for i in range(2)],
            )
        ),
    ),
    "files that are not recognised": Advice(
        lambda folder: hdf5("", {"notes": np.zeros(3)})(made("act")(folder / "act")).parent,
        UnknownFormatError,
        "move the other files out of the folder",
        source=without("data.hdf5"),
        steps=-1,
    ),
    "LeRobot, no episode index": Advice(
        lerobot_rows(episode_index=None, run="episode_index"),
        CorruptSourceError,
        "--episode-column NAME",
        "--format step-rows --episode-column run",
        source=rows_of,
        steps=-1,
    ),
    "LeRobot, another episode column": Advice(
        lerobot(),
        InvalidArgumentError,
        "leave --episode-column out",
        refused={"episodes": EpisodeBoundaries(episode_column="task_index")},
        steps=-1,
    ),
    "LeRobot, a camera without a canonical name": Advice(
        lerobot_rows(**{"observations//x": "task_index"}),
        UnsupportedColumnError,
        "--rename",
        "--rename observations//x=infos.x",
        steps=-1,
    ),
    "reset steps of arrays without next observations": Advice(
        npz(**ARRAYS_OF_STEPS),
        InvalidArgumentError,
        "leave --reset-steps out",
        refused={"episodes": EpisodeBoundaries(reset_steps="drop")},
    ),
    "TorchRL, another folder": Advice(
        npz(**ARRAYS_OF_STEPS),
        UnknownFormatError,
        "save it with TensorDict.memmap(folder)",
        refused={"format": "torchrl"},
        source=lambda source: made("torchrl")(source.parent / "saved"),
        steps=-1,
    ),
    "Minari, two datasets": Advice(
        folders(a=lambda folder: made("minari")(folder / "x"), b=lambda folder: made("minari")(folder / "x")),
        UnknownFormatError,
        "convert one of: ",
        source=part_of("b"),
        steps=-1,
    ),
    "HDF5 and npz": Advice(
        both(hdf5("ep_{}/", ACTIONS, ACTIONS), npz(**steps())),
        UnknownFormatError,
        "convert the files of one kind at a time",
        "",
        {"format": "tree"},
        part_of("data.hdf5"),
    ),
    "HDF5, no format: a mapping": Scene(
        lambda folder: convert(
            folder, source=hdf5("runs/{}/x/", {"a": np.zeros((6, 2)), "b": np.zeros((5, 2))})(folder)
        ),
        UnknownFormatError,
        "write a mapping with 'gear-data lint SRC --suggest-map > map.yaml'",
        lambda folder: (
            (folder / "map.yaml").write_text(suggest_mapping(folder / "data.hdf5")),
            convert(
                folder,
                source=folder / "data.hdf5",
                mapping={"episodes": {"groups": "runs/*/x"}, "columns": {"actions": "a"}},
            ),
        )[1],
        6,
    ),
    "HDF5, no array": Scene(
        lambda folder: suggest_mapping(edited(hdf5("", {}), lambda file: file.create_group("a"))(folder)),
        UnknownFormatError,
        "docs/reference/mapping.md lists the keys",
        lambda folder: convert(folder),
    ),
    "mapping, files that are not in it": Advice(
        npz_files(ARRAYS_OF_STEPS, ARRAYS_OF_STEPS),
        UnknownFormatError,
        "change it, or move the other files away",
        refused={"mapping": {"episodes": {"files": "0*"}, "columns": {"actions": "actions"}}},
        arguments={"mapping": {"episodes": {"files": "*"}, "columns": {"actions": "actions"}}},
        steps=24,
    ),
    "mapping, a split without files": Advice(
        npz_files(ARRAYS_OF_STEPS, ARRAYS_OF_STEPS),
        UnknownFormatError,
        "the files are: 0.npz, 1.npz",
        refused={
            "split": "train",
            "mapping": {
                "episodes": {"files": "*"},
                "columns": {"actions": "actions"},
                "splits": {"train": {"files": "train*"}},
            },
        },
        arguments={
            "split": "train",
            "mapping": {
                "episodes": {"files": "*"},
                "columns": {"actions": "actions"},
                "splits": {"train": {"files": "0*"}},
            },
        },
    ),
    "a mapping that is the source": Scene(
        lambda folder: convert(folder, source=large(folder), mapping=folder / "large.npz"),
        MappingError,
        "give a mapping, not the source",
        lambda folder: convert(folder, source=folder / "large.npz"),
    ),
    "npz, two members of one name": Advice(
        lambda folder: doubled(npz(**ARRAYS_OF_STEPS)(folder)),
        CorruptSourceError,
        "write the archive again with np.savez",
        source=again(npz(**ARRAYS_OF_STEPS)),
    ),
    "npz, another compression": Advice(
        lambda folder: compressed(npz(**ARRAYS_OF_STEPS)(folder)),
        CorruptSourceError,
        "np.savez_compressed",
        source=lambda source: (np.savez_compressed(source, **ARRAYS_OF_STEPS), source)[1],
    ),
    "npz, steps that may be padded: a mapping": Advice(
        npz(observations=np.ones((4, 4, 3)), rewards=np.ones((4, 4)), episode_lengths=[3] * 4),
        UnknownFormatError,
        "episodes: {padded: [E, T, ...], lengths: episode_lengths}",
        arguments={
            "mapping": {
                "episodes": {"padded": ["E", "T", "..."], "lengths": "episode_lengths"},
                "columns": {"observations": "observations", "rewards": "rewards"},
            }
        },
    ),
    "D4RL, axes that mean several things": Advice(
        hdf5(
            "",
            {
                "observations": np.ones((6, 2, 3)),
                "actions": np.ones((6, 2, 1)),
                "rewards": np.ones((6, 2)),
                "terminals": np.ones((6, 2)),
            },
        ),
        UnknownFormatError,
        "write other arrays again as [steps, ...]",
        source=lambda source: hdf5("", {**FLAT, "terminals": END, "timeouts": END})(source.parent),
    ),
    "npz, ids that come back: a mapping": Advice(
        npz(**steps(part=[0, 0, 0, 1, 1, 1] * 2, run=np.arange(12) // 6)),
        BadEpisodeError,
        "list them as ids in the mapping",
        refused={"mapping": {"episodes": {"ids": "part"}, "columns": {"actions": "actions"}}},
        arguments={"mapping": {"episodes": {"ids": ["run", "part"]}, "columns": {"actions": "actions"}}},
    ),
    "a dataset of gear as a source": Scene(
        lambda folder: convert(folder, "again", converted(folder)),
        UnknownFormatError,
        "write it in another format with 'gear-data export'",
        lambda folder: (
            gear_data.export(gear_data.open(folder / "dataset"), folder / "exported", format="d4rl"),
            convert(folder, "again", folder / "exported"),
        )[1],
    ),
    "hidden files": Scene(
        lambda folder: convert(folder, source=hidden(folder)),
        UnknownFormatError,
        "rename files whose names begin with '.'",
        lambda folder: ((folder / "s/.a.parquet").rename(folder / "s/a.parquet"), convert(folder, source=folder / "s"))[
            1
        ],
    ),
    "text beside another file": Advice(
        lambda folder: both(
            file_of("notes.bin", b"1"),
            file_of("a.csv", b"episode,x\n" + b"".join(b"%d,0\n" % (i // 6) for i in range(12))),
        )(folder),
        UnknownFormatError,
        "give that file",
        source=part_of("a.csv"),
    ),
    "videos, a size that is no size": Scene(
        lambda _: VideoStorage(mode="frames", size=(0, 4)),
        InvalidArgumentError,
        "VideoStorage(mode='frames', size=(224, 224))",
        lambda folder: convert(folder, videos=VideoStorage(mode="frames", size=(224, 224))),
    ),
    "videos, a size of kept videos": Scene(
        lambda _: VideoStorage(mode="keep", size=(4, 4)),
        InvalidArgumentError,
        "leave size (--video-size) out",
        lambda folder: convert(folder, videos=VideoStorage(mode="keep")),
    ),
    "videos, cameras that are no mapping": Scene(
        lambda _: VideoStorage(cameras=["top"]),
        InvalidArgumentError,
        "VideoStorage(cameras={",
        lambda folder: convert(folder),
    ),
    "videos, an empty pattern": Scene(
        lambda _: VideoStorage(cameras={"observations.top": ""}),
        InvalidArgumentError,
        "such as 'videos/observations.top/*.mp4'",
        lambda folder: convert(folder),
    ),
    "videos, a column of this name": Scene(
        lambda folder: convert(
            folder, source=parquet()(folder), videos=VideoStorage(cameras={"observations": "*.mp4"})
        ),
        InvalidArgumentError,
        "give another name",
        lambda folder: convert(folder, source=folder / "a.parquet"),
    ),
    "videos, a pattern without files": Scene(
        lambda folder: convert(
            folder, source=parquet()(folder), videos=VideoStorage(cameras={"observations.top": "*.MP4"})
        ),
        InvalidArgumentError,
        "patterns are case-sensitive",
        lambda folder: convert(folder, source=folder / "a.parquet"),
    ),
    "videos, data in memory": Scene(
        lambda folder: convert(folder, videos=VideoStorage(cameras={"observations.top": "*.mp4"})),
        InvalidArgumentError,
        "give a whole path",
        lambda folder: convert(folder),
    ),
}


def large(folder: Path) -> Path:
    np.savez(folder / "large.npz", **steps(timeouts=END, pixels=np.zeros((12, 20_000))))
    return folder / "large.npz"


def doubled(path: Path) -> Path:
    with zipfile.ZipFile(path) as archive:
        data = archive.read("rewards.npy")
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("rewards.npy", data)
    return path


def compressed(path: Path) -> Path:
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_LZMA) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return path


def hidden(folder: Path) -> Path:
    (folder / "s").mkdir()
    parquet()(folder / "s").rename(folder / "s/.a.parquet")
    return folder / "s"
