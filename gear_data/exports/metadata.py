"""What a dataset knows of its episodes and of itself beside the steps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy.typing as npt
import pyarrow as pa

from gear_data.dataset.dataset import Dataset
from gear_data.storage.tables import episode_metadata_names


def metadata_names(dataset: Dataset) -> list[str]:
    """The source's own facts about episodes, `task` included, that at least one episode has."""
    table = dataset.episode_table
    names = episode_metadata_names(table.column_names)
    return [name for name in names if table.column(name).null_count < dataset.num_episodes]


def episode_metadata(dataset: Dataset, first: int, last: int) -> dict[str, pa.Array]:
    """The facts of `metadata_names` for the first-th to last-th episode; text as text, not as a dictionary."""
    table = dataset.episode_table.slice(first, last - first)
    facts = {}
    for name in metadata_names(dataset):
        values = table.column(name)
        if pa.types.is_dictionary(values.type):
            values = values.cast(pa.string())
        facts[name] = values.combine_chunks()
    return facts


def final_observations(dataset: Dataset, first: int, last: int) -> list[dict[str, npt.NDArray[Any]] | None]:
    """The final observation of each of the first-th to last-th episode; None where it has none."""
    if not dataset.schema.final_columns:
        return [None] * (last - first)
    return [dataset.final(episode_id(dataset, place)) for place in range(first, last)]


def episode_id(dataset: Dataset, place: int) -> int:
    """The id of the place-th episode, which in a view is another number."""
    return place if dataset.episode_ids is None else int(dataset.episode_ids[place])


def source_metadata(dataset: Dataset) -> Mapping[str, Any]:
    """The source's own facts about itself, as the manifest keeps them."""
    metadata = dataset.manifest.provenance.get("metadata")
    return metadata if isinstance(metadata, Mapping) else {}
