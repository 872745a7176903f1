"""Tests of saved replay buffers of Stable-Baselines3.

Stable-Baselines3 is not installed. `Buffer` stores steps as its `ReplayBuffer.add` does. The expected episodes do not
come from the buffer: the environments that fill it remember them.
"""

from __future__ import annotations

import importlib
import pickle
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import numpy.typing as npt
import pytest

import gear_data
from gear_data.errors import BadEpisodeError, CorruptSourceError, UnknownFormatError
from gear_data.ingest.location import locate
from gear_data.ingest.source import SourceOptions
from gear_data.ingest.sources import stable_baselines3, unrecognised
from tests.support.checks import check_units, warning_codes
from tests.support.encoded_images import encode_image

Arrays = dict[str, npt.NDArray[Any]]


class Buffer:
    """The arrays of a ReplayBuffer, filled step by step."""

    def __init__(self, size: int, envs: int, shared: bool) -> None:
        self.buffer_size, self.shared, self.pos, self.full = size, shared, 0, False
        self.observations = np.zeros((size, envs, 3), np.float32)
        self.next_observations = None if shared else np.zeros((size, envs, 3), np.float32)
        self.actions = np.zeros((size, envs, 2), np.float32)
        self.rewards, self.dones, self.timeouts = np.zeros((3, size, envs), np.float32)

    def add(self, step: Arrays) -> None:
        self.observations[self.pos] = step["observations"]
        if self.next_observations is None:
            self.observations[(self.pos + 1) % self.buffer_size] = step["next_observations"]
        else:
            self.next_observations[self.pos] = step["next_observations"]
            self.timeouts[self.pos] = step["timeouts"]
        self.actions[self.pos], self.rewards[self.pos] = step["actions"], step["rewards"]
        self.dones[self.pos] = step["dones"]
        self.pos += 1
        if self.pos == self.buffer_size:
            self.full, self.pos = True, 0

    @property
    def arrays(self) -> Arrays:
        names = ("observations", "next_observations", "actions", "rewards", "dones", "timeouts")
        found = {name: getattr(self, name) for name in names if getattr(self, name) is not None}
        return {**found, "pos": np.asarray(self.pos), "full": np.asarray(self.full)}


@dataclass
class Stream:
    """The steps of one environment.

    A step is (time, observation, action, reward, next observation, done, timeout).
    """

    rng: np.random.Generator
    steps: list[tuple[Any, ...]] = field(default_factory=list)
    state: Any = None
    left: int = 0

    def step(self, time: int) -> dict[str, Any]:
        if not self.left:
            self.state, self.left = self.rng.normal(size=3).astype(np.float32), int(self.rng.integers(1, 9))
        before, self.state = self.state, self.rng.normal(size=3).astype(np.float32)
        self.left -= 1
        done = not self.left
        timeout = done and bool(self.rng.integers(2))
        action, reward = self.rng.normal(size=2).astype(np.float32), np.float32(self.rng.normal())
        self.steps.append((time, before, action, reward, self.state, done, timeout))
        names = ("observations", "actions", "rewards", "next_observations", "dones", "timeouts")
        return dict(zip(names, self.steps[-1][1:], strict=True))


def filled(size: int, envs: int, steps: int, shared: bool = False, seed: int = 0) -> tuple[Buffer, list[Stream]]:
    buffer, streams = Buffer(size, envs, shared), [Stream(np.random.default_rng([seed, e])) for e in range(envs)]
    for time in range(steps):
        made = [stream.step(time) for stream in streams]
        buffer.add({name: np.stack([one[name] for one in made]) for name in made[0]})
    return buffer, streams


def expected_episodes(streams: list[Stream], first: int) -> list[tuple[int, list[tuple[Any, ...]]]]:
    """Returns (environment, steps) of each episode from time `first` on.

    They are in the order of their last steps, then of their environments.
    """
    found = []
    for environment, stream in enumerate(streams):
        episode: list[tuple[Any, ...]] = []
        for step in stream.steps[first:]:
            episode.append(step)
            if step[5]:
                found.append((environment, episode))
                episode = []
        if episode:
            found.append((environment, episode))
    return sorted(found, key=lambda item: (item[1][-1][0], item[0]))


def save(path: Path, arrays: Arrays) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".npz":
        np.savez_compressed(path, **arrays)
    else:
        with h5py.File(path, "w") as file:
            for name, values in arrays.items():
                file[name] = values
    return path


def check(dataset: gear_data.Dataset, expected: list[tuple[int, list[tuple[Any, ...]]]], shared: bool) -> None:
    assert dataset.num_episodes == len(expected)
    assert dataset.episodes["environment"].to_list() == [environment for environment, _ in expected]
    newest = max(steps[-1][0] for _, steps in expected)
    for i, (_, steps) in enumerate(expected):
        episode, final = dataset.episode(i), dataset.final(i)
        for name, column in (("observations", 1), ("actions", 2), ("rewards", 3)):
            np.testing.assert_array_equal(episode[name], np.stack([step[column] for step in steps]), f"{i} {name}")
        done, timeout = steps[-1][5], steps[-1][6] and not shared
        assert episode["terminated"].tolist() == [False] * (len(steps) - 1) + [done and not timeout]
        assert episode["truncated"].tolist() == [False] * (len(steps) - 1) + [timeout or not done]
        if shared and steps[-1][0] != newest:
            assert final is None
        else:
            np.testing.assert_array_equal((final or {})["observations"], steps[-1][4])


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("suffix", [".npz", ".h5"])
@pytest.mark.parametrize(("envs", "steps"), [(1, 23), (3, 20), (3, 23), (3, 30), (1, 77), (4, 71), (2, 60)])
def test_episodes_are_those_of_the_environments(
    envs: int, steps: int, suffix: str, shared: bool, tmp_path: Path
) -> None:
    buffer, streams = filled(30, envs, steps, shared)
    source = save(tmp_path / f"buffer{suffix}", buffer.arrays)
    report = gear_data.convert(source, tmp_path / "d")
    assert report.format == "stable-baselines3"
    lost = max(0, steps - 30) + (buffer.full and shared)
    check(gear_data.open(tmp_path / "d"), expected_episodes(streams, lost), shared)
    assert ("ring-buffer" in warning_codes(report)) == buffer.full
    assert ("no-truncation-flag" in warning_codes(report)) == shared


@pytest.mark.parametrize("suffix", [".npz", ".h5"])
@pytest.mark.parametrize("piece", [1, 200, 1000])
def test_small_pieces_make_the_same(piece: int, suffix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    buffer, streams = filled(40, 3, 95)
    source = save(tmp_path / f"buffer{suffix}", buffer.arrays)
    whole = gear_data.convert(source, tmp_path / "whole").fingerprint
    monkeypatch.setattr(stable_baselines3, "_BLOCK_BYTES", piece)
    monkeypatch.setattr(stable_baselines3, "UNIT_BYTES", piece)
    monkeypatch.setattr(stable_baselines3, "_SCAN_BYTES", piece)
    assert gear_data.convert(source, tmp_path / "d").fingerprint == whole
    check(gear_data.open(tmp_path / "d"), expected_episodes(streams, 55), False)
    units = check_units(lambda: stable_baselines3.open_(locate(str(source), None), SourceOptions()))
    assert units == 1 if suffix == ".npz" else units > 1


@pytest.mark.parametrize("suffix", [".npz", ".h5"])
def test_dict_observations_and_further_arrays(suffix: str, tmp_path: Path) -> None:
    buffer, streams = filled(30, 2, 50)
    arrays = buffer.arrays
    for name in ("observations", "next_observations"):
        values = arrays.pop(name)
        arrays |= {f"{name}/left": values[..., :1], f"{name}/right": values[..., 1:]}
    arrays["log_probs"] = np.arange(60).reshape(30, 2)
    arrays["actions"] = arrays["actions"][..., :1].astype(np.int64)
    gear_data.convert(save(tmp_path / f"buffer{suffix}", arrays), tmp_path / "d")
    dataset = gear_data.open(tmp_path / "d")
    for i, (environment, steps) in enumerate(expected_episodes(streams, 20)):
        episode, final = dataset.episode(i), dataset.final(i) or {}
        states = np.concatenate([episode["observations.left"], episode["observations.right"]], 1)
        np.testing.assert_array_equal(states, np.stack([step[1] for step in steps]))
        ends = np.concatenate([final["observations.left"], final["observations.right"]])
        np.testing.assert_array_equal(ends, steps[-1][4])
        rows = np.array([step[0] for step in steps]) % 30
        np.testing.assert_array_equal(episode["log_probs"], rows * 2 + environment)
        assert episode["actions"].dtype == np.int64


def test_batches(tmp_path: Path) -> None:
    buffer, streams = filled(30, 2, 30)
    gear_data.convert(save(tmp_path / "buffer.npz", buffer.arrays), tmp_path / "d")
    after = {tuple(step[1]): step[4] for stream in streams for step in stream.steps}
    columns = ["observations", "next_observations"]
    dataset = gear_data.open(tmp_path / "d")
    for batch in gear_data.SequenceLoader(dataset, batch_size=16, context=1, columns=columns, steps=3):
        assert np.asarray(batch["next_observations_mask"]).all()
        for row, following in zip(*(np.asarray(batch[name])[:, 0] for name in columns), strict=True):
            np.testing.assert_array_equal(following, after[tuple(row)])


def test_without_a_cursor_the_format_must_be_given(tmp_path: Path) -> None:
    buffer, streams = filled(30, 4, 30)
    arrays = {name: values for name, values in buffer.arrays.items() if name not in ("pos", "full")}
    source = save(tmp_path / "rollouts.npz", arrays)
    report = gear_data.convert(source, tmp_path / "d", format="stable-baselines3")
    assert "position-assumed" in warning_codes(report)
    check(gear_data.open(tmp_path / "d"), expected_episodes(streams, 0), False)


def test_several_files_are_one_dataset_of_equal_columns(tmp_path: Path) -> None:
    made = [filled(20, 2, 20, seed=seed) for seed in (1, 2)]
    for name, (buffer, _) in zip("ab", made, strict=True):
        save(tmp_path / f"in/{name}.npz", buffer.arrays)
    report = gear_data.convert(tmp_path / "in", tmp_path / "d")
    assert report.episodes == sum(len(expected_episodes(streams, 0)) for _, streams in made)
    save(tmp_path / "in/c.npz", {**made[0][0].arrays, "rewards": np.zeros((20, 2), np.int64)})
    with pytest.raises(CorruptSourceError, match=r"c\.npz: 'rewards' is int64.*in a\.npz it is float32"):
        gear_data.convert(tmp_path / "in", tmp_path / "e")


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"pos": np.asarray(30)}, CorruptSourceError, r"'pos' is 30 and 'full' is False in a buffer of 30 rows"),
        ({"pos": np.asarray(2.5)}, CorruptSourceError, r"'pos' is 2.5"),
        ({"dones": np.full((30, 2), 2)}, BadEpisodeError, r"'dones', row 0: holds 2, but a flag must be 0 or 1"),
        ({"rewards": np.zeros((30, 3))}, BadEpisodeError, r"'rewards': has the shape \(30, 3\)"),
        ({"next_observations": np.zeros((30, 2, 4))}, BadEpisodeError, r"'next_observations': is float64 \(30, 2, 4\)"),
    ],
)
def test_buffers_that_do_not_fit(change: Arrays, error: type[Exception], message: str, tmp_path: Path) -> None:
    buffer, _ = filled(30, 2, 20)
    with pytest.raises(error, match=message):
        gear_data.convert(save(tmp_path / "buffer.npz", {**buffer.arrays, **change}), tmp_path / "d")


def test_an_empty_buffer(tmp_path: Path) -> None:
    with pytest.raises(gear_data.errors.EmptySourceError):
        gear_data.convert(save(tmp_path / "buffer.npz", Buffer(10, 2, False).arrays), tmp_path / "d")


def test_arrays_without_environments_are_not_a_buffer(tmp_path: Path) -> None:
    buffer, _ = filled(30, 1, 20)
    arrays = {name: values[:, 0] if values.shape else values for name, values in buffer.arrays.items()}
    with pytest.raises(UnknownFormatError, match=r"has the shape \(30,\), where \[buffer_size, n_envs\]"):
        gear_data.convert(save(tmp_path / "a.npz", arrays), tmp_path / "d", format="stable-baselines3")


@pytest.fixture
def replay_buffer_class(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Imports a class without methods, by the name of Stable-Baselines3's.

    The user has Stable-Baselines3. The lines that the error gives use only attributes.
    """
    package = tmp_path / "installed/stable_baselines3/common"
    package.mkdir(parents=True)
    (package / "buffers.py").write_text("class ReplayBuffer:\n    pass\n")
    monkeypatch.syspath_prepend(tmp_path / "installed")
    yield importlib.import_module("stable_baselines3.common.buffers").ReplayBuffer
    for name in [name for name in sys.modules if name.startswith("stable_baselines3")]:
        del sys.modules[name]


@pytest.mark.processes
@pytest.mark.parametrize("is_dict", [False, True])
def test_the_error_for_a_pickle_says_how_to_save_it(is_dict: bool, replay_buffer_class: Any, tmp_path: Path) -> None:
    buffer, streams = filled(30, 2, 50)
    pickled = replay_buffer_class()
    vars(pickled).update(vars(buffer))
    if is_dict:
        pickled.observations = {"state": buffer.observations}
        pickled.next_observations = {"state": buffer.next_observations}
    path = tmp_path / "replay_buffer.pkl"
    path.write_bytes(pickle.dumps(pickled, protocol=pickle.HIGHEST_PROTOCOL))
    with pytest.raises(UnknownFormatError, match=r"pickled replay buffer; pickles are never loaded") as caught:
        gear_data.convert(path, tmp_path / "d")
    script = str(caught.value.hint).split("\n\n")[1]
    environment = {"PYTHONPATH": str(tmp_path / "installed")}
    subprocess.run([sys.executable, "-c", script], check=True, cwd=tmp_path, env=environment)
    gear_data.convert(tmp_path / "replay_buffer.npz", tmp_path / "d")
    dataset = gear_data.open(tmp_path / "d")
    if is_dict:
        assert dataset.schema["observations.state"].has_final
    else:
        check(dataset, expected_episodes(streams, 20), False)


def test_images_as_byte_strings_of_one_size(tmp_path: Path) -> None:
    """Images of two environments, from a full buffer whose oldest step is in row 2."""
    levels = np.arange(16).reshape(8, 2)
    encoded = [[encode_image(np.full((4, 4, 3), level, np.uint8)) for level in row] for row in levels]
    dones = np.zeros((8, 2))
    dones[4, 0] = 1
    arrays = {"observations.image": np.array(encoded, "S200"), "actions": np.zeros((8, 2, 1)), "dones": dones}
    np.savez_compressed(tmp_path / "a.npz", rewards=np.ones((8, 2)), pos=2, full=True, **arrays)
    gear_data.convert(tmp_path / "a.npz", tmp_path / "d", progress=False)
    found = {
        (episode["observations.image"][0, 0, 0, 0].item()): episode["observations.image"][:, 0, 0, 0].tolist()
        for episode in gear_data.open(tmp_path / "d")
    }
    # There is no `next_observations`: the oldest step, of row 2, is lost.
    assert found == {6: [6, 8], 10: [10, 12, 14, 0, 2], 7: [7, 9, 11, 13, 15, 1, 3]}


def test_the_documentation_has_the_same_lines() -> None:
    page = Path(__file__).parents[3] / "docs/how-to/convert/replay-buffers.md"
    script = unrecognised._SB3_SCRIPT.format(path="replay_buffer.pkl", archive="replay_buffer.npz")
    assert f"```python\n{script.replace(chr(39), chr(34))}\n```" in page.read_text()


def test_any_other_pickle_has_no_recipe(tmp_path: Path) -> None:
    (tmp_path / "a.pkl").write_bytes(pickle.dumps({"observations": [1.0]}))
    with pytest.raises(UnknownFormatError, match=r"not recognised; it holds a\.pkl\n.*pickles are never loaded"):
        gear_data.convert(tmp_path / "a.pkl", tmp_path / "d")
