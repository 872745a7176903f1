"""Map-style torch datasets: items by plain loops, batches of a DataLoader, workers."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, default_collate

import gear_data
from gear_data.errors import EpisodeIndexError, InvalidArgumentError, UnknownNameError, UnsupportedColumnError
from tests.support.cameras.filmed import FRONT, film
from tests.support.feed.arguments import grouped


def windows_of(ds: gear_data.Dataset, context: int) -> list[dict[str, Any]]:
    """Returns the windows that start at each step, padded at the end, by plain loops."""
    found = []
    for episode in ds:
        for start in range(episode.length):
            length = min(context, episode.length - start)
            window = {"timesteps": [*range(start, start + length), *[0] * (context - length)]}
            window["mask"] = [1.0] * length + [0.0] * (context - length)
            for name in ("observations", "actions", "rewards"):
                values = np.zeros((context, *episode[name].shape[1:]), np.float32)
                values[:length] = episode[name][start : start + length]
                window[name] = values.tolist()
            found.append(window)
    return found


@pytest.mark.parametrize("view", ["whole", "slice", "scattered"])
def test_windows(dataset: gear_data.Dataset, view: str) -> None:
    ds = {"whole": dataset, "slice": dataset[2:5], "scattered": dataset[[0, 3, 8]]}[view]
    windows = ds.to_torch_dataset(6)
    assert isinstance(windows, Dataset) and isinstance(windows, gear_data.WindowDataset)
    expected = windows_of(ds, 6)
    # All are kept, so no item may share memory that is used again.
    items = list(windows)
    assert len(items) == len(windows) == len(expected)
    for item, window in zip(items, expected, strict=True):
        for key, values in window.items():
            assert item[key].tolist() == pytest.approx(values) if key == "mask" else item[key].tolist() == values
    assert torch.equal(windows[-1]["rewards"], items[-1]["rewards"])
    for index in (len(windows), -len(windows) - 1):
        with pytest.raises(EpisodeIndexError, match=f"windows are 0 to {len(windows) - 1}"):
            windows[index]


@pytest.mark.parametrize("preset", ["decision_transformer", "corl", "d3rlpy", "jat"])
def test_collated_windows_are_batches_of_a_loader(dataset: gear_data.Dataset, preset: str) -> None:
    arguments = grouped(preset=preset, normalize=True, window_ids=True, stride=3)
    windows = dataset.to_torch_dataset(5, **arguments)
    loader = gear_data.SequenceLoader(dataset, 16, context=5, sampler="fifo", epochs=1, **arguments)
    for step, expected in enumerate(loader):
        rows = range(16 * step, min(16 * step + 16, len(windows)))
        found = default_collate([windows[i] for i in rows])
        assert found.keys() == expected.keys()
        for key, values in expected.items():
            assert torch.equal(found[key], values), key


def test_what_is_drawn_is_drawn_again(dataset: gear_data.Dataset) -> None:
    """A DataLoader reads an item once an epoch: with the same draws, a window would have one goal in all epochs."""

    def transform(batch: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
        return {**batch, "drawn": torch.tensor([rng.random()])}

    windows = dataset.to_torch_dataset(1, preset="transitions", goals=gear_data.Goals(), transform=transform)
    torch.manual_seed(1)
    items = [windows[5] for _ in range(20)]
    for key, differs in (("observations", False), ("value_goals", True), ("drawn", True)):
        assert (len({tuple(item[key].reshape(-1).tolist()) for item in items}) > 1) == differs, key
    torch.manual_seed(1)
    assert torch.equal(windows[5]["value_goals"], items[0]["value_goals"])
    state = torch.get_rng_state()
    dataset.to_torch_dataset(4)[5]
    assert torch.equal(torch.get_rng_state(), state)


def test_step_filters_choose_windows(dataset: gear_data.Dataset) -> None:
    view = dataset.filter_steps("rewards > 0")
    rewards = [value for episode in dataset for value in episode["rewards"].tolist() if value > 0]
    assert [item["rewards"][0].item() for item in view.to_torch_dataset(3)] == rewards


@pytest.mark.processes
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_dataloader_workers(dataset: gear_data.Dataset, method: str, quick_spawn: None) -> None:
    windows = dataset.to_torch_dataset(4, preset="decision_transformer")
    windows[3]  # the parent used it first
    generator = torch.Generator().manual_seed(3)
    options: dict[str, Any] = {"num_workers": 2, "multiprocessing_context": method}
    loader = DataLoader(windows, 8, shuffle=True, generator=generator, **options)
    found = sorted(row.tolist() for batch in loader for row in batch["rewards"].sum(1)[:, 0])
    assert found == sorted(item["rewards"].sum().item() for item in windows)
    episodes = DataLoader(dataset.to_torch_dataset(), batch_size=None, **options)
    for item, episode in zip(episodes, dataset, strict=True):
        assert np.array_equal(item["observations"].numpy(), episode["observations"])


def test_pickles(dataset: gear_data.Dataset) -> None:
    for items in (dataset[2:4].to_torch_dataset(4), dataset[2:4].to_torch_dataset()):
        again = pickle.loads(pickle.dumps(items))
        assert len(again) == len(items)
        assert torch.equal(again[1]["rewards"], items[1]["rewards"])


def test_episodes(rollouts: list[Any], rollouts_path: Path) -> None:
    episodes = gear_data.open(rollouts_path)[3:7].to_torch_dataset()
    assert len(episodes) == 4
    for number, item in enumerate(episodes, 3):
        assert item["episode_id"] == number
        for name, values in rollouts[number].columns.items():
            assert np.array_equal(item[name].numpy(), values)
        assert np.array_equal(item["final_observations"].numpy(), rollouts[number].final)
        # Writing changes no data.
        item["rewards"] += 1
    assert np.array_equal(episodes[0]["rewards"].numpy(), rollouts[3].columns["rewards"])
    with pytest.raises(EpisodeIndexError, match="episodes are 0 to 3"):
        episodes[4]


def test_episodes_with_text_and_without_finals(make_dataset: Any, tmp_path: Path) -> None:
    said = [["a", "bé"], ["", "c", "d"]]
    rows = [{"actions": np.arange(len(texts)), "said": texts} for texts in said]
    gear_data.convert(rows, tmp_path / "ds", progress=False)
    items = list(gear_data.open(tmp_path / "ds").to_torch_dataset(columns=["said", "actions"]))
    assert [item.keys() for item in items] == [{"episode_id", "said", "actions"}] * 2
    assert [item["said"] for item in items] == said
    ds = gear_data.open(tmp_path / "ds")
    assert [item["said"] for item in ds.to_torch_dataset(1)] == [[text] for texts in said for text in texts]


@pytest.mark.parametrize("name", ["episode_id", "final_observations"])
def test_columns_with_the_name_of_another_key_are_refused(name: str, rollouts_path: Path) -> None:
    dataset = gear_data.open(rollouts_path)
    edited = dataset.with_column(name, np.zeros(dataset.num_steps))
    with pytest.raises(UnsupportedColumnError, match="choose other columns") as error:
        edited.to_torch_dataset()
    assert error.value.column == name
    items = edited.to_torch_dataset(columns=["rewards", "observations"])
    assert {*items[0]} == {"episode_id", "rewards", "observations", "final_observations"}
    if name == "final_observations":
        assert edited.to_torch_dataset(columns=["rewards", name])[0][name].shape == (dataset[0].length,)


def test_some_episodes_have_no_final_observation(tmp_path: Path) -> None:
    with gear_data.Writer(tmp_path / "ds", durability="os") as writer:
        for number in range(4):
            writer.append(observations=np.zeros(2, np.float32), actions=0.0)
            writer.end_episode(terminated=True, final=np.full(2, number, np.float32) if number % 2 else None)
    items = list(gear_data.open(tmp_path / "ds").to_torch_dataset())
    assert [None if item["final_observations"] is None else item["final_observations"].tolist() for item in items] == [
        None, [1, 1], None, [3, 3],
    ]  # fmt: skip


def test_cameras_are_decoded(sources: Any, tmp_path: Path) -> None:
    rollouts = sources.make_rollouts(3, seed=2)
    gear_data.convert(sources.write_d4rl(tmp_path / "source.hdf5", rollouts), tmp_path / "ds", progress=False)
    frames = film(tmp_path / "ds", [len(rollout) for rollout in rollouts])[FRONT]
    ds = gear_data.open(tmp_path / "ds")
    for item, expected in zip(ds.to_torch_dataset(columns=[FRONT]), frames, strict=True):
        assert np.array_equal(item[FRONT].numpy(), expected)
    windows = ds.to_torch_dataset(2, columns=[FRONT])
    first = [expected[step] for expected in frames for step in range(len(expected))]
    for item, expected in zip(windows, first, strict=True):
        assert np.array_equal(item[FRONT][0].numpy(), expected)


def test_wrong_arguments(dataset: gear_data.Dataset) -> None:
    with pytest.raises(InvalidArgumentError, match="no batch_size, sampler"):
        dataset.to_torch_dataset(4, batch_size=3, sampler="shuffle")
    with pytest.raises(InvalidArgumentError, match=r"(?s)no pack.*SequenceLoader"):
        dataset.to_torch_dataset(4, pack=32)
    with pytest.raises(InvalidArgumentError, match="give context="):
        dataset.to_torch_dataset(preset="decision_transformer")
    with pytest.raises(UnknownNameError, match="did you mean 'rewards'"):
        dataset.to_torch_dataset(columns=["reward"])
    with pytest.raises(InvalidArgumentError, match="step filter"):
        dataset.filter_steps("rewards > 0").to_torch_dataset()
