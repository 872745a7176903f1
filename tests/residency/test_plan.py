"""Residency plans against plain loops over the episode table."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

import gear_data
from gear_data.errors import InvalidArgumentError, UnknownNameError
from gear_data.residency.plan import TIERS, ResidencyPlan, extend_plan
from gear_data.selection.samplers import Weighted
from tests.support.feed.growing import GrowingDataset

#: Weight expression of a step -> the same in plain Python.
WEIGHTS = {
    "all alike": (pl.col("episode_id") * 0 + 1, lambda i: 1),
    "unlike, a third never": (pl.col("episode_id") % 3, lambda i: i % 3),
}


def extents_of_episodes(ds: Any, plan: ResidencyPlan) -> list[int]:
    """Returns the extent that contains each episode."""
    spans = list(zip(plan.shard.tolist(), plan.first.tolist(), plan.last.tolist(), strict=True))
    found = []
    for row in ds.episodes.iter_rows(named=True):
        begin, end = row["start"], row["start"] + row["length"]
        (extent,) = (
            i
            for i, (shard, first, last) in enumerate(spans)
            if shard == row["shard"] and first <= begin and end <= last
        )
        found.append(extent)
    return found


@pytest.mark.parametrize("budgets", [(0, 0), (1000, 0), (0, 700), (900, 1300), (10**9, 0), (10**6, 10**6)])
@pytest.mark.parametrize("weight", WEIGHTS)
def test_a_plan_equals_a_plain_loop(rollouts_path: Path, budgets: tuple[int, int], weight: str) -> None:
    ds = gear_data.open(rollouts_path)
    expression, value = WEIGHTS[weight]
    plan = ds.residency_plan(*budgets, sampler=Weighted(expression, by="step"))
    extents = extents_of_episodes(ds, plan)
    steps, uses = np.zeros(len(plan.shard)), np.zeros(len(plan.shard))
    for i, extent in enumerate(extents):
        steps[extent] += ds.lengths[i]
        uses[extent] += ds.lengths[i] * value(i)
    uses /= uses.sum()
    columns = {column.name: column.row_bytes for column in ds.schema.fixed_columns}
    assert plan.columns == tuple(columns)

    pieces = [(-uses[e] / steps[e], e, c) for e in range(len(steps)) for c in range(len(columns)) if uses[e]]
    expected = np.full((len(steps), len(columns)), TIERS.index("disk"))
    left = list(budgets)
    sizes, read = dict.fromkeys(TIERS, 0), dict.fromkeys(TIERS, 0.0)
    for tier in (0, 1):
        for _, e, c in sorted(pieces):
            size = int(steps[e]) * list(columns.values())[c]
            if expected[e, c] == TIERS.index("disk") and size <= left[tier]:
                expected[e, c] = tier
                left[tier] -= size
    for e in range(len(steps)):
        for c, row_bytes in enumerate(columns.values()):
            sizes[TIERS[expected[e, c]]] += int(steps[e]) * row_bytes
            read[TIERS[expected[e, c]]] += uses[e] * row_bytes / sum(columns.values())
    np.testing.assert_array_equal(plan.tier, expected)
    assert {tier: plan.bytes(tier) for tier in TIERS} == sizes
    assert {tier: plan.read_share(tier) for tier in TIERS} == pytest.approx(read)


def test_columns_that_are_not_read_stay_on_disk(rollouts_path: Path) -> None:
    ds = gear_data.open(rollouts_path)
    view = ds.filter("episode_id < 10")
    plan = view.residency_plan(10**9, 0, columns=["observations", "actions"])
    extents = extents_of_episodes(ds, plan)
    for i, extent in enumerate(extents):
        for name, tier in zip(plan.columns, plan.tier[extent].tolist(), strict=True):
            in_view = any(extents[j] == extent for j in range(10))
            wanted = "device" if in_view and name in ("observations", "actions") else "disk"
            assert TIERS[tier] == wanted, (i, name)
    assert plan.read_share("device") == pytest.approx(1)
    assert "rewards: 100% disk (not read)" in str(plan)


def test_steps_that_a_filter_leaves_out_are_not_drawn(rollouts_path: Path) -> None:
    ds = gear_data.open(rollouts_path)
    limit = float(np.median(np.concatenate([ds.episode(i)["rewards"] for i in range(ds.num_episodes)])))
    plan = ds.filter_steps(pl.col("rewards") > limit).residency_plan(10**9, 0)
    expected = np.zeros(len(plan.shard))
    for i, extent in enumerate(extents_of_episodes(ds, plan)):
        expected[extent] += sum(reward > limit for reward in ds.episode(i)["rewards"].tolist())
    np.testing.assert_allclose(plan.share, expected / expected.sum())


def test_arguments_of_a_plan(rollouts_path: Path) -> None:
    ds = gear_data.open(rollouts_path)
    with pytest.raises(InvalidArgumentError, match="host_bytes must be an integer of at least 0, not -1"):
        ds.residency_plan(0, -1)
    with pytest.raises(InvalidArgumentError, match=r"device_bytes must be an integer of at least 0, not 1\.5"):
        ds.residency_plan(1.5, 0)  # type: ignore[arg-type]
    with pytest.raises(UnknownNameError, match="nothing"):
        ds.residency_plan(0, 0, columns=["nothing"])
    with pytest.raises(UnknownNameError, match="nothing"):
        ds.residency_plan(0, 0, sampler="nothing")


@pytest.mark.parametrize("budgets", [(0, 0), (700, 900), (3000, 0), (10**9, 0)])
def test_a_plan_for_another_generation(tmp_path: Path, budgets: tuple[int, int]) -> None:
    """Shards that stay keep their tiers. New ones are placed by a plain loop within what is free."""
    growing = GrowingDataset(tmp_path / "ds")
    growing.grow(5)
    old = growing.open()
    plan = old.residency_plan(*budgets, columns=["observations", "rewards"])
    growing.grow(5, max_steps=140)
    new = growing.open()
    store = new.store
    names = {shard.entry.file: number for number, shard in enumerate(new.manifest.shards)}
    moved = np.array([names.get(shard.entry.file, -1) for shard in old.manifest.shards])
    grown = extend_plan(plan, moved, (*store.episode_starts, store.lengths))

    sizes = {column.name: column.row_bytes for column in old.schema.fixed_columns}
    before = {(int(moved[s]), f, t): tier for s, f, t, tier in extents(plan) if moved[s] >= 0}
    added = [each[:3] for each in extents(grown) if each[:3] not in before]
    assert added and before and (moved < 0).any()
    assert {each[:3]: each[3] for each in extents(grown) if each[:3] in before} == before
    assert {shard for shard, _, _ in added} == set(names.values()) - set(moved.tolist())
    left = list(budgets)
    for (_, first, last), tiers in before.items():
        for tier, size in zip(tiers, sizes.values(), strict=True):
            if tier < 2:
                left[tier] -= (last - first) * size
    expected = {extent: [2] * len(sizes) for extent in added}
    # All new steps are drawn equally often, so they keep their order.
    for tier in (0, 1):
        for shard, first, last in added:
            for c, (name, size) in enumerate(sizes.items()):
                fits = (last - first) * size <= left[tier]
                if name in ("observations", "rewards") and expected[shard, first, last][c] == 2 and fits:
                    expected[shard, first, last][c] = tier
                    left[tier] -= (last - first) * size
    assert {each[:3]: each[3] for each in extents(grown) if each[:3] not in before} == expected
    assert min(left) >= 0 and grown.share.sum() == pytest.approx(1)
    extents_of_episodes(new, grown)


def extents(plan: ResidencyPlan) -> list[tuple[int, int, int, list[int]]]:
    columns = plan.shard.tolist(), plan.first.tolist(), plan.last.tolist(), plan.tier.tolist()
    return list(zip(*columns, strict=True))
