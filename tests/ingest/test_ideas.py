"""Ideas x formats: what a source means does not depend on its format.

An idea is a meaning that many formats can hold, such as a column of next observations. Each idea is tried in each
format of `tests.support.makers.ideas.py`. A cell of the table is right, a refusal that names the way out, or it cannot
occur, for a reason. To add an idea, write an `Idea`; to add a format, write a `Writer`. Then write the table again:
`python -m tests.ingest.test_ideas`.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from gear_data import EpisodeBoundaries, TableOptions
from gear_data.errors import (
    BadEpisodeError,
    CorruptSourceError,
    GearError,
    InvalidArgumentError,
    UnknownFormatError,
    UnknownNameError,
    UnsupportedColumnError,
)
from gear_data.ingest.sources.registry import known_formats
from tests.support.encoded_images import encode_image
from tests.support.makers.ideas import WRITERS, Episode, Writer
from tests.support.makers.source_reading import SourceReading, read_source

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Refused:
    """An error that names the way out.

    Attributes:
        error: the type of the error.
        match: text of its message or hint.
        options: the arguments of `convert` that the error names. With them, the cell is right. None if the source must
            be written again.
    """

    error: type[GearError]
    match: str
    options: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class Impossible:
    """A cell that cannot occur."""

    reason: str


@dataclass(frozen=True)
class Idea:
    """A meaning, written as plain episodes.

    Attributes:
        episodes: returns the episodes to write.
        check: compares what was read with the episodes. The writer says what its format can hold.
        options: the arguments of `convert`.
        other: format, or what its rows are -> the outcome, where the cell is not simply right.
        findings: codes of the findings that the idea is reported by, where it is read without further options.
        beside: name -> text of further files in the folder of the source.
        apart: whether each episode is written as a source of its own, in one folder.
    """

    episodes: Callable[[], Sequence[Episode]]
    check: Callable[[SourceReading, Sequence[Episode], Writer], None]
    options: Mapping[str, Any] = field(default_factory=dict)
    other: Mapping[str, Refused | Impossible | None] = field(default_factory=dict)
    findings: tuple[str, ...] = ()
    beside: Mapping[str, str] = field(default_factory=dict)
    apart: bool = False


def episodes_of(lengths: Sequence[int] = (4, 5, 3), **names: str) -> list[dict[str, Array]]:
    """Returns episodes with next observations; the first is terminated, the others are truncated.

    Args:
        lengths: the steps of the episodes.
        names: usual name of a column -> its name here. A name that is empty leaves the column out.
    """
    rng = np.random.default_rng(5)
    found = []
    for i, length in enumerate(lengths):
        states, last = rng.normal(size=(length + 1, 3)), np.arange(length) == length - 1
        columns = {
            "observations": states[:-1],
            "actions": rng.normal(size=(length, 2)),
            "rewards": rng.normal(size=length),
            "next_observations": states[1:],
            "terminals": last & (i == 0),
            "timeouts": last & (i > 0),
        }
        columns = {names.get(name, name): values for name, values in columns.items()}
        found.append({name: values for name, values in columns.items() if name})
    return found


def _check_finals(
    observations: str = "observations", after: str = "next_observations", column: str = "observations"
) -> Callable[[SourceReading, Sequence[Episode], Writer], None]:
    """Returns a check that final observations are the last next observations, and are not stored otherwise.

    Args:
        observations: the name of the observations in the source.
        after: the name of the next observations in the source.
        column: the column that they become.
    """

    def check(seen: SourceReading, episodes: Sequence[Episode], writer: Writer) -> None:
        name = writer.column(column)
        if column == "state" and name not in seen.schema.names:
            name = "observations"  # trees give the one state this name
        assert not [name for name in seen.schema.names if name.startswith("next")]
        for found, final, episode in zip(seen.episodes, seen.finals, episodes, strict=True):
            np.testing.assert_array_equal(found[name], writer.seen(episode[observations]))
            np.testing.assert_array_equal((final or {})[name], writer.seen(episode[after])[-1])

    return check


NO_DOTS: dict[str, Refused | Impossible | None] = {"Lance": Impossible("a name of Lance has no dot")}
OWN_FLAGS = Impossible("the format has end flags of its own")
OWN_NAMES: dict[str, Refused | Impossible | None] = {"own names": Impossible("the format has names of its own")}

IDEAS: dict[str, Idea] = {
    "next_observations give final observations": Idea(
        episodes_of, _check_finals(), other={"ACT": Impossible("no name goes with qpos")}
    ),
    "next_obs gives final observations": Idea(
        lambda: episodes_of(observations="obs", next_observations="next_obs"),
        _check_finals("obs", "next_obs"),
        other=OWN_NAMES,
    ),
    "next_state gives final observations": Idea(
        lambda: episodes_of(next_observations="next_state"), _check_finals(after="next_state"), other=OWN_NAMES
    ),
    "next_state beside state": Idea(
        lambda: episodes_of(observations="state", next_observations="next_state"),
        _check_finals("state", "next_state", "state"),
        other=OWN_NAMES,
    ),
    "next_observation.image gives final observations": Idea(
        lambda: episodes_of(observations="observation.image", next_observations="next_observation.image"),
        _check_finals("observation.image", "next_observation.image", "observations.image"),
        other=OWN_NAMES | NO_DOTS,
    ),
}


def _with_last_observation(**flags: bool) -> list[dict[str, Any]]:
    """Returns episodes of T + 1 observations, and T values of other columns."""
    found = []
    for i, episode in enumerate(episodes_of()):
        last = episode.pop("next_observations")[-1:]
        episode["observations"] = np.concatenate([episode["observations"], last])
        if flags:
            del episode["terminals"], episode["timeouts"]
        found.append({**episode, **dict.fromkeys(flags, i == 0)})
    return found


def _check_last_observation(seen: SourceReading, episodes: Sequence[Episode], writer: Writer) -> None:
    name = writer.column("observations")
    for found, final, episode in zip(seen.episodes, seen.finals, episodes, strict=True):
        values = writer.seen(np.asarray(episode["observations"]))
        np.testing.assert_array_equal(found[name], values[:-1])
        np.testing.assert_array_equal((final or {})[name], values[-1])
    _check_ends(seen, episodes, writer)


def _check_ends(seen: SourceReading, episodes: Sequence[Episode], writer: Writer) -> None:
    assert seen.flag("terminated") == [True, False, False]
    assert seen.flag("truncated") == [False, True, True]


ROW_IS_A_STEP = Impossible("a row is a step, and holds one observation")
ONE_VALUE_A_STEP = Impossible("ids need one row a step; arrays with lengths hold it")

IDEAS |= {
    "T + 1 observations": Idea(
        _with_last_observation,
        _check_last_observation,
        other={"step": ROW_IS_A_STEP, "ids": ONE_VALUE_A_STEP, "V-D4RL": None},
    ),
    "one flag an episode": Idea(
        lambda: _with_last_observation(terminated=True),
        _check_last_observation,
        other={"step": ROW_IS_A_STEP, "ids": ONE_VALUE_A_STEP, "V-D4RL": None},
    ),
}


def _with_flags(*names: str) -> Callable[[], list[dict[str, Any]]]:
    """Returns a maker of episodes with end flags of these names only."""

    def make() -> list[dict[str, Any]]:
        found = episodes_of(next_observations="", terminals="", timeouts="")
        for i, episode in enumerate(found):
            last = np.arange(len(episode["rewards"])) == len(episode["rewards"]) - 1
            terminal = last & (i == 0)
            flags = {
                **dict.fromkeys(("dones", "is_last"), last),
                **dict.fromkeys(("terminals", "terminated", "is_terminal"), terminal),
                **dict.fromkeys(("timeouts", "truncated"), last & (i > 0)),
                **dict.fromkeys(("masks", "discount", "not_done"), 1.0 - terminal),
                **dict.fromkeys(("is_first", "episode_starts"), np.arange(len(last)) == 0),
            }
            episode |= {name: flags[name] for name in names}
        return found

    return make


def _check_all_terminated(seen: SourceReading, episodes: Sequence[Episode], writer: Writer) -> None:
    assert seen.flag("terminated") == [True, True, True]


def _check_no_flags(seen: SourceReading, episodes: Sequence[Episode], writer: Writer) -> None:
    assert seen.lengths == [4, 5, 3]
    assert seen.flag("truncated") == [True, True, True]


def _last_rows(name: str = "is_last") -> Refused:
    """Returns the refusal of last rows that may be no steps, of a column with this name in the source."""
    return Refused(UnknownFormatError, f"--rename {shlex.quote(f'{name}=dones')}", {"rename": {name: "dones"}})


_LAST_ROWS = _last_rows()
_UNFINISHED = ("unfinished-episode",)
#: RLDS has these flags, in the row after the step.
IN_RLDS: dict[str, Refused | Impossible | None] = {"RLDS": None}
IDEAS |= {
    "terminals, timeouts": Idea(_with_flags("terminals", "timeouts"), _check_ends),
    "terminated, truncated": Idea(_with_flags("terminated", "truncated"), _check_ends),
    "terminals": Idea(
        _with_flags("terminals"),
        _check_ends,
        other={
            **{name: Refused(UnknownFormatError, "--max-episode-steps") for name in ("D4RL", "HDF5, flat with ids")},
            **dict.fromkeys(
                ("V-D4RL", "d3rlpy", "RLDS"), Impossible("an episode that does not terminate is truncated")
            ),
            "Stable-Baselines3": Impossible("dones end the episodes"),
        },
        findings=_UNFINISHED,
    ),
}
IDEAS |= {
    ", ".join(names): Idea(
        _with_flags(*names), check, other={"D4RL": OWN_FLAGS, "own flags": OWN_FLAGS, **other}, findings=codes
    )
    for names, check, other, codes in (
        (("dones",), _check_all_terminated, {}, ("no-truncation-flag",)),
        (("dones", "masks"), _check_ends, {}, ()),
        (("dones", "is_terminal"), _check_ends, {}, ()),
        (("is_last",), _check_all_terminated, IN_RLDS, ("no-truncation-flag",)),
        (("is_terminal",), _check_ends, {}, _UNFINISHED),
        (("is_last", "is_terminal"), _check_ends, IN_RLDS, ()),
        (("is_last", "discount"), _check_ends, IN_RLDS, ()),
        (("masks",), _check_ends, {}, _UNFINISHED),
        (("not_done",), _check_ends, {}, _UNFINISHED),
        (("discount",), _check_ends, {}, _UNFINISHED),
        (("is_first",), _check_no_flags, {}, ("no-end-flag",)),
        (("episode_starts",), _check_no_flags, {}, ("no-end-flag",)),
        (
            ("is_first", "is_last", "is_terminal"),
            _check_ends,
            {n: _LAST_ROWS for n, w in WRITERS.items() if n not in ("LeRobot", "D4RL") and not w.own_flags}
            | {"HDF5, flat with ends": _last_rows("data/is_last"), "npz, an array an episode": _last_rows("is_last_*")}
            | IN_RLDS,
            (),
        ),
    )
}


def _as_columns(names: Sequence[str], make: Callable[[], list[dict[str, Any]]]) -> Callable[[], list[dict[str, Any]]]:
    """Returns a maker of the same episodes, with [T, 1] in place of [T]."""
    return lambda: [{n: v[:, None] if n in names else v for n, v in each.items()} for each in make()]


IDEAS |= {
    f"{', '.join(names)} of shape [T, 1]": Idea(
        _as_columns(names, _with_flags(*names)),
        check,
        other={"D4RL": OWN_FLAGS, "own flags": OWN_FLAGS, **other},
        findings=codes,
    )
    for names, check, other, codes in (
        (("is_last", "is_terminal"), _check_ends, IN_RLDS, ()),
        (("masks",), _check_ends, {}, _UNFINISHED),
        (("not_done",), _check_ends, {}, _UNFINISHED),
        (("discount",), _check_ends, {}, _UNFINISHED),
        (("is_first",), _check_no_flags, {}, ("no-end-flag",)),
    )
}


def _of_time_steps() -> list[dict[str, Any]]:
    """Returns episodes of dm_env: a row holds an observation, and the action and the reward that led to it."""
    rng = np.random.default_rng(8)
    found = []
    for i, length in enumerate((4, 5, 3)):
        rows = {
            "observation": rng.normal(size=(length + 1, 3)),
            "action": rng.normal(size=(length + 1, 2)),
            "reward": rng.normal(size=length + 1),
            "discount": np.ones((length + 1, 1)),
        }
        rows["action"][0] = rows["reward"][0] = 0.0
        rows["discount"][-1] = i > 0
        found.append(rows)
    return found


def _check_time_steps(seen: SourceReading, episodes: Sequence[Episode], writer: Writer) -> None:
    _check_ends(seen, episodes, writer)
    name = writer.column("observations")
    for found, final, episode in zip(seen.episodes, seen.finals, episodes, strict=True):
        states = writer.seen(episode["observation"])
        np.testing.assert_array_equal(found[name], states[:-1])
        np.testing.assert_array_equal((final or {})[name], states[-1])
        np.testing.assert_array_equal(found["actions"], writer.seen(episode["action"])[1:])
        np.testing.assert_array_equal(found["rewards"], episode["reward"][1:])


IDEAS |= {
    "the first row is the reset (dm_env)": Idea(
        _of_time_steps, _check_time_steps, other=OWN_NAMES, findings=("reset-row", "unfinished-episode")
    ),
}


def _of_several_runs(numbers: Sequence[int] = (0, 1, 1, 2)) -> list[dict[str, Any]]:
    """Returns episodes of two seeds, with their numbers."""
    found = []
    for number, (seed, episode) in zip(
        numbers, enumerate(episodes_of((4, 2, 3, 3), next_observations="")), strict=True
    ):
        del episode["terminals"], episode["timeouts"]
        steps = np.arange(len(episode["rewards"]))
        found.append({**episode, "seed": int(seed > 1), "episode": number, "step": steps})
    return found


def _check_lengths(*lengths: int) -> Callable[[SourceReading, Sequence[Episode], Writer], None]:
    def check(seen: SourceReading, episodes: Sequence[Episode], writer: Writer) -> None:
        assert seen.lengths == [*lengths]

    return check


ROW_IS_AN_EPISODE = Impossible("a row is an episode")
ONE_EPISODE = Impossible("each file, group or item is an episode")
ENDS_BY_FLAGS = Impossible("flags end the episodes")
NO_IDS: dict[str, Refused | Impossible | None] = {
    "episode": ROW_IS_AN_EPISODE,
    "alone": ONE_EPISODE,
    "npz with lengths": Impossible("lengths divide the episodes"),
    **dict.fromkeys(("HDF5, flat with ends", "Zarr replay buffer"), Impossible("ends divide the episodes")),
    **dict.fromkeys(("D4RL", "V-D4RL", "Stable-Baselines3"), ENDS_BY_FLAGS),
}
BOTH_COLUMNS = EpisodeBoundaries(episode_column=("seed", "episode"))
ID_REFUSED = Refused(BadEpisodeError, "give --episode-column for each of them", {"episodes": BOTH_COLUMNS})
IDEAS |= {
    "equal numbers of neighbouring runs": Idea(
        _of_several_runs, _check_lengths(4, 5, 3), other=NO_IDS, findings=("steps-not-monotonic", "run-changes")
    ),
    "several columns name an episode": Idea(
        _of_several_runs,
        _check_lengths(4, 2, 3, 3),
        {"episodes": BOTH_COLUMNS},
        other={
            **NO_IDS,
            "LeRobot": Impossible("episode_index numbers the episodes"),
            "TorchRL": Impossible("traj_ids numbers the episodes"),
        },
    ),
    "ids that come back": Idea(
        lambda: _of_several_runs((0, 1, 0, 1)),
        _check_lengths(4, 2, 3, 3),
        other={
            **NO_IDS,
            "step": ID_REFUSED,
            "ids": ID_REFUSED,
            "LeRobot": Refused(BadEpisodeError, "sort the rows by episode and step first"),
            "TorchRL": None,
        },
    ),
}


def _whole_rewards_first() -> list[dict[str, Any]]:
    """Returns episodes of which the first has whole rewards, as lists of Python numbers."""
    found = episodes_of(next_observations="")
    found[0]["rewards"] = np.array([0, 0, 0, 1])
    return [{**each, "rewards": each["rewards"].tolist()} for each in found]


def _check_rewards(seen: SourceReading, episodes: Sequence[Episode], writer: Writer) -> None:
    assert seen.schema["rewards"].dtype == "float64"
    for found, episode in zip(seen.episodes, episodes, strict=True):
        np.testing.assert_array_equal(found["rewards"], episode["rewards"])


def _with_nan() -> list[dict[str, Any]]:
    found = episodes_of(next_observations="")
    found[1]["observations"][2] = np.nan
    return found


def _check_nan(seen: SourceReading, episodes: Sequence[Episode], writer: Writer) -> None:
    name = writer.column("observations")
    for found, episode in zip(seen.episodes, episodes, strict=True):
        np.testing.assert_array_equal(found[name], writer.seen(np.asarray(episode["observations"])))


def _check_renamed(seen: SourceReading, episodes: Sequence[Episode], writer: Writer) -> None:
    _check_ends(seen, episodes, writer)
    for found, final, episode in zip(seen.episodes, seen.finals, episodes, strict=True):
        np.testing.assert_array_equal(found["actions"], writer.seen(np.asarray(episode["commands"])))
        np.testing.assert_array_equal((final or {})["observations"], writer.seen(np.asarray(episode["following"]))[-1])


def _stacks_of_frames() -> list[dict[str, Any]]:
    """Returns episodes of stacks of four frames and chunks of two actions, without rewards and flags."""
    rng = np.random.default_rng(6)
    return [{"observations": rng.normal(size=(n, 4, 3)), "actions": rng.normal(size=(n, 2, 2))} for n in (4, 5, 3)]


def _with_nulls() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = [*episodes_of(next_observations="")]
    for i, episode in enumerate(found):
        episode["force"] = np.array([1.5, None if i == 1 else 2.5, *([3.5] * (len(episode["rewards"]) - 2))], object)
    return found


def _check_nulls(seen: SourceReading, episodes: Sequence[Episode], writer: Writer) -> None:
    for found, episode in zip(seen.episodes, episodes, strict=True):
        expected = np.array([np.nan if value is None else value for value in episode["force"]])
        np.testing.assert_array_equal(found["force"], expected)


AS_FRACTIONS = {"tables": TableOptions(dtype={"rewards": "float64"})}
NULL_REFUSED = Refused(BadEpisodeError, "--fill-null force=nan", {"tables": TableOptions(fill_null={"force": "nan"})})
HAS_REWARDS = Impossible("its files have rewards")
NO_NULLS = Impossible("arrays have no nulls")
_OF_TABLES = (
    "Parquet", "JSON", "CSV", "save_to_disk", "Lance", "pandas", "Polars", "LeRobot", "Minari (Arrow)", "RLDS",
)  # fmt: skip
OWN_OBSERVATIONS = Impossible("another array is an observation of its own name")
OWN_COLUMNS = Impossible("another column is left out, and reported")
NEW_NAMES = {"commands": "actions", "following": "next_observations", "over": "terminated", "cut": "truncated"}
IDEAS |= {
    "whole rewards before fractions": Idea(
        _whole_rewards_first,
        _check_rewards,
        other={
            "alone": Refused(BadEpisodeError, "--dtype rewards=float64", AS_FRACTIONS),
            **dict.fromkeys(
                ("npz, a file an episode", "npy, a folder an episode"),
                Refused(CorruptSourceError, "--dtype rewards=float64", AS_FRACTIONS),
            ),
            **dict.fromkeys(("episodes in memory", "Minari (HDF5)", "Minari (Arrow)"), None),
            "npz, an array an episode": Refused(
                BadEpisodeError,
                "--dtype 'rewards_*'=float64",
                {"tables": TableOptions(dtype={"rewards_*": "float64"})},
            ),
            "WebDataset, a sample an episode": Refused(CorruptSourceError, "the first rows decide the types"),
            "RLDS": Impossible("a feature has one dtype"),
        },
    ),
    "stacks of frames, chunks of actions": Idea(
        _stacks_of_frames,
        _check_nan,
        other={
            **dict.fromkeys(("D4RL", "V-D4RL", "Stable-Baselines3"), HAS_REWARDS),
            "WebDataset, a sample an episode": Refused(CorruptSourceError, "load the file with datasets"),
        },
    ),
    "nulls in a float column": Idea(
        _with_nulls,
        _check_nulls,
        other={
            **dict.fromkeys((name for name in WRITERS if "row" in name or name in ("LeRobot", "Lance")), NULL_REFUSED),
            **dict.fromkeys((name for name in WRITERS if not name.startswith(_OF_TABLES)), NO_NULLS),
            "Minari (Arrow)": OWN_COLUMNS,
            "RLDS": Impossible("tensors have no nulls"),
        },
        findings=("non-finite",),
    ),
    "NaN in observations": Idea(_with_nan, _check_nan, findings=("non-finite",)),
    "names that the user gives": Idea(
        lambda: episodes_of(actions="commands", next_observations="following", terminals="over", timeouts="cut"),
        _check_renamed,
        {"rename": NEW_NAMES},
        {
            **OWN_NAMES,
            "D4RL": None,
            "HDF5, flat with ends": Refused(
                UnknownNameError,
                "did you mean 'data/commands'",
                {"rename": {f"data/{name}": new for name, new in NEW_NAMES.items()}},
            ),
            "npz, an array an episode": Refused(
                UnknownNameError,
                "did you mean 'commands_*'",
                {"rename": {f"{name}_*": new for name, new in NEW_NAMES.items()}},
            ),
        },
    ),
}


def _without_next(**more: Any) -> list[dict[str, Any]]:
    """Returns episodes with flags, and with further values: functions of the number of the episode and its steps."""
    found: list[dict[str, Any]] = [*episodes_of(next_observations="")]
    for i, episode in enumerate(found):
        episode |= {name: value(i, len(episode["rewards"])) for name, value in more.items()}
    return found


def _image(number: int) -> bytes:
    return encode_image(np.full((4, 4, 3), number, np.uint8), "PNG")


def _check_images(seen: SourceReading, episodes: Sequence[Episode], writer: Writer) -> None:
    for i, found in enumerate(seen.episodes):
        expected = [np.full((4, 4, 3), 9 * i + step, np.uint8) for step in range(len(found["rewards"]))]
        np.testing.assert_array_equal(found["observations.image"], expected)


def _byte_strings(i: int, steps: int) -> Array:
    return np.array([_image(9 * i + step) for step in range(steps)], "S200")


def _of_several_lengths(i: int, steps: int) -> Array:
    return np.array([_image(9 * i + step) for step in range(steps)], np.object_)


def _padded_rows(i: int, steps: int) -> Array:
    return np.frombuffer(_byte_strings(i, steps).tobytes(), np.uint8).reshape(steps, 200)


def _with_empty_episode() -> list[dict[str, Any]]:
    found = _without_next()
    return [found[0], {name: values[:0] for name, values in found[0].items()}, *found[1:]]


def _check_three(seen: SourceReading, episodes: Sequence[Episode], writer: Writer) -> None:
    assert seen.lengths == [4, 5, 3]
    _check_ends(seen, episodes, writer)


def _check_constant(seen: SourceReading, episodes: Sequence[Episode], writer: Writer) -> None:
    for i, (found, facts) in enumerate(zip(seen.episodes, seen.facts, strict=True)):
        values = {facts["gravity"]} if "gravity" in facts else {*found["gravity"].tolist()}
        assert values == {*writer.seen(np.array([9.8 + i])).tolist()}


def _check_chosen(seen: SourceReading, episodes: Sequence[Episode], writer: Writer) -> None:
    assert {*seen.schema.names} == {"actions", "terminated", "truncated"}
    _check_three(seen, episodes, writer)


def _check_without_path(seen: SourceReading, episodes: Sequence[Episode], writer: Writer) -> None:
    assert "path" not in seen.schema.names
    _check_three(seen, episodes, writer)


def _with_late_column() -> list[dict[str, Any]]:
    found = _without_next()
    for episode in found[1:]:
        episode["force"] = np.zeros(len(episode["rewards"]))
    return found


def _with_reset_steps() -> list[dict[str, Any]]:
    """Returns transitions of a vector environment: from the second on, episodes begin with the step that resets."""
    found = []
    last: Array | None = None
    for length in (4, 5, 3, 6):
        states = np.arange(length + 1)[:, None] * np.array([1.0, 2.0, -1.0])
        before = [] if last is None else [last]
        observations, following = (
            np.stack([*before, *states[:-1]]),
            np.stack([*([states[0]] * len(before)), *states[1:]]),
        )
        rewards = np.concatenate([[0.0] * len(before), np.ones(length)])
        ends = np.arange(len(rewards)) == len(rewards) - 1
        found.append(
            {
                "observations": observations,
                "actions": np.ones((len(rewards), 2)),
                "rewards": rewards,
                "next_observations": following,
                "terminals": ends,
                "timeouts": ends & False,
            }
        )
        last = states[-1]
    return found


SKIPPED = {"on_bad_episode": "skip"}
NO_STEPS = Refused(BadEpisodeError, "--on-bad-episode skip", SKIPPED)
NO_EMPTY = Impossible("an episode without a row is not there")
IN_MEMORY = Impossible("there are no files")
KEPT_COLUMNS = {"columns": ("observations", "actions", "rewards")}
APART = Impossible("episodes are apart: none follows another one")
ONE_SCHEMA = Impossible("all steps have the same columns")
TEXT = Impossible("text has no bytes and no uint8")
AN_OBJECT = Impossible("objects are pickles")
NO_BY_FILE = Refused(InvalidArgumentError, "leave it out", {"episodes": EpisodeBoundaries()})
ONE_DATASET = Impossible("a folder is one dataset")
_FOLDERS = ("save_to_disk", "Lance", "Minari", "TorchRL", "RLDS")
IDEAS |= {
    "images as byte strings of several sizes": Idea(
        lambda: _without_next(**{"observations.image": _of_several_lengths}),
        _check_images,
        other={
            **{name: TEXT for name in WRITERS if name.startswith(("JSON", "CSV"))},
            "arrays in memory": Refused(UnsupportedColumnError, "convert it to one type"),
            **{name: AN_OBJECT for name in WRITERS if name.startswith(("np", "Zarr", "WebDataset", "Stable"))},
            **NO_DOTS,
            "LeRobot": Impossible("images are image or video features"),
            "Minari (HDF5)": Impossible("another array is an info"),
            "Minari (Arrow)": OWN_COLUMNS,
            "V-D4RL": OWN_OBSERVATIONS,
            "TorchRL": Impossible("tensors hold no byte strings"),
        },
    ),
    "one file an episode (--file-is-episode)": Idea(
        _without_next,
        _check_three,
        {"episodes": EpisodeBoundaries(file_is_episode=True)},
        other={
            "ids": NO_BY_FILE,
            "episode": NO_BY_FILE,
            "alone": NO_BY_FILE,
            **{name: IN_MEMORY for name in WRITERS if "memory" in name or name.startswith(("pandas", "Polars"))},
            **dict.fromkeys(
                ("npz with lengths", "D4RL", "HDF5, flat with ids", "HDF5, flat with ends", "Zarr replay buffer"),
                NO_BY_FILE,
            ),
            "V-D4RL": NO_BY_FILE,
            "Stable-Baselines3": Impossible("a file has the episodes of its environments"),
            **{name: ONE_DATASET for name in WRITERS if name.startswith(_FOLDERS)},
        },
        apart=True,
    ),
    "images as byte strings of one size": Idea(
        lambda: _without_next(**{"observations.image": _byte_strings}),
        _check_images,
        other={
            **{name: TEXT for name in WRITERS if name.startswith(("JSON", "CSV"))},
            **NO_DOTS,
            "LeRobot": Impossible("images are image or video features"),
            "Minari (HDF5)": Impossible("another array is an info"),
            "Minari (Arrow)": OWN_COLUMNS,
            "V-D4RL": OWN_OBSERVATIONS,
            "TorchRL": Impossible("tensors hold no byte strings"),
        },
    ),
    "images as padded rows of uint8": Idea(
        lambda: _without_next(**{"observations.image": _padded_rows}),
        _check_images,
        other={
            **{name: TEXT for name in WRITERS if name.startswith(("JSON", "CSV"))},
            **NO_DOTS,
            "LeRobot": Impossible("images are image or video features"),
            "Minari (HDF5)": Impossible("another array is an info"),
            "Minari (Arrow)": OWN_COLUMNS,
            "V-D4RL": OWN_OBSERVATIONS,
        },
    ),
    "the step that resets an environment (Gymnasium 1.x)": Idea(
        _with_reset_steps,
        _check_lengths(4, 5, 3, 6),
        other={
            "episode": APART,
            **{name: APART for name, writer in WRITERS.items() if writer.rows == "alone" and "memory" not in name},
            **dict.fromkeys(("V-D4RL", "Stable-Baselines3"), Impossible("its environments reset in the same step")),
        },
        findings=("reset-step-left-out",),
    ),
    "episodes without a step": Idea(
        _with_empty_episode,
        _check_three,
        other={
            "step": NO_EMPTY,
            "ids": NO_EMPTY,
            "episode": NO_STEPS,
            **dict.fromkeys((name for name, writer in WRITERS.items() if writer.rows == "alone"), NO_STEPS),
            **dict.fromkeys(
                ("npz, a file an episode", "npy, a folder an episode"),
                None,
            ),
            "npz with lengths": Refused(BadEpisodeError, "correct this array"),
            "Zarr replay buffer": NO_STEPS,
        },
    ),
    "a constant of an episode": Idea(
        lambda: _without_next(gravity=lambda i, steps: 9.8 + i),
        _check_constant,
        other={
            "D4RL": Impossible("a file has many episodes"),
            "V-D4RL": OWN_OBSERVATIONS,
        },
    ),
    "an array of another length": Idea(
        lambda: _without_next(path=lambda i, steps: np.arange(7.0)),
        _check_without_path,
        other={
            "step": ONE_SCHEMA,
            "ids": ONE_SCHEMA,
            "episode": Refused(BadEpisodeError, "--columns", KEPT_COLUMNS),
            "Zarr replay buffer": ONE_SCHEMA,
            "npz with lengths": Refused(BadEpisodeError, "--columns", KEPT_COLUMNS),
            "npz, a file an episode": Refused(BadEpisodeError, "--columns", KEPT_COLUMNS),
            "npy, a folder an episode": Refused(BadEpisodeError, "--columns", KEPT_COLUMNS),
            "episodes in memory": Refused(BadEpisodeError, "--columns", KEPT_COLUMNS),
            "robomimic": Refused(BadEpisodeError, "--columns", {"columns": ("obs/x", "actions", "rewards")}),
            "ACT": Refused(BadEpisodeError, "--columns", {"columns": ("observations/qpos", "action", "rewards")}),
            **dict.fromkeys(("Minari (HDF5)", "d3rlpy"), Refused(BadEpisodeError, "--columns", KEPT_COLUMNS)),
            "Minari (Arrow)": ONE_SCHEMA,
        },
    ),
    "columns that the user chooses": Idea(
        _without_next, _check_chosen, {"columns": ["actions"]}, {"V-D4RL": Impossible("discount is its flag")}
    ),
    "other files beside the data": Idea(
        _without_next,
        _check_ends,
        other={name: IN_MEMORY for name in WRITERS if "memory" in name or name.startswith(("pandas", "Polars"))},
        findings=("files-left-out",),
        beside={"config.yaml": "seed: 1", "log.txt": "3 episodes"},
    ),
    "a column that later episodes have": Idea(
        _with_late_column,
        _check_three,
        other={
            **{name: ONE_SCHEMA for name, writer in WRITERS.items() if writer.rows in ("step", "episode", "ids")},
            "npz with lengths": ONE_SCHEMA,
            **dict.fromkeys(("Zarr replay buffer", "RLDS"), ONE_SCHEMA),
            "npz, a file an episode": Refused(CorruptSourceError, "--columns", KEPT_COLUMNS),
            "npz, an array an episode": Refused(UnknownFormatError, "--suggest-map"),
            "npy, a folder an episode": Refused(CorruptSourceError, "--columns", KEPT_COLUMNS),
            "episodes in memory": Refused(BadEpisodeError, "--columns", KEPT_COLUMNS),
        },
        findings=("column-left-out",),
    ),
}


def _outcome(idea: str, format: str) -> Refused | Impossible | None:
    other, writer = IDEAS[idea].other, WRITERS[format]
    if format in other:
        return other[format]
    own_names = other.get("own names") if writer.own_names else None
    own_flags = other.get("own flags") if writer.own_flags else None
    return own_flags or own_names or other.get(writer.rows)


# Name of a group in the page -> its formats.
GROUPS = {
    "*own names*": {name for name, writer in WRITERS.items() if writer.own_names},
    "*rows of steps*": {name for name, writer in WRITERS.items() if writer.rows == "step"},
    "*separate episodes*": {name for name, writer in WRITERS.items() if writer.rows == "alone"},
    "*own flags*": {name for name, writer in WRITERS.items() if writer.own_flags},
    "*rows of episodes*": {name for name, writer in WRITERS.items() if writer.rows == "episode"},
    "*flat arrays*": {name for name, writer in WRITERS.items() if writer.rows == "ids"},
}


#: Formats without a writer -> the reason.
NOT_IN_THE_TABLE = {
    "calvin": "its arrays are fixed",
    "dqn-replay": "its arrays are fixed",
    "journal": "gear-data writes it",
    "ogbench": "its arrays and flags are fixed, and nothing terminates",
}


def _named(formats: Sequence[str]) -> str:
    """Returns the names of formats. The name of a group stands for its formats, of which a few may be lacking."""
    left, names = list(formats), []
    for group, members in GROUPS.items():
        lacking = [name for name in WRITERS if name in members and name not in formats]
        if len(members & {*left}) > 2 * len(lacking):
            names.append(f"{group} but {' and '.join(lacking)}" if lacking else group)
            left = [name for name in left if name not in members]
    return ", ".join([*names, *left])


def page() -> str:
    """Returns the table of ideas and formats, as docs/reference/ideas.md has it."""
    lines = [f"- {name}: {'; '.join(each for each in WRITERS if each in GROUPS[name])}" for name in GROUPS]
    others = [each for each in WRITERS if not any(each in members for members in GROUPS.values())]
    lines += [
        f"- in no group: {'; '.join(others)}",
        f"- not in the table: {'; '.join(f'`{name}` ({reason})' for name, reason in NOT_IN_THE_TABLE.items())}",
        "",
        "| ideas | refused, with the way out | cannot occur |",
        "|---|---|---|",
    ]
    rows: dict[str, list[str]] = {}
    for idea, meaning in IDEAS.items():
        refused: dict[str, list[str]] = {}
        reasons: dict[str, list[str]] = {}
        for format in WRITERS:
            match _outcome(idea, format):
                case Refused(match=text):
                    refused.setdefault(text, []).append(format)
                case Impossible(reason=text):
                    reasons.setdefault(text, []).append(format)
        cells = [
            "; ".join(f"{_named(formats)}: {text}" for text, formats in found.items()) for found in (refused, reasons)
        ]
        reported = f" (reported as {', '.join(f'`{code}`' for code in meaning.findings)})" if meaning.findings else ""
        rows.setdefault(" | ".join(cells), []).append(f"{idea}{reported}")
    lines += [f"| {'; '.join(ideas)} | {cells} |" for cells, ideas in rows.items()]
    return "\n".join(lines) + "\n"


def test_the_page_of_the_docs_is_the_table() -> None:
    """`python -m tests.ingest.test_ideas` prints the table."""
    text = (Path(__file__).parents[2] / "docs/reference/ideas.md").read_text()
    assert text.endswith("\n" + page())


def test_every_format_is_in_the_table(tmp_path: Path) -> None:
    found = set()
    for i, writer in enumerate(WRITERS.values()):
        if writer.needs:
            pytest.importorskip(writer.needs)
        (tmp_path / str(i)).mkdir()
        found.add(read_source(writer.write(tmp_path / str(i), _without_next())).format)
    assert known_formats().keys() - found == NOT_IN_THE_TABLE.keys()


@pytest.mark.parametrize("format", WRITERS)
@pytest.mark.parametrize("idea", IDEAS)
def test_an_idea_in_a_format(idea: str, format: str, tmp_path: Path) -> None:
    meaning, writer = IDEAS[idea], WRITERS[format]
    other = _outcome(idea, format)
    if isinstance(other, Impossible):
        pytest.skip(other.reason)
    if writer.needs:
        pytest.importorskip(writer.needs)
    episodes, folder = meaning.episodes(), tmp_path / "source"
    folder.mkdir()
    source, options = None if meaning.apart else writer.write(folder, episodes), dict(meaning.options)
    for i, episode in enumerate(episodes if meaning.apart else ()):
        (folder / str(i)).mkdir()
        writer.write(folder / str(i), [episode])
    for name, text in meaning.beside.items():
        (folder / name).write_text(text)
    source = folder if meaning.beside or meaning.apart else source
    if isinstance(other, Refused):
        with pytest.raises(other.error) as error:
            read_source(source, **options)
        assert other.match in f"{error.value.message} {error.value.hint}"
        if other.options is None:
            return
        options |= other.options
    seen = read_source(source, **options)
    if other is None:
        assert {*meaning.findings} <= seen.codes
    meaning.check(seen, episodes, writer)


if __name__ == "__main__":
    print(page(), end="")
