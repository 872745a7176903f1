"""Tests of DQN Replay against a plain ring buffer.

The buffer follows `OutOfGraphReplayBuffer` and `OutOfGraphLoggedReplayBuffer`; Dopamine itself needs TensorFlow.
"""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import gear_data
from gear_data.errors import BadEpisodeError, CorruptSourceError, GearError, UnknownFormatError, UnsupportedColumnError
from tests.support.checks import warning_codes

STACK, HORIZON, CAPACITY = 4, 1, 64
_SHAPES: dict[str, tuple[tuple[int, ...], type]] = {
    "observation": ((5, 4), np.uint8),
    "action": ((), np.int32),
    "reward": ((), np.float32),
    "terminal": ((), np.uint8),
}


class Buffer:
    """A ring buffer that remembers the step of each row.

    Step -1 marks padding and rows that were never written.
    """

    def __init__(self, stack: int = STACK) -> None:
        self.store = {name: np.full((CAPACITY, *shape), 7, dtype) for name, (shape, dtype) in _SHAPES.items()}
        self.steps = np.full(CAPACITY, -1)
        self.stack, self.count = stack, 0

    @property
    def cursor(self) -> int:
        return self.count % CAPACITY

    def add(self, step: int, **values: Any) -> None:
        if self.count == 0 or self.store["terminal"][self.cursor - 1] == 1:
            for _ in range(self.stack - 1):
                self._add(-1, dict.fromkeys(_SHAPES, 0))
        self._add(step, values)

    def _add(self, step: int, values: dict[str, Any]) -> None:
        self.steps[self.cursor] = step
        for name, value in values.items():
            self.store[name][self.cursor] = value
        self.count += 1

    def invalid_range(self) -> npt.NDArray[np.int64]:
        return np.array([(self.cursor - HORIZON + i) % CAPACITY for i in range(self.stack + HORIZON)])

    def is_valid(self, index: int) -> bool:
        """Returns whether Dopamine may sample a row."""
        is_full = self.count >= CAPACITY
        if not is_full and (index >= self.cursor - HORIZON or index < self.stack - 1):
            return False
        if index in self.invalid_range():
            return False
        before = [(index - i) % CAPACITY for i in range(1, self.stack)]
        return not self.store["terminal"][before].any()

    def save(self, folder: Path, number: int, count: int | None = None) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        arrays = {f"$store$_{name}": values for name, values in self.store.items()}
        arrays |= {"add_count": np.array(self.count if count is None else count), "invalid_range": self.invalid_range()}
        for name, values in arrays.items():
            with gzip.open(folder / f"{name}_ckpt.{number}.gz", "wb") as file:
                np.save(file, values, allow_pickle=False)


def play(seed: int, steps: int = 400, max_length: int = 30) -> Iterator[dict[str, Any]]:
    rng = np.random.default_rng(seed)
    left = int(rng.integers(1, max_length))
    for step in range(steps):
        left -= 1
        frame = rng.integers(1, 255, (5, 4), np.uint8)
        yield {
            "step": step,
            "observation": frame,
            "action": step,
            "reward": float(rng.integers(-1, 2)),
            "terminal": int(left == 0),
        }
        left = left or int(rng.integers(1, max_length))


def steps_of(dataset: gear_data.Dataset, name: str) -> npt.NDArray[Any]:
    return np.concatenate([np.asarray(dataset.episode(i)[name]) for i in range(dataset.num_episodes)])


def logged(folder: Path, seed: int = 0) -> tuple[list[dict[str, Any]], list[Buffer]]:
    """Logs a checkpoint whenever only the last row is left to overwrite."""
    buffer, history, saved = Buffer(), [], []
    for values in play(seed):
        history.append(values)
        buffer.add(**values)
        if buffer.cursor == CAPACITY - 1:
            buffer.save(folder, len(saved))
            copy = Buffer()
            copy.store = {name: array.copy() for name, array in buffer.store.items()}
            copy.steps, copy.count = buffer.steps.copy(), buffer.count
            saved.append(copy)
    return history, saved


@pytest.mark.parametrize("seed", range(4))
def test_steps_are_those_that_the_agent_made(seed: int, tmp_path: Path) -> None:
    history, saved = logged(tmp_path / "Pong/1/replay_logs", seed)
    assert len(saved) > 2
    report = gear_data.convert(tmp_path / "Pong", tmp_path / "d", progress=False)
    assert report.format == "dqn-replay"
    dataset = gear_data.open(tmp_path / "d")
    # The row at the cursor is the oldest one: it is left out where the buffer is full, and unwritten where it is not.
    kept = np.concatenate([buffer.steps[: CAPACITY - 1] for buffer in saved])
    kept = kept[kept >= 0]
    for name, column in (("observation", "observations"), ("action", "actions"), ("reward", "rewards")):
        np.testing.assert_array_equal(steps_of(dataset, column), np.stack([history[i][name] for i in kept]), name)
    terminal = np.array([history[i]["terminal"] for i in kept], np.bool_)
    np.testing.assert_array_equal(steps_of(dataset, "terminated"), terminal)
    assert dataset.schema["observations"].shape == (5, 4)
    assert dataset.schema["actions"].dtype == "int32"
    for i in range(dataset.num_episodes):
        actions = np.asarray(dataset.episode(i)["actions"])
        np.testing.assert_array_equal(np.diff(actions), 1)  # no step of another episode, and no padding


def test_every_row_that_dopamine_samples_is_read(tmp_path: Path) -> None:
    history, saved = logged(tmp_path / "s")
    gear_data.convert(tmp_path / "s", tmp_path / "d", progress=False)
    dataset = gear_data.open(tmp_path / "d")
    found = {i: dataset.episode(i) for i in range(dataset.num_episodes)}
    place = {int(action): (i, t) for i, e in found.items() for t, action in enumerate(np.asarray(e["actions"]))}
    for buffer in saved:
        for index in filter(buffer.is_valid, range(CAPACITY)):
            episode, step = place[int(buffer.store["action"][index])]
            frames = np.asarray(found[episode]["observations"])[max(0, step - STACK + 1) : step + 1]
            stack = buffer.store["observation"][np.arange(index - STACK + 1, index + 1) % CAPACITY]
            np.testing.assert_array_equal(frames, stack[STACK - len(frames) :])
            assert not stack[: STACK - len(frames)].any()  # Dopamine's padding
    assert history


@pytest.mark.parametrize("cursor", [0, 1, 20, CAPACITY - 2])
def test_a_full_buffer_is_read_from_its_oldest_row(cursor: int, tmp_path: Path) -> None:
    buffer, history = Buffer(stack=1), []
    for values in play(1):
        history.append(values)
        buffer.add(**values)
        if buffer.count == 3 * CAPACITY + cursor:
            break
    buffer.save(tmp_path / "s", 5)
    report = gear_data.convert(tmp_path / "s", tmp_path / "d", progress=False)
    dataset = gear_data.open(tmp_path / "d")
    np.testing.assert_array_equal(steps_of(dataset, "actions"), np.arange(len(history) - CAPACITY, len(history)))
    frames = np.stack([values["observation"] for values in history[-CAPACITY:]])
    np.testing.assert_array_equal(steps_of(dataset, "observations"), frames)
    codes = warning_codes(report)
    assert ("rows-left-out" in codes, "episode-cut" in codes) == (False, True)
    assert "padding-left-out" not in codes


def test_findings_name_what_the_files_do_not_say(tmp_path: Path) -> None:
    _, saved = logged(tmp_path / "s")
    gear_data.convert(tmp_path / "s", tmp_path / "d", progress=False)
    found = {finding["code"]: finding for finding in gear_data.open(tmp_path / "d").manifest.findings}
    assert found["sticky-actions"]["count"] == len(saved)
    assert found["clipped-rewards"]["column"] == "reward"
    assert found["rows-left-out"]["count"] == sum(buffer.count >= CAPACITY for buffer in saved)
    padding = sum(int((buffer.steps[: CAPACITY - 1] < 0).sum()) for buffer in saved)
    assert found["padding-left-out"]["count"] == padding
    assert "no-cursor" not in found


def test_rewards_that_are_not_clipped_are_not_reported(tmp_path: Path) -> None:
    buffer = Buffer()
    for values in play(2, steps=30):
        buffer.add(**{**values, "reward": values["step"] / 2})
    buffer.save(tmp_path / "s", 0)
    report = gear_data.convert(tmp_path / "s", tmp_path / "d", progress=False)
    assert "clipped-rewards" not in warning_codes(report)


def test_without_add_count_the_last_row_is_the_oldest(tmp_path: Path) -> None:
    logged(tmp_path / "s")
    whole = gear_data.convert(tmp_path / "s", tmp_path / "d", progress=False)
    for path in (tmp_path / "s").glob("add_count_*"):
        path.unlink()
    report = gear_data.convert(tmp_path / "s", tmp_path / "e", progress=False)
    assert "no-cursor" in warning_codes(report)
    assert report.steps == whole.steps
    for name in ("actions", "observations", "terminated"):
        read = [steps_of(gear_data.open(tmp_path / folder), name) for folder in "de"]
        np.testing.assert_array_equal(*read)
    buffer = Buffer()
    for values in play(3, steps=200):
        buffer.add(**values)
    buffer.save(tmp_path / "other", 0)
    (tmp_path / "other/add_count_ckpt.0.gz").unlink()
    with pytest.raises(CorruptSourceError, match=r"lacks the file add_count_ckpt\.0\.gz"):
        gear_data.convert(tmp_path / "other", tmp_path / "f", progress=False)


def test_the_last_checkpoint_of_dqn_replay_has_stale_rows(tmp_path: Path) -> None:
    buffer, history = Buffer(), []
    for values in play(4):
        history.append(values)
        buffer.add(**values)
    buffer.save(tmp_path / "s", 0, count=buffer.cursor)  # as `log_final_buffer` does
    gear_data.convert(tmp_path / "s", tmp_path / "d", progress=False)
    kept = buffer.steps[: buffer.cursor]
    np.testing.assert_array_equal(steps_of(gear_data.open(tmp_path / "d"), "actions"), kept[kept >= 0])


def test_jobs_and_batches(tmp_path: Path) -> None:
    logged(tmp_path / "s")
    one = gear_data.convert(tmp_path / "s", tmp_path / "d", jobs=1, progress=False)
    two = gear_data.convert(tmp_path / "s", tmp_path / "e", jobs=2, progress=False)
    assert one.fingerprint == two.fingerprint
    dataset = gear_data.open(tmp_path / "d")
    loader = gear_data.SequenceLoader(dataset, batch_size=4, context=3, columns=["observations", "actions"], steps=2)
    for batch in loader:
        assert batch["observations"].shape == (4, 3, 5, 4)
        mask = np.asarray(batch["mask"], np.bool_)
        actions = np.asarray(batch["actions"])
        assert all((np.diff(row[valid]) == 1).all() for row, valid in zip(actions, mask, strict=True))


def test_several_games_are_refused(tmp_path: Path) -> None:
    for path in ("Pong/1/replay_logs", "Pong/2/replay_logs", "Breakout/1/replay_logs"):
        logged(tmp_path / "s" / path)
    with pytest.raises(UnknownFormatError, match="several games: Breakout, Pong"):
        gear_data.convert(tmp_path / "s", tmp_path / "d", progress=False)
    report = gear_data.convert(tmp_path / "s/Pong", tmp_path / "d", progress=False)
    assert set(gear_data.open(tmp_path / "d").episode_table.column("source").to_pylist()) >= {
        "1/replay_logs/ckpt.0",
        "2/replay_logs/ckpt.0",
    }
    assert report.episodes


def _rewrite(path: Path, change: Any) -> None:
    with gzip.open(path) as file:
        values = np.load(file)
    with gzip.open(path, "wb") as file:
        np.save(file, change(values))


@pytest.mark.parametrize(
    ("name", "change", "error", "message"),
    [
        ("$store$_reward", lambda v: v[:-1], CorruptSourceError, "has the shape"),
        ("$store$_terminal", lambda v: v * 2, BadEpisodeError, "a flag must be 0 or 1"),
        ("$store$_action", lambda v: v.astype(str), UnsupportedColumnError, "holds text"),
        ("add_count", lambda v: v - 1000, CorruptSourceError, "not one number"),
        ("add_count", lambda v: v / 3, CorruptSourceError, "not integers"),
    ],
)
def test_bad_files_are_typed_errors(
    name: str, change: Any, error: type[GearError], message: str, tmp_path: Path
) -> None:
    logged(tmp_path / "s")
    _rewrite(tmp_path / f"s/{name}_ckpt.1.gz", change)
    with pytest.raises(error, match=message) as caught:
        gear_data.convert(tmp_path / "s", tmp_path / "d", progress=False)
    assert "ckpt.1" in str(caught.value)


def test_other_files_are_reported(tmp_path: Path) -> None:
    logged(tmp_path / "s")
    with gzip.open(tmp_path / "s/notes.gz", "wb") as file:
        file.write(b"x")
    findings = gear_data.lint(tmp_path / "s", progress=False).findings
    assert [finding.file for finding in findings if finding.code == "files-left-out"] == ["notes.gz"]
    np.savez(tmp_path / "s/other.npz", actions=np.zeros(3))
    with pytest.raises(UnknownFormatError, match="data files of other formats"):
        gear_data.convert(tmp_path / "s", tmp_path / "d", progress=False)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    logged(tmp_path / "s")
    (tmp_path / "s/$store$_reward_ckpt.2.gz").unlink()
    with pytest.raises(CorruptSourceError, match=r"lacks the file \$store\$_reward_ckpt.2.gz"):
        gear_data.convert(tmp_path / "s", tmp_path / "d", progress=False)


@pytest.mark.parametrize("change", [lambda data: data[:-30], lambda data: data + bytes(9)])
def test_a_file_of_another_length_than_its_header_claims(change: Any, tmp_path: Path) -> None:
    _, saved = logged(tmp_path / "s")
    path = tmp_path / f"s/$store$_observation_ckpt.{len(saved) - 1}.gz"
    path.write_bytes(gzip.compress(change(gzip.decompress(path.read_bytes()))))
    with pytest.raises(CorruptSourceError, match=r"ends before|header claims"):
        gear_data.convert(tmp_path / "s", tmp_path / "d", progress=False)
