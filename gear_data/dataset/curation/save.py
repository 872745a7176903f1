"""Saving a view as a dataset of its own."""

from __future__ import annotations

import os

import numpy as np

from gear_data.common.paths import plain_path
from gear_data.dataset.stores.store import DatasetStore
from gear_data.dataset.views import View
from gear_data.errors import InvalidArgumentError
from gear_data.ingest.saving.save import SavedView, SaveReport, save_episodes


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
    if view.mask is not None:
        raise InvalidArgumentError(
            "the view has a step filter, and a dataset has whole episodes",
            hint="save the episodes without it, and call filter_steps on the saved dataset",
        )
    if store.discount not in (None, 1.0):
        raise InvalidArgumentError(
            f"the view has returns_to_go of discount {store.discount}, and a dataset stores discount 1",
            hint="save the episodes without it, and call with_discount on the saved dataset",
        )
    rows = np.arange(store.manifest.episodes) if view.rows is None else view.rows
    saved = SavedView(store.files, store.manifest, rows, view.history)
    return save_episodes(saved, plain_path(path), overwrite=overwrite, resume=resume, progress=progress)
