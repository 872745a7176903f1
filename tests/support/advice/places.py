"""Errors of destinations, places, memory, merging and repairing, with the advice that each gives."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import polars as pl

import gear_data
from gear_data import EpisodeBoundaries
from gear_data.errors import (
    BadEpisodeError,
    CorruptSourceError,
    DestinationExistsError,
    FindingError,
    GearError,
    InvalidArgumentError,
    NonFiniteError,
    SourceNotFoundError,
    UnknownFormatError,
    UnsupportedColumnError,
)
from gear_data.ingest.card import write_card
from gear_data.ingest.lint import suggest_mapping
from tests.support.advice.arrays import given, npz_files, value
from tests.support.advice.rows import END, Advice, Scene, lerobot, npz, parquet, steps

ARRAYS_OF_STEPS = steps(timeouts=END)
EPISODE = {"observations": np.zeros((6, 2)), "actions": np.zeros((6, 1))}
STEP = (np.zeros(2), np.zeros(1), 1.0, np.ones(2), False)


class Field(NamedTuple):
    obs: Any
    action: Any
    reward: Any
    next_obs: Any
    colour: Any


def converted(folder: Path, name: str = "dataset", **columns: Any) -> Path:
    gear_data.convert({**ARRAYS_OF_STEPS, **columns}, folder / name, progress=False, overwrite=True)
    return folder / name


def convert(folder: Path, name: str = "dataset", source: Any = ARRAYS_OF_STEPS, **arguments: Any) -> Path:
    gear_data.convert(source, folder / name, progress=False, **arguments)
    return folder / name


def inside(folder: Path) -> Path:
    (folder / "inside").mkdir()
    return parquet()(folder / "inside").parent


def foreign(folder: Path) -> Path:
    (folder / "dataset").mkdir()
    (folder / "dataset/notes.txt").write_text("mine")
    return folder / "dataset"


def linked(folder: Path, target: str) -> Path:
    (folder / "source").mkdir()
    (folder / "elsewhere").mkdir()
    parquet()(folder / "source")
    parquet(episode=[2] * 6 + [3] * 6)(folder / "elsewhere")
    (folder / "source/b.parquet").symlink_to(folder / target)
    return folder / "source"


def with_pipe(folder: Path) -> Path:
    parquet()(folder)
    os.mkfifo(folder / "b.parquet")
    return folder


def unlinked(name: str) -> Callable[[Path], Path]:
    def change(source: Path) -> Path:
        (source / name).unlink()
        return source

    return change


def dangling(folder: Path) -> Path:
    parquet()(folder)
    (folder / "b.parquet").symlink_to(folder / "nowhere.parquet")
    return folder


def damaged(dataset: Path, name: str = "*0.arrow") -> Path:
    file = min(dataset.rglob(name))
    with file.open("r+b") as stream:
        stream.seek(file.stat().st_size // 2)
        stream.write(b"\xaa" * 8)
    return dataset


def repair(folder: Path) -> Path:
    return damaged(convert(folder, source=npz(**ARRAYS_OF_STEPS)(folder)))


def other_rewards(folder: Path) -> None:
    npz(**{**ARRAYS_OF_STEPS, "rewards": np.zeros(12)})(folder)


def merged(folder: Path) -> Path:
    """Returns a merged dataset of which a shard is damaged. The shard is a link to a shard of the dataset `one`."""
    for i, name in enumerate(("one", "two")):
        convert(
            folder, name, npz(**{**ARRAYS_OF_STEPS, "rewards": np.full(12, i)})(folder).rename(folder / f"{name}.npz")
        )
    gear_data.merge([folder / "one", folder / "two"], folder / "dataset", progress=False)
    return damaged(folder / "dataset")


def saved_view(folder: Path) -> Path:
    """Returns a saved view of which a shard is damaged."""
    convert(folder, source=npz(**ARRAYS_OF_STEPS)(folder))
    gear_data.open(folder / "dataset").filter(pl.col("episode_id") >= 0).save(folder / "view")
    return damaged(folder / "view")


def filtered(dataset: Path) -> Path:
    gear_data.open(dataset).filter_steps(pl.col("rewards") > 0.5).save(dataset.parent / "view")
    return dataset.parent / "view"


def verified(dataset: Path) -> Path:
    assert gear_data.verify(dataset, progress=False).ok
    return dataset


def two_shapes(folder: Path) -> list[Path]:
    npz_files(ARRAYS_OF_STEPS, {**ARRAYS_OF_STEPS, "actions": np.zeros((12, 2))})(folder)
    return [folder / "0.npz", folder / "1.npz"]


def with_nan(folder: Path) -> Path:
    return npz(**{**ARRAYS_OF_STEPS, "rewards": np.where(END, np.nan, 1)})(folder)


def once() -> Iterator[Any]:
    yield from [EPISODE] * 2


def ragged() -> dict[str, Any]:
    return {**ARRAYS_OF_STEPS, "rewards": [[1.0], [1.0, 2.0]] * 6}


PLACES: dict[str, Advice | Scene] = {
    "a dataset is there": Scene(
        lambda folder: convert(converted(folder).parent),
        DestinationExistsError,
        "--overwrite",
        lambda folder: convert(folder, overwrite=True),
    ),
    "another folder is there": Scene(
        lambda folder: convert(foreign(folder).parent),
        DestinationExistsError,
        "choose another destination",
        lambda folder: convert(folder, "another"),
    ),
    "a file is there": Scene(
        lambda folder: convert(npz()(folder).parent, "data.npz"),
        DestinationExistsError,
        "choose another destination",
        lambda folder: convert(folder, "another"),
    ),
    "a folder that --overwrite does not replace": Scene(
        lambda folder: convert(foreign(folder).parent, overwrite=True),
        DestinationExistsError,
        "remove it yourself",
        lambda folder: ((folder / "dataset/notes.txt").unlink(), (folder / "dataset").rmdir(), convert(folder))[2],
    ),
    "a dataset with another file": Scene(
        lambda folder: ((converted(folder) / "notes.txt").write_text("mine"), convert(folder, overwrite=True)),
        DestinationExistsError,
        "move it elsewhere first",
        lambda folder: ((folder / "dataset/notes.txt").rename(folder / "notes.txt"), convert(folder, overwrite=True))[
            1
        ],
    ),
    "overwrite and resume": Scene(
        lambda folder: convert(folder, overwrite=True, resume=True),
        InvalidArgumentError,
        "give only one of them",
        lambda folder: convert(folder, overwrite=True),
    ),
    "a card with another text": Scene(
        lambda folder: ((converted(folder) / "README.md").write_text("mine"), write_card(folder / "dataset")),
        DestinationExistsError,
        "--overwrite",
        lambda folder: write_card(folder / "dataset", overwrite=True).parent,
    ),
    "Ray and a source in memory": Scene(
        lambda folder: convert(folder, engine="ray"), InvalidArgumentError, "leave --engine ray out", convert
    ),
    "NaN, strict": Scene(
        lambda folder: convert(folder, source=with_nan(folder), strict=True),
        NonFiniteError,
        "without --strict",
        lambda folder: convert(folder, source=folder / "data.npz"),
    ),
    "NaN, strict: repaired": Advice(
        with_nan,
        NonFiniteError,
        "repair the source",
        refused={"strict": True},
        source=lambda source: npz(**ARRAYS_OF_STEPS)(source.parent),
    ),
    "a finding, strict": Advice(
        npz(**{**ARRAYS_OF_STEPS, "timeouts": np.arange(12) == 5}),
        FindingError,
        "leave --strict (strict=True) out",
        refused={"strict": True},
    ),
    "a pattern": Scene(
        lambda folder: convert(folder, source=inside(folder) / "*.parquet"),
        SourceNotFoundError,
        "give the folder",
        lambda folder: convert(folder, source=folder / "inside"),
    ),
    "a tilde": Scene(
        lambda folder: convert(folder, source="~/nothing-of-this-name"),
        SourceNotFoundError,
        "os.path.expanduser",
        lambda folder: convert(folder, source=os.path.expanduser(parquet()(folder))),
    ),
    "a device": Scene(
        lambda folder: convert(folder, source="/dev/null"),
        SourceNotFoundError,
        "give a file or a folder",
        lambda folder: convert(folder, source=parquet()(folder)),
    ),
    "a URL": Scene(
        lambda folder: convert(folder, source="memory://nothing/here"),
        SourceNotFoundError,
        "check the URL",
        lambda folder: convert(folder, source=parquet()(folder)),
    ),
    "a pipe": Advice(with_pipe, CorruptSourceError, "remove it", source=unlinked("b.parquet")),
    "a link to nothing": Advice(
        dangling,
        CorruptSourceError,
        "a link to a missing file",
        source=lambda source: parquet(episode=[2] * 6 + [3] * 6)(source / "..") and unlinked("b.parquet")(source),
    ),
    "a link out of the folder": Advice(
        lambda folder: linked(folder, "elsewhere/a.parquet"),
        InvalidArgumentError,
        "--follow-links",
        "--follow-links",
        steps=24,
    ),
    "a link to a file of the folder": Advice(
        lambda folder: linked(folder, "source/a.parquet"),
        InvalidArgumentError,
        "remove the link",
        source=unlinked("b.parquet"),
    ),
    "a split of data in memory": Advice(
        value(ARRAYS_OF_STEPS), InvalidArgumentError, "leave split out", refused={"split": "train"}
    ),
    "a dataset as a source": Scene(
        lambda folder: convert(folder, "again", gear_data.open(converted(folder))),
        InvalidArgumentError,
        "gear_data.export(view, folder)",
        lambda folder: (
            gear_data.export(gear_data.open(folder / "dataset"), folder / "exported", format="d4rl"),
            convert(folder, "again", folder / "exported"),
        )[1],
    ),
    "two sources of a mapping": Scene(
        lambda folder: suggest_mapping([folder / "a", folder / "b"]),
        InvalidArgumentError,
        "give one source",
        lambda folder: (suggest_mapping(npz(**ARRAYS_OF_STEPS)(folder)), convert(folder))[1],
    ),
    "episode_column and file_is_episode": Scene(
        lambda _: EpisodeBoundaries(episode_column="episode", file_is_episode=True),
        InvalidArgumentError,
        "leave one of them out",
        lambda folder: convert(folder, source=parquet()(folder), episodes=EpisodeBoundaries(episode_column="episode")),
    ),
    "two episode columns of a format that takes one": Advice(
        lerobot(),
        InvalidArgumentError,
        "name one of them",
        refused={"episodes": EpisodeBoundaries(episode_column=("episode_index", "task_index"))},
        arguments={"episodes": EpisodeBoundaries(episode_column="episode_index")},
        steps=-1,
    ),
    "a mapping, ragged": Advice(
        value(ragged), BadEpisodeError, "give an array with a row per step", source=given(ARRAYS_OF_STEPS)
    ),
    "a mapping, Python objects: without": Advice(
        value({**ARRAYS_OF_STEPS, "notes": np.array([None] * 12)}),
        UnsupportedColumnError,
        "leave it out of the mapping",
        source=given(ARRAYS_OF_STEPS),
    ),
    "a mapping without ends: one episode": Advice(
        value(steps()), UnknownFormatError, "put the mapping into a list", source=given([steps()])
    ),
    "episodes, boundaries of rows": Advice(
        value([EPISODE] * 2),
        InvalidArgumentError,
        "leave it out",
        refused={"episodes": EpisodeBoundaries(max_episode_steps=3)},
    ),
    "episodes, a function that returns a number": Advice(
        lambda _: lambda: 5, InvalidArgumentError, "write a generator function", source=lambda _: once
    ),
    "episodes, mappings per step": Advice(
        value([{**EPISODE, "observations": [{"image": np.zeros(2)}] * 6}] * 2),
        BadEpisodeError,
        "use one mapping of arrays instead",
        source=given([{**EPISODE, "observations": {"image": np.zeros((6, 2))}}] * 2),
    ),
    "steps in the place of episodes": Advice(
        value([{"observations": np.zeros(2), "actions": 0, "rewards": 1.0, "dones": bool(end)} for end in END]),
        InvalidArgumentError,
        "{key: numpy.stack([step[key] for step in steps]) for key in steps[0]}",
        source=lambda steps: {key: np.stack([step[key] for step in steps]) for key in steps[0]},
    ),
    "episodes, a masked array": Advice(
        value([{**EPISODE, "force": np.ma.array(np.arange(6.0), mask=END[:6])}] * 2),
        BadEpisodeError,
        "array.filled(numpy.nan)",
        source=given([{**EPISODE, "force": np.ma.array(np.arange(6.0), mask=END[:6]).filled(np.nan)}] * 2),
    ),
    "episodes, complex numbers": Advice(
        value([{**EPISODE, "signal": np.zeros(6, complex)}] * 2),
        UnsupportedColumnError,
        "columns=[...]",
        arguments={"columns": ["observations", "actions"]},
    ),
    "episodes, one with another column": Advice(
        value([EPISODE, {**EPISODE, "extra": np.zeros(6)}]),
        BadEpisodeError,
        "--columns observations,actions",
        arguments={"columns": ["observations", "actions"]},
    ),
    "a frame of two types in a column": Advice(
        value(pd.DataFrame({"episode": [0] * 6 + [1] * 6, "observations": np.arange(12.0), "name": ["a", 1] * 6})),
        UnsupportedColumnError,
        "give each column one type",
        source=given(
            pd.DataFrame({"episode": [0] * 6 + [1] * 6, "observations": np.arange(12.0), "name": ["a", "1"] * 6})
        ),
    ),
    "transitions of two sizes": Advice(
        value([STEP] * 11 + [STEP[:4]]), BadEpisodeError, "for each step", source=given([STEP] * 12)
    ),
    "transitions without the last observation": Advice(
        value([STEP] * 11 + [(*STEP[:3], None, True)]),
        BadEpisodeError,
        "give the observation after the last step",
        source=given([STEP] * 11 + [(*STEP[:3], np.ones(2), True)]),
    ),
    "transitions of another order": Advice(
        value([(*STEP[:3], False, np.ones(2))] * 12), BadEpisodeError, "no infos", source=given([STEP] * 12)
    ),
    "transitions with an info beside the observation": Advice(
        value([((np.zeros(2), {}), *STEP[1:]), *[STEP] * 11]),
        BadEpisodeError,
        "the first part of (observation, info)",
        source=given([STEP] * 12),
    ),
    "transitions with another field": Advice(
        value([Field(*STEP)] * 12), UnsupportedColumnError, "use tuples (", source=given([STEP] * 12)
    ),
    "a list of a path and of episodes": Scene(
        lambda folder: convert(folder, source=[parquet()(folder), EPISODE]),
        InvalidArgumentError,
        "gear_data.merge",
        lambda folder: (
            convert(folder, "one", [{"observations": np.zeros(6), "actions": np.zeros(6)}]),
            convert(folder, "two", folder / "a.parquet"),
            gear_data.merge([folder / "one", folder / "two"], folder / "both", progress=False),
            folder / "both",
        )[3],
        18,
    ),
    "a source twice": Scene(
        lambda folder: convert(folder, source=[parquet()(folder)] * 2),
        InvalidArgumentError,
        "give it once",
        lambda folder: convert(folder, source=folder / "a.parquet"),
    ),
    "a split twice": Scene(
        lambda folder: convert(folder, source=parquet()(folder), split=["train", "train"]),
        InvalidArgumentError,
        "give each split once",
        lambda folder: convert(folder, source=folder / "a.parquet"),
    ),
    "two sources, a column of two shapes: without": Scene(
        lambda folder: convert(folder, source=[*two_shapes(folder)]),
        UnsupportedColumnError,
        "leave the column out with --columns",
        lambda folder: convert(
            folder, source=[folder / "0.npz", folder / "1.npz"], columns=["observations", "rewards"]
        ),
        24,
    ),
    "two sources, a column of two shapes: renamed": Scene(
        lambda folder: convert(folder, source=[*two_shapes(folder)]),
        UnsupportedColumnError,
        "convert one of them again with --rename",
        lambda folder: (
            convert(folder, "one", folder / "0.npz"),
            convert(folder, "two", folder / "1.npz", rename={"actions": "infos.actions"}),
            gear_data.merge([folder / "one", folder / "two"], folder / "both", progress=False),
            folder / "both",
        )[3],
        24,
    ),
    "a merge of two dtypes": Scene(
        lambda folder: gear_data.merge(
            [converted(folder, "one"), converted(folder, "two", actions=np.ones((12, 1), "f4"))], folder / "both"
        ),
        UnsupportedColumnError,
        "with --dtype actions=float64 (tables=TableOptions(dtype=...))",
        lambda folder: (
            convert(
                folder,
                "two",
                {**ARRAYS_OF_STEPS, "actions": np.ones((12, 1), "f4")},
                tables=gear_data.TableOptions(dtype={"actions": "float64"}),
                overwrite=True,
            ),
            gear_data.merge([folder / "one", folder / "two"], folder / "both", progress=False),
            folder / "both",
        )[2],
        24,
    ),
    "a merge of a saved view with a filter": Scene(
        lambda folder: gear_data.merge([filtered(converted(folder)), folder / "dataset"], folder / "both"),
        InvalidArgumentError,
        "all_steps()",
        lambda folder: (
            gear_data.open(folder / "view").all_steps().save(folder / "whole"),
            converted(folder, "other", rewards=np.zeros(12)),
            gear_data.merge([folder / "whole", folder / "other"], folder / "both", progress=False),
            folder / "both",
        )[3],
        24,
    ),
    "a repair at a URL": Scene(
        lambda folder: gear_data.repair("memory://dataset", repair(folder)),
        InvalidArgumentError,
        "repair a local copy",
        lambda folder: (gear_data.repair(folder / "dataset", folder / "data.npz"), folder / "dataset")[1],
    ),
    "a repair of damaged tables": Scene(
        lambda folder: gear_data.repair(damaged(repair(folder), "episodes.arrow"), folder / "data.npz"),
        GearError,
        "convert the source again",
        lambda folder: convert(folder, source=folder / "data.npz", overwrite=True),
    ),
    "a repair from another source: restored": Scene(
        lambda folder: (
            repair(folder),
            other_rewards(folder),
            gear_data.repair(folder / "dataset", folder / "data.npz"),
        ),
        GearError,
        "restore the original source",
        lambda folder: (
            npz(**ARRAYS_OF_STEPS)(folder),
            gear_data.repair(folder / "dataset", folder / "data.npz"),
            folder / "dataset",
        )[2],
    ),
    "a repair from another source: converted": Scene(
        lambda folder: (
            repair(folder),
            other_rewards(folder),
            gear_data.repair(folder / "dataset", folder / "data.npz"),
        ),
        GearError,
        "convert the source again",
        lambda folder: convert(folder, source=folder / "data.npz", overwrite=True),
    ),
    "a repair of a merged dataset": Scene(
        lambda folder: gear_data.repair(merged(folder), folder / "one.npz"),
        GearError,
        "then merge them again",
        lambda folder: (
            gear_data.repair(folder / "one", folder / "one.npz"),
            gear_data.merge([folder / "one", folder / "two"], folder / "again", progress=False),
            verified(folder / "again"),
        )[2],
        24,
    ),
    "a repair of saved episodes": Scene(
        lambda folder: gear_data.repair(saved_view(folder), folder / "data.npz"),
        GearError,
        "then save the episodes again",
        lambda folder: (
            gear_data.repair(folder / "dataset", folder / "data.npz"),
            gear_data.open(folder / "dataset").filter(pl.col("episode_id") >= 0).save(folder / "again"),
            verified(folder / "again"),
        )[2],
    ),
}
