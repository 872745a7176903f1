"""ImportanceWeights: the weights that correct a loss for prioritised draws."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from gear_data.selection.schedule import CheckedSchedule, schedule_json, value_at
from gear_data.selection.windows import Float64Array


@dataclass(frozen=True)
class ImportanceWeights:
    """Computes (N p)^-beta (Schaul et al., "Prioritized Experience Replay", 2016).

    Attributes:
        anchors: N, the number of anchors.
        beta: the exponent, a schedule of the step.
        divide_by_max: whether the largest weight of a batch becomes 1.
    """

    anchors: int
    beta: CheckedSchedule
    divide_by_max: bool

    def to_json(self) -> dict[str, Any]:
        """Returns `beta` and `divide_by_max`, JSON-able."""
        return {"beta": schedule_json(self.beta), "divide_by_max": self.divide_by_max}

    def __call__(self, step: int, probability: Float64Array) -> Float64Array:
        """Returns the weights of the windows of a global batch, float64 [B].

        Args:
            step: the batch's step.
            probability: float64 [B], the probability p of each window's anchor.

        Raises:
            InvalidArgumentError: the function of `beta` returns a wrong value.
        """
        beta = value_at("beta", self.beta, step)
        # The least probable window has the largest weight.
        unit = probability.min(initial=1.0) if self.divide_by_max else 1.0 / self.anchors
        weights: Float64Array = (probability / unit) ** -beta
        return weights
