"""Data of a dataset that is not in its steps: metadata and final observations."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy.typing as npt
import pyarrow as pa

from gear_data.dataset.dataset import Dataset
from gear_data.storage.episode_tables import episode_metadata_names


def metadata_names(dataset: Dataset) -> list[str]:
    """Returns the names of the episode metadata from the source, including `task`.

    Names without a value in any episode are left out.
    """
    table = dataset.episode_table
    names = episode_metadata_names(table.column_names, dataset.schema)
    return [name for name in names if table.column(name).null_count < dataset.num_episodes]


def episode_metadata(dataset: Dataset, first: int, last: int) -> dict[str, pa.Array]:
    """Returns the episode metadata between two positions, name -> values.

    Text is not dictionary-encoded.
    """
    table = dataset.episode_table.slice(first, last - first)
    metadata = {}
    for name in metadata_names(dataset):
        values = table.column(name)
        if pa.types.is_dictionary(values.type):
            values = values.cast(pa.string())
        metadata[name] = values.combine_chunks()
    return metadata


def final_observations(dataset: Dataset, first: int, last: int) -> list[dict[str, npt.NDArray[Any]] | None]:
    """Returns the final observations between two positions.

    Episodes without one have None.
    """
    if not dataset.schema.final_columns:
        return [None] * (last - first)
    return [dataset.final(episode_id(dataset, position)) for position in range(first, last)]


def episode_id(dataset: Dataset, position: int) -> int:
    """Returns the id of the episode at a position. Ids and positions differ in a view."""
    return position if dataset.episode_ids is None else int(dataset.episode_ids[position])


def source_metadata(dataset: Dataset) -> Mapping[str, Any]:
    """Returns the source's metadata about the whole dataset, from the manifest."""
    metadata = dataset.manifest.provenance.get("metadata")
    return metadata if isinstance(metadata, Mapping) else {}
