"""Ranges of steps, against loops in plain Python."""

from __future__ import annotations

import json
import pickle
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gear_data
from gear_data.dataset.steps import ranges as module
from gear_data.errors import EmptySourceError, EpisodeIndexError, GearError, InvalidArgumentError, UnknownNameError
from tests.dataset.steps.conftest import LENGTHS
from tests.support.feed.batches import same, take
from tests.support.views import flags_of

RANGES: dict[int, list[list[int]]] = {0: [[20, 34], [0, 3], [3, 4]], 1: [], 3: [[29, 30]], 4: [[0, 1]], 7: [[5, 9]]}


def loop(ranges: Mapping[int, Sequence[Sequence[int]]], ids: Sequence[int] = range(len(LENGTHS))) -> list[bool]:
    """Returns for each step of the whole dataset whether it is in a range of its episode."""
    return [
        number in ids and any(step in range(*each) for each in ranges.get(number, []))
        for number, length in enumerate(LENGTHS)
        for step in range(length)
    ]


@pytest.mark.parametrize("block_bytes", [16, 1 << 20])
def test_ranges_are_a_loop_over_the_steps(
    ds: gear_data.Dataset, block_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "BLOCK_BYTES", block_bytes)
    assert flags_of(ds.keep_ranges(RANGES)) == loop(RANGES)
    assert flags_of(ds.filter("length > 10").keep_ranges(RANGES)) == loop(RANGES, [0, 1, 3, 5, 6, 7])
    numbers = {np.int64(key): np.array(value, np.int32).reshape(-1, 2) for key, value in RANGES.items()}
    assert flags_of(ds.keep_ranges(numbers)) == loop(RANGES)  # type: ignore[arg-type]
    tuples = {key: tuple(map(tuple, value)) for key, value in RANGES.items()}
    assert flags_of(ds.keep_ranges(tuples, mode="all")) == loop(RANGES)


def test_the_view_is_one_of_filter_steps(ds: gear_data.Dataset) -> None:
    view = ds.keep_ranges({3: [[5, 30]], 5: [[5, 27]]})
    same = ds.filter("episode_id in (3, 5)").filter_steps("timestamp >= 0.45")
    assert flags_of(view) == flags_of(same)
    positive = ds.filter_steps("rewards > 0")
    both = [a and b for a, b in zip(flags_of(positive), loop(RANGES), strict=True)]
    assert flags_of(positive.filter("episode_id < 100").keep_ranges(RANGES)) == both
    kept = sum(loop(RANGES))
    assert view.num_steps == ds.num_steps and len(view) == len(ds)
    assert ds.keep_ranges(RANGES).steps_left_out == sum(LENGTHS) - kept and ds.steps_left_out == 0
    assert f"{sum(LENGTHS) - kept:,} steps left out (mode all)" in repr(ds.keep_ranges(RANGES, mode="all"))
    assert ds.keep_ranges(RANGES).all_steps().fingerprint == ds.fingerprint
    with pytest.raises(InvalidArgumentError, match="'first', not 'all'"):
        view.keep_ranges(RANGES, mode="all")
    with pytest.raises(UnknownNameError, match="known: all, first"):
        ds.keep_ranges(RANGES, mode="last")  # type: ignore[arg-type]


def test_episodes_are_named_by_ids_texts_and_the_keys_of_droid(
    ds: gear_data.Dataset, episodes: list[dict[str, Any]], tmp_path: Path, memory_url: str
) -> None:
    keys = ["0", "demo-1", "gs://r/1/1.h5", "gs://r/2/MP4--gs://r/2/0.h5", "gs://r/3/MP4--gs://r/3/1.h5"]
    by_name = dict(zip(keys, RANGES.values(), strict=True))
    assert flags_of(ds.keep_ranges(by_name)) == loop(RANGES)
    file = tmp_path / "keep_ranges_1_0_1.json"
    file.write_text(json.dumps(by_name))
    assert flags_of(ds.keep_ranges(file)) == loop(RANGES)
    import fsspec

    fsspec.filesystem("memory").pipe(f"{memory_url}/ranges.json", file.read_bytes())
    assert flags_of(ds.keep_ranges(f"{memory_url}/ranges.json")) == loop(RANGES)
    # As openpi does: a table of `FOLDER--FILE--STEP`.
    every = {
        f"{each['recording_folderpath']}--{each['file_path']}": RANGES[number]
        for number, each in enumerate(episodes) if number in RANGES
    }  # fmt: skip
    table = {f"{key}--{step}" for key, ranges in every.items() for start, stop in ranges for step in range(start, stop)}
    expected = [
        f"{each['recording_folderpath']}--{each['file_path']}--{step}" in table
        for each in episodes for step in range(len(each["rewards"]))
    ]  # fmt: skip
    assert flags_of(ds.keep_ranges(every)) == expected


@pytest.mark.parametrize(
    ("ranges", "error", "words"),
    [
        ({0: [[0, 35]]}, InvalidArgumentError, ["[0, 35) of episode 0", "steps 0 to 33", "stops at 34"]),
        ({"demo-1": [[-1, 2]]}, InvalidArgumentError, ["[-1, 2) of episode 'demo-1'"]),
        ({0: [[5, 9], [0, 6]]}, InvalidArgumentError, ["[0, 6) and [5, 9) of episode 0 overlap"]),
        ({0: [[5, 5]]}, InvalidArgumentError, ["[5, 5) of episode 0 has no step"]),
        ({0: [[7, 5]]}, InvalidArgumentError, ["[7, 5) of episode 0 has no step"]),
        ({8: [[0, 1]]}, EpisodeIndexError, ["8 names no episode", "Ids are 0 to 7", "name is 'demo-0'"]),
        ({-1: [[0, 1]]}, EpisodeIndexError, ["-1 names no episode"]),
        ({10**30: [[0, 1]]}, EpisodeIndexError, ["names no episode"]),
        ({"007": [[0, 1]], "x": []}, EpisodeIndexError, ["'007' names no episode", "1 more of 2 keys"]),
        ({"4": [[0, 1]]}, InvalidArgumentError, ["'4'", "the id of episode 4", "the alias of episode 1", "{4: "]),
        ({"close": [[0, 1]]}, InvalidArgumentError, ["the task of 3 episodes: 0, 3, 6"]),
        ({"list in memory": []}, InvalidArgumentError, ["the source of 8 episodes: 0, 1, 2, 3, 4, ..."]),
        ({3: [[0, 1]], "demo-3": [[2, 3]]}, InvalidArgumentError, ["3 and 'demo-3' name one episode, 3"]),
        ({True: [[0, 1]]}, InvalidArgumentError, ["not by True"]),
        ({0: 7}, InvalidArgumentError, ["ranges of episode 0 are 7", "[[0, 100], [200, 300]]"]),
        ({0: "ab"}, InvalidArgumentError, ["ranges of episode 0 are 'ab'"]),
        ({0: [0, 1]}, InvalidArgumentError, ["are [0, 1]"]),
        ({0: [[0, 1, 2]]}, InvalidArgumentError, ["are [[0, 1, 2]]"]),
        ({0: [[0.0, 1.0]]}, InvalidArgumentError, ["are [[0.0, 1.0]]"]),
        ({0: [[0, 1], [2]]}, InvalidArgumentError, ["are [[0, 1], [2]]"]),
        ({0: [[False, True]]}, InvalidArgumentError, ["are [[False, True]]"]),
        ({0: None}, InvalidArgumentError, ["are None"]),
        ({}, EmptySourceError, ["no step"]),
        ({2: []}, EmptySourceError, ["the ranges of 1 episode keep no step"]),
    ],
)
def test_wrong_ranges(ranges: Any, error: type[GearError], words: list[str], ds: gear_data.Dataset) -> None:
    with pytest.raises(error) as raised:
        ds.keep_ranges(ranges)
    assert type(raised.value) is error
    for word in [*words, f"dataset {ds.path}"]:
        assert word in str(raised.value)


def test_an_integer_is_an_id(ds: gear_data.Dataset) -> None:
    """The hint of an ambiguous key works."""
    assert flags_of(ds.keep_ranges({4: [[0, 1]]})) == loop({4: [[0, 1]]})
    with pytest.raises(EmptySourceError, match="1 other episode: \\[4\\]"):
        ds[:3].keep_ranges({4: [[0, 1]]})


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "cannot be read as JSON"),
        ("[1]", "is [1], not an object"),
        ('{"0": [[0, 1]], "0": [[2, 3]]}', "has the key '0' twice"),
        ('{"0": [[0, 100]]}', "lies beyond its steps"),
        (None, "cannot be read"),
    ],
)
def test_wrong_files(text: str | None, words: str, ds: gear_data.Dataset, tmp_path: Path) -> None:
    file = tmp_path / "ranges.json"
    if text is not None:
        file.write_text(text)
    with pytest.raises(InvalidArgumentError) as raised:
        ds.keep_ranges(str(file))
    assert raised.value.file == str(file)
    assert words in str(raised.value) and f"dataset {ds.path}" in str(raised.value)


def test_a_dataset_that_grows_keeps_its_ranges(tmp_path: Path) -> None:
    with gear_data.Writer(tmp_path / "ds", max_steps=20, durability="os") as writer:
        for number in range(3):
            _add(writer, number)
            writer.seal()
        view = gear_data.open(tmp_path / "ds").keep_ranges({1: [[2, 4]], 2: [[0, 1]]})
        for number in range(3, 5):
            _add(writer, number)
            writer.seal()
        new = view.refresh()
    assert new.episode_ids is not None
    ids = new.episode_ids.tolist()
    assert 0 not in ids and ids[-1] == 4
    expected = [(each, step) in {(1, 2), (1, 3), (2, 0)} for each in ids for step in range(5)]
    assert flags_of(new) == expected
    assert flags_of(gear_data.open(tmp_path / "ds").keep_ranges({2: [[0, 1]]})) == [
        (each, step) == (2, 0) for each in ids for step in range(5)
    ]


def _add(writer: gear_data.Writer, number: int) -> None:
    for step in range(5):
        writer.append(observations=np.full(2, number, np.float32), actions=np.int64(step), rewards=0.0)
    writer.end_episode()


@pytest.mark.processes
def test_loaders_draw_the_windows_of_the_same_filter(ds: gear_data.Dataset) -> None:
    view = ds.keep_ranges({number: [[5, length]] for number, length in enumerate(LENGTHS) if length > 5})
    same_steps = ds.filter_steps("timestamp >= 0.45")
    assert view.fingerprint == same_steps.fingerprint
    options: dict[str, Any] = {"batch_size": 6, "context": 4, "columns": ["actions"], "seed": 2}
    for mode in ("alone", "mixture"):
        one, two = (each if mode == "alone" else gear_data.Mixture([each, ds]) for each in (view, same_steps))
        expected = take(gear_data.SequenceLoader(two, prefetch=0, **options), 9)
        loader = gear_data.SequenceLoader(one, prefetch=2, **options)
        same(take(loader, 9), expected)
        resumed = gear_data.SequenceLoader(pickle.loads(pickle.dumps(one)), **options)
        resumed.load_state_dict({**loader.state_dict(), "step": 4})
        same(take(resumed, 5), expected[4:])
        workers = gear_data.SequenceLoader(one, prefetch=0, steps=9, **options).dataloader(2)
        same(list(workers), expected)
