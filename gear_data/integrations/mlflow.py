"""MLflow: a loader's metrics in a run.

log = log_to_mlflow(loader)
"""

from __future__ import annotations

from collections.abc import Mapping

import mlflow

from gear_data.integrations.metrics_log import MetricsLog
from gear_data.loaders.sequence_loader import SequenceLoader


def log_to_mlflow(loader: SequenceLoader, run_id: str | None = None, every: int = 100) -> MetricsLog:
    """Returns a callback that logs a loader's metrics to a run of MLflow.

    Args:
        loader, every: see `MetricsLog`.
        run_id: the run. None: the run that is active at a log.
    """

    def write(metrics: Mapping[str, float], step: int) -> None:
        mlflow.log_metrics(dict(metrics), step=step, run_id=run_id)

    return MetricsLog(loader, write, every)
