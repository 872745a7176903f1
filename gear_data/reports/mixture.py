"""The page of a mixture: its datasets, the keys of its batches, what cannot be joined, and a viewer of each dataset."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from gear_data.common.keywords import check_range
from gear_data.common.paths import with_short_paths, without_folders
from gear_data.dataset.dataset import Dataset
from gear_data.loaders.mixing.table import dataset_rows, key_rows
from gear_data.reports.page import render
from gear_data.reports.viewer import ViewerSize, viewed_positions, viewer_data
from gear_data.version import VERSION


def mixture_page(name: str, facts: Mapping[str, Any], datasets: Sequence[Dataset], frames: int = 0) -> str:
    """Returns the page.

    Args:
        name: name of the mixture, for its title.
        facts: see `gear_data.loaders.mixing.table.mixture_facts`.
        datasets: the datasets of the mixture. Their viewers share the size of one.
        frames: as for `gear_data.report`.

    Raises:
        MissingExtraError: the package of the charts is not installed.
        InvalidArgumentError: `frames` is not an integer of at least 0.
        CorruptShardError: the data are damaged.
    """
    check_range("frames", frames, 0)
    paths = [str(each["path"]) for each in facts["datasets"]]
    names = {path: without_folders(path, is_path=True) for path in paths}
    facts = with_short_paths(dict(facts), names)
    joined = "windows of all datasets" if facts["join"] else "windows of one dataset"
    padded = "" if facts["pad_to"] is None else f"; pad_to is {facts['pad_to']}"
    shared = "; statistics are shared by embodiment" if facts["statistics"] == "embodiment" else ""
    size = ViewerSize().shared(len(datasets))
    viewers = []
    for number, (path, dataset) in enumerate(zip(paths, datasets, strict=True)):
        positions = viewed_positions(dataset, {}, np.arange(len(dataset)), frames, size)
        viewers.append({"name": f"{number}: {names[path]}", **viewer_data(dataset, positions, frames, size)})
    data = {
        "title": f"{name}: gear-data report",
        "name": name,
        "version": VERSION,
        "mixture": {
            "summary": f"{len(datasets)} datasets; a batch has {facts['batch_size']:,} {joined}{padded}{shared}.",
            "datasets": dataset_rows(facts),
            "keys": key_rows(facts),
            "problems": facts["problems"],
        },
        "viewers": viewers,
    }
    return render(str(data["title"]), data)
