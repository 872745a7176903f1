"""Saving a view as a dataset of its own."""

from __future__ import annotations

import os
from dataclasses import replace

import numpy as np

from gear_data.common.paths import plain_path
from gear_data.dataset.steps.masks import saved_flags
from gear_data.dataset.stores.store import DatasetStore
from gear_data.dataset.views import View, filtered_fingerprint
from gear_data.errors import InvalidArgumentError
from gear_data.ingest.saving.save import SavedView, SaveReport, save_episodes
from gear_data.selection.step_mask import StepMask


def save_view(
    store: DatasetStore,
    view: View,
    path: str | os.PathLike[str],
    *,
    overwrite: bool,
    resume: bool,
    progress: bool | None,
) -> SaveReport:
    """Saves the episodes of a view. See `Dataset.save`."""
    if type(store) is not DatasetStore:
        raise InvalidArgumentError(
            f"{store.path} is served by other nodes, and cannot be saved from here",
            hint="open the dataset's folder or URL to save it",
        )
    if store.discount not in (None, 1.0):
        raise InvalidArgumentError(
            f"the view has returns_to_go of discount {store.discount}, and a dataset stores discount 1",
            hint="save the episodes without it, and call with_discount on the saved dataset",
        )
    rows = np.arange(store.manifest.episodes) if view.rows is None else view.rows
    steps = saved_flags(store, rows, view)
    saved = SavedView(store.files, store.manifest, rows, view.history, steps)
    report = save_episodes(saved, plain_path(path), overwrite=overwrite, resume=resume, progress=progress)
    if steps is None:
        return report
    mask = StepMask(report.steps, steps.words)
    return replace(report, fingerprint=filtered_fingerprint(report.fingerprint, mask, steps.mode))
