"""Errors of mappings (`--map`), with the mapping that each advice leads to."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from gear_data import EpisodeBoundaries
from gear_data.errors import (
    BadEpisodeError,
    CorruptSourceError,
    EmptySourceError,
    GearError,
    InvalidArgumentError,
    MappingError,
    UnknownFormatError,
    UnsupportedColumnError,
)
from tests.support.advice.rows import END, Advice, Scene, parquet

SHORT = np.arange(6) < np.array([[6], [4]])


def tree(**more: Any) -> Callable[[Path], Path]:
    """Returns a maker of an HDF5 file with episodes in groups, in flat arrays and in padded arrays."""

    def make(folder: Path) -> Path:
        arrays: dict[str, Any] = {
            **{f"demo_{i}/{name}": values for i in range(2) for name, values in GROUP.items()},
            "all/act": np.zeros((12, 1)),
            "all/obs": np.zeros((12, 3)),
            "all/next_obs": np.ones((12, 3)),
            "ends": [6, 12],
            "last": [5, 11],
            "flags": END,
            "seed": [1, 2],
            "act_0": np.zeros((6, 1)),
            "act_1": np.ones((6, 1)),
            "padded/act": np.zeros((2, 6, 1)),
            "lengths": [6, 4],
            "mask": SHORT,
            **more,
        }
        with h5py.File(folder / "data.h5", "w") as file:
            for path, values in arrays.items():
                file[path] = values
            file["demo_0"].attrs["seed"] = file["demo_1"].attrs["seed"] = 3
        return folder / "data.h5"

    return make


GROUP = {"act": np.zeros((6, 1)), "obs": np.zeros((7, 3)), "signal": np.zeros(6, complex), "fact": 2.5}
GROUPS = {"groups": "demo_*"}
FLAT = {"ends": "ends", "ends_are": "exclusive"}
PADDED = {"padded": ["E", "T", "..."], "lengths": "lengths"}
ACT = {"actions": "act"}


def mapped(
    wrong: Any,
    hint: str,
    right: Any,
    error: type[GearError] = MappingError,
    steps: int = 12,
    make: Callable[[Path], Path] | None = None,
    **refused: Any,
) -> Advice:
    """Returns a row. `wrong` and `right` are the episodes and the columns of the two mappings."""

    def whole(mapping: Any) -> Any:
        return {"episodes": mapping[0], "columns": mapping[1]} if isinstance(mapping, tuple) else mapping

    return Advice(
        make or tree(),
        error,
        hint,
        refused={"mapping": whole(wrong), **refused},
        arguments={"mapping": whole(right)},
        steps=steps,
    )


GOOD = (GROUPS, ACT)
ALL = {"actions": "all/act"}

MAPPINGS: dict[str, Advice | Scene] = {
    "mapping, another key": mapped(
        {"episodes": GROUPS, "columns": ACT, "column": 1}, "the keys here are: episodes, columns, splits", GOOD
    ),
    "mapping, no columns": mapped({"episodes": GROUPS}, "add it", GOOD),
    "mapping, no column of steps": mapped(
        (GROUPS, {"seed": {"path": "@seed", "role": "episode"}}), "such as 'actions: action'", GOOD
    ),
    "mapping, a name that is no text": mapped((GROUPS, {True: "act"}), "give a text; quote it", GOOD),
    "mapping, a path that is no text": mapped((GROUPS, {"actions": 5}), "its keys: path", GOOD),
    "mapping, an empty path": mapped((GROUPS, {"actions": {"path": ""}}), "write a path", GOOD),
    "mapping, another role": mapped(
        (GROUPS, {"actions": "act", "observations": {"path": "obs", "role": "final"}}),
        "choose one of: step, with-final",
        (GROUPS, {"actions": "act", "observations": {"path": "obs", "role": "with-final"}}),
    ),
    "mapping, two kinds of episodes": mapped(({**GROUPS, **FLAT}, ACT), "give exactly one of: groups", GOOD),
    "mapping, numbered arrays without a number": mapped(
        ({"datasets": "act"}, {"actions": "act_*"}),
        "write one '*' for the number: actions_*",
        ({"datasets": "act_*"}, {"actions": "act_*"}),
    ),
    "mapping, a numbered column without a number": mapped(
        ({"datasets": "act_*"}, {"actions": "act"}),
        "write one '*' for the number",
        ({"datasets": "act_*"}, {"actions": "act_*"}),
    ),
    "mapping, lengths of groups": mapped(({**GROUPS, "lengths": "lengths"}, ACT), "leave it out", GOOD),
    "mapping, ends_are of groups": mapped(({**GROUPS, "ends_are": "flags"}, ACT), "leave it out", GOOD),
    "mapping, ends without ends_are": mapped(
        ({"ends": "ends"}, ALL), "add ends_are: exclusive, inclusive, flags or starts", (FLAT, ALL)
    ),
    "mapping, two arrays of ends": mapped(
        ({"ends": ["ends", "last"], "ends_are": "exclusive"}, ALL), "give one, or set ends_are: flags", (FLAT, ALL)
    ),
    "mapping, axes without names": mapped(
        ({**PADDED, "padded": "E"}, {"actions": "padded/act"}),
        "write [E, T, ...]",
        (PADDED, {"actions": "padded/act"}),
        steps=10,
    ),
    "mapping, padding without lengths": mapped(
        ({"padded": ["E", "T"]}, {"actions": "padded/act"}),
        "give the path of an array, lengths or mask",
        ({"padded": ["E", "T"], "mask": "mask"}, {"actions": "padded/act"}),
        steps=10,
    ),
    "mapping, another format's name": mapped((GROUPS, {"action": "act"}), "call it 'actions'", GOOD),
    "mapping, next and a role": mapped(
        (GROUPS, {"actions": "act", "observations": {"path": "obs", "role": "with-final", "next": "obs2"}}),
        "leave one of them out",
        (GROUPS, {"actions": "act", "observations": {"path": "obs", "role": "with-final"}}),
    ),
    "mapping, a final observation of flat arrays": mapped(
        (FLAT, {"actions": "all/act", "observations": {"path": "all/obs", "role": "with-final"}}),
        "with next: PATH",
        (FLAT, {"actions": "all/act", "observations": {"path": "all/obs", "next": "all/next_obs"}}),
    ),
    "mapping, an attribute of steps": mapped(
        (GROUPS, {"actions": "act", "seed": "@seed"}),
        "attributes need role: episode",
        (GROUPS, {"actions": "act", "seed": {"path": "@seed", "role": "episode"}}),
    ),
    "mapping, a path twice": mapped(
        (GROUPS, {"actions": "act", "infos.again": "act"}), "leave one of the two out", GOOD
    ),
    "mapping, a split without episodes": mapped(
        {"episodes": GROUPS, "columns": ACT, "splits": {"train": {}}},
        "give files or groups",
        {"episodes": GROUPS, "columns": ACT, "splits": {"train": {"groups": "*"}}},
    ),
    "mapping, groups of flat arrays": mapped(
        {"episodes": FLAT, "columns": ALL, "splits": {"train": {"groups": "*"}}},
        "give files instead",
        {"episodes": FLAT, "columns": ALL, "splits": {"train": {"files": "*"}}},
    ),
    "mapping, no such file": mapped(Path("/nowhere/map.yaml"), "check the path of --map", GOOD),
    "mapping, no episode": mapped(
        ({"groups": "run_*"}, ACT), "correct episodes in the mapping", GOOD, EmptySourceError
    ),
    "mapping, no such array": mapped(
        (GROUPS, {"actions": "actions"}), "correct the path in the mapping", GOOD, BadEpisodeError
    ),
    "mapping, no such array of ends": mapped(
        ({"ends": "stops", "ends_are": "exclusive"}, ALL), "correct the mapping", (FLAT, ALL), CorruptSourceError
    ),
    "mapping, ends of two axes": mapped(
        ({"ends": "all/obs", "ends_are": "exclusive"}, ALL),
        "name an array of one axis",
        (FLAT, ALL),
        CorruptSourceError,
    ),
    "mapping, flags of another length": mapped(
        ({"ends": "seed", "ends_are": "flags"}, ALL),
        "it needs one value per step",
        ({"ends": "flags", "ends_are": "flags"}, ALL),
        CorruptSourceError,
    ),
    "mapping, numbers as flags": mapped(
        ({"ends": "number", "ends_are": "flags"}, ALL),
        "correct episodes.ends or ends_are",
        ({"ends": "flags", "ends_are": "flags"}, ALL),
        CorruptSourceError,
        make=tree(number=np.arange(12)),
    ),
    "mapping, the last rows as ends": mapped(
        ({"ends": "last", "ends_are": "exclusive"}, ALL),
        "check ends_are",
        ({"ends": "last", "ends_are": "inclusive"}, ALL),
        CorruptSourceError,
    ),
    "mapping, ends that fall": mapped(
        ({"ends": "wrong", "ends_are": "exclusive"}, ALL),
        "check ends_are",
        (FLAT, ALL),
        BadEpisodeError,
        make=tree(wrong=[6, 6, 12]),
    ),
    "mapping, a fact of another length": mapped(
        (FLAT, {**ALL, "seed": {"path": "level", "role": "episode"}}),
        "correct columns.seed in the mapping",
        (FLAT, {**ALL, "seed": {"path": "seed", "role": "episode"}}),
        UnsupportedColumnError,
        make=tree(level=[1]),
    ),
    "mapping, a fact of complex numbers": mapped(
        (FLAT, {**ALL, "seed": {"path": "level", "role": "episode"}}),
        "leave columns.seed out of the mapping",
        (FLAT, ALL),
        UnsupportedColumnError,
        make=tree(level=np.zeros(2, complex)),
    ),
    "mapping, a scalar of steps": mapped(
        (GROUPS, {**ACT, "fact": "fact"}),
        "give it role: episode",
        (GROUPS, {**ACT, "fact": {"path": "fact", "role": "episode"}}),
        UnsupportedColumnError,
    ),
    "mapping, numbers as text": mapped(
        (GROUPS, {"actions": {"path": "act", "dtype": "string"}}),
        "change its dtype in the mapping",
        (GROUPS, {"actions": {"path": "act", "dtype": "float32"}}),
        UnsupportedColumnError,
    ),
    "mapping, a mask of another shape": mapped(
        ({"padded": ["E", "T"], "mask": "lengths"}, {"actions": "padded/act"}),
        "correct episodes.mask and episodes.padded",
        ({"padded": ["E", "T"], "mask": "mask"}, {"actions": "padded/act"}),
        CorruptSourceError,
        10,
    ),
    "mapping, a mask with a hole": mapped(
        ({"padded": ["E", "T"], "mask": "holes"}, {"actions": "padded/act"}),
        "give a mask of the steps that are no padding",
        ({"padded": ["E", "T"], "mask": "mask"}, {"actions": "padded/act"}),
        BadEpisodeError,
        10,
        tree(holes=np.array([[True, False] * 3] * 2)),
    ),
    "mapping, a padded column of another length": mapped(
        (PADDED, {"actions": "padded/act", "infos.x": "all/obs"}),
        "correct episodes and columns in the mapping",
        (PADDED, {"actions": "padded/act"}),
        BadEpisodeError,
        10,
    ),
    "mapping of a table": mapped(GOOD, "leave --map and --format out", None, UnknownFormatError, make=parquet()),
    "mapping and episode ids": mapped(
        GOOD, "leave one of them out", GOOD, InvalidArgumentError, episodes=EpisodeBoundaries(episode_column="seed")
    ),
}
