"""Views: filters of episodes and steps, and splits, against plain loops."""

from __future__ import annotations

import pickle
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gear_data
from gear_data.dataset import step_filter, views
from gear_data.dataset.split import split_sizes
from gear_data.errors import EmptySourceError, GearError, InvalidArgumentError, ManifestError, UnknownNameError

TASKS = ("pick the cup", "place the cup", None, "open")


@pytest.fixture(scope="module")
def rollouts(sources: Any) -> list[Any]:
    """Thirty episodes with an image column.

    `facts` removes every other final observation.
    """
    rng = np.random.default_rng(2)
    return [
        r.with_columns(**{"observations.image": rng.integers(0, 256, (len(r), 2, 3), dtype=np.uint8)})
        for r in sources.make_rollouts(30, seed=21)
    ]


def facts(rollouts: list[Any]) -> dict[str, Any]:
    """Returns columns per episode: final observations, tasks, levels."""
    finals = [r.final.tolist() if i % 2 else None for i, r in enumerate(rollouts)]
    return {
        "final_observations": pl.Series(finals, dtype=pl.List(pl.Float32)).to_arrow(),
        "task": [TASKS[i % len(TASKS)] for i in range(len(rollouts))],
        "level": [i % 7 if i % 5 else None for i in range(len(rollouts))],
    }


@pytest.fixture(scope="module")
def path(rollouts: list[Any], sources: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("views")
    source = sources.write_episodes(folder / "source.parquet", rollouts, **facts(rollouts))
    assert gear_data.convert(source, folder / "dataset", shard_bytes=2048).shards > 3
    return folder / "dataset"


@pytest.fixture(scope="module")
def ds(path: Path) -> gear_data.Dataset:
    return gear_data.open(path)


def total(rollout: Any) -> float:
    return sum(rollout.columns["rewards"].astype(float).tolist())


def ids_of(view: gear_data.Dataset) -> list[int]:
    ids: list[int] = view.episodes["episode_id"].to_list()
    return ids


def check_view(view: gear_data.Dataset, rollouts: list[Any], ids: list[int]) -> None:
    """Checks that a view has these episodes, with their ids in the dataset."""
    assert 0 < len(ids) < len(rollouts)
    lengths = [len(rollouts[i]) for i in ids]
    assert ids_of(view) == ids
    assert view.episode_ids is not None and view.episode_ids.tolist() == ids
    assert view.num_episodes == len(ids)
    assert view.num_steps == sum(lengths)
    assert view.lengths.tolist() == lengths
    assert view.offsets.tolist() == [sum(lengths[:i]) for i in range(len(ids) + 1)]
    assert view._store.offsets[ids].tolist() == [sum(len(r) for r in rollouts[:i]) for i in ids]
    assert f"{len(ids)} episodes" in repr(view)
    for i, rollout in enumerate(rollouts):
        if i in ids:
            np.testing.assert_array_equal(view.episode(i)["actions"], rollout.columns["actions"])
            assert (view.final(i) is None) == (i % 2 == 0)
        else:
            for get in (view.episode, view.final):
                with pytest.raises(InvalidArgumentError, match=f"episode {i} is not among the {len(ids)}"):
                    get(i)
    with pytest.raises(InvalidArgumentError, match="no episode has id 10000"):
        view.episode(10000)
    expected = np.concatenate([rollouts[i].columns["observations"] for i in ids])
    np.testing.assert_array_equal(view.steps("observations", 0, len(ids)), expected)


@pytest.mark.parametrize(
    ("expression", "holds"),
    [
        (pl.col("length") > 5, lambda i, r: len(r) > 5),
        ("length > 5 AND NOT terminated", lambda i, r: len(r) > 5 and i % 2 == 1),
        ('"return" < 0 OR return > 2', lambda i, r: total(r) < 0 or total(r) > 2),
        ("terminated", lambda i, r: i % 2 == 0),
        (pl.col("level") >= 3, lambda i, r: i % 5 != 0 and i % 7 >= 3),
        ("task LIKE '%cup'", lambda i, r: (TASKS[i % 4] or "").endswith("cup")),
        (pl.col("task").str.len_chars() == 4, lambda i, r: TASKS[i % 4] == "open"),
        ("task = 'open' AND episode_id < 20", lambda i, r: TASKS[i % 4] == "open" and i < 20),
    ],
)
def test_filter_is_a_loop_over_the_episodes(
    expression: Any, holds: Callable[[int, Any], bool], ds: gear_data.Dataset, rollouts: list[Any]
) -> None:
    check_view(ds.filter(expression), rollouts, [i for i, r in enumerate(rollouts) if holds(i, r)])


def test_aggregates_are_over_the_view(ds: gear_data.Dataset, rollouts: list[Any]) -> None:
    """A filter of a filter and of a split aggregates over its own episodes."""
    best = pl.col("return") >= pl.col("return").quantile(0.5, "lower")
    for view in (ds, ds.filter("terminated"), ds.split({"a": 0.6, "b": 0.4}, seed=3)["a"]):
        ids = ids_of(view)
        median = sorted(total(rollouts[i]) for i in ids)[(len(ids) - 1) // 2]
        check_view(view.filter(best), rollouts, [i for i in ids if total(rollouts[i]) >= median - 1e-9])


def test_views_share_the_memory_of_the_dataset(ds: gear_data.Dataset) -> None:
    view = ds.filter("length > 5")
    assert ds.episode_ids is None and ds.step_mask is None
    assert view._store.offsets is ds._store.offsets is ds.offsets
    assert np.shares_memory(view.episode(ids_of(view)[0])["actions"], ds.episode(ids_of(view)[0])["actions"])
    everything = ds.filter("length > 0")
    assert everything.fingerprint == ds.fingerprint
    assert np.shares_memory(everything.steps("actions", 0, 2), ds.steps("actions", 0, 2))


@pytest.mark.parametrize("block_bytes", [64, 1 << 20])
def test_a_view_equals_a_conversion_of_its_episodes(
    block_bytes: int, ds: gear_data.Dataset, rollouts: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Exporting and converting a view keeps fingerprint and statistics.

    They are equal bit for bit, for blocks of any size.
    """
    monkeypatch.setattr(views, "BLOCK_BYTES", block_bytes)
    view = ds.filter(pl.col("episode_id") % 3 != 1)
    report = gear_data.export(view, tmp_path / "out")
    assert (report.episodes, report.steps) == (view.num_episodes, view.num_steps)
    gear_data.convert(tmp_path / "out", tmp_path / "again")
    again = gear_data.open(tmp_path / "again")
    assert view.fingerprint == again.fingerprint != ds.fingerprint
    for name, expected in again.statistics.items():
        assert view.statistics[name].to_json() == expected.to_json()
    for new, old in enumerate(ids_of(view)):
        found, expected = again.final(new), view.final(old)
        assert (found is None) == (expected is None)
        assert found is None or expected is None or found["observations"].tolist() == expected["observations"].tolist()
    assert again.episodes["task"].to_list() == view.episodes["task"].to_list()
    values = np.concatenate([rollouts[i].columns["actions"] for i in ids_of(view)]).astype(np.float64)
    np.testing.assert_allclose(view.statistics["actions"].mean, values.mean(axis=0), rtol=1e-12)
    np.testing.assert_allclose(view.statistics["actions"].std, values.std(axis=0), rtol=1e-12)


def test_export_of_a_view_to_one_file_and_of_few_shards(ds: gear_data.Dataset, tmp_path: Path) -> None:
    view = ds.filter(pl.col("shard") == 2)
    assert gear_data.export(view, tmp_path / "out").files == ("data/train-00000-of-00001.parquet",)
    gear_data.export(view, tmp_path / "one.parquet")
    assert pl.read_parquet(tmp_path / "one.parquet")["actions"].list.len().to_list() == view.lengths.tolist()
    with pytest.raises(InvalidArgumentError, match="whole episodes"):
        gear_data.export(ds.filter_steps("rewards > 0"), tmp_path / "steps")


@pytest.mark.parametrize(
    ("expression", "error", "words"),
    [
        ("lengt > 5", UnknownNameError, ["did you mean 'length'", "episode_id"]),
        (pl.col("rewards") > 5, UnknownNameError, ["rewards", "return"]),
        ("length", InvalidArgumentError, ["true or false", "Int64"]),
        ("length >", InvalidArgumentError, ["not a valid SQL expression", "double quotes"]),
        (pl.col("length").sum() > 3, InvalidArgumentError, ["1 for 30"]),
        (pl.lit(True), InvalidArgumentError, ["1 for 30"]),
        (pl.col("length", "start") > 3, InvalidArgumentError, ["gives 2"]),
        (pl.col("task").str.to_integer() > 3, InvalidArgumentError, ["Polars cannot evaluate", "pick the cup"]),
        (pl.col("length").head(3) > 3, InvalidArgumentError, ["3 for 30"]),
        (3, InvalidArgumentError, ["3"]),
        ("length > 1000", EmptySourceError, ["length", "1 to 12", "1000"]),
        ("task = 'sing' AND level > 2", EmptySourceError, ["'open' to 'place the cup'", "0 to 6"]),
    ],
)
def test_invalid_filters(expression: Any, error: type[GearError], words: list[str], ds: gear_data.Dataset) -> None:
    with pytest.raises(error) as raised:
        ds.filter(expression)
    for word in words:
        assert word in str(raised.value)


STEP_FILTERS = [
    ("rewards > 0", lambda c: c["rewards"] > 0),
    ("terminated", lambda c: c["terminated"]),
    (pl.col("observations").arr.get(0) > pl.col("rewards"), lambda c: c["observations"][:, 0] > c["rewards"]),
    (pl.col("observations.image").arr.get(1).arr.get(2) > 100, lambda c: c["observations.image"][:, 1, 2] > 100),
    ('"observations.image" IS NOT NULL AND rewards BETWEEN -0.5 AND 0.5', lambda c: abs(c["rewards"]) <= 0.5),
]


def held(view: gear_data.Dataset) -> list[bool]:
    assert view.step_mask is not None
    flags: list[bool] = view.step_mask.flags(0, int(view._store.offsets[-1])).tolist()
    return flags


@pytest.mark.parametrize("block_bytes", [64, 1 << 20])
@pytest.mark.parametrize(("expression", "holds"), STEP_FILTERS)
def test_filter_steps_is_a_loop_over_the_steps(
    expression: Any,
    holds: Callable[[Any], Any],
    block_bytes: int,
    ds: gear_data.Dataset,
    rollouts: list[Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(step_filter, "BLOCK_BYTES", block_bytes)
    for base in (ds, ds.filter(pl.col("episode_id") % 3 != 1)):
        view = base.filter_steps(expression)
        expected = [
            bool(flag) and i in ids_of(base) for i, r in enumerate(rollouts) for flag in np.ravel(holds(r.columns))
        ]
        assert held(view) == expected
        # A step filter does not change the episodes.
        assert (view.num_episodes, view.num_steps) == (base.num_episodes, base.num_steps)
        assert ids_of(view) == ids_of(base)
        assert view.statistics.keys() == base.statistics.keys()


def test_filter_steps_by_text(sources: Any, tmp_path: Path) -> None:
    texts = [["go left", "stop"], ["go", "let go", "é"], ["x"]]
    table = pa.table({"rewards": [[1.0, 2.0], [1.0, 2.0, 3.0], [0.5]], "texts": texts})
    gear_data.convert(sources.write_parquet(tmp_path / "source.parquet", table), tmp_path / "out")
    ds = gear_data.open(tmp_path / "out")
    view = ds.filter_steps(pl.col("texts").str.starts_with("go"))
    assert held(view) == [text.startswith("go") for episode in texts for text in episode]
    view = ds.filter("length != 3").filter_steps("texts LIKE '%o%' AND rewards > 1")
    assert held(view) == [False, True, False, False, False, False]
    with pytest.raises(EmptySourceError, match="texts"):
        ds.filter_steps("texts = 'no such text'")


def test_step_filters_compose(ds: gear_data.Dataset, rollouts: list[Any]) -> None:
    view = ds.filter_steps("rewards > 0").filter("length > 3").filter_steps(pl.col("actions").arr.get(1) < 0)
    assert view.step_mask_mode == "first"
    expected = [
        len(r) > 3 and reward > 0 and action < 0
        for r in rollouts
        for reward, action in zip(r.columns["rewards"], r.columns["actions"][:, 1], strict=True)
    ]
    assert held(view) == expected
    assert min(view.lengths) > 3
    parts = view.split({"a": 0.5, "b": 0.5})
    assert held(parts["a"]) == held(parts["b"]) == expected
    with pytest.raises(InvalidArgumentError, match="'first', not 'all'"):
        view.filter_steps("rewards > 1", mode="all")
    with pytest.raises(EmptySourceError, match="earlier step filters"):
        view.filter_steps("rewards < 0")


def test_a_step_filter_changes_the_fingerprint(ds: gear_data.Dataset) -> None:
    positive = ds.filter_steps("rewards > 0")
    assert positive.fingerprint == ds.filter_steps(pl.col("rewards") > 0).fingerprint
    prints = {
        view.fingerprint
        for view in (ds, positive, ds.filter_steps("rewards > 0", mode="all"), ds.filter_steps("rewards > 0.1"))
    }
    assert len(prints) == 4
    assert positive.filter("length > 3").fingerprint != ds.filter("length > 3").fingerprint


@pytest.mark.parametrize(
    "expression",
    [
        pl.col("rewards") > pl.col("rewards").mean(),
        pl.col("rewards").shift(1) > 0,
        pl.col("rewards").cum_sum() > 0,
        pl.col("rewards").rank() > 20,
        pl.col("rewards").diff() > 0,
        pl.col("rewards").reverse() > 0,
        pl.col("rewards").mean().over("terminated") > 0,
        pl.col("rewards") == pl.col("rewards").max(),
        "rewards > AVG(rewards)",
        pl.col("rewards").sum() > 0,
    ],
)
def test_step_filters_over_several_steps_are_refused(expression: Any, ds: gear_data.Dataset) -> None:
    with pytest.raises(InvalidArgumentError, match=r"more than one step|a value for every row"):
        ds.filter_steps(expression)


@pytest.mark.parametrize(
    ("expression", "mode", "error", "words"),
    [
        ("reward > 0", "first", UnknownNameError, ["did you mean 'rewards'", "observations"]),
        ("return > 0", "first", UnknownNameError, ["rewards"]),
        ("rewards", "first", InvalidArgumentError, ["true or false"]),
        ("TRUE", "first", InvalidArgumentError, ["names no column"]),
        (pl.col("observations") > 0, "first", InvalidArgumentError, ["observations"]),
        ("rewards > 0", "last", UnknownNameError, ["known: all, first"]),
        ("rewards > 1000", "all", EmptySourceError, ["rewards is -", " to "]),
    ],
)
def test_invalid_step_filters(
    expression: Any, mode: str, error: type[GearError], words: list[str], ds: gear_data.Dataset
) -> None:
    with pytest.raises(error) as raised:
        ds.filter_steps(expression, mode=mode)
    for word in words:
        assert word in str(raised.value)


# split


def shuffled_by_hand(seed: int, count: int, domain: int = 64) -> list[int]:
    """Returns Fisher and Yates' shuffle in plain Python integers.

    Words come from Philox4x32-10 (Salmon et al.), bounded draws from Lemire's method.
    """

    def word(slot: int, attempt: int) -> int:
        c, k = [slot, 0, 0, domain << 24 | attempt], [seed & 0xFFFFFFFF, seed >> 32]
        for _ in range(10):
            p, q = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
            c = [(q >> 32) ^ c[1] ^ k[0], q & 0xFFFFFFFF, (p >> 32) ^ c[3] ^ k[1], p & 0xFFFFFFFF]
            k = [(k[0] + 0x9E3779B9) & 0xFFFFFFFF, (k[1] + 0xBB67AE85) & 0xFFFFFFFF]
        return c[1] << 32 | c[0]

    def below(slot: int, bound: int) -> int:
        attempt = 0
        while (product := word(slot, attempt) * bound) & (2**64 - 1) < 2**64 % bound:
            attempt += 1
        return product >> 64

    order = list(range(count))
    for i in range(count - 1, 0, -1):
        j = below(i, i + 1)
        order[i], order[j] = order[j], order[i]
    return order


def test_split_divides_the_episodes(ds: gear_data.Dataset, rollouts: list[Any]) -> None:
    for seed in (0, 1, 2**63 + 5):
        parts = ds.split({"train": 0.8, "val": 0.15, "test": 0.05}, seed=seed)
        order = shuffled_by_hand(seed, 30)
        check_view(parts["train"], rollouts, sorted(order[:24]))
        # 4.5 and 1.5 episodes have equal remainders: the first part is rounded up.
        check_view(parts["val"], rollouts, sorted(order[24:29]))
        check_view(parts["test"], rollouts, sorted(order[29:]))
        values = np.concatenate([rollouts[i].columns["rewards"] for i in sorted(order[:24])]).astype(np.float64)
        assert parts["train"].statistics["rewards"].mean[0] == pytest.approx(values.mean(), rel=1e-12)


def test_split_of_a_view_divides_the_view(ds: gear_data.Dataset) -> None:
    view = ds.filter("length > 4")
    ids = ids_of(view)
    parts = view.split({"a": 0.5, "b": 0.5}, seed=4)
    order = shuffled_by_hand(4, len(ids))
    half = -(-len(ids) // 2)
    assert ids_of(parts["a"]) == sorted(ids[position] for position in order[:half])
    assert sorted(ids_of(parts["a"]) + ids_of(parts["b"])) == ids


@pytest.mark.parametrize(
    ("fractions", "count", "sizes"),
    [
        ({"a": 0.9, "b": 0.1}, 10, [9, 1]),
        ({"a": 0.7, "b": 0.3}, 10, [7, 3]),
        ({"a": 0.1, "b": 0.2, "c": 0.7}, 10, [1, 2, 7]),
        ({"a": 1 / 3, "b": 1 / 3, "c": 1 / 3}, 10, [4, 3, 3]),
        ({"a": 0.5, "b": 0.25, "c": 0.25}, 10**9 + 2, [500_000_001, 250_000_001, 250_000_000]),
        ({"all": 1}, 3, [3]),
    ],
)
def test_split_sizes(fractions: dict[str, float], count: int, sizes: list[int]) -> None:
    assert list(split_sizes(fractions, count).values()) == sizes


@settings(deadline=None, derandomize=True)
@given(st.lists(st.integers(1, 1000), min_size=1, max_size=6), st.integers(5000, 10**12))
def test_split_sizes_are_within_one_of_the_share(weights: list[int], count: int) -> None:
    fractions = {str(i): weight / sum(weights) for i, weight in enumerate(weights)}
    sizes = split_sizes(fractions, count)
    assert sum(sizes.values()) == count
    for name, size in sizes.items():
        assert abs(size - fractions[name] * count) <= 1 + 1e-9 * count


@pytest.mark.parametrize(
    ("fractions", "seed", "words"),
    [
        ({"a": 0.9, "b": 0.2}, 0, "1.1"),
        ({"a": 0.5, "b": 0.4999999}, 0, "0.9999999"),
        ({"a": 1.5, "b": -0.5}, 0, "'b'"),
        ({"a": 1, "b": 0}, 0, "'b'"),
        ({"a": float("nan"), "b": 0.5}, 0, "'a'"),
        ({"a": "0.5", "b": 0.5}, 0, "'a'"),
        ({"a": 0.99, "b": 0.01}, 0, "'b' gets none of the 30"),
        ({}, 0, "at least one part"),
        ({"a": 0.5, "b": 0.5}, -1, "seed"),
        ({"a": 0.5, "b": 0.5}, 1 << 64, "seed"),
        ({"a": 0.5, "b": 0.5}, 0.5, "seed"),
    ],
)
def test_invalid_splits(fractions: Any, seed: Any, words: str, ds: gear_data.Dataset) -> None:
    with pytest.raises(InvalidArgumentError) as raised:
        ds.split(fractions, seed=seed)
    assert words in str(raised.value)


# evaluate


def test_evaluate(ds: gear_data.Dataset, rollouts: list[Any]) -> None:
    view = ds.filter("terminated")
    mine = [(i, r) for i, r in enumerate(rollouts) if i % 2 == 0]
    returns = view.evaluate("return", "weights")
    assert returns.dtype == np.float64
    np.testing.assert_allclose(returns, [total(r) for _, r in mine], rtol=1e-12, atol=1e-12)
    assert view.evaluate("length * 2", "weights").tolist() == [2 * len(r) for _, r in mine]
    assert ds.evaluate(pl.col("truncated"), "weights").tolist() == [float(i % 2) for i in range(30)]
    assert ds.evaluate(pl.lit(2), "weights").tolist() == [2.0] * 30
    assert view.evaluate(pl.col("length").max(), "weights").tolist() == [max(len(r) for _, r in mine)] * len(mine)
    levels = [i % 7 if i % 5 else np.nan for i, _ in mine]
    np.testing.assert_array_equal(view.evaluate("level", "weights"), levels)
    for expression, words in (("task", "weights must be numbers"), (pl.col("length").head(2), "2 for 15")):
        with pytest.raises(InvalidArgumentError, match=words):
            view.evaluate(expression, "weights")
    with pytest.raises(UnknownNameError, match="length"):
        view.evaluate("lengths", "weights")


# other processes


def test_views_open_again_in_another_process(ds: gear_data.Dataset) -> None:
    view = ds.filter("length > 3").filter_steps("rewards > 0", mode="all").split({"a": 0.5, "b": 0.5})["b"]
    code = (
        "import pickle, sys\n"
        "view = pickle.load(sys.stdin.buffer)\n"
        "actions = view.episode(view.episode_ids[0])['actions'].tobytes().hex()\n"
        "print(view, view.fingerprint, view.step_mask.digest(), view.step_mask_mode, actions)"
    )
    done = subprocess.run([sys.executable, "-c", code], input=pickle.dumps(view), capture_output=True, check=True)
    actions = view.episode(ids_of(view)[0])["actions"].tobytes().hex()
    assert view.step_mask is not None
    assert done.stdout.decode().split("\n") == [
        f"{view} {view.fingerprint} {view.step_mask.digest()} all {actions}",
        "",
    ]


def test_a_view_of_a_dataset_that_was_replaced(path: Path, sources: Any, tmp_path: Path) -> None:
    shutil.copytree(path, tmp_path / "dataset")
    pickled = pickle.dumps(gear_data.open(tmp_path / "dataset").filter("length > 3"))
    other = sources.write_episodes(tmp_path / "other.parquet", sources.make_rollouts(30, seed=5))
    gear_data.convert(other, tmp_path / "dataset", overwrite=True)
    with pytest.raises(ManifestError, match="replaced"):
        pickle.loads(pickled)
