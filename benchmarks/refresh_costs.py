"""How long new episodes take to enter the weights of a sampler; see selection.py."""

from __future__ import annotations

from typing import Any

import numpy as np
from common import median_ms


def measure_refresh(episodes: int) -> list[dict[str, Any]]:
    """Returns medians of refreshes by 100 episodes, in milliseconds."""
    from gear_data.selection.anchors import Anchors
    from gear_data.selection.samplers import Candidates, Weighted
    from gear_data.selection.windows import WindowRule

    lengths, weights = (
        np.random.default_rng(0).integers(1, 1001, episodes + 100),
        10.0 ** np.random.default_rng(1).uniform(-12, 12, episodes),
    )

    def anchors(first: int, last: int) -> Any:
        return Anchors(lengths[first:last], None, np.arange(first, last) if first else None, None, WindowRule(20))

    found = []
    for updated, first in ((False, 0), (True, 0), (True, 100)):
        selector = Weighted(weights).bind(Candidates(anchors(0, episodes), lambda *_: weights), 7)
        if updated:
            selector.update(0, np.arange(min(episodes, 4096)), np.ones(min(episodes, 4096)))
        later = anchors(first, episodes + 100)
        refreshed = [selector.carried(later) for _ in range(12)]
        found.append(
            {
                "episodes": episodes,
                "updated": updated,
                "evicted": first,
                "refresh_ms": median_ms(lambda _: selector.carried(later), 25),  # noqa: B023
                "first_update_ms": median_ms(lambda i: refreshed[i].update(0, [first], [2.0]), len(refreshed)),  # noqa: B023
            }
        )
    return found
