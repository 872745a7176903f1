"""Plans of a dataset: the memory of each part, the node of each shard."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gear_data.cluster.placement import Placement, place_shards, shard_shares
from gear_data.common.keywords import check_range
from gear_data.dataset.core import DatasetCore
from gear_data.dataset.stores.store import DatasetStore
from gear_data.dataset.window_anchors import anchors_of
from gear_data.errors import InvalidArgumentError
from gear_data.residency import ShardReader
from gear_data.residency.device.columns import find_extents
from gear_data.residency.plan import ResidencyPlan, make_plan
from gear_data.selection.samplers import AnySampler, Candidates, as_sampler
from gear_data.selection.windows import Float64Array, WindowRule
from gear_data.words import SamplerName


def residency_plan(
    dataset: DatasetCore,
    device_bytes: int,
    host_bytes: int,
    sampler: SamplerName | AnySampler,
    columns: Sequence[str] | None,
) -> ResidencyPlan:
    """Plans the memory of each part of a dataset; see `Dataset.residency_plan`."""
    check_range("device_bytes", device_bytes, 0)
    check_range("host_bytes", host_bytes, 0)
    schema, store = dataset.schema, dataset.store
    read = [column.name for column in schema.fixed_columns] if columns is None else list(columns)
    for name in read:
        schema.index(name)
    episodes = (*store.episode_starts, store.lengths)
    return make_plan(schema, read, episodes, episode_shares(dataset, sampler), int(device_bytes), int(host_bytes))


def placed(dataset: DatasetCore, plan: ResidencyPlan) -> DatasetStore:
    """Returns the store of a dataset with each part in the memory of a plan; see `Dataset.place`."""
    store = dataset.store
    if not isinstance(store.reader(), ShardReader):
        raise InvalidArgumentError(
            f"{store.path} is served by other nodes; its columns cannot be placed in GPU memory",
            hint="open the dataset's folder or URL to place it",
        )
    find_extents((plan.shard, plan.first, plan.last), *store.episode_starts, store.lengths)
    store = store.placed(plan)
    store.device_columns()
    return store


def shard_placement(
    dataset: DatasetCore, nodes: Sequence[str], sampler: SamplerName | AnySampler, budget: int | None
) -> Placement:
    """Plans the nodes that hold each shard of a dataset; see `Dataset.placement`."""
    shards, shard_of_episode = dataset.manifest.shards, dataset.store.episode_starts[0]
    shares = shard_shares(shard_of_episode, episode_shares(dataset, sampler), len(shards))
    return place_shards(shards, nodes, shares, budget)


def episode_shares(dataset: DatasetCore, sampler: SamplerName | AnySampler) -> Float64Array:
    """Returns the share of a sampler's draws that each episode gets, float64 [n].

    n is the number of episodes of the whole dataset. Episodes outside the view have 0.
    """
    candidates = Candidates(anchors_of(dataset, WindowRule(context=1)), dataset.evaluate)
    shares = as_sampler(sampler).bind(candidates, seed=0).shares()
    if dataset.view.rows is None:
        return shares
    whole = np.zeros(dataset.manifest.episodes)
    whole[dataset.view.rows] = shares
    return whole
