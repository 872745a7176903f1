"""Weights & Biases: a loader's metrics in a run.

log = log_to_wandb(loader, wandb.init(project="hopper"))
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gear_data.integrations.metrics_log import MetricsLog
from gear_data.loaders.sequence_loader import SequenceLoader

#: The steps of a loader's metrics. The run's own steps stay those of the training's calls of `log`.
_STEP = "loader/step"


def log_to_wandb(loader: SequenceLoader, run: Any, every: int = 100) -> MetricsLog:
    """Returns a callback that logs a loader's metrics to a run of Weights & Biases.

    Charts have the axis `loader/step`. So the training may log with other steps.

    Args:
        loader, every: see `MetricsLog`.
        run: returned by `wandb.init`.
    """
    run.define_metric(_STEP, hidden=True)
    run.define_metric("loader/*", step_metric=_STEP)

    def write(metrics: Mapping[str, float], step: int) -> None:
        run.log({**metrics, _STEP: step})

    return MetricsLog(loader, write, every)
