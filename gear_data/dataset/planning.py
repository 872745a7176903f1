"""Plans of a dataset: the memory of each part, the node of each shard."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from gear_data.cluster.placement import Placement, place_shards, shard_shares
from gear_data.dataset.internals import anchors_of, rows_of, store_of
from gear_data.errors import InvalidArgumentError
from gear_data.residency.plan import ResidencyPlan, make_plan
from gear_data.selection.samplers import Candidates, Sampler, as_sampler
from gear_data.selection.windows import Float64Array, WindowRule

if TYPE_CHECKING:
    from gear_data.dataset.dataset import Dataset


def residency_plan(
    dataset: Dataset, device_bytes: int, host_bytes: int, sampler: str | Sampler, columns: Sequence[str] | None
) -> ResidencyPlan:
    """Plans the memory of each part of a dataset; see `Dataset.residency_plan`."""
    for name, value in (("device_bytes", device_bytes), ("host_bytes", host_bytes)):
        if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 0:
            raise InvalidArgumentError(f"{name} must be an integer of at least 0, not {value!r}")
    schema, store = dataset.schema, store_of(dataset)
    read = [column.name for column in schema.fixed_columns] if columns is None else list(columns)
    for name in read:
        schema.index(name)
    episodes = (*store.episode_starts, store.lengths)
    return make_plan(schema, read, episodes, episode_shares(dataset, sampler), int(device_bytes), int(host_bytes))


def shard_placement(dataset: Dataset, nodes: Sequence[str], sampler: str | Sampler, budget: int | None) -> Placement:
    """Plans the nodes that hold each shard of a dataset; see `Dataset.placement`."""
    shards, shard_of_episode = dataset.manifest.shards, store_of(dataset).episode_starts[0]
    shares = shard_shares(shard_of_episode, episode_shares(dataset, sampler), len(shards))
    return place_shards(shards, nodes, shares, budget)


def episode_shares(dataset: Dataset, sampler: str | Sampler) -> Float64Array:
    """Returns the share of a sampler's draws that each episode gets, float64 [n].

    n is the number of episodes of the whole dataset. Episodes outside the view have 0.
    """
    candidates = Candidates(anchors_of(dataset, WindowRule(context=1)), dataset.evaluate)
    shares = as_sampler(sampler).bind(candidates, seed=0).shares()
    if rows_of(dataset) is None:
        return shares
    whole = np.zeros(dataset.manifest.episodes)
    whole[rows_of(dataset)] = shares
    return whole
