"""Tests of NumPy archives and folders of arrays."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import gear_data
from gear_data.errors import BadEpisodeError, CorruptSourceError, GearError, UnknownFormatError, UnsupportedColumnError
from gear_data.ingest.episode_boundaries import EpisodeBoundaries
from gear_data.ingest.ideas.next_observations import take_next_observations
from gear_data.ingest.location import locate
from gear_data.ingest.source import SourceOptions
from gear_data.ingest.sources.registry import open_source
from gear_data.storage.episode_block import BEGIN, END
from tests.support.checks import warning_codes
from tests.support.encoded_images import encode_image

Arrays = dict[str, npt.NDArray[Any]]


def flat(rollouts: Any) -> Arrays:
    return {name: np.concatenate([r.columns[name] for r in rollouts]) for name in rollouts[0].columns}


def d4rl_arrays(rollouts: Any) -> Arrays:
    steps = flat(rollouts)
    return {
        "observations": steps["observations"],
        "actions": steps["actions"],
        "rewards": steps["rewards"],
        "terminals": steps["terminated"],
        "timeouts": steps["truncated"],
        "next_observations": np.concatenate([r.next_observations for r in rollouts]),
    }


def imitation_arrays(rollouts: Any) -> Arrays:
    steps = flat(rollouts)
    return {
        "obs": np.concatenate([np.concatenate([r.columns["observations"], r.final[None]]) for r in rollouts]),
        "acts": steps["actions"],
        "rews": steps["rewards"],
        "indices": np.cumsum([len(r) for r in rollouts])[:-1],
        "terminal": np.ones(len(rollouts), np.bool_),
    }


def as_terminated(rollouts: Any) -> Any:
    """Returns the rollouts as a source with only one end flag gives them."""
    return [
        r.with_columns(terminated=np.arange(len(r)) == len(r) - 1, truncated=np.zeros(len(r), np.bool_))
        for r in rollouts
    ]


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_d4rl_names(sources: Any, tmp_path: Path, save: Any) -> None:
    rollouts = sources.make_rollouts()
    save(tmp_path / "a.npz", **d4rl_arrays(rollouts))
    report = gear_data.convert(tmp_path / "a.npz", tmp_path / "out")
    assert report.format == "npz"
    sources.check_dataset(tmp_path / "out", rollouts, final=True)
    # The same rollouts in D4RL's HDF5 give the same dataset.
    sources.write_d4rl(tmp_path / "a.hdf5", rollouts)
    assert report.fingerprint == gear_data.convert(tmp_path / "a.hdf5", tmp_path / "d4rl").fingerprint


def test_jumps_end_episodes_where_there_are_no_timeouts(sources: Any, tmp_path: Path) -> None:
    rollouts = sources.make_rollouts()
    arrays = d4rl_arrays(rollouts)
    del arrays["timeouts"]
    np.savez(tmp_path / "a.npz", **arrays)
    gear_data.convert(tmp_path / "a.npz", tmp_path / "out")
    sources.check_dataset(tmp_path / "out", rollouts, final=True)


def test_imitation(sources: Any, tmp_path: Path) -> None:
    rollouts = sources.make_rollouts()
    arrays = imitation_arrays(rollouts)
    arrays["infos"] = np.array([{}] * len(arrays["acts"]), object)
    np.savez_compressed(tmp_path / "a.npz", **arrays)
    report = gear_data.convert(tmp_path / "a.npz", tmp_path / "out")
    sources.check_dataset(tmp_path / "out", as_terminated(rollouts), final=True)
    assert set(warning_codes(report)) == {"object-array-left-out", "no-truncation-flag"}
    assert any("infos" in warning for warning in report.warnings)


@pytest.mark.parametrize(("name", "episodes", "steps"), [("cartpole_0", 57, 26964), ("pendulum_0", 56, 11200)])
def test_real_imitation_rollouts(shared_data: Path, tmp_path: Path, name: str, episodes: int, steps: int) -> None:
    report = gear_data.convert(shared_data / "imitation_npz" / name, tmp_path / "out")
    assert (report.episodes, report.steps) == (episodes, steps)
    dataset = gear_data.open(tmp_path / "out")
    with np.load(shared_data / "imitation_npz" / name / "rollouts/final.npz", allow_pickle=False) as source:
        split = np.split(source["acts"], source["indices"])
        observations, row = source["obs"], 0
        for i in range(0, episodes, 7):
            row = sum(len(acts) + 1 for acts in split[:i])
            length = len(split[i])
            np.testing.assert_array_equal(dataset.episode(i)["actions"], split[i])
            np.testing.assert_array_equal(dataset.episode(i)["observations"], observations[row : row + length])
            np.testing.assert_array_equal((dataset.final(i) or {})["observations"], observations[row + length])


@pytest.mark.parametrize("kind", ["lengths", "episode_lengths", "episode_ends"])
def test_lengths_and_ends(sources: Any, tmp_path: Path, kind: str) -> None:
    rollouts = sources.make_rollouts()
    lengths = np.array([len(r) for r in rollouts])
    split = np.cumsum(lengths) if kind == "episode_ends" else lengths
    seeds = np.arange(len(rollouts)) + 100
    np.savez(tmp_path / "a.npz", **flat(rollouts), **{kind: split, "seed": seeds})
    gear_data.convert(tmp_path / "a.npz", tmp_path / "out")
    sources.check_dataset(tmp_path / "out", rollouts)
    assert gear_data.open(tmp_path / "out").episodes["seed"].to_list() == seeds.tolist()


def test_padded_episodes(sources: Any, tmp_path: Path) -> None:
    rollouts = sources.make_rollouts()
    longest = max(len(r) for r in rollouts)
    padded: Arrays = {"lengths": np.array([len(r) for r in rollouts])}
    for name, values in rollouts[0].columns.items():
        extra = int(name == "observations")
        padded[name] = np.full((len(rollouts), longest + extra, *values.shape[1:]), 77).astype(values.dtype)
        for i, rollout in enumerate(rollouts):
            padded[name][i, : len(rollout)] = rollout.columns[name]
            if extra:
                padded[name][i, len(rollout)] = rollout.final
    np.savez_compressed(tmp_path / "a.npz", **padded)
    gear_data.convert(tmp_path / "a.npz", tmp_path / "out")
    sources.check_dataset(tmp_path / "out", rollouts, final=True)


def test_padded_episodes_of_transposed_arrays(tmp_path: Path) -> None:
    """NumPy saves the transpose of [steps, episodes] as it is in memory."""
    lengths = np.array([4, 2, 3])
    rewards, actions = np.arange(12.0).reshape(4, 3).T, np.arange(24.0).reshape(2, 4, 3).T
    (tmp_path / "in").mkdir()
    for name, values in {"rewards": rewards, "actions": actions, "lengths": lengths}.items():
        np.save(tmp_path / f"in/{name}.npy", values)
    assert gear_data.convert(tmp_path / "in", tmp_path / "out").format == "numpy"
    dataset = gear_data.open(tmp_path / "out")
    for i, length in enumerate(lengths.tolist()):
        np.testing.assert_array_equal(dataset.episode(i)["rewards"], rewards[i, :length])
        np.testing.assert_array_equal(dataset.episode(i)["actions"], actions[i, :length])


@pytest.mark.parametrize("files", [1, 4])
@pytest.mark.parametrize("kind", ["flags", "lengths", "padded", "final-row", "dreamer"])
def test_the_progress_bar_has_a_total(kind: str, files: int, sources: Any, tmp_path: Path) -> None:
    rollouts = sources.make_rollouts(20, short=False)
    steps = sum(len(r) for r in rollouts)
    arrays = d4rl_arrays(rollouts)
    if kind == "lengths":
        arrays = {**flat(rollouts), "lengths": np.array([len(r) for r in rollouts])}
    elif kind == "padded":
        arrays = {"actions": np.zeros((3, 9, 2)), "lengths": np.array([2, 9, 1])}
        steps = 12
    elif kind == "final-row":
        arrays = {"observations": np.zeros((8, 2)), "actions": np.zeros((7, 2))}
        steps = 7
    elif kind == "dreamer":
        arrays = {"image": np.zeros((8, 2)), "action": np.zeros((8, 2)), "is_first": np.arange(8) % 4 == 0}
        steps = 6
    (tmp_path / "in").mkdir()
    for i in range(files):
        np.savez(tmp_path / f"in/{i}.npz", **arrays)
    location = locate(tmp_path / "in", None)
    assert open_source(location, "auto", SourceOptions())[0].num_rows == files * steps


@pytest.mark.parametrize("flags", [True, False])
def test_a_file_an_episode(sources: Any, tmp_path: Path, flags: bool) -> None:
    rollouts = sources.make_rollouts(12)
    for i, rollout in enumerate(rollouts):
        columns = {n: v for n, v in rollout.columns.items() if flags or n not in ("terminated", "truncated")}
        observations = np.concatenate([columns.pop("observations"), rollout.final[None]])
        (tmp_path / "in").mkdir(exist_ok=True)
        np.savez(tmp_path / f"in/episode_{i}.npz", observations=observations, **columns, success=np.bool_(i % 3 == 0))
    report = gear_data.convert(tmp_path / "in", tmp_path / "out")
    dataset = gear_data.open(tmp_path / "out")
    assert dataset.episodes["source"].to_list() == [f"episode_{i}.npz" for i in range(12)]  # file 10 comes after file 9
    assert dataset.episodes["success"].to_list() == [i % 3 == 0 for i in range(12)]
    if flags:
        sources.check_dataset(tmp_path / "out", rollouts, final=True)
    else:
        assert set(warning_codes(report)) == {"no-end-flag"}
        assert dataset.episodes["truncated"].all()
        assert [e.length for e in map(dataset.episode, range(12))] == [len(r) for r in rollouts]


@pytest.mark.parametrize("version", [2, 3])
def test_dreamer(sources: Any, tmp_path: Path, version: int) -> None:
    """A row is an observation and the reward that came with it.

    In V3 the row's action follows the observation; in V2 it comes before.
    """
    rollouts = sources.make_rollouts()
    rows: dict[str, list[Any]] = {n: [] for n in ("vector", "action", "reward", "is_first", "is_last", "is_terminal")}
    for r in rollouts:
        for t in range(len(r) + 1):
            before, at = (r.columns[n][t - 1] if t else None for n in ("rewards", "actions"))
            taken = r.columns["actions"][t] if t < len(r) else np.ones(2, np.float32)
            rows["vector"].append(r.final if t == len(r) else r.columns["observations"][t])
            rows["action"].append(taken if version == 3 else (at if t else np.zeros(2, np.float32)))
            rows["reward"].append(np.float32(before if t else 0))
            rows["is_first"].append(t == 0)
            rows["is_last"].append(t == len(r))
            rows["is_terminal"].append(t == len(r) and bool(r.columns["terminated"][-1]))
    np.savez_compressed(tmp_path / "a.npz", **{name: np.array(values) for name, values in rows.items()})
    gear_data.convert(tmp_path / "a.npz", tmp_path / "out", rename={"vector": "observations"})
    sources.check_dataset(tmp_path / "out", rollouts, final=True)


def test_dreamer_rewards_of_the_step_itself_are_refused(tmp_path: Path) -> None:
    rows = 5
    np.savez(
        tmp_path / "a.npz",
        image=np.zeros((rows, 2)),
        action=np.ones((rows, 2)),
        reward=np.ones(rows),
        is_first=np.arange(rows) == 0,
        is_last=np.arange(rows) == rows - 1,
        is_terminal=np.zeros(rows, bool),
    )
    with pytest.raises(BadEpisodeError, match="first observation"):
        gear_data.convert(tmp_path / "a.npz", tmp_path / "out")


def test_dreamer_files_next_to_other_files_are_refused(tmp_path: Path) -> None:
    """The rewards of the two files belong to different rows."""
    (tmp_path / "s").mkdir()
    rows = {"image": np.zeros((5, 2)), "action": np.ones((5, 2)), "reward": np.zeros(5)}
    np.savez(tmp_path / "s" / "a.npz", **rows, is_first=np.arange(5) == 0)
    flat_rows = {"observations.image": rows["image"], "action": rows["action"][1:], "reward": rows["reward"][1:]}
    np.savez(tmp_path / "s" / "b.npz", **flat_rows)
    with pytest.raises(CorruptSourceError, match=r"b\.npz, column 'reward': belongs to other rows .*is_first"):
        gear_data.convert(tmp_path / "s", tmp_path / "out")


def first_rows(lengths: tuple[int, ...]) -> Any:
    return np.concatenate([np.arange(n) == 0 for n in lengths])


@pytest.mark.parametrize(
    ("names", "others"),
    [
        (("observations", "actions", "rewards"), ()),
        (("observations", "actions", "rewards"), ("terminals", "timeouts")),
        (("observations", "action", "reward"), ("terminals",)),
        (("obs", "acts", "rews"), ()),
        (("obs", "acts", "rews"), ("dones",)),
        (("observations", "actions", "rewards"), ("next_observations",)),
        (("observations", "actions", "rewards"), ("terminals", "is_last")),
    ],
)
def test_is_first_beside_usual_names_marks_steps(
    names: tuple[str, ...], others: tuple[str, ...], tmp_path: Path
) -> None:
    lengths, total = (5, 4, 6), 15
    observations = np.arange(2.0 * total).reshape(total, 2)
    actions, rewards = 100 + np.arange(total).reshape(total, 1), 1.0 + np.arange(total)
    last = np.roll(first_rows(lengths), -1)
    more = {"next_observations": observations + 0.5, "timeouts": np.zeros(total, bool)}
    arrays = dict(zip(names, (observations, actions, rewards), strict=True))
    np.savez(tmp_path / "a.npz", is_first=first_rows(lengths), **arrays, **{n: more.get(n, last) for n in others})
    report = gear_data.convert(tmp_path / "a.npz", tmp_path / "out")
    dataset = gear_data.open(tmp_path / "out")
    assert dataset.lengths.tolist() == list(lengths)
    assert ("no-end-flag" in warning_codes(report)) == (not {"terminals", "dones"} & {*others})
    starts = [0, 5, 9]
    for i, (start, n) in enumerate(zip(starts, lengths, strict=True)):
        episode, rows = dataset.episode(i), slice(start, start + n)
        np.testing.assert_array_equal(episode["observations"], observations[rows])
        np.testing.assert_array_equal(episode["actions"], actions[rows])
        np.testing.assert_array_equal(episode["rewards"], rewards[rows])
        if "next_observations" in others:
            np.testing.assert_array_equal((dataset.final(i) or {})["observations"], observations[start + n - 1] + 0.5)
    assert dataset.episodes["terminated"].all() == bool({"terminals", "dones"} & {*others})


def test_is_first_beside_names_that_are_renamed_to_usual_ones(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", o=np.zeros((15, 2)), a=np.ones(15), r=np.ones(15), is_first=first_rows((5, 4, 6)))
    rename = {"o": "observations", "a": "actions", "r": "rewards"}
    gear_data.convert(tmp_path / "a.npz", tmp_path / "out", rename=rename)
    assert gear_data.open(tmp_path / "out").lengths.tolist() == [5, 4, 6]


@pytest.mark.parametrize("name", ["observation", "observation/image"])
def test_is_first_with_the_names_of_rlds(name: str, tmp_path: Path) -> None:
    """The last row of an episode has no step; its flags are those of the last step."""
    lengths, total = (5, 4, 6), 15
    first = first_rows(lengths)
    observations, rewards = np.arange(2.0 * total).reshape(total, 2), 1.0 + np.arange(total)
    np.savez(
        tmp_path / "a.npz",
        **{name: observations},
        action=10.0 + np.arange(total),
        reward=rewards,
        discount=np.ones(total),
        is_first=first,
        is_last=np.roll(first, -1),
        is_terminal=np.roll(first, -1) & (np.arange(total) > 4),
    )
    gear_data.convert(tmp_path / "a.npz", tmp_path / "out")
    dataset = gear_data.open(tmp_path / "out")
    column = "observations" + name[len("observation") :].replace("/", ".")
    for i, (start, n) in enumerate(zip((0, 5, 9), (4, 3, 5), strict=True)):
        np.testing.assert_array_equal(dataset.episode(i)[column], observations[start : start + n])
        np.testing.assert_array_equal(dataset.episode(i)["rewards"], rewards[start : start + n])
        np.testing.assert_array_equal(dataset.episode(i)["actions"], 10 + np.arange(start, start + n))
        np.testing.assert_array_equal((dataset.final(i) or {})[column], observations[start + n])
    assert dataset.episodes["terminated"].to_list() == [False, True, True]
    assert dataset.episodes["truncated"].to_list() == [True, False, False]


@pytest.mark.parametrize(
    ("arrays", "renames"),
    [
        (("obs", "action", "reward"), {"obs=observations": [5, 4, 6], "obs=observations.obs": [4, 3, 5]}),
        (("observations", "actions", "rewards", "is_last"), {"is_last=dones": [5, 4, 6]}),
        (("observations", "actions", "is_terminal"), {"is_terminal=terminated": [5, 4, 6]}),
    ],
)
def test_is_first_with_unclear_names_is_refused(
    arrays: tuple[str, ...], renames: dict[str, list[int]], tmp_path: Path
) -> None:
    first = first_rows((5, 4, 6))
    flags = {"is_last": np.roll(first, -1), "is_terminal": np.roll(first, -1)}
    path = tmp_path / "a.npz"
    np.savez(path, is_first=first, **{name: flags.get(name, np.zeros(15)) for name in arrays})
    with pytest.raises(UnknownFormatError, match=r"'is_first'(.|\n)*could mean two things") as error:
        gear_data.convert(path, tmp_path / "none")
    for number, (advice, lengths) in enumerate(renames.items()):
        assert f"--rename {advice}" in str(error.value)
        source, _, target = advice.partition("=")
        gear_data.convert(path, tmp_path / f"{number}", rename={source: target})
        assert gear_data.open(tmp_path / f"{number}").lengths.tolist() == lengths


def test_folder_of_npy(sources: Any, tmp_path: Path) -> None:
    rollouts = sources.make_rollouts()
    arrays = d4rl_arrays(rollouts)
    arrays["observations"] = np.asfortranarray(arrays["observations"])
    arrays["rewards"] = arrays["rewards"].astype(">f4")[:, None]
    (tmp_path / "in").mkdir()
    for name, array in arrays.items():
        np.save(tmp_path / "in" / f"{name}.npy", array)
    report = gear_data.convert(tmp_path / "in", tmp_path / "out")
    assert report.format == "numpy"
    sources.check_dataset(tmp_path / "out", rollouts, final=True)


def test_folder_an_episode(sources: Any, tmp_path: Path) -> None:
    rollouts = sources.make_rollouts(12)
    for i, rollout in enumerate(rollouts):
        folder = tmp_path / f"in/episode_{i}"
        (folder / "infos").mkdir(parents=True)
        for name, values in rollout.columns.items():
            np.save(folder / f"{name}.npy", values)
        np.save(folder / "infos/step.npy", np.arange(len(rollout)))
    gear_data.convert(tmp_path / "in", tmp_path / "out")
    dataset = gear_data.open(tmp_path / "out")
    assert dataset.episodes["source"].to_list() == [f"episode_{i}" for i in range(12)]
    for i, rollout in enumerate(rollouts):
        for name, values in rollout.columns.items():
            np.testing.assert_array_equal(dataset.episode(i)[name], values)
        np.testing.assert_array_equal(dataset.episode(i)["infos.step"], np.arange(len(rollout)))


def test_episode_column_end_column_and_limit(sources: Any, tmp_path: Path) -> None:
    rollouts = sources.make_rollouts()
    steps = {name: values for name, values in flat(rollouts).items() if name not in ("terminated", "truncated")}
    np.savez(tmp_path / "a.npz", **steps)
    with pytest.raises(UnknownFormatError, match="--max-episode-steps"):
        gear_data.convert(tmp_path / "a.npz", tmp_path / "none")
    lengths = [len(r) for r in rollouts]
    ends = np.concatenate([np.arange(n) == n - 1 for n in lengths])
    numbers = np.repeat(np.arange(len(lengths)) * 3, lengths)
    counts = np.concatenate([np.arange(n) for n in lengths])
    np.savez(tmp_path / "b.npz", **steps, over=ends, number=numbers, count=counts)
    for kind, column in (("end", "over"), ("episode", "number"), ("step", "count")):
        options = SourceOptions(episodes=EpisodeBoundaries(**{f"{kind}_column": column}))
        source, _, _ = open_source(locate(tmp_path / "b.npz", None), "auto", options)
        assert np.concatenate([b.lengths for b in source.blocks(BEGIN, END)]).tolist() == lengths, kind
    source, _, _ = open_source(
        locate(tmp_path / "a.npz", None), "auto", SourceOptions(episodes=EpisodeBoundaries(max_episode_steps=5))
    )
    found = np.concatenate([block.lengths for block in source.blocks(BEGIN, END)]).tolist()
    total = sum(lengths)
    assert found == [5] * (total // 5) + ([total % 5] if total % 5 else [])


def test_units_are_the_whole_in_order(sources: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import gear_data.ingest.sources.arrays.source as module

    monkeypatch.setattr(module, "_BLOCK_BYTES", 300)
    monkeypatch.setattr(module, "UNIT_BYTES", 1000)
    rollouts = sources.make_rollouts(40)
    (tmp_path / "npy").mkdir()
    for name, array in d4rl_arrays(rollouts).items():
        np.save(tmp_path / "npy" / f"{name}.npy", array)
    (tmp_path / "npz").mkdir()
    for i in range(0, 40, 2):
        np.savez(tmp_path / f"npz/{i}.npz", **d4rl_arrays(rollouts[i : i + 2]))
    finals = np.stack([r.final for r in rollouts])
    for folder in ("npy", "npz"):
        location, options = locate(tmp_path / folder, None), SourceOptions()
        open_again = lambda: take_next_observations(open_source(location, "auto", options)[0], options, location.name)  # noqa: B023, E731
        assert sources.check_units(open_again) > 3
        blocks = list(open_again().blocks(BEGIN, END))
        for name in ("observations", "rewards", "terminated"):
            expected = np.concatenate([r.columns[name] for r in rollouts])
            np.testing.assert_array_equal(np.concatenate([b.columns[name] for b in blocks]), expected)
        np.testing.assert_array_equal(np.concatenate([b.finals["observations"] for b in blocks]), finals)


def test_text_columns(sources: Any, tmp_path: Path) -> None:
    rollouts = sources.make_rollouts()
    texts = np.array([f"go {i}é" for i in range(sum(map(len, rollouts)))])
    np.savez(tmp_path / "a.npz", **flat(rollouts), instruction=texts)
    gear_data.convert(tmp_path / "a.npz", tmp_path / "out")
    dataset = gear_data.open(tmp_path / "out")
    found = [text for i in range(len(rollouts)) for text in dataset.episode(i)["instruction"]]
    assert found == texts.tolist()


def test_padded_next_observations_give_final_observations(tmp_path: Path) -> None:
    lengths, states = np.array([4, 2, 3]), np.random.default_rng(2).normal(size=(3, 5, 2))
    arrays = {"actions": np.zeros((3, 4, 1)), "rewards": np.ones((3, 4)), "episode_lengths": lengths}
    np.savez(tmp_path / "a.npz", observations=states[:, :-1], next_observations=states[:, 1:], **arrays)
    gear_data.convert(tmp_path / "a.npz", tmp_path / "out")
    dataset = gear_data.open(tmp_path / "out")
    assert "next_observations" not in dataset.schema
    for i, length in enumerate(lengths.tolist()):
        np.testing.assert_array_equal(dataset.episode(i)["observations"], states[i, :length])
        np.testing.assert_array_equal((dataset.final(i) or {})["observations"], states[i, length])


def test_next_observations_that_differ_are_reported(sources: Any, tmp_path: Path) -> None:
    rollouts = sources.make_rollouts(6, seed=4)
    arrays = flat(rollouts)
    after = np.concatenate([r.next_observations for r in rollouts])
    row = len(rollouts[0]) + 1  # inside the second episode
    assert len(rollouts[1]) == 3
    after[row] += 1
    np.savez(tmp_path / "a.npz", **{**arrays, "next_observations": after})
    gear_data.convert(tmp_path / "a.npz", tmp_path / "out")
    findings = gear_data.open(tmp_path / "out").manifest.findings
    (found,) = [each for each in findings if each["code"] == "next-observation-differs"]
    assert (found["count"], found["row"]) == (1, row)


def test_next_observation_ends_an_episode_of_one_step(sources: Any, tmp_path: Path) -> None:
    rollouts = sources.make_rollouts(1)
    arrays = flat(rollouts)
    del arrays["truncated"]
    np.savez(tmp_path / "a.npz", **arrays, next_observations=rollouts[0].next_observations)
    gear_data.convert(tmp_path / "a.npz", tmp_path / "out")
    dataset = gear_data.open(tmp_path / "out")
    assert (dataset.num_episodes, dataset.num_steps) == (1, 1)
    np.testing.assert_array_equal(dataset.final(0)["observations"], rollouts[0].final)


def test_byte_strings_that_are_no_images(sources: Any, tmp_path: Path) -> None:
    """NumPy pads byte strings with zeros, which are not theirs."""
    rollouts = sources.make_rollouts(5)
    notes = np.array([b"\xff" * (i % 3) + b"a" for i in range(sum(map(len, rollouts)))])
    np.savez(tmp_path / "a.npz", **flat(rollouts), note=notes)
    gear_data.convert(tmp_path / "a.npz", tmp_path / "out")
    dataset = gear_data.open(tmp_path / "out")
    found = [note for i in range(len(rollouts)) for note in dataset.episode(i)["note"]]
    assert found == notes.tolist()


@pytest.mark.parametrize("names", [("observations",), ("observations", "next_observations")])
@pytest.mark.parametrize("tree", [False, True])
def test_final_images_of_byte_strings(names: Any, tree: bool, tmp_path: Path) -> None:
    """In T + 1 rows, and in next observations."""
    (tmp_path / "in").mkdir()
    pixels = [np.full((5, 4, 1), value, np.uint8) for value in range(11)]
    encoded = np.array([encode_image(each, "PNG") for each in pixels], "S300")
    arrays: dict[str, Any] = {}
    for i, first in enumerate((0, 5)):
        rows = {"actions": np.ones((5, 1)), "rewards": np.ones(5), "terminated": np.arange(5) == 4}
        rows["observations"] = encoded[first : first + 7 - len(names)]
        if len(names) == 2:
            rows["next_observations"] = encoded[first + 1 : first + 6]
        np.savez(tmp_path / f"in/{i}.npz", **rows)
        arrays |= {f"episode_{i}/{name}": values for name, values in rows.items()}
    np.savez(tmp_path / "tree.npz", **arrays)
    gear_data.convert(tmp_path / ("tree.npz" if tree else "in"), tmp_path / "out", progress=False)
    dataset = gear_data.open(tmp_path / "out")
    for i, first in enumerate((0, 5)):
        np.testing.assert_array_equal(dataset.episode(i)["observations"], pixels[first : first + 5])
        np.testing.assert_array_equal((dataset.final(i) or {})["observations"], pixels[first + 5])


@pytest.mark.parametrize("code", [0xD800, 0xDFFF, 0x110000, 0xFFFFFFFF])
def test_text_with_invalid_characters(code: int, tmp_path: Path) -> None:
    """NumPy reads any four bytes as a character."""
    names = np.array(["ab", "cd", "ef"])
    names.view(np.uint32)[3] = code
    arrays = {"observations": np.zeros((3, 2)), "actions": np.zeros((3, 1)), "rewards": np.zeros(3)}
    ends = {name: np.array([False, False, True]) for name in ("terminals", "timeouts")}
    np.savez(tmp_path / "s.npz", **arrays, **ends, names=names)
    with pytest.raises(CorruptSourceError, match=r"names.*row 1.*not Unicode text"):
        gear_data.convert(tmp_path / "s.npz", tmp_path / "d", progress=False)


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"rewards": np.zeros(3, np.float32)}, BadEpisodeError, "rewards.*has 3 rows"),
        ({"actions": np.zeros((0, 2), np.float32)}, BadEpisodeError, "rows, where 'actions' has 0"),
        ({"extra": np.zeros(5, np.complex64)}, BadEpisodeError, "extra"),
        ({"lengths": np.array([2, -1, 5])}, BadEpisodeError, "gives episode 1 -1 steps"),
        ({"lengths": np.array([2**62] * 4)}, BadEpisodeError, "lengths"),
        ({"indices": np.array([2**62, -(2**63), -(2**62), 0])}, BadEpisodeError, "indices"),
        ({"episode_ends": np.array([1])}, BadEpisodeError, "gives 1 steps"),
    ],
)
def test_arrays_that_do_not_fit(sources: Any, tmp_path: Path, change: Arrays, error: Any, words: str) -> None:
    np.savez(tmp_path / "a.npz", **{**flat(sources.make_rollouts()), **change})
    with pytest.raises(error, match=words):
        gear_data.convert(tmp_path / "a.npz", tmp_path / "out")


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["success", "timeout", "success"], "<U7 .9,., not one flag for each of 9 rows"),
        ([0, 2, 1], "row 1: holds 2, but a flag must be 0 or 1"),
    ],
)
def test_flags_of_episodes_that_are_no_flags(flags: Any, words: str, sources: Any, tmp_path: Path) -> None:
    rollouts = sources.make_rollouts()
    arrays = {name: flat(rollouts)[name] for name in ("observations", "actions", "rewards")}
    lengths = np.array([len(rollout) for rollout in rollouts])
    np.savez(tmp_path / "a.npz", **arrays, lengths=lengths, done=np.array(flags * 3))
    with pytest.raises(BadEpisodeError, match=words) as error:
        gear_data.convert(tmp_path / "a.npz", tmp_path / "out")
    assert (error.value.column, "--rename" in str(error.value.hint)) == ("done", True)


def test_unsupported_dtype_is_named(sources: Any, tmp_path: Path) -> None:
    steps = flat(sources.make_rollouts())
    steps["phase"] = np.zeros(len(steps["rewards"]), np.complex64)
    np.savez(tmp_path / "a.npz", **steps)
    with pytest.raises(UnsupportedColumnError, match=r"phase.*complex64"):
        gear_data.convert(tmp_path / "a.npz", tmp_path / "out")
    gear_data.convert(tmp_path / "a.npz", tmp_path / "out", columns=["observations", "actions", "rewards"])


def test_files_must_be_alike(sources: Any, tmp_path: Path) -> None:
    rollouts = sources.make_rollouts()
    (tmp_path / "s").mkdir()
    np.savez(tmp_path / "s" / "a.npz", **flat(rollouts))
    other = flat(rollouts)
    other["observations"] = other["observations"].astype(np.float64)
    np.savez(tmp_path / "s" / "b.npz", **other)
    with pytest.raises(CorruptSourceError, match=r"b\.npz.*observations"):
        gear_data.convert(tmp_path / "s", tmp_path / "out")


def test_every_cut_and_many_flips_give_typed_errors(sources: Any, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    rollouts = sources.make_rollouts()
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **imitation_arrays(rollouts))
    whole = buffer.getvalue()
    path = tmp_path / "a.npz"
    refused = 0
    for trial in range(120):
        data = bytearray(whole)
        if trial % 2:
            data = data[: int(rng.integers(1, len(data)))]
        for place in rng.integers(0, len(data), size=3):
            data[place] = rng.integers(0, 256)
        path.write_bytes(bytes(data))
        try:
            source, _, _ = open_source(locate(path, None), "npz", SourceOptions())
            for _ in source.blocks(BEGIN, END):
                pass
        except GearError:
            refused += 1
    assert refused > 100


def test_members_are_read_side_by_side_in_pieces(tmp_path: Path) -> None:
    """A member of 64 MB in 64 KB is never completely in memory, only a block of it."""
    import tracemalloc

    rows = 1 << 20
    path = tmp_path / "a.npz"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, width in (("observations", 14), ("actions", 1), ("dones", None)):
            shape = (rows,) if width is None else (rows, width)
            with archive.open(f"{name}.npy", "w") as member:
                header = {"descr": "<f4", "fortran_order": False, "shape": shape}
                np.lib.format.write_array_header_1_0(member, header)  # type: ignore[arg-type]
                values = np.zeros((1000, *shape[1:]), np.float32)
                for start in range(0, rows, 1000):
                    part = values[: min(1000, rows - start)]
                    if width is None:
                        part = np.ones(len(part), np.float32)
                    member.write(part.tobytes())
    source, _, _ = open_source(locate(path, None), "npz", SourceOptions())
    tracemalloc.start()
    steps = sum(int(block.lengths.sum()) for block in source.blocks(BEGIN, END))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert steps == rows
    assert peak < 80 << 20  # includes the int64 lengths of a million episodes of one step
