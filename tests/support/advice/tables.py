"""Errors of tables, with the advice that each gives."""

from __future__ import annotations

import io
import json
import pickle
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

import gear_data
from gear_data import EpisodeBoundaries, TableOptions
from gear_data.errors import (
    BadEpisodeError,
    CorruptSourceError,
    InvalidArgumentError,
    UnknownFormatError,
    UnknownNameError,
    UnsupportedColumnError,
)
from tests.support.advice.arrays import without
from tests.support.advice.places import convert
from tests.support.advice.rows import END, ROW, Advice, Scene, file_of, hdf5, jsonl, npz, parquet, parquet_files, steps

IDS = [0] * 6 + [1] * 6
VALUES = [float(i) for i in range(12)]
NESTED = [[[0.0, 1.0]] * 2] * 12


def png(side: int = 4) -> bytes:
    stream = io.BytesIO()
    Image.fromarray(np.zeros((side, side, 3), np.uint8)).save(stream, "PNG")
    return stream.getvalue()


def again_with(**columns: Any) -> Callable[[Path], Path]:
    """Returns a change of columns of a Parquet file. A value of None leaves one out."""

    def change(source: Path) -> Path:
        table = pq.read_table(source)
        values = {name: table.column(name) for name in table.column_names} | columns
        pq.write_table(pa.table({name: each for name, each in values.items() if each is not None}), source)
        return source

    return change


def csv(text: str, name: str = "data.csv") -> Callable[[Path], Path]:
    return file_of(name, text.encode())


LINES = [f"{i // 6},{i}.5,0.5" for i in range(12)]
HEADLESS = "\n".join(LINES) + "\n"
SPACES = "\n".join(line.replace(",", " ") for line in LINES) + "\n"
NUMBERS = "0,1,2\n" + HEADLESS


def separated(source: Path) -> Path:
    source.write_text("episode,observations,actions\n" + source.read_text().replace(" ", ","))
    return source


def rows_of_episodes(**more: Any) -> Callable[[Path], Path]:
    """Returns a maker of a table of two rows, an episode each."""

    def make(folder: Path) -> Path:
        columns = {"observations": [[0.0] * 6] * 2, "actions": [[0.5] * 6] * 2, "rewards": [[1.0] * 6] * 2, **more}
        pq.write_table(pa.table(columns), folder / "a.parquet")
        return folder / "a.parquet"

    return make


def tar(*samples: dict[str, bytes]) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        with tarfile.open(folder / "data.tar", "w") as archive:
            for i, members in enumerate(samples):
                for suffix, data in members.items():
                    info = tarfile.TarInfo(f"{i:04d}.{suffix}")
                    info.size = len(data)
                    archive.addfile(info, io.BytesIO(data))
        return folder / "data.tar"

    return make


def text_and_numbers(folder: Path, *, lacks: bool = False) -> Path:
    (folder / "files").mkdir()
    source = parquet_files(level=(["a"] * 6, [1] * 6))(folder / "files")
    if lacks:
        again_with(level=None)(source / "1.parquet")
    return source


def merge_parts(folder: Path) -> Path:
    for i in range(2):
        convert(folder, f"dataset-{i}", folder / f"files/{i}.parquet", columns=["observations", "actions"])
    gear_data.merge([folder / "dataset-0", folder / "dataset-1"], folder / "both", progress=False)
    return folder / "both"


def sample(i: int, **more: bytes) -> dict[str, bytes]:
    return {"json": json.dumps({"episode": i // 6, "observations": [0.5], "actions": 1.0}).encode(), **more}


TABLES: dict[str, Advice | Scene] = {
    "table, a null id": Advice(
        parquet(episode=[None, *IDS[1:]]),
        BadEpisodeError,
        "give every step an episode id",
        source=again_with(episode=IDS),
    ),
    "table, an id that is too large": Advice(
        parquet(episode=pa.array([2**63 + i for i in IDS], pa.uint64())),
        BadEpisodeError,
        "text as episode ids",
        source=again_with(episode=[str(i) for i in IDS]),
    ),
    "table, ids that are fractions": Advice(
        parquet(episode=None, ride=[i + 0.5 for i in IDS], tour=IDS),
        UnsupportedColumnError,
        "choose another column with --episode-column",
        "--episode-column tour",
        {"episodes": EpisodeBoundaries(episode_column="ride")},
    ),
    "table, ids that are fractions: no ids": Advice(
        parquet(episode=[i + 0.5 for i in IDS], dones=END.tolist()),
        UnsupportedColumnError,
        "or give this one another name with --rename episode=NAME",
        "--rename episode=NAME",
    ),
    "table, step numbers that are floats": Advice(
        parquet(episode=None, t=[0.0, 1.0, 2.0, 3.0, 4.0, 5.0] * 2),
        UnsupportedColumnError,
        "for whole numbers, add --dtype t=int64",
        "--step-column t --dtype t=int64",
        {"episodes": EpisodeBoundaries(step_column="t")},
    ),
    "table, ids that come back: several columns": Advice(
        parquet(episode=[0, 0, 0, 1, 1, 1] * 2, seed=IDS),
        BadEpisodeError,
        "give --episode-column for each of them",
        "--episode-column episode --episode-column seed",
        steps=12,
    ),
    "table, ids that come back: files": Advice(
        lambda folder: (parquet()(folder).rename(folder / "0.parquet"), parquet()(folder))[1].parent,
        BadEpisodeError,
        "give the files as several sources",
        source=lambda source: [source / "0.parquet", source / "a.parquet"],
        steps=24,
    ),
    "table, a name that no column can have": Advice(
        parquet(**{"infos//x": VALUES}), UnsupportedColumnError, "--rename", "--rename infos//x=infos.x"
    ),
    "table, a name that no column can have: without": Advice(
        parquet(**{"infos//x": VALUES}), UnsupportedColumnError, "--columns", "--columns observations,actions"
    ),
    "table, only columns of episodes": Advice(
        parquet(),
        InvalidArgumentError,
        "name at least one column of steps, such as observations",
        source=None,
        refused={"columns": ["episode"]},
        arguments={"columns": ["observations"]},
    ),
    "table, a dtype of text": Advice(
        parquet(task=["lift"] * 12),
        UnsupportedColumnError,
        "leave its --dtype out",
        refused={"tables": TableOptions(dtype={"task": "float32"})},
    ),
    "table, a dtype that the values do not have": Advice(
        parquet(level=[300] * 12),
        UnsupportedColumnError,
        "give it another type with --dtype",
        "--dtype level=int16",
        {"tables": TableOptions(dtype={"level": "uint8"})},
    ),
    "table, a null that becomes NaN": Advice(
        parquet(level=pa.array([None, *range(11)])),
        InvalidArgumentError,
        "--dtype level=float64",
        "--dtype level=float64",
        {"tables": TableOptions(fill_null={"level": "nan"})},
        given="--fill-null level=nan",
    ),
    "table, a null: a number": Advice(
        parquet(observations=[None, *VALUES[1:]]),
        BadEpisodeError,
        "--fill-null observations=nan",
        "--fill-null observations=nan",
    ),
    "table, rename of a missing column": Advice(
        parquet(),
        UnknownNameError,
        "did you mean 'observations'? known: actions, observations",
        refused={"rename": {"observation": "infos.x"}},
        arguments={"rename": {"observations": "infos.x"}},
    ),
    "table, a rename to another format's name": Advice(
        parquet(),
        InvalidArgumentError,
        "use 'observations'",
        refused={"rename": {"observations": "obs"}},
        arguments={"rename": {"observations": "observations"}},
    ),
    "table, a stack of another format's name": Advice(
        parquet(extra=VALUES),
        InvalidArgumentError,
        "use the name 'actions'",
        refused={"stack": {"action": ["actions", "extra"]}},
        arguments={"stack": {"actions": ["actions", "extra"]}},
    ),
    "table, next observations of another dtype: one dtype": Advice(
        parquet(observations=[i + 0.5 for i in range(12)], next_observations=list(range(1, 13))),
        UnsupportedColumnError,
        "--dtype next_observations=float64",
        "--dtype next_observations=float64",
    ),
    "table, next observations of another sign: one dtype": Advice(
        parquet(observations=pa.array(range(12), pa.uint64()), next_observations=list(range(1, 13))),
        UnsupportedColumnError,
        "--dtype observations=float64",
        "--dtype observations=float64 --dtype next_observations=float64",
    ),
    "table, next observations that are dates": Advice(
        parquet(next_observations=pa.array(range(12), pa.date32())),
        UnsupportedColumnError,
        "--rename next_observations=infos.next_observations",
        "--rename next_observations=infos.next_observations --columns observations,actions",
    ),
    "table, an end flag that is text": Advice(
        parquet(terminated=["no"] * 12),
        UnsupportedColumnError,
        "--rename terminated=infos.terminated",
        "--rename terminated=infos.terminated --columns observations,actions",
    ),
    "npz, an end flag of complex numbers": Advice(
        npz(**steps(timeouts=END, terminals=np.zeros(12, complex))),
        UnsupportedColumnError,
        "--rename terminals=infos.terminated",
        "--rename terminals=infos.terminated --columns observations,actions",
    ),
    "HDF5, an end flag of complex numbers": Advice(
        hdf5("data/demo_{}/", *[{"actions": np.zeros((6, 2)), "dones": np.zeros(6, complex)}] * 2),
        UnsupportedColumnError,
        "--rename dones=infos.dones",
        "--rename dones=infos.dones --columns actions",
    ),
    "table, an end flag that is a vector": Advice(
        parquet(terminated=[[0, 1]] * 12),
        UnsupportedColumnError,
        "--rename",
        "--rename terminated=infos.level",
        {"format": "step-rows"},
        given="--format step-rows",
    ),
    "table, next observations without the observations": Advice(
        parquet(episode=None, next_observations=[1.0, 2, 3, 4, 5, 9, *range(7, 13)]),
        InvalidArgumentError,
        "add observations to --columns",
        "--columns actions,observations",
        {"columns": ["actions"], "format": "step-rows"},
        given="--format step-rows",
    ),
    "table, no ends: files": Advice(
        lambda folder: (
            (parquet(episode=None)(folder).rename(folder / "0.parquet"), parquet(episode=None)(folder))[1].parent
        ),
        UnknownFormatError,
        "--file-is-episode",
        "--format step-rows --file-is-episode",
        steps=24,
    ),
    "table, no ends: an end column": Advice(
        parquet(episode=None, over=END), UnknownFormatError, "--end-column", "--end-column over"
    ),
    "table, no ends: a step column": Advice(
        parquet(episode=None, t=[*range(6)] * 2), UnknownFormatError, "--step-column", "--step-column t"
    ),
    "table, rows or episodes: rows": Advice(
        parquet(episode=None, t=[*range(6)] * 2, actions=NESTED),
        UnknownFormatError,
        "--format step-rows",
        "--format step-rows",
        given="--step-column t",
    ),
    "table, an image that is damaged: without the episode": Advice(
        parquet(image=[png()] * 7 + [png()[:45]] + [png()] * 4),
        BadEpisodeError,
        "--on-bad-episode skip",
        "--on-bad-episode skip",
        steps=6,
    ),
    "table, an image that is damaged: encoded": Advice(
        parquet(image=[png()] * 7 + [png()[:45]] + [png()] * 4), BadEpisodeError, "--keep-encoded", "--keep-encoded"
    ),
    "table, images of two sizes": Advice(
        parquet(image=[png()] * 6 + [png(8)] * 6), BadEpisodeError, "--keep-encoded", "--keep-encoded"
    ),
    "CSV, no header: rows": Advice(
        csv(HEADLESS), UnknownFormatError, "--no-header", "--no-header --rename 0=episode --rename 1=observations"
    ),
    "CSV, no header: names": Advice(
        csv(NUMBERS),
        UnknownFormatError,
        "--header",
        "--header",
        {"episodes": EpisodeBoundaries(episode_column="0")},
        given="--rename 1=observations --rename 2=actions --episode-column 0",
    ),
    "CSV, spaces": Advice(csv(SPACES), UnknownFormatError, "separate the columns by ','", source=separated),
    "JSON, no row": Advice(
        lambda folder: (file_of("a.jsonl", b"\n")(folder), jsonl(ROW, ROW)(folder))[1].parent,
        CorruptSourceError,
        "leave the file out",
        source=without("a.jsonl"),
    ),
    "JSON, fractions after whole numbers": Advice(
        lambda folder: file_of(
            "data.jsonl",
            "".join(
                json.dumps({"episode": i // 100_000, "observations": 0.5, "actions": i if i < 280_000 else i + 0.5})
                + "\n"
                for i in range(300_000)
            ).encode(),
        )(folder),
        CorruptSourceError,
        "--dtype actions=float64",
        "--dtype actions=float64",
        steps=300_000,
    ),
    "row an episode, an episode column": Advice(
        rows_of_episodes(ride=[0, 1]),
        InvalidArgumentError,
        "leave --episode-column out",
        refused={"episodes": EpisodeBoundaries(episode_column="ride"), "format": "episode-rows"},
    ),
    "row an episode, an end column that is no list": Advice(
        rows_of_episodes(over=[0, 1]),
        UnsupportedColumnError,
        "leave --end-column out",
        refused={"episodes": EpisodeBoundaries(end_column="over"), "format": "episode-rows"},
    ),
    "row an episode, a step column that is no list": Advice(
        rows_of_episodes(t=[0, 1]),
        UnsupportedColumnError,
        "leave --step-column out",
        refused={"episodes": EpisodeBoundaries(step_column="t"), "format": "episode-rows"},
    ),
    "table, files of one dataset, a column of two types": Scene(
        lambda folder: convert(folder, source=text_and_numbers(folder)),
        CorruptSourceError,
        "convert the files of each type separately, without this column",
        merge_parts,
    ),
    "table, files of one dataset, a column that one lacks": Scene(
        lambda folder: convert(folder, source=text_and_numbers(folder, lacks=True)),
        CorruptSourceError,
        "convert the files of each type separately, without this column",
        merge_parts,
    ),
    "WebDataset, a fraction after whole numbers": Advice(
        tar(
            *[
                sample(i, json=b'{"episode": 0, "observations": [0.5], "actions": %s}' % (b"1", b"0.5")[i > 6])
                for i in range(12)
            ]
        ),
        CorruptSourceError,
        "0.0 in place of 0",
        source=lambda source: tar(*map(sample, range(12)))(source.parent),
    ),
    "WebDataset, a member that the first samples lack": Advice(
        tar(*[sample(i, **({"txt": b"x"} if i == 7 else {})) for i in range(12)]),
        CorruptSourceError,
        "or write this sample without it",
        source=lambda source: tar(*map(sample, range(12)))(source.parent),
    ),
    "WebDataset, a pickle": Advice(
        tar(*[sample(i, pkl=pickle.dumps(1)) for i in range(12)]),
        UnsupportedColumnError,
        "without this member",
        source=lambda source: tar(*map(sample, range(12)))(source.parent),
    ),
}
