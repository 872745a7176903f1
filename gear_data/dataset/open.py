"""Opening a dataset: of this machine, at a URL, or of nodes that serve it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Literal

from gear_data.cluster.addresses import is_cluster
from gear_data.cluster.placement import Placement
from gear_data.cluster.rdma.transport import check_transport
from gear_data.dataset.bad_shards import find_bad_shards, sound_episodes
from gear_data.dataset.dataset import Dataset
from gear_data.dataset.store import DatasetStore
from gear_data.dataset.views import View
from gear_data.errors import InvalidArgumentError, unknown_name
from gear_data.selection.samplers import Sampler
from gear_data.storage.dataset_files import open_files
from gear_data.storage.remote.files import plain_path

CLUSTERS = ("torchrun",)


def open_dataset(
    path: str | os.PathLike[str],
    residency: str | None = None,
    *,
    on_bad_shard: Literal["error", "skip"] = "error",
    cache_dir: str | os.PathLike[str] | None = None,
    cache_bytes: int | None = None,
    cluster: str | None = None,
    sampler: str | Sampler = "uniform",
    budget: int | None = None,
    transport: Literal["auto", "verbs", "flight"] = "auto",
) -> Dataset:
    """Opens a dataset in time that does not grow with its steps: checks the manifest against the files' sizes, and
    maps columns when they are first read.

    Args:
        path: the dataset's folder, or its URL (`s3://...`, or another that fsspec knows). At a URL, shards are fetched
            when they are first needed. `gear://host:port,host:port` are nodes that serve it (`gear-data serve`): they
            send the steps that are read.
        residency: where column bytes live; None: `mmap`, and with `cluster` `host`. `mmap`: in the page cache, read
            from disk as they are needed. `host`: in one copy in memory, made now by the first process of this machine
            and user, and shared by those that come while any of them holds it; it goes with the last. On Linux, without
            a trace, however they end. `pinned`: the same copy, registered for GPUs to read in place. `device`: all
            columns of a fixed size in the memory of CUDA's current device, which need not be in this machine's; the CPU
            reads them from disk. Where the device has less memory: `Dataset.place`.
        on_bad_shard: `error`: a shard of the wrong size is an error, and what else is wrong with one shows when it is
            read. `skip`: all shards are read and verified now; the episodes of those that fail are left out with a
            warning, which changes the fingerprint. Under torch.distributed every rank must open it so, and all leave
            out what any of them cannot read.
        cache_dir: where fetched files are kept, for all processes of this machine; by default $GEAR_DATA_CACHE, else
            `gear-data` in $XDG_CACHE_HOME or ~/.cache. Not used for a folder.
        cache_bytes: how large they may be together: the longest unused are removed first. What the batches being made
            need is kept, and may be more. By default 32 GiB, or half of what the disk can give if that is less.
        cluster: `torchrun`: the nodes of this training run share the dataset out. Each reads its own shards from the
            place, and the others' steps from their memory, over the network. Every rank must open it so. None: this
            process has all of it.
        sampler, budget: of `cluster`: which shards each node holds, see `Dataset.placement`.
        transport: how steps come from nodes. `verbs`: by RDMA READ, from nodes that serve their memory so. `flight`: by
            Arrow Flight over TCP. `auto`: by RDMA where both ends have a device.

    Raises:
        DatasetNotFoundError: nothing there, or a conversion that did not finish.
        RemoteError: the server cannot be reached.
        ClusterError: the nodes cannot be reached, refuse, or do not hold all shards.
        VersionError, ManifestError, CorruptShardError: it cannot be used.
        HostMemoryError: `host` or `pinned`, and the columns are larger than the memory that is available.
        MissingExtraError, DeviceError: `pinned` or `device`, and CuPy or a GPU is missing; or `verbs`, and pyverbs or a
            device for RDMA.
        DeviceMemoryError: `device`, and it has too little memory.
        EmptySourceError: `skip`, and no shard is sound.
    """
    if on_bad_shard not in ("error", "skip"):
        raise InvalidArgumentError(f"on_bad_shard is 'error' or 'skip', not {on_bad_shard!r}")
    if cluster not in (None, *CLUSTERS):
        raise unknown_name("cluster", cluster, CLUSTERS)
    if cluster is None and (budget is not None or sampler != "uniform"):
        raise InvalidArgumentError("sampler and budget say how a cluster shares a dataset out: they go with cluster=")
    check_transport(transport)
    place = plain_path(path)
    if cluster is not None:
        if is_cluster(place) or on_bad_shard != "error":
            raise InvalidArgumentError(
                f"{place}, on_bad_shard={on_bad_shard!r}: the nodes of a run open a dataset whose shards are sound, at "
                "a path or URL",
                hint="gear-data verify says which shards are not",
            )
        if residency not in (None, "host", "pinned", "mmap"):
            raise InvalidArgumentError(
                f"residency={residency!r}: the nodes of a run hold their shards in 'host', 'pinned' or 'mmap'",
                hint="'pinned' is what GPUs of the node read in place",
            )
        return _open_cluster(path, residency or "host", sampler, budget, cache_dir, cache_bytes, transport)
    if is_cluster(place):
        if residency not in (None, "mmap") or on_bad_shard != "error":
            raise InvalidArgumentError(
                f"residency={residency!r}, on_bad_shard={on_bad_shard!r}: of a dataset that others serve, they choose",
                hint="leave them out; gear-data serve has --residency",
            )
        from gear_data.dataset.remote_store import open_remote_store

        return Dataset(open_remote_store(place, cache_dir, cache_bytes, transport), View())
    bad = find_bad_shards(path) if on_bad_shard == "skip" else frozenset[str]()
    store = DatasetStore(open_files(path, cache_dir, cache_bytes), residency or "mmap", bad)
    # Where a GPU is to read the columns they are brought there now: what is missing shows now.
    store.device_columns()
    return Dataset(store, View(ids=sound_episodes(store)) if bad else View())


def _open_cluster(
    path: str | os.PathLike[str],
    residency: str,
    sampler: str | Sampler,
    budget: int | None,
    cache_dir: str | os.PathLike[str] | None,
    cache_bytes: int | None,
    transport: str,
) -> Dataset:
    from gear_data.dataset.partitioned_store import open_partitioned_store

    def place(nodes: Sequence[str]) -> tuple[Placement, Placement]:
        files = open_files(path, cache_dir, cache_bytes)
        # Its tables are all that is needed: this machine may lack the shards of others.
        shards = frozenset(shard.entry.file for shard in files.manifest().shards)
        whole = Dataset(DatasetStore(files, "mmap", shards), View())
        return whole.placement(nodes, sampler, budget), whole.placement(nodes, sampler)

    store = open_partitioned_store(path, residency, place, cache_dir, cache_bytes, transport)
    store.device_columns()
    return Dataset(store, View())
