"""Damaged shards, which `gear_data.open(on_bad_shard="skip")` leaves out."""

from __future__ import annotations

import warnings

import numpy as np

from gear_data.common.distributed import all_gather
from gear_data.dataset.stores.store import DatasetStore
from gear_data.errors import CorruptShardError, DatasetReplacedError, EmptySourceError
from gear_data.selection.windows import Int64Array
from gear_data.storage.dataset_files import DatasetFiles
from gear_data.storage.identity import dataset_identity
from gear_data.storage.manifest import Manifest


def find_bad_shards(files: DatasetFiles) -> frozenset[str]:
    """Verifies a dataset and returns the names of its damaged files, and of the shards that have one.

    Each damaged file gives a warning. Among several ranks, a shard is bad if it is bad on any of them.

    Raises:
        CorruptShardError: a table is damaged. No episode can be read without the tables.
        DatasetReplacedError: the ranks opened different datasets.
        GearError: the manifest cannot be used.
    """
    # Its checks are much code, which other datasets do not need.
    from gear_data.storage.verify import verify

    path, manifest = files.location, files.manifest()
    report, tables = verify(path), manifest.tables.values()
    errors = {check.file: check.error for check in report.shards if not check.ok}
    for table in tables:
        if table.file in errors:
            raise CorruptShardError(f"is damaged: {errors[table.file]}", file=f"{path}/{table.file}")
    for file, error in _of_all_ranks(manifest, {file: str(error) for file, error in errors.items()}).items():
        warnings.warn(f"{path}: {file} is left out: {error}", RuntimeWarning, stacklevel=4)
        errors[file] = error
    shards = (shard.entry.file for shard in manifest.shards if any(file.file in errors for file in shard.files))
    return frozenset(errors).union(shards)


def _of_all_ranks(manifest: Manifest, errors: dict[str, str]) -> dict[str, str]:
    """Returns the errors of all ranks.

    Raises:
        DatasetReplacedError: the ranks opened different datasets.
    """
    ranks = all_gather((dataset_identity(manifest), errors))
    for rank, (identity, _) in enumerate(ranks):
        if identity != ranks[0][0]:
            raise DatasetReplacedError(
                f"rank {rank} opened another dataset than rank 0, or the dataset was replaced meanwhile",
                hint="open the same dataset again on all ranks",
            )
    return {file: error for _, found in ranks for file, error in found.items()}


def sound_episodes(store: DatasetStore) -> Int64Array:
    """Returns int64 [k], ascending: the ids of episodes without bad files.

    Raises:
        EmptySourceError: no episode is left.
    """
    bad = [index for index, shard in enumerate(store.manifest.shards) if shard.entry.file in store.bad_files]
    sound = ~np.isin(store.episode_starts[0], bad)
    bad_videos = [
        number
        for number, file in enumerate(store.videos.index.files.column("file").to_pylist())
        if file in store.bad_files
    ]
    for segments in store.videos.segments.values():
        sound &= ~np.isin(segments.file, bad_videos)
    ids = np.flatnonzero(sound).astype(np.int64)
    if not len(ids):
        raise EmptySourceError(
            f"every episode is in one of {len(store.bad_files)} damaged files",
            file=str(store.path),
            hint="restore them from a copy; of a converted dataset, 'gear-data repair' writes them again",
        )
    return ids
