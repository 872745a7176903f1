"""Errors of limits, which are lowered here, of damaged files, and of names, with the advice that each gives."""

from __future__ import annotations

import gzip
import os
import tarfile
import zlib
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import fsspec
import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fsspec.implementations.memory import MemoryFileSystem

import gear_data
from gear_data.errors import (
    BadEpisodeError,
    CorruptSourceError,
    EmptySourceError,
    HostMemoryError,
    InvalidArgumentError,
    MissingExtraError,
    RemoteError,
    SourceNotFoundError,
    UnknownFormatError,
    UnsupportedColumnError,
)
from gear_data.ingest import location
from gear_data.ingest.lint import suggest_mapping
from gear_data.ingest.sources.hdf5.chunk_checks import WRITE_AGAIN
from tests.support.advice.arrays import BUFFER, calvin, changed, dqn, given, npz_files, value, without
from tests.support.advice.libraries import STEPS
from tests.support.advice.places import EPISODE, convert
from tests.support.advice.robots import edit, edited, made
from tests.support.advice.rows import END, WHOLE_HDF5, Advice, Make, Scene, again, hdf5, npz, parquet, steps
from tests.support.advice.runs import at_a_url, convert_to_url, patched
from tests.support.advice.stores import data, mapped, store
from tests.support.advice.tables import IDS, VALUES, again_with, rows_of_episodes

WHOLE = npz(**steps(timeouts=END))
ACTIONS = {"actions": np.zeros((6, 2))}
RESETS = {
    "observation": np.ones((12, 3)),
    "action": np.where(END[::-1], 0.0, 1.0)[:, None],
    "reward": np.where(END[::-1], 0.0, 1.0),
    "discount": np.ones(12),
    "timeouts": END,
}


def with_level(folder: Path, **options: Any) -> Path:
    """Writes demonstrations with a dataset that HDF5 stores in chunks."""
    return edited(
        WHOLE_HDF5,
        lambda file: [
            file.create_dataset(f"data/demo_{i}/level", (6, 2), "f8", chunks=(6, 2), **options) for i in range(2)
        ],
    )(folder)


def write_again(source: Path) -> Path:
    """Executes the statements of the advice for each dataset in chunks."""
    for i in range(2):
        exec(f"{WRITE_AGAIN})", {"h5py": h5py, "FILE": source, "COLUMN": f"data/demo_{i}/level"})
    return source


def damaged_chunk(folder: Path) -> Path:
    def damage(file: h5py.File) -> None:
        data = np.ones((6, 2))
        level = file.create_dataset("data/demo_0/level", data=data, chunks=data.shape, compression="gzip")
        level.id.write_direct_chunk((0, 0), zlib.compress(b"no chunk"))

    return edited(WHOLE_HDF5, damage)(folder)


def damaged_text(folder: Path) -> Path:
    source = made("minari")(folder)
    path = source / "data/main_data.hdf5"
    content = bytearray(path.read_bytes())
    at = content.index(b"GCOL") + 16  # the index, the reference count and the size of the first object
    content[at : at + 16] = bytes(16)
    path.write_bytes(content)
    return source


def an_episode_number_twice(folder: Path) -> Path:
    source = made("minari")(folder)
    edit(lambda file: file.move("episode_2", "episode_01"))(source / "data/main_data.hdf5")
    return source


def renamed_episode(source: Path) -> Path:
    edit(lambda file: file.move("episode_01", "episode_2"))(source / "data/main_data.hdf5")
    return source


def an_episode_folder_twice(folder: Path) -> Path:
    source = made("minari-arrow")(folder)
    (source / "data/2").rename(source / "data/01")
    return source


def renamed_folder(source: Path) -> Path:
    (source / "data/01").rename(source / "data/2")
    return source


def larger_than_memory(folder: Path) -> Path:
    source = made("minari-arrow")(folder)
    os.truncate(source / "data/0/part-0.arrow", os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") + 1)
    return source


def with_notes(folder: Path) -> Path:
    """Writes ACT's files, of which one is no episode."""
    for i in range(3):
        with h5py.File(folder / f"episode_{i}.hdf5", "w") as file:
            file["action"] = np.zeros((6, 2))
            file["observations/qpos" if i < 2 else "notes"] = np.full((6, 2), i)
    return folder


def without_count(folder: Path) -> Path:
    """Writes a checkpoint of DQN Replay whose oldest row is not the last, without the file that says which it is."""
    source = dqn()(folder)
    write_gzipped(source / "invalid_range_ckpt.0.gz", np.array([3, 4, 5, 6]))
    return source


def write_gzipped(path: Path, values: Any) -> None:
    with gzip.open(path, "wb") as stream:
        np.save(stream, values)


def with_count(source: Path) -> Path:
    write_gzipped(source / "add_count_ckpt.0.gz", np.array(17))
    return source


def with_vector() -> Any:
    steps = data()
    return steps.set(("next", "done"), np.repeat(steps["next", "done"].numpy(), 2, 1))


def two_names(folder: Path) -> Path:
    values = pa.array(VALUES)
    pq.write_table(pa.Table.from_arrays([pa.array(IDS), values, values], ["episode", "x", "x"]), folder / "a.parquet")
    return folder / "a.parquet"


def other_names(source: Path) -> Path:
    pq.write_table(pq.ParquetFile(source).read().rename_columns(["episode", "x", "y"]), source)
    return source


def with_one_type(source: Path) -> Path:
    table = pq.read_table(source)
    cast = {"final_observations": table["final_observations"].cast(pa.list_(pa.float64()))}
    return again_with(**cast)(source)


def in_tar(folder: Path) -> Path:
    path = WHOLE_HDF5(folder)
    with tarfile.open(folder / "data.tar", "w") as archive:
        archive.add(path, path.name)
    path.unlink()
    return folder / "data.tar"


def unpacked(source: Path) -> Path:
    with tarfile.open(source) as archive:
        archive.extractall(source.parent / "unpacked", filter="data")
    return source.parent / "unpacked"


def splits(folder: Path) -> Any:
    import datasets

    rows = datasets.Dataset.from_dict({"episode": IDS, "observations": VALUES})
    return datasets.DatasetDict({"train": rows, "test": rows})


def compressed(folder: Path) -> Path:
    with gzip.open(folder / "a.csv.gz", "wt") as stream:
        stream.write("episode,observations\n" + "".join(f"{i // 6},{i}.5\n" for i in range(12)))
    return folder / "a.csv.gz"


def uploaded(folder: Path, make: Make) -> str:
    """Returns the URL of a folder that has the source."""
    (folder / "local").mkdir()
    make(folder / "local")
    fsspec.filesystem("memory").put(f"{folder}/local/", f"{at_a_url(folder)}/", recursive=True)
    return at_a_url(folder)


def downloaded(folder: Path) -> Path:
    fsspec.filesystem("memory").get(f"{at_a_url(folder)}/", f"{folder}/copy/", recursive=True)
    return convert(folder, source=folder / "copy")


def without_sizes(folder: Path) -> Any:
    """Converts a file of a server that does not say how long it is."""
    url, find, info = uploaded(folder, WHOLE), MemoryFileSystem.find, MemoryFileSystem.info

    def listed(*arguments: Any, **options: Any) -> Any:
        return {path: {**each, "size": None} for path, each in find(*arguments, **options).items()}

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(MemoryFileSystem, "find", listed)
        patch.setattr(MemoryFileSystem, "info", lambda *each, **options: {**info(*each, **options), "size": None})
        return convert(folder, source=url)


def no_such_dataset(*_: Any) -> Any:
    raise FileNotFoundError("the hub has no dataset someone/steps")


def pushed_dataset(*_: Any) -> Any:
    files = ("manifest.json", "episodes.arrow", "shards/000000.arrow")
    return SimpleNamespace(sha="f" * 40, siblings=[SimpleNamespace(rfilename=name) for name in files])


def parts_of_actions(folder: Path) -> Path:
    parts = {"actions/arm": np.zeros((6, 2)), "actions/gripper": np.zeros((6, 1)), "b": np.zeros((7, 2))}
    return hdf5("ep_{}/", parts, parts)(folder)


def lowered(name: str, limit: Any) -> dict[str, Any]:
    return {f"gear_data.ingest.{name}": limit}


LIMITS: dict[str, Advice | Scene] = {
    "npz, a step that is too large": Advice(
        npz(**steps(timeouts=END, pixels=np.zeros((12, 100)).T.reshape(12, 100))), UnsupportedColumnError,
        "the first axis must be the steps", source=changed(pixels=np.zeros((12, 2))),
        limits=lowered("sources.arrays.step_arrays._MAX_ROW_BYTES", 100),
    ),
    "JSON that is too large": Advice(
        made("minari-arrow"), CorruptSourceError, "metadata is smaller: check that this is the right file",
        source=made("minari-arrow"), steps=-1, limits=lowered("sources.json_files._MAX_BYTES", 10),
        refused={"format": "minari-arrow"},
    ),
    "HDF5, chunks that are too large": Advice(
        partial(with_level, compression="gzip"), CorruptSourceError, "write the dataset again with smaller chunks",
        source=edit(
            lambda file: [
                (file.__delitem__(f"data/demo_{i}/level"), file.__setitem__(f"data/demo_{i}/level", np.zeros((6, 2))))
                for i in range(2)
            ]
        ),
        limits=lowered("sources.hdf5.datasets._MAX_PIECE_BYTES", 64),
    ),
    "HDF5, more values than the file has": Advice(
        partial(with_level, compression="gzip"), CorruptSourceError,
        "if the file is correct, write it again without compression", source=write_again,
        limits=lowered("sources.hdf5.datasets._UNCHECKED_BYTES", 64),
    ),
    "HDF5, too many arrays": Advice(
        hdf5("ep_{}/", *[{**ACTIONS, **{str(i): np.zeros(6) for i in range(4)}}] * 2), CorruptSourceError,
        "say where the episodes are with --map", refused={"format": "tree"},
        arguments={"mapping": {"episodes": {"groups": "ep_*"}, "columns": {"actions": "actions"}}},
        limits=lowered("sources.tree.view._MAX_ARRAYS", 3),
    ),
    "HDF5, too many names": Advice(
        hdf5("data/demo_{}/", {**ACTIONS, **{f"obs/{i}": np.zeros(6) for i in range(4)}}), CorruptSourceError,
        "copy the arrays of steps to a new file", source=again(WHOLE_HDF5),
        limits=lowered("sources.tree.view.MAX_NAMES", 4),
    ),
    "CALVIN, a recording that is too long: cut": Advice(
        calvin(training=[[0, 5]]), HostMemoryError, "cut recordings with --max-episode-steps", "--max-episode-steps 3",
        limits=lowered("sources.arrays.calvin._MEMORY_PART", 1 << 60), steps=6,
    ),
    "Minari, a table that is larger than the memory": Advice(
        larger_than_memory, CorruptSourceError, "check that this is the right file", source=made("minari-arrow"),
        steps=-1, refused={"jobs": 1},
    ),
    "a package that is missing": Advice(
        compressed, MissingExtraError, "install it: pip install gzip",
        limits={
            **lowered("sources.tables.files.text._PACKAGES", {".gz": ("gzip", "gzip")}),
            **lowered("sources.tables.files.text.compr", {}),
        },
        source=lambda source: source,
    ),
    "HDF5, a damaged chunk": Advice(
        damaged_chunk, CorruptSourceError, "the file is damaged: download it again", source=again(WHOLE_HDF5)
    ),
    "HDF5, damaged text": Advice(
        damaged_text, CorruptSourceError, "the file may have been truncated or changed", source=made("minari"), steps=-1
    ),
    "npz, booleans of 2": Advice(
        npz(**steps(timeouts=END, flag=np.full(12, 2, np.uint8).view(np.bool_))), CorruptSourceError,
        "the file may be damaged: download it again", source=again(WHOLE),
    ),
    "Minari, an episode number twice": Advice(
        an_episode_number_twice, CorruptSourceError, "rename one of the two groups", "", {"format": "minari"},
        renamed_episode, -1,
    ),
    "Minari Arrow, an episode number twice": Advice(
        an_episode_folder_twice, CorruptSourceError, "rename one of the two folders", "", {"format": "minari-arrow"},
        renamed_folder, -1,
    ),
    "ACT, a file that is no episode: moved": Advice(
        with_notes, UnknownFormatError, "move these files to another folder", source=without("episode_2.hdf5"),
    ),
    "ACT, a file that is no episode: left out": Advice(
        with_notes, UnknownFormatError, "--on-bad-episode skip", "--on-bad-episode skip"
    ),
    "DQN Replay, no count": Advice(
        without_count, CorruptSourceError, "copy that file from the folder of the other files", source=with_count,
    ),
    "Stable-Baselines3, ends of 2": Advice(
        npz(**BUFFER | {"dones": np.full((6, 2), 2)}), BadEpisodeError, "such as dones > 0",
        source=changed(dones=np.full((6, 2), 2) > 0),
    ),
    "Stable-Baselines3, byte strings": Advice(
        npz(**BUFFER | {"note": np.full((6, 2), b"text")}), UnsupportedColumnError, "--columns",
        "--columns observations,actions,rewards",
    ),
    "TorchRL, an end flag that is a vector": Advice(
        mapped(with_vector), UnsupportedColumnError, "if it is not an end flag, rename it with --rename",
        "--rename next.done=infos.done",
    ),
    "npz, ids that are vectors": Advice(
        npz(**steps(run=np.ones((12, 2)), ride=np.arange(12) // 6)), UnsupportedColumnError,
        "name another column", "--episode-column ride", {"episodes": gear_data.EpisodeBoundaries(episode_column="run")},
    ),
    "episodes, rewards that are text": Advice(
        value([{**EPISODE, "rewards": ["good"] * 6}] * 2), UnsupportedColumnError, "another name with --rename",
        arguments={"rename": {"rewards": "infos.grade"}},
    ),
    "episodes, a fact of a name that cannot be stored": Advice(
        value([{**EPISODE, "a\0b": 1}] * 2), UnsupportedColumnError, "rename it in the source",
        source=given([{**EPISODE, "b": 1}] * 2),
    ),
    "Zarr, no array of steps": Advice(
        store(data__action=np.array(1), data__state=np.array(2)), EmptySourceError,
        "check that this is the right source", source=again(store()),
    ),
    "npz, no reset in a later file": Advice(
        npz_files(RESETS, {**RESETS, "action": np.ones((12, 1))}), BadEpisodeError, "--reset-steps keep",
        "--reset-steps keep", steps=24, limits=lowered("sources.arrays.source._BLOCK_BYTES", 1),
    ),
    "HDF5, an option of tables: without": Advice(
        hdf5("ep_{}/", ACTIONS, ACTIONS), InvalidArgumentError, "leave it out",
        refused={"episodes": gear_data.EpisodeBoundaries(max_episode_steps=3)},
    ),
    "HDF5, an option of tables: arrays in memory": Advice(
        hdf5("ep_{}/", ACTIONS, ACTIONS), InvalidArgumentError, "gear_data.convert reads a mapping of arrays",
        refused={"episodes": gear_data.EpisodeBoundaries(max_episode_steps=3)},
        source=lambda _: {"actions": np.zeros((12, 2))},
        arguments={"episodes": gear_data.EpisodeBoundaries(max_episode_steps=3)},
    ),
    "HDF5, parts of the actions": Scene(
        lambda folder: convert(folder, source=parts_of_actions(folder)), UnknownFormatError,
        "; --stack actions=actions.arm,actions.gripper makes one column of the 2 actions",
        lambda folder: (
            suggest_mapping(folder / "data.hdf5"),
            convert(
                folder, source=folder / "data.hdf5", stack={"actions": ["actions.arm", "actions.gripper"]},
                mapping={
                    "episodes": {"groups": "ep_*"},
                    "columns": {"actions.arm": "actions/arm", "actions.gripper": "actions/gripper"},
                },
            ),
        )[1],
    ),
    "table, two columns of one name": Advice(
        two_names, UnsupportedColumnError, "rename one of them in the source", source=other_names
    ),
    "table, a field and a column of one name": Advice(
        parquet(infos=pa.array([{"x": 1.0}] * 12), **{"infos.x": VALUES}), UnsupportedColumnError,
        "rename one of them in the source", source=again_with(**{"infos.x": None, "infos.y": pa.array(VALUES)}),
    ),
    "table, no ends: rows": Advice(
        parquet(episode=None, run=IDS), UnknownFormatError, "name it with --episode-column",
        "--episode-column run", {"format": "step-rows"}, given="--format step-rows",
    ),
    "a row an episode, final observations of another dtype: cast": Advice(
        rows_of_episodes(final_observations=pa.array([[1]] * 2)), UnsupportedColumnError,
        "cast one of the two to the dtype of the other", source=with_one_type,
    ),
    "a row an episode, final observations of another dtype: without": Advice(
        rows_of_episodes(final_observations=pa.array([[1]] * 2)), UnsupportedColumnError,
        "leave this one out with --columns", "--columns observations,actions,rewards",
    ),
    "a tar of another file": Advice(
        in_tar, UnknownFormatError, "if it is not a WebDataset, unpack it", source=unpacked
    ),
    "datasets, another split": Advice(
        splits, InvalidArgumentError, "choose one with split= (--split)", refused={"split": "val"},
        arguments={"split": "train"},
    ),
    "RLDS at a URL": Scene(
        lambda folder: convert(folder, source=uploaded(folder, lambda at: made("rlds")(at / "x"))), UnknownFormatError,
        "copy the folder to a local disk", downloaded, STEPS,
    ),
    "a server that reports no sizes": Scene(without_sizes, RemoteError, "download it first", downloaded),
    "a dataset of the hub that is not there": Scene(
        lambda folder: patched(
            location, "_dataset_info", no_such_dataset, lambda: convert(folder, source="someone/steps")
        ),
        SourceNotFoundError, "check the path", lambda folder: convert(folder, source=WHOLE(folder)),
    ),
    # tests/hub opens the URL of the hub, and pulls.
    "a dataset of gear-data on the hub": Scene(
        lambda folder: patched(
            location, "_dataset_info", pushed_dataset, lambda: convert(folder, source="someone/steps")
        ),
        UnknownFormatError, "open it by its URL, hf://datasets/someone/steps; or copy it: gear-data pull someone/steps",
        convert_to_url,
    ),
}  # fmt: skip
