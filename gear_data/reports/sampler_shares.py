"""Shares of a sampler's draws, and the effective sample size."""

from __future__ import annotations

from typing import Any

import numpy as np

from gear_data.dataset.planning import episode_shares
from gear_data.reports.episodes import EpisodeFacts
from gear_data.reports.numbers import number, rounded
from gear_data.reports.step_sample import Float64Array
from gear_data.selection.samplers import AnySampler
from gear_data.words import SamplerName

#: Parts of the episodes, from the lowest to the highest return.
_PARTS = 10


def sampler_shares(facts: EpisodeFacts, sampler: SamplerName | AnySampler) -> dict[str, Any]:
    """Returns the shares of a sampler's draws and its effective sample size, JSON-able.

    The effective sample size is (sum of p)^2 / (sum of p^2) (Kish, 1965): the number of equally likely episodes, or
    steps, that would vary as little. `by_return` has the share of each tenth of the episodes, by return.
    """
    dataset = facts.dataset
    rows = dataset.view.rows
    shares = episode_shares(dataset, sampler)
    shares = shares if rows is None else shares[rows]
    shares = shares / shares.sum()
    even = facts.lengths / facts.lengths.sum()
    order = np.argsort(np.nan_to_num(facts.returns), kind="stable")
    parts = np.array_split(order, min(_PARTS, len(order)))
    return {
        "sampler": sampler if isinstance(sampler, str) else repr(sampler),
        "episodes": len(shares),
        "steps": int(facts.lengths.sum()),
        "effective_episodes": number(effective_size(shares, np.ones(len(shares)))),
        "effective_steps": number(effective_size(shares, facts.lengths)),
        "never_drawn": int((shares == 0).sum()),
        "most_drawn": {"episode": int(facts.ids[shares.argmax()]), "share": number(shares.max())},
        "mean_return": number(_mean(facts.returns, shares)),
        "mean_return_of_steps": number(_mean(facts.returns, even)),
        "by_return": [
            {
                "from": number(facts.returns[part[0]]),
                "to": number(facts.returns[part[-1]]),
                "share": number(shares[part].sum()),
                "steps": number(even[part].sum()),
            }
            for part in parts
        ],
        "groups": {
            grouping: {
                "names": list(names),
                "share": rounded(np.bincount(index, shares, len(names))),
                "steps": rounded(np.bincount(index, even, len(names))),
            }
            for grouping, (names, index) in facts.groupings.items()
        },
    }


def effective_size(shares: Float64Array, sizes: Float64Array) -> float:
    """Returns (sum of p)^2 / (sum of p^2) over units that divide the share of their episode equally.

    Args:
        shares: float64 [n], share of each episode.
        sizes: float64 [n], units of each episode: 1, or its steps.
    """
    return float(shares.sum() ** 2 / (shares**2 / sizes).sum())


def _mean(values: Float64Array, shares: Float64Array) -> float:
    finite = np.isfinite(values) & (shares > 0)
    return float((values[finite] * shares[finite]).sum() / shares[finite].sum()) if finite.any() else np.nan
