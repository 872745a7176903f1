"""Tests of episodes in memory.

They are mappings, Minari's and d3rlpy's episodes, and generators.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import gear_data
from gear_data.errors import (
    BadEpisodeError,
    EmptySourceError,
    InvalidArgumentError,
    UnknownFormatError,
    UnsupportedColumnError,
)
from gear_data.ingest.location import locate
from gear_data.ingest.source import SourceOptions
from gear_data.ingest.sources.registry import open_source
from gear_data.storage.episode_block import BEGIN, END
from tests.support.checks import warning_codes
from tests.support.encoded_images import cut_image, encode_episodes, make_images


def gymnasium_episode(rollout: Any, *, final: bool = True) -> dict[str, Any]:
    columns = rollout.columns
    observations = columns["observations"]
    return {
        "observations": np.concatenate([observations, rollout.final[None]]) if final else observations,
        "actions": columns["actions"],
        "rewards": columns["rewards"],
        "terminations": columns["terminated"],
        "truncations": columns["truncated"],
    }


@pytest.mark.parametrize("kind", ["list", "generator", "function", "objects", "lists"])
def test_every_kind_of_iterable(sources: Any, tmp_path: Path, kind: str) -> None:
    rollouts = sources.make_rollouts()
    episodes: Any = [gymnasium_episode(r) for r in rollouts]
    if kind == "generator":
        episodes = (episode for episode in list(episodes))
    elif kind == "function":
        episodes = lambda: iter([gymnasium_episode(r) for r in rollouts])  # noqa: E731
    elif kind == "objects":
        episodes = [SimpleNamespace(**episode, infos={}) for episode in episodes]
    elif kind == "lists":
        episodes = [{name: list(values) for name, values in episode.items()} for episode in episodes]
    report = gear_data.convert(episodes, tmp_path / "out")
    assert report.format == "in-memory"
    assert not warning_codes(report)
    sources.check_dataset(tmp_path / "out", rollouts, final=True)
    sources.write_d4rl(tmp_path / "a.hdf5", rollouts)
    assert report.fingerprint == gear_data.convert(tmp_path / "a.hdf5", tmp_path / "d4rl").fingerprint


def image_episodes(sources: Any, count: int = 5) -> tuple[list[Any], list[dict[str, Any]]]:
    """Returns uint8 [T + 1, H, W, C] of each episode, and the episodes with these images encoded."""
    images = [pixels for pixels in make_images(3 * count) if len(pixels) > 1][:count]
    rollouts = sources.make_rollouts(count)
    episodes = [
        {
            "observations": {"image": frames, "joints": np.zeros((len(frames), 2)), "text": ["go"] * len(frames)},
            "rewards": np.full(len(frames) - 1, i, np.float32),
            "terminated": bool(rollout.columns["terminated"][-1]),
        }
        for i, (frames, rollout) in enumerate(zip(encode_episodes(images), rollouts, strict=True))
    ]
    return images, episodes


@pytest.mark.parametrize("on_bad_episode", ["error", "skip"])
def test_final_images_are_kept(on_bad_episode: Any, sources: Any, tmp_path: Path) -> None:
    images, episodes = image_episodes(sources)
    if on_bad_episode == "skip":
        final = episodes[1]["observations"]["image"].pop()
        episodes[1]["observations"]["image"].append(cut_image(final))
    report = gear_data.convert(episodes, tmp_path / "d", on_bad_episode=on_bad_episode)
    left_out = [warning for warning in report.warnings if warning.startswith("final-left-out")]
    assert len(left_out) == 1
    assert left_out[0].startswith("final-left-out: column 'observations.text'")
    good = [pixels for i, pixels in enumerate(images) if (i, on_bad_episode) != (1, "skip")]
    dataset = gear_data.open(tmp_path / "d")
    assert dataset.num_episodes == len(good)
    for i, pixels in enumerate(good):
        np.testing.assert_array_equal(dataset.episode(i)["observations.image"], pixels[:-1])
        np.testing.assert_array_equal((dataset.final(i) or {})["observations.image"], pixels[-1])
    # The same images as arrays give the same dataset.
    arrays = [{**e, "observations": {**e["observations"], "image": p}} for e, p in zip(episodes, images, strict=True)]
    if on_bad_episode == "error":
        assert report.fingerprint == gear_data.convert(arrays, tmp_path / "arrays").fingerprint


def test_final_images_that_stay_encoded_are_reported(sources: Any, tmp_path: Path) -> None:
    _, episodes = image_episodes(sources)
    report = gear_data.convert(episodes, tmp_path / "d", keep_encoded=True)
    left_out = [warning.split("'")[1] for warning in report.warnings if warning.startswith("final-left-out")]
    assert left_out == ["observations.image", "observations.text"]
    assert set(gear_data.open(tmp_path / "d").final(0) or {}) == {"observations.joints"}


def test_an_episode_without_a_final_image_is_bad(sources: Any, tmp_path: Path) -> None:
    _, episodes = image_episodes(sources)
    episodes[2]["observations"]["image"].pop()
    with pytest.raises(BadEpisodeError, match=r"'observations.image', row 2: has no final observation"):
        gear_data.convert(episodes, tmp_path / "d")


def test_next_observations_and_no_final(sources: Any, tmp_path: Path) -> None:
    rollouts = sources.make_rollouts()
    episodes = [{**gymnasium_episode(r, final=False), "next_observations": r.next_observations} for r in rollouts]
    gear_data.convert(episodes, tmp_path / "next")
    sources.check_dataset(tmp_path / "next", rollouts, final=True)
    gear_data.convert([gymnasium_episode(r, final=False) for r in rollouts], tmp_path / "none")
    sources.check_dataset(tmp_path / "none", rollouts)


def test_minari_episodes(shared_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    minari = pytest.importorskip("minari")
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(shared_data / "minari"))
    source = minari.load_dataset("babyai/gotolocal-bot-v0")
    report = gear_data.convert(source, tmp_path / "out")
    assert report.episodes == 200
    assert any(warning.startswith("final-left-out: column 'observations.mission'") for warning in report.warnings)
    dataset = gear_data.open(tmp_path / "out")
    for i in (0, 17, 199):
        expected, episode = source[i], dataset.episode(i)
        length = len(expected.rewards)
        for name in ("direction", "image"):
            np.testing.assert_array_equal(episode[f"observations.{name}"], expected.observations[name][:length])
            final = (dataset.final(i) or {})[f"observations.{name}"]
            np.testing.assert_array_equal(final, expected.observations[name][length])
        assert list(episode["observations.mission"]) == expected.observations["mission"][:length]
        np.testing.assert_array_equal(episode["terminated"], expected.terminations)


def test_d3rlpy_episodes(sources: Any, tmp_path: Path) -> None:
    components = pytest.importorskip("d3rlpy.dataset")
    rollouts = sources.make_rollouts()
    episodes = [
        components.Episode(
            r.columns["observations"],
            r.columns["actions"],
            r.columns["rewards"][:, None],
            bool(r.columns["terminated"][-1]),
        )
        for r in rollouts
    ]
    gear_data.convert(episodes, tmp_path / "out")
    sources.check_dataset(tmp_path / "out", rollouts)


def test_nested_spaces_infos_and_facts(tmp_path: Path) -> None:
    def episode(length: int, seed: int) -> dict[str, Any]:
        rows = np.arange(length + 1) + 100 * seed
        return {
            "observations": {"image": np.stack([rows] * 2, 1).astype(np.uint8), "pose": (rows * 1.0, rows[:, None])},
            "actions": np.zeros(length, np.int64),
            "rewards": np.ones(length),
            "terminated": True,
            "infos": {"qpos": rows * 2.0, "success": bool(seed % 2)},
            "task": f"task {seed}",
            "seed": np.int64(seed),
        }

    report = gear_data.convert([episode(3, 0), episode(1, 1)], tmp_path / "out")
    dataset = gear_data.open(tmp_path / "out")
    first = dataset.episode(0)
    assert first["observations.image"].tolist() == [[0, 0], [1, 1], [2, 2]]
    assert (dataset.final(0) or {})["observations.pose.1"].tolist() == [3]
    # infos[0] belongs to the reset: step t has infos[t + 1].
    assert first["infos.qpos"].tolist() == [2.0, 4.0, 6.0]
    assert first["terminated"].tolist() == [False, False, True]
    assert dataset.episodes["task"].to_list() == ["task 0", "task 1"]
    assert dataset.episodes["seed"].to_list() == [0, 1]
    assert dataset.episodes["infos.success"].to_list() == [False, True]
    assert warning_codes(report) == ["reset-info-left-out"]


def test_other_dtypes_are_kept_where_the_numbers_are_the_same(tmp_path: Path) -> None:
    episodes = [SimpleNamespace(actions=np.zeros(2), rewards=np.array(r)) for r in ([1, 2], [0.5, 1.5], [3, 4])]
    report = gear_data.convert(episodes, tmp_path / "out")
    dataset = gear_data.open(tmp_path / "out")
    assert [dataset.episode(i)["rewards"].tolist() for i in range(3)] == [[1.0, 2.0], [0.5, 1.5], [3.0, 4.0]]
    assert dataset.schema["rewards"].dtype == "float64"
    assert any(warning.startswith("dtype-differs: column 'rewards'") for warning in report.warnings)


def test_an_iterator_is_streamed_and_read_once(sources: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    import gear_data.ingest.pipeline.episode_stream as module

    monkeypatch.setattr(module, "_BLOCK_BYTES", 200)
    rollouts = sources.make_rollouts(20)
    taken = 0

    def generate() -> Iterator[dict[str, Any]]:
        nonlocal taken
        for rollout in rollouts:
            taken += 1
            yield gymnasium_episode(rollout)

    source, _, _ = open_source(locate(generate(), None), "auto", SourceOptions())
    assert taken == 1
    blocks = source.blocks(BEGIN, END)
    first = next(blocks)
    assert taken < 20
    rest = list(blocks)
    assert sum(map(len, [first, *rest])) == 20
    with pytest.raises(InvalidArgumentError, match="read already"):
        list(source.blocks(BEGIN, END))
    # A list can be read again from any position.
    source, _, _ = open_source(locate(generate, None), "auto", SourceOptions())
    again = list(source.blocks(rest[0].position, END))
    np.testing.assert_array_equal(
        np.concatenate([b.columns["rewards"] for b in again]), np.concatenate([b.columns["rewards"] for b in rest])
    )
    assert again[0].rows.tolist() == rest[0].rows.tolist()


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"actions": np.zeros((3, 2), np.float32)}, BadEpisodeError, "'actions', row 2: has 3 rows"),
        ({"actions": np.zeros((4, 3), np.float32)}, BadEpisodeError, "'actions', row 2: is float32"),
        ({"actions": np.full((4, 2), 0.1)}, BadEpisodeError, "'actions', row 2: is float64"),
        ({"actions": [[1.0], [2.0, 3.0]]}, BadEpisodeError, "'actions', row 2: cannot be converted to an array"),
        ({"actions": None}, BadEpisodeError, "'actions', row 2: is missing"),
        ({"extra": np.zeros(4)}, BadEpisodeError, "'extra', row 2: is missing in the first episode"),
        ({"rewards": np.zeros(0, np.float32)}, BadEpisodeError, "row 2: the episode has no steps"),
        ({"observations": [{"x": 1.0}] * 5}, BadEpisodeError, "'observations', row 2: is a list of mappings"),
        ({"actions": np.array([object()] * 4)}, UnsupportedColumnError, "'actions', row 2: holds object"),
    ],
)
def test_bad_episodes_are_named(sources: Any, tmp_path: Path, change: dict[str, Any], error: Any, words: str) -> None:
    rollouts = [r for r in sources.make_rollouts(30, max_length=4) if len(r) == 4][:4]
    episodes = [gymnasium_episode(r) for r in rollouts]
    episodes[2] = {**episodes[2], **change}
    with pytest.raises(error, match=words):
        gear_data.convert(episodes, tmp_path / "out")
    if error is BadEpisodeError:
        report = gear_data.convert(episodes, tmp_path / "skipped", on_bad_episode="skip")
        assert (report.episodes, warning_codes(report)) == (3, ["bad-episode"])
        sources.check_dataset(tmp_path / "skipped", [*rollouts[:2], rollouts[3]], final=True)


@pytest.mark.parametrize(
    ("source", "error", "words"),
    [
        ([], EmptySourceError, "no episode"),
        ([1, 2], InvalidArgumentError, "an episode must be a mapping"),
        ({"observations": np.zeros((3, 1)), "rewards": np.zeros(3)}, UnknownFormatError, "mapping into a list"),
        ({}, InvalidArgumentError, "not dict"),
        (3, InvalidArgumentError, "not int"),
        (b"path", InvalidArgumentError, "not bytes"),
    ],
)
def test_invalid_sources(tmp_path: Path, source: Any, error: Any, words: str) -> None:
    with pytest.raises(error, match=words):
        gear_data.convert(source, tmp_path / "out")


@pytest.mark.parametrize(
    "step",
    [
        {"obs": np.zeros(2), "action": 1, "reward": 1.0, "done": False},
        {"obs": np.zeros(2), "action": np.zeros(1), "reward": 1.0, "done": False},
        {"observation": {"pos": [0.0, 1.0]}, "action": [0.5], "reward": np.float32(1), "terminated": False},
        {"s": np.zeros((8, 8, 3)), "action": np.int64(1)},
    ],
)
def test_steps_in_the_place_of_episodes_are_refused(step: dict[str, Any], tmp_path: Path) -> None:
    """MountainCar has two observations: a step was read as an episode of one step, with a final observation."""
    with pytest.raises(InvalidArgumentError, match="is one value, as of a step") as error:
        gear_data.convert([step] * 4, tmp_path / "d")
    assert "numpy.stack" in (error.value.hint or "")


def test_a_reward_of_a_whole_episode_stays_a_fact(tmp_path: Path) -> None:
    episode = {"observations": np.zeros((3, 2)), "actions": [0, 1, 1], "rewards": 2.5, "terminated": True}
    gear_data.convert([episode], tmp_path / "d")
    assert gear_data.open(tmp_path / "d").episodes["rewards"].to_list() == [2.5]


def test_masked_values_are_refused(tmp_path: Path) -> None:
    """Values below a mask were stored as if they were not masked."""
    force = np.ma.masked_equal([0.0, -999.0, 1.0], -999.0)
    episode = {"observations": np.zeros((3, 2)), "actions": np.zeros((3, 1)), "force": force}
    for source in ([episode], {**episode, "dones": np.arange(3) == 2}):
        with pytest.raises(BadEpisodeError, match=r"'force'.*holds masked values") as error:
            gear_data.convert(source, tmp_path / "d")
        assert "array.filled(numpy.nan)" in (error.value.hint or "")
    gear_data.convert([{**episode, "force": force.filled(np.nan)}], tmp_path / "d")
    assert np.isnan(gear_data.open(tmp_path / "d")[0]["force"]).tolist() == [False, True, False]
    gear_data.convert([{**episode, "force": np.ma.array([1.0, 2.0, 3.0])}], tmp_path / "none")
