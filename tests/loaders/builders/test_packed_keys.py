"""Packed batches against plain loops over episodes."""

from __future__ import annotations

import dataclasses
import json
import pickle
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

import gear_data
from gear_data import (
    BatchOptions,
    Goals,
    Mixture,
    Pack,
    RandomShift,
    ReturnOptions,
    SequenceLoader,
    Weighted,
    WindowOptions,
)
from gear_data.errors import GearError, InvalidArgumentError, StateMismatchError
from gear_data.loaders.tuning.config_file import columns_of, write_config
from gear_data.loaders.tuning.setting import Setting
from tests.support.feed import data as feed_data
from tests.support.feed.batches import same, take
from tests.support.feed.data import EVERY_SAMPLER

PACK = 40
LENGTHS = [[7, 1, 23, 40, 2, 20, 19, 21, 5, 9, 31, 3], [12, 5, 33, 8, 8, 40]]


def make_episodes(number: int) -> list[dict[str, Any]]:
    episodes = feed_data.locomotion(LENGTHS[number], seed=number, observations=4 - number, actions=3 - number)
    for episode in episodes:
        episode["infos.real"] = episode["rewards"][:, None] * 2
        episode["infos.count"] = np.random.default_rng(number).integers(1, 9, len(episode["rewards"]))
    return episodes


EPISODES = [make_episodes(number) for number in range(2)]


@pytest.fixture(scope="module")
def datasets(tmp_path_factory: pytest.TempPathFactory) -> list[gear_data.Dataset]:
    folder = tmp_path_factory.mktemp("packed")
    return [
        feed_data.convert_episodes(episodes, folder / str(number), shard_bytes=1024)
        for number, episodes in enumerate(EPISODES)
    ]


@pytest.fixture
def dataset(datasets: list[gear_data.Dataset]) -> gear_data.Dataset:
    return datasets[0]


def loader(dataset: Any, batch_size: int = 3, **options: Any) -> SequenceLoader:
    return SequenceLoader(dataset, batch_size, **{"pack": PACK, "seed": 4, **options})


def check(batch: dict[str, Any], table: dict[str, np.ndarray], rows: int, episodes: list[list[dict[str, Any]]]) -> None:
    """Compares a batch of `raw` with its windows, one by one; and with plain attention masks."""
    used = np.zeros((rows, PACK), np.bool_)
    bounds, longest, number = [0], 0, Counter[int]()
    windows = list(zip(*(table[name].tolist() for name in ("dataset", "episode_id", "start", "length")), strict=True))
    places = list(zip(table["row"].tolist(), table["place"].tolist(), strict=True))
    for (source, episode_id, start, length), (row, place) in zip(windows, places, strict=True):
        span = slice(place, place + length)
        assert not used[row, span].any() and len(used[row, span]) == length
        # No gap: a window begins where the last one ends.
        assert used[row, :place].all()
        used[row, span], number[row] = True, number[row] + 1
        episode = episodes[source][episode_id]
        for key in ("observations", "actions", "rewards", "infos.count"):
            if key in batch:
                assert np.array_equal(batch[key][row, span], episode[key][start : start + length]), key
        assert batch["timesteps"][row, span].tolist() == list(range(start, start + length))
        assert batch["position_ids"][row, span].tolist() == list(range(length))
        assert batch["segment_ids"][row, span].tolist() == [number[row]] * length
    for row in range(rows):
        for own, (_, _, _, length) in zip(places, windows, strict=True):
            if own[0] == row:
                bounds.append(row * PACK + own[1] + length)
        end = int(used[row].sum())
        assert batch["position_ids"][row, end:].tolist() == list(range(PACK - end))
        for key in ("observations", "actions", "rewards", "infos.count", "timesteps", "segment_ids"):
            assert key not in batch or not batch[key][row, end:].any(), key
        if end < PACK:
            bounds.append((row + 1) * PACK)
    longest = max(np.diff(bounds), default=0)
    assert np.array_equal(batch["mask"], used)
    assert batch["cu_seqlens"].tolist() == bounds and batch["max_seqlen"] == longest
    assert batch["valid_count"].tolist() == table["length"].tolist()
    kinds = [torch.int32, torch.int64, torch.int32]
    assert [torch.as_tensor(batch[key]).dtype for key in ("cu_seqlens", "position_ids", "segment_ids")] == kinds
    assert type(batch["max_seqlen"]) is int


@pytest.mark.parametrize("context", [None, 6])
@pytest.mark.parametrize("sampler", EVERY_SAMPLER)
def test_rows_have_the_steps_of_their_windows(dataset: gear_data.Dataset, sampler: str, context: int | None) -> None:
    packed = loader(dataset, sampler=EVERY_SAMPLER[sampler], context=context)
    for step, batch in zip(range(9), packed, strict=False):
        table = packed.windows(step)
        assert table["length"].max() <= (context or PACK)
        if context is None:
            assert table["start"].tolist() == [0] * len(table["start"])
            assert np.array_equal(table["length"], dataset.lengths[table["episode_id"]])
        check(batch, table, 3, EPISODES)


@pytest.mark.parametrize("sampler", ["shuffle", "fifo"])
@pytest.mark.parametrize(
    "options",
    [{}, {"context": 6}, {"context": 6, "windows": WindowOptions(stride=4, anchor="end")}, {"context": 40}],
)
def test_every_window_is_once_in_an_epoch(dataset: gear_data.Dataset, sampler: Any, options: dict[str, Any]) -> None:
    packed = loader(dataset, sampler=sampler, epochs=3, **options)
    padded = SequenceLoader(
        dataset, 7, sampler=sampler, epochs=1, **(options or {"context": 40, "windows": WindowOptions(stride=40)})
    )
    expected = sorted(_windows(padded, range(len(padded))))
    rows = _rows(packed, range(len(packed)))
    of_epoch = len(rows) // 3
    assert len(rows) == 3 * of_epoch
    epochs = [rows[first : first + of_epoch] for first in range(0, len(rows), of_epoch)]
    for epoch in epochs:
        assert sorted(window for row in epoch for window in row) == expected
    assert (epochs[0] == epochs[1]) == (sampler == "fifo")


def _windows(source: SequenceLoader, steps: range) -> list[tuple[int, int, int]]:
    found = []
    for step in steps:
        table = source.windows(step)
        found += zip(table["episode_id"].tolist(), table["start"].tolist(), table["length"].tolist(), strict=True)
    return found


def _rows(source: SequenceLoader, steps: range) -> list[list[tuple[int, int, int]]]:
    """The windows of each row of some steps."""
    found: list[list[tuple[int, int, int]]] = []
    for step in steps:
        table = source.windows(step)
        rows: list[Any] = [[] for _ in range(int(table["row"].max()) + 1)]
        for row, *window in zip(
            *(table[name].tolist() for name in ("row", "episode_id", "start", "length")), strict=True
        ):
            rows[row].append(tuple(window))
        found += rows
    return found


@pytest.mark.parametrize("sampler", ["uniform", "weighted", "shuffle", "fifo"])
@pytest.mark.parametrize("batch_size", [1, 4, 32])
def test_rows_are_full(tmp_path_factory: pytest.TempPathFactory, sampler: str, batch_size: int) -> None:
    ds = _uniform_lengths(tmp_path_factory)
    packed = SequenceLoader(ds, batch_size, pack=512, sampler=EVERY_SAMPLER[sampler], columns=["rewards"], seed=2)
    steps = -(-96 // batch_size)
    masks = [batch["mask"].float().mean().item() for batch in take(packed, steps)]
    assert np.mean(masks) >= 0.98


_MADE: list[gear_data.Dataset] = []


def _uniform_lengths(factory: pytest.TempPathFactory) -> gear_data.Dataset:
    """Episodes of 1 to 128 steps, all as often."""
    if not _MADE:
        lengths = np.random.default_rng(0).permutation(np.tile(np.arange(1, 129), 8))
        episodes = [{"actions": np.zeros((n, 1), np.float32), "rewards": np.ones(n, np.float32)} for n in lengths]
        _MADE.append(feed_data.convert_episodes(episodes, factory.mktemp("uniform") / "lengths"))
    return _MADE[0]


@pytest.mark.parametrize("sampler", ["uniform", "shuffle"])
def test_windows_are_drawn_as_often_as_without_packing(tmp_path_factory: pytest.TempPathFactory, sampler: Any) -> None:
    ds = _uniform_lengths(tmp_path_factory)
    packed = SequenceLoader(ds, 2, pack=512, sampler=sampler, seed=9)
    lengths = np.concatenate([packed.windows(step)["length"] for step in range(1500)])
    # The mean of 1 to 128 is 64.5, and the standard error of 24,000 draws is 0.24.
    assert len(lengths) > 20_000 and abs(lengths.mean() - 64.5) < 1.0
    counts = np.bincount(lengths, minlength=129)[1:]
    assert counts.min() > 0.6 * counts.mean() and counts.max() < 1.4 * counts.mean()


@pytest.mark.parametrize("sampler", ["uniform", "weighted", "shuffle"])
@pytest.mark.parametrize("prefetch", [0, 3])
def test_ranks_have_the_rows_of_the_global_batch(dataset: gear_data.Dataset, sampler: str, prefetch: int) -> None:
    options = {"sampler": EVERY_SAMPLER[sampler], "batch_size": 5, "columns": ["actions"], "prefetch": prefetch}
    whole = take(loader(dataset, **options), 6)
    for world in (2, 3):
        parts = [take(loader(dataset, rank=rank, world_size=world, **options), 6) for rank in range(world)]
        for step, batch in enumerate(whole):
            for key in ("actions", "mask", "position_ids", "segment_ids", "valid_count", "timesteps"):
                assert torch.equal(torch.cat([part[step][key] for part in parts]), batch[key]), key
            bounds = [0]
            for part in parts:
                bounds += (part[step]["cu_seqlens"][1:] + bounds[-1]).tolist()
            assert bounds == batch["cu_seqlens"].tolist()
            assert max(part[step]["max_seqlen"] for part in parts) == batch["max_seqlen"]


def test_ranks_share_the_last_rows_of_a_pass(dataset: gear_data.Dataset) -> None:
    """Some ranks have no row of it."""
    options = {"sampler": "shuffle", "epochs": 1, "batch_size": 4, "columns": ["actions", "length"]}
    whole = list(loader(dataset, **options))
    assert 0 < len(whole[-1]["actions"]) < 4
    parts = [list(loader(dataset, rank=rank, world_size=4, **options)) for rank in range(4)]
    for step, batch in enumerate(whole):
        for key in ("actions", "segment_ids", "valid_count", "length"):
            joined = torch.cat([part[step][key] for part in parts])
            assert torch.equal(joined, batch[key]) and joined.dtype == batch[key].dtype
    empty = next(part[-1] for part in parts if not len(part[-1]["actions"]))
    assert empty["cu_seqlens"].tolist() == [0] and empty["max_seqlen"] == 0


def test_updated_weights_hold_from_their_step(dataset: gear_data.Dataset) -> None:
    packed = loader(dataset, sampler=Weighted("1"), prefetch=0)
    before = take(packed, 2)
    step = packed.update_weights(range(12), [0.0] * 5 + [1.0] * 7)
    for number in range(step, step + 4):
        batch = packed.batch(number)
        assert packed.windows(number)["episode_id"].min() >= 5
        assert batch["weights_version"].tolist() == [1] * len(batch["valid_count"])
        assert batch["probability"].unique().tolist() == [1 / lengths for lengths in [7]]
    same([packed.batch(number) for number in range(2)], before)


@pytest.mark.parametrize("split", [False, True])
def test_importance_weights_are_those_of_the_windows_in_the_rows(dataset: gear_data.Dataset, split: bool) -> None:
    sampler = Weighted("length", by="step", beta=0.5, divide_by_max=True)
    options = {"sampler": sampler, "context": 9, "pack": Pack(PACK, split=split)}
    expected = take(loader(dataset, **options), 8)
    for step, batch in enumerate(expected):
        assert batch["importance_weights"].max() == 1
        raw = batch["probability"] ** -0.5
        torch.testing.assert_close(batch["importance_weights"], raw / raw.max())
        # A loader that begins here has drawn other numbers of windows before.
        same([loader(dataset, **options).batch(step)], [batch])


def test_arrays_of_rows_are_not_sharded(dataset: gear_data.Dataset) -> None:
    jax = pytest.importorskip("jax")
    mesh = jax.make_mesh((1,), ("data",))
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("data"))
    with pytest.raises(InvalidArgumentError, match="shards arrays"):
        loader(dataset, framework="jax", device=sharding)
    packed = loader(dataset, framework="jax", columns=["actions"])
    batch, expected = packed.batch(0), loader(dataset, framework="numpy", columns=["actions"]).batch(0)
    assert all(np.array_equal(batch[key], expected[key]) for key in expected)
    assert isinstance(batch["cu_seqlens"], jax.Array) and batch["max_seqlen"] == expected["max_seqlen"]


@pytest.mark.parametrize("pack", [PACK, Pack(PACK, cut=True), np.int32(PACK)])
def test_a_file_of_arguments_has_the_rows(dataset: gear_data.Dataset, pack: Any, tmp_path: Path) -> None:
    arguments = {"batch_size": 3, "pack": pack, "seed": 4}
    write_config(tmp_path / "loader.json", Setting(), arguments, columns_of(dataset), {})
    found = SequenceLoader.from_config(dataset, tmp_path / "loader.json", prefetch=0)
    same(take(found, 2), take(loader(dataset, pack=pack), 2))


@pytest.mark.parametrize("sampler", EVERY_SAMPLER)
def test_a_state_resumes_at_any_step(dataset: gear_data.Dataset, sampler: str) -> None:
    options = {"sampler": EVERY_SAMPLER[sampler], "context": 9}
    expected = take(loader(dataset, **options), 9)
    for step in (1, 4, 7):
        first = loader(dataset, **options)
        take(first, step)
        second = loader(dataset, **options)
        second.load_state_dict(json.loads(json.dumps(first.state_dict())))
        same(take(second, 9 - step), expected[step:])
    assert first.batch(8).keys() == expected[8].keys()
    same([first.batch(8)], expected[8:])


def test_a_state_of_other_rows_is_refused(dataset: gear_data.Dataset) -> None:
    state = loader(dataset, context=6).state_dict()
    padded = SequenceLoader(dataset, 3, seed=4, context=6)
    for other, given in (
        (padded, state),
        (loader(dataset, context=6, pack=50), state),
        (loader(dataset, context=6), padded.state_dict()),
    ):
        with pytest.raises(StateMismatchError, match="another pack"):
            other.load_state_dict(given)


@pytest.mark.processes
def test_workers_give_the_same_batches(dataset: gear_data.Dataset) -> None:
    for sampler in ("uniform", "shuffle"):
        expected = take(loader(dataset, sampler=sampler, steps=6), 6)
        own = loader(dataset, sampler=sampler, steps=6)
        same(take(pickle.loads(pickle.dumps(own)), 6), expected)
        same(list(DataLoader(own, batch_size=None, num_workers=2)), expected)


def test_columns_are_changed_as_in_padded_batches(datasets: list[gear_data.Dataset]) -> None:
    """Normalised, shifted, stacked and summed columns have the values of padded windows."""
    options: dict[str, Any] = {
        "sampler": "fifo", "context": 6, "normalize": True, "seed": 4,
        "columns": ["observations", "next_observations", "both"],
        "returns": ReturnOptions(n_step=3, discount=0.9),
        "batch": BatchOptions(stack={"both": ["actions", "infos.real"]}),
    }  # fmt: skip
    packed = SequenceLoader(datasets[0], 2, pack=PACK, **options)
    padded = SequenceLoader(datasets[0], int(datasets[0].num_steps), **options)
    every, table = next(iter(padded)), padded.windows(0)
    index = {
        window: row
        for row, window in enumerate(zip(table["episode_id"].tolist(), table["start"].tolist(), strict=True))
    }
    seen = 0
    for step, batch in zip(range(12), packed, strict=False):
        own = packed.windows(step)
        for episode, start, length, row, place in zip(
            *(own[name].tolist() for name in ("episode_id", "start", "length", "row", "place")), strict=True
        ):
            for key in ("observations", "next_observations", "next_observations_mask", "both", "n_step_returns"):
                expected = every[key][index[episode, start], :length]
                assert torch.equal(batch[key][row, place : place + length], expected), key
                seen += 1
    assert seen > 500


def test_the_rest_of_a_row_has_the_fill_of_the_preset(dataset: gear_data.Dataset) -> None:
    packed = loader(dataset, preset="decision_transformer", context=7, normalize=True)
    batch = next(iter(packed))
    rest = batch["attention_mask"] == 0
    assert rest.any() and (batch["segment_ids"] == 0).equal(rest)
    every = np.concatenate([episode["observations"] for episode in EPISODES[0]]).astype(np.float64)
    filled = torch.as_tensor(-every.mean(0) / (every.std(0) + 1e-6), dtype=torch.float32)
    assert torch.allclose(batch["states"][rest], filled.expand(int(rest.sum()), -1), rtol=1e-6)
    assert (batch["actions"][rest] == -10).all()
    assert not batch["timesteps"][rest].any() and not batch["returns_to_go"][rest].any()


@pytest.mark.parametrize("sampler", ["uniform", "shuffle", "fifo"])
@pytest.mark.parametrize("join", [False, True])
def test_mixtures(datasets: list[gear_data.Dataset], sampler: Any, join: bool) -> None:
    mixture = Mixture([(datasets[0], 2), (datasets[1], 1)], join=join)
    packed = loader(mixture, sampler=sampler, batch_size=3, columns=["rewards", "infos.count"])
    rows = np.zeros(2, np.int64)
    for step, batch in zip(range(12), packed, strict=False):
        table = packed.windows(step)
        check(batch, table, 3, EPISODES)
        assert batch["source"].tolist() == table["dataset"].tolist()
        for row in range(3):
            (source,) = {*table["dataset"][table["row"] == row].tolist()}
            rows[source] += 1
    assert rows.tolist() == [24, 12]
    parts = [
        take(loader(mixture, sampler=sampler, columns=["rewards"], rank=rank, world_size=2), 5) for rank in range(2)
    ]
    for step, batch in enumerate(take(loader(mixture, sampler=sampler, columns=["rewards"]), 5)):
        assert torch.equal(torch.cat([part[step]["rewards"] for part in parts]), batch["rewards"])


def test_a_mixture_of_unlike_datasets(datasets: list[gear_data.Dataset]) -> None:
    packed = loader(Mixture(datasets, join=True, pad_to="largest"), sampler="shuffle", batch_size=4)
    for step, batch in zip(range(6), packed, strict=False):
        table = packed.windows(step)
        assert batch["actions"].shape == (4, PACK, 3) and batch["actions_dim_mask"].shape == (4, 3)
        for source, episode, start, length, row, place in zip(
            *(table[name].tolist() for name in ("dataset", "episode_id", "start", "length", "row", "place")),
            strict=True,
        ):
            width = 3 - source
            assert batch["actions_dim_mask"][row].tolist() == [True] * width + [False] * (3 - width)
            actions = batch["actions"][row, place : place + length].numpy()
            assert np.array_equal(actions[:, :width], EPISODES[source][episode]["actions"][start : start + length])
            assert not actions[:, width:].any()
        assert not batch["actions"][batch["segment_ids"] == 0].any()


def test_facts_are_of_windows(dataset: gear_data.Dataset) -> None:
    packed = loader(dataset, columns=["rewards", "length"], batch=BatchOptions(window_ids=True))
    batch, table = next(iter(packed)), packed.windows(0)
    assert batch["length"].tolist() == table["length"].tolist()
    assert batch["episode_id"].tolist() == table["episode_id"].tolist()


def test_longer_episodes_are_cut_if_asked(dataset: gear_data.Dataset) -> None:
    packed = loader(dataset, pack=Pack(8, cut=True), sampler="shuffle", epochs=1, batch_size=4)
    found = Counter[tuple[int, int]]()
    for step in range(len(packed)):
        for episode, start, length in _windows(packed, range(step, step + 1)):
            assert length == min(8, LENGTHS[0][episode] - start)
            found[episode, start] += 1
    assert found == Counter((e, start) for e, n in enumerate(LENGTHS[0]) for start in range(0, n, 8))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"pack": 0}, "pack"),
        ({"pack": True}, "pack is True"),
        ({"pack": "4096"}, "pack is '4096'"),
        ({"pack": Pack(1 << 30), "batch_size": 2}, "cu_seqlens counts"),
        ({"pack": 39}, r"episode 3 has 40 steps, and a row has pack=39"),
        ({"pack": Pack(39, cut=True), "context": 40}, "context is 40, and a row has pack=39"),
        ({"windows": WindowOptions(stride=2)}, "whole episodes"),
        ({"pack": {"length": 40, "cut": 1}}, "cut is True or False"),
        ({"pack": {"length": 40, "split": None}}, "split is True or False"),
        ({"pack": {"length": 40, "cut": True, "split": True}}, "windows go on in the next row"),
        ({"pack": {"size": 40}}, "size"),
        ({"goals": Goals()}, "goals"),
        ({"batch": BatchOptions(augment=RandomShift(2))}, "augment"),
        ({"preset": "lerobot"}, "preset 'lerobot'"),
        ({"preset": "transitions"}, "preset 'transitions'"),
        ({"offsets": {"actions": (0, 3)}}, "offsets"),
        ({"relative": {"actions": "actions"}}, "relative"),
        ({"choose": {"some": ["rewards", "returns_to_go"]}}, "pack= puts several"),
        ({"sampler": Weighted("length", replacement=False)}, "replacement=False"),
        ({"sampler": "shuffle", "context": 5, "windows": WindowOptions(anchor="random")}, "anchor='random'"),
        ({"epochs": 2}, "with replacement"),
    ],
)
def test_bad_arguments_are_refused(dataset: gear_data.Dataset, options: dict[str, Any], message: str) -> None:
    with pytest.raises(GearError, match=message) as error:
        loader(dataset, **options)
    assert error.value.hint or "pack" in str(error.value) or "not " in str(error.value)


def test_a_column_cannot_have_the_name_of_a_packed_key(tmp_path_factory: pytest.TempPathFactory) -> None:
    episodes = [{"actions": np.zeros((3, 1), np.float32), "position_ids": np.arange(3)}]
    ds = feed_data.convert_episodes(episodes, tmp_path_factory.mktemp("clash") / "ds")
    with pytest.raises(InvalidArgumentError, match="position_ids"):
        loader(ds)
    assert "position_ids" in next(iter(loader(ds, columns=["actions"])))


@pytest.mark.parametrize("pack", [5, 32])
@pytest.mark.parametrize("options", [{}, {"context": 7, "windows": WindowOptions(stride=3)}])
@pytest.mark.parametrize("sampler", ["fifo", "shuffle", "uniform", "weighted"])
def test_windows_go_on_in_the_next_row(
    dataset: gear_data.Dataset, sampler: str, options: dict[str, Any], pack: int
) -> None:
    """Rows are the windows of the same sampler without packing, one after another."""
    common = {"sampler": EVERY_SAMPLER[sampler], "seed": 4}
    packed = SequenceLoader(dataset, 3, pack=Pack(pack, split=True), **common, **options)
    whole = options or {"context": 40, "windows": WindowOptions(stride=40)}
    ordered = sampler in ("fifo", "shuffle")
    padded = SequenceLoader(dataset, 7 if ordered else 200, **common, **whole)
    steps = range(30)
    streams: list[list[Any]] = []
    for step in steps:
        windows = _windows(padded, range(step, step + 1))
        stream = [(e, start + i, i) for e, start, length in windows for i in range(length)]
        streams += [stream] if not ordered or not streams else []
        if ordered and step:
            streams[0] += stream
    for step in range(8):
        batch, table = packed.batch(step), packed.windows(step)
        wanted = streams[0][step * 3 * pack :] if ordered else streams[step]
        wanted = wanted[: 3 * pack]
        assert len(wanted) == 3 * pack and batch["mask"].all()
        episodes, numbers, positions = (np.array(each) for each in zip(*wanted, strict=True))
        assert batch["position_ids"].flatten().tolist() == positions.tolist()
        assert batch["timesteps"].flatten().tolist() == numbers.tolist()
        actions = np.stack([EPISODES[0][e]["actions"][n] for e, n in zip(episodes, numbers, strict=True)])
        assert np.array_equal(batch["actions"].flatten(0, 1), actions)
        # A segment ends where a window does, and where a row does.
        ends = [i for i in range(1, 3 * pack) if positions[i] == 0 or i % pack == 0]
        assert batch["cu_seqlens"].tolist() == [0, *ends, 3 * pack]
        assert batch["valid_count"].tolist() == batch["cu_seqlens"].diff().tolist() == table["length"].tolist()
        assert table["start"].tolist() == numbers[[0, *ends]].tolist()
        numbers_of_rows = batch["segment_ids"].diff(dim=1)
        assert (batch["segment_ids"][:, 0] == 1).all() and {*numbers_of_rows.flatten().tolist()} <= {0, 1}
        parts = [
            SequenceLoader(dataset, 3, pack=Pack(pack, split=True), rank=rank, world_size=2, **common, **options).batch(
                step
            )
            for rank in range(2)
        ]
        for key in ("actions", "position_ids", "segment_ids", "valid_count"):
            assert torch.equal(torch.cat([part[key] for part in parts]), batch[key])


def test_an_epoch_of_split_windows_has_every_step(dataset: gear_data.Dataset) -> None:
    packed = loader(dataset, pack=Pack(16, split=True), sampler="shuffle", epochs=2, batch_size=2)
    assert len(packed) == 12  # 362 steps are 23 rows
    found = Counter[tuple[int, int]]()
    for step in range(len(packed)):
        for episode, start, length in _windows(packed, range(step, step + 1)):
            found.update((episode, start + i) for i in range(length))
    # The last row has the beginning of the third epoch.
    assert sum(found.values()) == 16 * -(-2 * sum(LENGTHS[0]) // 16)
    assert {*found} == {(e, step) for e, n in enumerate(LENGTHS[0]) for step in range(n)} and min(found.values()) == 2


@pytest.mark.parametrize("sampler", ["uniform", "shuffle"])
def test_a_mixture_of_split_windows(datasets: list[gear_data.Dataset], sampler: Any) -> None:
    packed = loader(
        Mixture(datasets, join=True), pack=Pack(16, split=True), sampler=sampler, batch_size=4, columns=["rewards"]
    )
    for step in range(5):
        batch, table = packed.batch(step), packed.windows(step)
        assert batch["mask"].all()
        names = ("dataset", "episode_id", "start", "length", "row", "place")
        for source, episode, start, length, row, place in zip(*(table[name].tolist() for name in names), strict=True):
            span = slice(place, place + length)
            assert batch["timesteps"][row, span].tolist() == list(range(start, start + length))
            assert batch["position_ids"][row, span].tolist() == list(range(start, start + length))
            rewards = EPISODES[source][episode]["rewards"][start : start + length]
            assert np.array_equal(batch["rewards"][row, span], rewards)


@pytest.mark.parametrize("options", [{}, {"context": 7}])
def test_rows_of_tokens(dataset: gear_data.Dataset, options: dict[str, Any]) -> None:
    """The tokens of a window are those of a padded batch; 4 observations, a separator and 3 actions are 8 tokens."""
    tokens = 8 * PACK + 5
    packed = loader(dataset, pack=tokens, preset="gato", columns=["infos.count"], **options)
    context = options.get("context", PACK)
    windows = WindowOptions() if options else WindowOptions(stride=context)
    padded = SequenceLoader(
        dataset, int(dataset.num_steps) if options else len(dataset), context=context, windows=windows, sampler="fifo",
        preset="gato",
    )  # fmt: skip
    every, table = next(iter(padded)), padded.windows(0)
    index = {
        window: row
        for row, window in enumerate(zip(table["episode_id"].tolist(), table["start"].tolist(), strict=True))
    }
    for step, batch in zip(range(5), packed, strict=False):
        own = packed.windows(step)
        real = torch.zeros(3, tokens, dtype=torch.bool)
        assert own["length"].max() <= context
        names = ("episode_id", "start", "length", "row", "place")
        for episode, start, length, row, place in zip(*(own[name].tolist() for name in names), strict=True):
            span = slice(8 * place, 8 * (place + length))
            real[row, span] = True
            assert batch["tokens"][row, span].equal(every["tokens"][index[episode, start]])
            assert batch["target_mask"][row, span].equal(every["target_mask"][index[episode, start]])
            assert batch["position_ids"][row, span].equal(torch.arange(8 * length))
            counts = EPISODES[0][episode]["infos.count"][start : start + length]
            assert batch["infos.count"][row, place : place + length].tolist() == counts.tolist()
        assert batch["attention_mask"].equal(real) and (batch["segment_ids"] > 0).equal(real)
        assert not batch["tokens"][~real].any() and not batch["target_mask"][~real].any()
        assert batch["cu_seqlens"][-1] == 3 * tokens and batch["max_seqlen"] == batch["cu_seqlens"].diff().max()


def test_rows_of_too_few_tokens_are_refused(dataset: gear_data.Dataset) -> None:
    with pytest.raises(InvalidArgumentError, match="pack=319 tokens, 39 steps of 8 tokens"):
        loader(dataset, pack=319, preset="gato")
    for options in ({}, {"context": 1}, {"pack": Pack(7, cut=True)}):
        with pytest.raises(InvalidArgumentError, match="pack=7 tokens, 0 steps of 8 tokens"):
            loader(dataset, **{"pack": 7, "preset": "gato", **options})


def test_a_mixture_of_datasets_with_other_tokens_alternates(datasets: list[gear_data.Dataset]) -> None:
    packed = loader(Mixture(datasets), pack=400, preset="gato", sampler="shuffle")
    for step, batch in zip(range(4), packed, strict=False):
        width = 8 - 2 * (step % 2)
        assert batch["tokens"].shape == (3, 400)
        assert int((batch["segment_ids"] > 0).sum()) == width * int(packed.windows(step)["length"].sum())
        assert (batch["position_ids"][batch["segment_ids"] > 0] == 0).sum() == len(batch["valid_count"])
    joined = loader(Mixture(datasets, join=True), pack=400, preset="gato", sampler="shuffle")
    for step, batch in enumerate(take(joined, 4)):
        table = joined.windows(step)
        assert {*table["dataset"].tolist()} == {0, 1} and batch["tokens"].shape == (3, 400)
        sizes = np.where(table["dataset"] == 0, 8, 6) * table["length"]
        rows = np.bincount(table["row"], sizes, 3)
        assert (batch["segment_ids"] > 0).sum(1).tolist() == rows.tolist() and rows.max() <= 400
    with pytest.raises(InvalidArgumentError, match="unlike numbers of tokens"):
        loader(Mixture(datasets, join=True), pack=Pack(400, split=True), preset="gato")


@pytest.mark.parametrize("sampler", ["uniform", "weighted"])
def test_refreshed_datasets(tmp_path: Path, sampler: str) -> None:
    """From the step of a refresh on, the rows are those of a new loader."""
    record(tmp_path / "ds", LENGTHS[0][:6])
    packed = loader(gear_data.open(tmp_path / "ds"), sampler=EVERY_SAMPLER[sampler], prefetch=0)
    batches = take(packed, 2)
    record(tmp_path / "ds", LENGTHS[0][6:])
    assert packed.refresh() == 2
    iterator = iter(packed)
    batches += [next(iterator) for _ in range(2)]
    newest = loader(gear_data.open(tmp_path / "ds"), sampler=EVERY_SAMPLER[sampler], prefetch=0)
    same(batches[2:], [newest.batch(2), newest.batch(3)])
    resumed = loader(gear_data.open(tmp_path / "ds"), sampler=EVERY_SAMPLER[sampler], prefetch=0)
    resumed.load_state_dict(json.loads(json.dumps(packed.state_dict())))
    same([resumed.batch(step) for step in range(4)], batches)


def record(path: Path, lengths: Sequence[int]) -> None:
    with gear_data.Writer(path, durability="os") as writer:
        for episode in feed_data.locomotion(lengths, seed=5):
            for step in range(len(episode["rewards"])):
                writer.append(**{name: values[step] for name, values in episode.items()})
            writer.end_episode(terminated=True)


def test_batches_of_rows_are_exported(dataset: gear_data.Dataset, tmp_path: Path) -> None:
    packed = loader(dataset, sampler="shuffle", framework="numpy")
    gear_data.export_batches(packed, tmp_path / "npz", batches=2, format="npz", progress=False)
    expected = loader(dataset, sampler="shuffle", framework="numpy").batch(1)
    with np.load(tmp_path / "npz" / "batch-000001.npz") as found:
        assert {*found} == {*expected}
        assert all(np.array_equal(found[key], expected[key]) for key in found)
    with pytest.raises(InvalidArgumentError, match="a row per window"):
        gear_data.export_batches(packed, tmp_path / "table", batches=2, format="parquet", progress=False)


def test_the_argument_is_a_number_or_a_value(dataset: gear_data.Dataset) -> None:
    expected = take(loader(dataset), 3)
    same(take(loader(dataset, pack=np.int64(PACK)), 3), expected)
    same(take(loader(dataset, pack=Pack(PACK)), 3), expected)
    assert (
        loader(dataset).spec()["pack"] == dataclasses.asdict(Pack(PACK)) == {"length": 40, "cut": False, "split": False}
    )
