"""Loss curve of a training run: first and last losses, JSON and PNG."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from gear_data.common.extras import import_extra
from gear_data.errors import InvalidArgumentError
from gear_data.storage.atomic import atomic_file, write_text

LOSS_JSON = "loss.json"
LOSS_PNG = "loss.png"


def loss_ends(losses: Sequence[float], span: int = 20) -> tuple[float, float]:
    """Returns the mean loss over the first and the last `span` steps.

    If a quarter of the run is shorter than `span`, the means are over a quarter of the run.

    Raises:
        InvalidArgumentError: there are no losses.
    """
    if not losses:
        raise InvalidArgumentError("there are no losses: no step was trained")
    count = max(1, min(span, len(losses) // 4))
    return float(np.mean(losses[:count])), float(np.mean(losses[-count:]))


def write_loss_curve(losses: Sequence[float], folder: Path) -> tuple[Path, Path]:
    """Writes `loss.json` and `loss.png`, each atomically.

    The JSON is {"loss": [one number per step]}.

    Returns:
        The paths of both files.

    Raises:
        MissingExtraError: matplotlib is not installed.
        StorageFullError: the disk is full.
    """
    as_json, as_png = folder / LOSS_JSON, folder / LOSS_PNG
    write_text(as_json, json.dumps({"loss": list(losses)}) + "\n")
    # A figure with its own canvas does not change the process's matplotlib backend.
    figure = import_extra("matplotlib.figure").Figure(figsize=(7, 4), layout="constrained")
    import_extra("matplotlib.backends.backend_agg").FigureCanvasAgg(figure)
    axes = figure.subplots()
    steps = np.arange(1, len(losses) + 1)
    axes.plot(steps, losses, linewidth=0.6, alpha=0.4, color="tab:blue", label="each step")
    width = max(1, len(losses) // 50)
    if width > 1:
        smooth = np.convolve(losses, np.full(width, 1 / width), mode="valid")
        axes.plot(steps[width - 1 :], smooth, color="tab:blue", label=f"mean of {width} steps")
    axes.set(xlabel="step", ylabel="action loss (mean squared error)")
    axes.legend()
    axes.grid(alpha=0.3)
    with atomic_file(as_png) as temporary:
        figure.savefig(temporary, format="png", dpi=120)
    return as_json, as_png
