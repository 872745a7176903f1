"""Returns-to-go by step: which targets make sense for a Decision Transformer."""

from __future__ import annotations

from typing import Any

import numpy as np

from gear_data.reports.step_sample import StepSample, number, rounded, spread

_PROBABILITIES = (0.05, 0.25, 0.5, 0.75, 0.95)
_POINTS = 60


def target_range(sample: StepSample) -> dict[str, Any] | None:
    """Returns quantiles of the returns-to-go over the episodes that reach a step, JSON-able.

    None without one return-to-go a step. `targets` has quantiles of the returns of whole episodes, which are the
    returns-to-go at step 0.
    """
    schema = sample.dataset.schema
    if "returns_to_go" not in schema or schema["returns_to_go"].size != 1:
        return None
    values = sample.dataset.steps("returns_to_go", 0, len(sample.dataset)).reshape(-1)
    lengths = sample.dataset.lengths
    steps = spread(int(lengths.max()), _POINTS)
    bands, counts = [], []
    for step in steps.tolist():
        there = values[sample.starts[lengths > step] + step].astype(np.float64)
        there = there[np.isfinite(there)]
        counts.append(len(there))
        bands.append(np.quantile(there, _PROBABILITIES) if len(there) else np.full(len(_PROBABILITIES), np.nan))
    returns = values[sample.starts].astype(np.float64)
    returns = returns[np.isfinite(returns)]
    if not len(returns):
        return None
    best = np.quantile(returns, (0.5, 0.9, 0.99, 1.0))
    return {
        "discount": sample.dataset.discount,
        "steps": steps.tolist(),
        "probabilities": list(_PROBABILITIES),
        "quantiles": rounded(np.stack(bands)),
        "episodes": counts,
        "targets": dict(zip(("median", "top_10_percent", "top_1_percent", "largest"), rounded(best, 6), strict=True)),
        "smallest": number(values[np.isfinite(values)].min()),
        "largest": number(values[np.isfinite(values)].max()),
    }
