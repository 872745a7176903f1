"""Tests that sources with two meanings are refused.

The error names the flag that decides, and the flag then reads the source.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import gear_data
from gear_data.errors import BadEpisodeError, CorruptSourceError, UnknownFormatError
from tests.support.checks import warning_codes

Arrays = dict[str, npt.NDArray[Any]]


def random(*shape: int) -> npt.NDArray[np.float32]:
    return np.random.default_rng(0).normal(size=shape).astype(np.float32)


def padded(first: int = 8, second: int = 20, without: tuple[str, ...] = (), **more: Any) -> Arrays:
    """Returns arrays whose first two axes are equal."""
    ends = np.zeros((first, second), np.bool_)
    ends[:, -1] = True
    arrays = {
        "observations": random(first, second, 3),
        "actions": random(first, second, 2),
        "rewards": random(first, second),
        "dones": ends,
    }
    return {name: values for name, values in {**arrays, **more}.items() if name not in without}


def flat(**more: Any) -> Arrays:
    """Returns three episodes of 10 steps."""
    ends = np.arange(30) % 10 == 9
    return {"observations": random(30, 3), "actions": random(30, 2), "rewards": random(30), "dones": ends, **more}


def write(path: Path, arrays: Arrays) -> Path:
    """Writes an archive, a folder of `.npy` files, or HDF5."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".npz":
        np.savez(path, **arrays)
    elif path.suffix:
        with h5py.File(path, "w") as file:
            for name, values in arrays.items():
                file[name] = values
    else:
        path.mkdir()
        for name, values in arrays.items():
            np.save(path / f"{name}.npy", values)
    return path


@pytest.mark.parametrize("name", ["a.npz", "folder"])
@pytest.mark.parametrize("without", [(), ("dones",), ("dones", "rewards")])
def test_two_common_axes_may_be_steps_episodes_or_environments(
    without: tuple[str, ...], name: str, tmp_path: Path
) -> None:
    source = write(tmp_path / "in" / name, padded(without=without))
    with pytest.raises(UnknownFormatError, match=r"several things: .* 8 steps with 20 values each, 8 episodes of 20"):
        gear_data.convert(source, tmp_path / "d")
    known = "npz" if source.suffix else "numpy"
    with pytest.raises(UnknownFormatError, match=rf"--format {known}.*'episode_lengths'"):
        gear_data.convert(source, tmp_path / "d")


def test_each_reading_can_be_chosen(tmp_path: Path) -> None:
    arrays = padded()
    as_environments = gear_data.convert(
        write(tmp_path / "a.npz", arrays), tmp_path / "environments", format="stable-baselines3"
    )
    # The last environment ends an episode in each of its 8 steps.
    assert (as_environments.episodes, as_environments.steps) == (19 + 8, 160)
    lengths = np.full(8, 20)
    as_episodes = gear_data.convert(
        write(tmp_path / "b.npz", {**arrays, "episode_lengths": lengths}), tmp_path / "episodes"
    )
    assert (as_episodes.episodes, as_episodes.steps) == (8, 160)
    vectors = write(tmp_path / "c.npz", padded(without=("dones",)))
    as_steps = gear_data.convert(
        vectors, tmp_path / "steps", format="npz", episodes=gear_data.EpisodeBoundaries(max_episode_steps=4)
    )
    assert (as_steps.episodes, as_steps.steps) == (2, 8)
    assert gear_data.open(tmp_path / "steps").schema["rewards"].shape == (20,)


def test_one_step_more_of_observations_is_no_difference(tmp_path: Path) -> None:
    source = write(tmp_path / "a.npz", padded(observations=random(8, 21, 3)))
    with pytest.raises(UnknownFormatError, match="several things"):
        gear_data.convert(source, tmp_path / "d")


def test_d4rl_with_two_common_axes(tmp_path: Path) -> None:
    ends = padded()["dones"]
    source = write(tmp_path / "a.hdf5", padded(without=("dones",), terminals=ends, timeouts=ends))
    with pytest.raises(UnknownFormatError, match=r"several things(.|\n)*--format d4rl; write other arrays again as"):
        gear_data.convert(source, tmp_path / "d")


@pytest.mark.parametrize(
    "arrays",
    [
        flat(observations=random(30, 2)),  # observations and actions of equal size
        flat(rewards=random(30, 2), actions=random(30, 2)),  # several rewards, beside one flag per step
        flat(observations=random(30, 1), actions=random(30, 1), rewards=random(30, 1)),  # [N, 1]
        flat(observations=random(30, 1), actions=random(30, 1), rewards=random(30, 1), dones=flat()["dones"][:, None]),
        flat(observations=random(30, 4, 3), actions=random(30, 4, 2)),  # histories, beside one flag per step
    ],
)
def test_arrays_with_one_meaning_are_read(arrays: Arrays, tmp_path: Path) -> None:
    report = gear_data.convert(write(tmp_path / "a.npz", arrays), tmp_path / "d")
    assert (report.episodes, report.steps) == (3, 30)
    np.testing.assert_array_equal(gear_data.open(tmp_path / "d").episode(1)["actions"], arrays["actions"][10:20])


def test_padded_episodes_must_have_the_episodes_first(tmp_path: Path) -> None:
    arrays = {name: values.swapaxes(0, 1).copy() for name, values in padded(without=("dones",)).items()}
    lengths = np.array([20, 1, 5, 7, 20, 3, 9, 11])
    source = write(tmp_path / "a.npz", {**arrays, "episode_lengths": lengths})
    with pytest.raises(
        UnknownFormatError, match=r"'episode_lengths': has 8 values, .*\n.*swapaxes\(array, 0, 1\)"
    ) as error:
        gear_data.convert(source, tmp_path / "d")
    check_mapping(str(error.value), "[T, E, ...]", source, tmp_path / "d", arrays, lengths)


def check_mapping(error: str, axes: str, source: Path, destination: Path, arrays: Arrays, lengths: Any) -> None:
    """Converts with the mapping that an error advises."""
    advice = f"episodes: {{padded: {axes}, lengths: episode_lengths}}"
    assert axes in error
    assert "--map, episodes: {padded: [" in error
    assert ", lengths: episode_lengths}" in error
    file = source.with_suffix(".yaml")
    file.write_text(f"{advice}\ncolumns: {{{', '.join(f'{name}: {name}' for name in arrays)}}}\n")
    gear_data.convert(source, destination, mapping=file, overwrite=True)
    dataset = gear_data.open(destination)
    for i, length in enumerate(lengths):
        rewards = arrays["rewards"][:, i] if axes.startswith("[T") else arrays["rewards"][i]
        np.testing.assert_array_equal(dataset.episode(i)["rewards"], rewards[:length])


def test_a_square_of_padded_episodes_is_unclear(tmp_path: Path) -> None:
    arrays, lengths = padded(8, 8, without=("dones",)), np.array([3, 8, 5, 2, 7, 4, 8, 6])
    source = write(tmp_path / "a.npz", {**arrays, "episode_lengths": lengths})
    with pytest.raises(UnknownFormatError, match=r"\[episodes, steps\] or \[steps, episodes\], because both") as error:
        gear_data.convert(source, tmp_path / "d")
    for axes in ("[E, T, ...]", "[T, E, ...]"):
        check_mapping(str(error.value), axes, source, tmp_path / "d", arrays, lengths)


def test_padded_episodes_of_one_step_are_unclear(tmp_path: Path) -> None:
    arrays = padded(6, 5, without=("dones",), episode_lengths=np.ones(6, np.int64))
    with pytest.raises(UnknownFormatError, match="6 steps, each an episode, or 6 episodes of one step, padded to 5"):
        gear_data.convert(write(tmp_path / "a.npz", arrays), tmp_path / "d")
    report = gear_data.convert(write(tmp_path / "b.npz", flat(episode_lengths=np.ones(30, np.int64))), tmp_path / "d")
    assert report.episodes == 30  # vectors of one axis are steps


@pytest.mark.parametrize("name", ["a.npz", "folder"])
def test_one_observation_more_in_several_episodes(name: str, tmp_path: Path) -> None:
    arrays = flat(observations=random(31, 3))
    source = write(tmp_path / "in" / name, arrays)
    with pytest.raises(UnknownFormatError, match=r"'dones', row 9: could mean two things: 31 .* 30 steps are one"):
        gear_data.convert(source, tmp_path / "d")
    several = gear_data.convert(source, tmp_path / "several", episodes=gear_data.EpisodeBoundaries(end_column="dones"))
    assert several.episodes == 3
    assert "final-left-out" in warning_codes(several)
    np.testing.assert_array_equal(
        gear_data.open(tmp_path / "several").episode(2)["observations"], arrays["observations"][20:30]
    )
    one = gear_data.convert(source, tmp_path / "one", rename={"dones": "infos.dones"})
    final = gear_data.open(tmp_path / "one").final(0) or {}
    assert one.episodes == 1
    np.testing.assert_array_equal(final["observations"], arrays["observations"][30])


def test_one_observation_more_in_one_episode(tmp_path: Path) -> None:
    arrays = flat(observations=random(31, 3), dones=np.arange(30) == 29)
    assert gear_data.convert(write(tmp_path / "a.npz", arrays), tmp_path / "d").episodes == 1


def test_an_archive_that_is_not_recognised_beside_others(tmp_path: Path) -> None:
    write(tmp_path / "in/a_stats.npz", {"mean": np.zeros(3)})
    write(tmp_path / "in/b.npz", flat())
    write(tmp_path / "in/c.npz", flat())
    expected = r"some files are recognised, .*; recognised: b\.npz, c\.npz; not recognised: a_stats\.npz"
    with pytest.raises(UnknownFormatError, match=expected):
        gear_data.convert(tmp_path / "in", tmp_path / "d")


def test_all_archives_with_other_columns_are_listed(tmp_path: Path) -> None:
    write(tmp_path / "in/a.npz", flat())
    write(tmp_path / "in/b.npz", {"mean": np.zeros(3)})
    write(tmp_path / "in/c.npz", flat())
    write(tmp_path / "in/d.npz", flat(infos=np.zeros(30)))
    with pytest.raises((CorruptSourceError, UnknownFormatError, BadEpisodeError), match=r"2 of 4 .*: b\.npz, d\.npz"):
        gear_data.convert(tmp_path / "in", tmp_path / "d")


@pytest.mark.parametrize("first", ["a.parquet", "z.parquet"])
def test_a_table_that_is_not_recognised_beside_another(first: str, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    rows = {"observations": [[[1.0, 2.0]] * 2], "actions": [[[1.0]] * 2], "rewards": [[1.0, 2.0]]}
    pq.write_table(pa.table(rows), tmp_path / "in" / first)
    pq.write_table(pa.table({"name": ["x"]}), tmp_path / "in/m.parquet")
    with pytest.raises((CorruptSourceError, UnknownFormatError), match=r"m\.parquet"):
        gear_data.convert(tmp_path / "in", tmp_path / "d")


def test_hdf5_of_two_layouts(tmp_path: Path) -> None:
    write(tmp_path / "in/a.hdf5", {"images": np.zeros((3, 4))})
    write(tmp_path / "in/b.hdf5", {"data/demo_0/actions": random(5, 2), "data/demo_0/obs/state": random(5, 2)})
    with pytest.raises(UnknownFormatError, match=r"recognised: b\.hdf5; not recognised: a\.hdf5"):
        gear_data.convert(tmp_path / "in", tmp_path / "d")


def test_pickles_beside_data_are_reported(tmp_path: Path) -> None:
    write(tmp_path / "in/a.npz", flat())
    (tmp_path / "in/notes.pkl").write_bytes(b"\x80\x04N.")
    report = gear_data.convert(tmp_path / "in", tmp_path / "d")
    assert "pickle-left-out" in warning_codes(report)


def test_lists_of_one_reward_may_be_steps(tmp_path: Path) -> None:
    rows = {"observations": [[float(i), 2.0] for i in range(6)], "actions": [[float(i)] for i in range(6)]}
    rows |= {"rewards": [[float(i)] for i in range(6)], "dones": [[i % 3 == 2] for i in range(6)]}
    source = tmp_path / "a.parquet"
    pq.write_table(pa.table(rows), source)
    with pytest.raises(UnknownFormatError, match=r"the first 6 lists has one value(.|\n)*step-rows"):
        gear_data.convert(source, tmp_path / "d")
    report = gear_data.convert(source, tmp_path / "d", format="step-rows")
    assert (report.episodes, report.steps) == (2, 6)
    assert gear_data.open(tmp_path / "d").schema["rewards"].shape == ()


def test_episodes_of_one_step_in_lists_of_lists(tmp_path: Path) -> None:
    rows = {"observations": [[[1.0, 2.0]]] * 3, "actions": [[[1.0]]] * 3, "rewards": [[1.0]] * 3}
    pq.write_table(pa.table(rows), tmp_path / "a.parquet")
    assert gear_data.convert(tmp_path / "a.parquet", tmp_path / "d").episodes == 3


@pytest.mark.parametrize("environments", [1, 3])
def test_a_tensordict_of_steps_and_environments(environments: int, tmp_path: Path) -> None:
    tensordict = pytest.importorskip("tensordict")
    states, ends = random(13, environments, 2), np.zeros((12, environments, 1), np.bool_)
    ends[[5, 11]] = True
    shape = [12, environments]
    after = {"observation": states[1:], "reward": ends.astype(np.float32), "done": ends, "terminated": ends}
    data = tensordict.TensorDict(
        {"observation": states[:-1], "action": states[1:], "next": tensordict.TensorDict(after, shape)}, shape
    )
    data.memmap(str(tmp_path / "steps_first"))
    expected = r"\[steps, environments\](.|\n)*transpose\(0, 1\)"
    with pytest.raises(UnknownFormatError, match=expected):
        gear_data.convert(tmp_path / "steps_first", tmp_path / "d")
    data.transpose(0, 1).contiguous().memmap(str(tmp_path / "trajectories"))
    report = gear_data.convert(tmp_path / "trajectories", tmp_path / "d")
    assert report.episodes == 2 * environments


def test_as_many_steps_as_elements(tmp_path: Path) -> None:
    arrays = flat(observations=random(30, 30), obs_mean=random(30))
    source = write(tmp_path / "a.npz", arrays)
    with pytest.raises(UnknownFormatError, match=r"'obs_mean': could mean two .* 30 elements of 'observations'"):
        gear_data.convert(source, tmp_path / "d")
    known = ["observations", "actions", "rewards"]
    assert gear_data.convert(source, tmp_path / "d", columns=known).steps == 30
    gear_data.convert(source, tmp_path / "e", columns=[*known, "obs_mean"])
    assert "obs_mean" in gear_data.open(tmp_path / "e").schema.names
