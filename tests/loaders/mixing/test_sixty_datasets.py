"""A joined mixture of sixty unlike datasets, against a plain loop over their episodes."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

import gear_data
from gear_data import Mixture, SequenceLoader
from tests.support.feed.arguments import grouped
from tests.support.feed.batches import same, take
from tests.support.feed.data import locomotion

COUNT, BATCH, CONTEXT = 60, 96, 3
CAMERA = "observations.image"
#: Elements to which observations and actions are padded.
PADDED = {"observations": 24, "actions": 32}
COLUMNS = [*PADDED, CAMERA, "task"]
SHARES = [1 + number % 4 for number in range(COUNT)]
#: Datasets that grow: one has neither camera nor text, one has both.
GROWING = [7, 30]
Episodes = list[dict[str, Any]]


def make_episodes(number: int, seed: int = 0) -> Episodes:
    """Returns two episodes of a dataset: 7 to 32 elements of an action, a camera and a text in some datasets."""
    random = np.random.default_rng([number, seed])
    lengths = random.integers(1, 6, 2).tolist()
    found = locomotion(lengths, seed=number + 1000 * seed, observations=2 + number % 23, actions=7 + number * 25 // 59)
    for place, (episode, length) in enumerate(zip(found, lengths, strict=True)):
        if number % 3 == 0:
            episode[CAMERA] = random.integers(1, 255, (length, 4, 5, 3)).astype(np.uint8)
        if number % 2 == 0:
            episode["task"] = f"task {number} {seed} {place}"
    return found


class Made:
    """The folders of sixty datasets.

    Attributes:
        episodes: for each dataset, all its episodes by id.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.episodes = [make_episodes(number) for number in range(COUNT)]
        for number, each in enumerate(self.episodes):
            gear_data.convert(each, folder / str(number), progress=False)

    def grow(self, number: int) -> None:
        """Appends two episodes to a dataset."""
        added = make_episodes(number, seed=1)
        self.episodes[number] = self.episodes[number] + added
        with gear_data.Writer(self.folder / str(number), durability="os") as writer:
            for episode in added:
                steps = {name: values for name, values in episode.items() if name != "task"}
                for t in range(len(episode["rewards"])):
                    writer.append(**{name: values[t] for name, values in steps.items()})
                writer.end_episode(**{"task": episode["task"]} if "task" in episode else {})

    def loader(self, **options: Any) -> SequenceLoader:
        entries = [
            (gear_data.open(self.folder / str(number)), share, {"embodiment": number // 2})
            for number, share in enumerate(SHARES)
        ]
        mixture = Mixture(entries, join=True, pad_to=PADDED)
        arguments = {"context": CONTEXT, "seed": 6, "columns": COLUMNS, "normalize": ["observations"], **options}
        return SequenceLoader(mixture, BATCH, **grouped(**arguments))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    return Made(tmp_path_factory.mktemp("sixty"))


def loop(episodes: Sequence[Episodes], rows: Sequence[tuple[int, int, int]]) -> dict[str, Any]:
    """Returns the batch of some windows (dataset, episode, first step), one after another."""
    batch: dict[str, Any] = {name: np.zeros((BATCH, CONTEXT, width), np.float32) for name, width in PADDED.items()}
    batch[CAMERA] = np.zeros((BATCH, CONTEXT, 4, 5, 3), np.uint8)
    batch |= {f"{name}_dim_mask": np.zeros((BATCH, width), bool) for name, width in PADDED.items()}
    batch |= {"mask": np.zeros((BATCH, CONTEXT), bool), "valid_count": np.zeros(BATCH, np.int64)}
    every = [np.concatenate([each["observations"] for each in own]).astype(np.float64) for own in episodes]
    moments = [(own.mean(0), own.std(0)) for own in every]
    for row, (number, which, start) in enumerate(rows):
        episode, (mean, std) = episodes[number][which], moments[number]
        for k in range(CONTEXT):
            if start + k == len(episode["rewards"]):
                break
            observation, action = (episode[name][start + k] for name in PADDED)
            batch["observations"][row, k, : len(observation)] = (observation - mean) / std
            batch["actions"][row, k, : len(action)] = action
            if CAMERA in episode:
                batch[CAMERA][row, k] = episode[CAMERA][start + k]
            batch["mask"][row, k] = True
            batch["valid_count"][row] += 1
        for name in PADDED:
            batch[f"{name}_dim_mask"][row, : episode[name].shape[1]] = True
    numbers = [number for number, *_ in rows]
    batch["task"] = [episodes[number][which].get("task", "") for number, which, _ in rows]
    batch["source"], batch["embodiment"] = np.array(numbers), np.array(numbers) // 2
    batch[f"{CAMERA}_present"] = np.array([number % 3 == 0 for number in numbers])
    batch["task_present"] = np.array([number % 2 == 0 for number in numbers])
    return batch


def check(batches: Sequence[Any], loader: SequenceLoader, episodes: Sequence[Episodes], first: int = 0) -> None:
    """Asserts that batches of the steps `first` and following are those of the plain loop, and shares exact."""
    total = np.zeros(COUNT)
    for step, batch in enumerate(batches, first):
        windows = loader.windows(step)
        rows = list(zip(*(windows[name].tolist() for name in ("dataset", "episode_id", "start")), strict=True))
        for number, which, start in rows:
            assert 0 <= start < len(episodes[number][which]["rewards"])
            total[number] += 1
        expected = loop(episodes, rows)
        assert expected.keys() <= batch.keys() <= expected.keys() | {"timesteps"}
        for key, golden in expected.items():
            if key == "task":
                assert batch[key] == golden, step
                continue
            values = np.asarray(batch[key])
            assert values.shape == golden.shape, key
            assert values.dtype == golden.dtype or key == "mask", (key, values.dtype)
            if key == "observations":
                np.testing.assert_allclose(values, golden, rtol=1e-4, atol=1e-5)
                assert not values[golden == 0].any()
            else:
                assert np.array_equal(values, golden), (step, key)
        if not first:
            assert (np.abs(total - np.array(SHARES) / sum(SHARES) * total.sum()) < 1).all(), step


def files_and_threads() -> tuple[int, int]:
    """Returns the open files and the threads of this process."""
    files, threads = (len(os.listdir(f"/proc/self/{name}")) for name in ("fd", "task"))
    return files, threads


@pytest.mark.parametrize("prefetch", [0, 2])
def test_batches_are_those_of_a_plain_loop(made: Made, prefetch: int) -> None:
    take(made.loader(prefetch=prefetch), 1)  # starts the libraries' own threads
    loader = made.loader(prefetch=prefetch)
    before = files_and_threads()
    iterator: Any = iter(loader)
    batches = list(islice(iterator, 5))
    added = [now - then for now, then in zip(files_and_threads(), before, strict=True)]
    iterator.close()
    check(batches, loader, made.episodes)
    # Batches open no file and start no thread for each dataset.
    assert max(added) < COUNT / 3


def test_ranks_and_resuming_on_another_world_size(made: Made) -> None:
    whole = take(made.loader(prefetch=0), 6)

    def parts(world_size: int, state: Any, count: int) -> list[Any]:
        found = []
        for rank in range(world_size):
            part = made.loader(rank=rank, world_size=world_size, prefetch=2 * (rank % 2))
            if state is not None:
                part.load_state_dict(json.loads(json.dumps(state)))
            found.append((take(part, count), part.state_dict()))
        assert all(each == found[0][1] for _, each in found)
        return found

    def joined(found: Sequence[Any]) -> list[Any]:
        return [
            {
                key: [text for part, _ in found for text in part[step][key]]
                if key == "task"
                else torch.cat([part[step][key] for part, _ in found])
                for key in whole[0]
            }
            for step in range(len(found[0][0]))
        ]

    two = parts(2, None, 2)
    same(joined(two), whole[:2])
    three = parts(3, two[0][1], 2)
    same(joined(three), whole[2:4])
    same(joined(parts(1, three[0][1], 2)), whole[4:])


@pytest.mark.processes
def test_workers(made: Made) -> None:
    expected = take(made.loader(prefetch=0), 6)
    same(list(DataLoader(made.loader(steps=6), batch_size=None, num_workers=2)), expected)


@pytest.mark.parametrize("prefetch", [0, 2])
def test_some_datasets_grow(tmp_path: Path, prefetch: int) -> None:
    made = Made(tmp_path)
    loader = made.loader(prefetch=prefetch)
    iterator: Any = iter(loader)
    before = list(made.episodes)
    batches = list(islice(iterator, 2))
    for number in GROWING:
        made.grow(number)
    changed = loader.refresh()
    batches += list(islice(iterator, changed + 3 - len(batches)))
    check(batches[:changed], loader, before)
    check(batches[changed:], loader, made.episodes, changed)
    drawn = [loader.windows(step) for step in range(changed, changed + 3)]
    for number in GROWING:
        assert any((each["episode_id"][each["dataset"] == number] >= 2).any() for each in drawn)
    state = json.loads(json.dumps(loader.state_dict()))
    iterator.close()
    for rank in range(2):
        resumed = made.loader(rank=rank, world_size=2, prefetch=prefetch)
        resumed.load_state_dict(state)
        rows = slice(rank * BATCH // 2, (rank + 1) * BATCH // 2)
        for step in (0, changed - 1, changed, changed + 2):
            same([resumed.batch(step)], [{key: values[rows] for key, values in batches[step].items()}])
