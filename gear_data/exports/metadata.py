"""Data of a dataset that is not in its steps: final observations, and metadata of the source."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy.typing as npt

from gear_data.dataset.dataset import Dataset


def final_observations(dataset: Dataset, first: int, last: int) -> list[dict[str, npt.NDArray[Any]] | None]:
    """Returns the final observations between two positions.

    Episodes without one have None.
    """
    if not dataset.schema.final_columns:
        return [None] * (last - first)
    return [dataset.final(position) for position in range(first, last)]


def episode_id(dataset: Dataset, position: int) -> int:
    """Returns the id of the episode at a position. Ids and positions differ in a view."""
    return position if dataset.episode_ids is None else int(dataset.episode_ids[position])


def source_metadata(dataset: Dataset) -> Mapping[str, Any]:
    """Returns the source's metadata about the whole dataset, from the manifest."""
    metadata = dataset.manifest.provenance.get("metadata")
    return metadata if isinstance(metadata, Mapping) else {}
