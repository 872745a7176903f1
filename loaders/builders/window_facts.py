"""Window facts: the numbers that a batch has for each of its windows.

The keys are `valid_count`, `episode_id`, `start`, `probability`, `importance_weights`, `weights_version`, `source` and
`embodiment`, each if it applies.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from gear_data.loaders.component import EMBODIMENT, LoaderComponent, episode_ids
from gear_data.loaders.window_source import WindowSource
from gear_data.selection.samplers.weighted_selector import WeightedSelector
from gear_data.selection.windows import Int64Array, Windows

#: Key of the batch -> one number for each window, int64 or float64 [B].
WindowFacts = dict[str, npt.NDArray[np.int64] | npt.NDArray[np.float64]]


class SourceFacts:
    """Returns the dataset, its embodiment, and the version of the weights, of each window.

    Args:
        components: the loader's datasets.
        source: the source of windows.

    Attributes:
        empty: whether batches have none of these: one dataset, whose sampler has no weights.
        window_ids: whether batches have `episode_id` and `start`.
    """

    def __init__(self, components: Sequence[LoaderComponent], source: WindowSource) -> None:
        self._source = source
        self._datasets = len(components)
        self._weighted = {
            number: component.selector
            for number, component in enumerate(components)
            if isinstance(component.selector, WeightedSelector)
        }
        self._embodiments = [each.embodiment for each in components if each.embodiment is not None]
        self.empty = self._datasets == 1 and not self._weighted and not self._embodiments
        self.window_ids = components[0].window_ids

    def __call__(self, step: int, source: int | Int64Array, rows: int) -> WindowFacts:
        """Returns `weights_version`, `source` and `embodiment` of a batch, each if it applies.

        Args:
            step: the batch's step.
            source: the number of the windows' dataset; int64 [B] if the windows are of several datasets.
            rows: B, the number of windows.
        """
        facts: WindowFacts = {}
        if self._weighted and (not isinstance(source, int) or source in self._weighted):
            facts["weights_version"] = self._versions(step, source, rows)
        if self._datasets > 1:
            facts["source"] = _repeated(source, rows) if isinstance(source, int) else source.copy()
        if self._embodiments:
            own = self._embodiments
            facts[EMBODIMENT] = (
                _repeated(own[source], rows) if isinstance(source, int) else np.array(own, np.int64)[source]
            )
        return facts

    def counts(self, facts: WindowFacts) -> Int64Array | None:
        """Returns the windows of each dataset, int64 [datasets]; None without a mixture.

        facts: the result of `__call__`.
        """
        return np.bincount(facts["source"], minlength=self._datasets) if self._datasets > 1 else None

    def _versions(self, step: int, source: int | Int64Array, rows: int) -> Int64Array:
        """Returns the number of weight updates that held for each window.

        The result is int64 [B], with 0 for datasets without weights.
        """
        selector_step = self._source.turn(step)[1]
        versions = np.zeros(rows, np.int64)
        if isinstance(source, int):
            versions.fill(self._weighted[source].version(selector_step))
            return versions
        for number, selector in self._weighted.items():
            chosen = source == number
            if chosen.any():
                versions[chosen] = selector.version(selector_step)
        return versions


def _repeated(number: int, rows: int) -> Int64Array:
    """Returns int64 [rows], all of them one number. `np.full` takes twice as long."""
    numbers = np.empty(rows, np.int64)
    numbers.fill(number)
    return numbers


def sampled_facts(windows: Windows, components: Sequence[LoaderComponent]) -> WindowFacts:
    """Returns the numbers that come with sampled windows.

    These are `valid_count`, with `window_ids` also `episode_id` and `start`, and for weighted windows `probability` and
    `importance_weights`.
    """
    facts: WindowFacts = {"valid_count": windows.length}
    if components[0].window_ids:
        facts["episode_id"], facts["start"] = episode_ids(components, windows.source, windows.episode_id), windows.start
    if windows.probability is not None:
        facts["probability"] = windows.probability
    if windows.importance is not None:
        facts["importance_weights"] = windows.importance
    return facts
