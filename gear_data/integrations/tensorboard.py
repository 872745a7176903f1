"""TensorBoard: a loader's metrics as scalars.

log = log_to_tensorboard(loader, torch.utils.tensorboard.SummaryWriter("runs/1"))
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gear_data.integrations.metrics_log import MetricsLog
from gear_data.loaders.sequence_loader import SequenceLoader


def log_to_tensorboard(loader: SequenceLoader, writer: Any, every: int = 100) -> MetricsLog:
    """Returns a callback that logs a loader's metrics to TensorBoard.

    Args:
        loader, every: see `MetricsLog`.
        writer: a `SummaryWriter` of torch or tensorboardX: `add_scalar(name, value, step)`.
    """

    def write(metrics: Mapping[str, float], step: int) -> None:
        for name, value in metrics.items():
            writer.add_scalar(name, value, step)

    return MetricsLog(loader, write, every)
