"""Episode metadata of a dataset's source, as Arrow arrays."""

from __future__ import annotations

import pyarrow as pa

from gear_data.dataset.core import DatasetCore
from gear_data.storage.episode_tables import episode_metadata_names


def metadata_names(dataset: DatasetCore) -> list[str]:
    """Returns the names of the episode metadata from the source, including `task`.

    Names without a value in any episode are left out.
    """
    table = dataset.episode_table
    names = episode_metadata_names(table.column_names, dataset.schema)
    return [name for name in names if table.column(name).null_count < dataset.num_episodes]


def episode_metadata(dataset: DatasetCore, first: int, last: int) -> dict[str, pa.Array]:
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
