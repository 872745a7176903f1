"""Opening a dataset: local, served by remote nodes, or on a cluster; or a source, from the cache."""

from __future__ import annotations

import inspect
import logging
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Never, get_args

from gear_data.cluster.addresses import is_cluster
from gear_data.cluster.placement import Placement
from gear_data.cluster.transport_names import check_transport
from gear_data.common.keywords import refuse_keywords
from gear_data.common.paths import is_remote, plain_path
from gear_data.dataset.bad_shards import find_bad_shards, sound_episodes
from gear_data.dataset.dataset import Dataset
from gear_data.dataset.steps.masks import whole_view
from gear_data.dataset.stores.store import DatasetStore, restored
from gear_data.dataset.views import View
from gear_data.errors import (
    DatasetNotFoundError,
    InvalidArgumentError,
    MissingShardsError,
    NodeUnreachableError,
    RemoteError,
    unknown_name,
)
from gear_data.selection.samplers import AnySampler
from gear_data.storage.dataset_files import DatasetFiles, open_files
from gear_data.storage.manifest import MANIFEST_NAME, files_elsewhere
from gear_data.words import ClusterName, OnBadShard, Residency, SamplerName, TransportName

if TYPE_CHECKING:
    from gear_data.ingest.convert_options import ConvertOptions

_CLUSTERS = get_args(ClusterName)
#: `follow=True` waits so long for the first generation, and looks so often.
_FOLLOW_SECONDS, _POLL_SECONDS = 600.0, 0.05
#: `follow=True` asks nodes and object stores so often.
_NODES_POLL_SECONDS, _STORE_POLL_SECONDS = 0.5, 1.0

_log = logging.getLogger(__name__)


def open_dataset(
    path: Any,
    residency: Residency | None = None,
    *,
    convert: ConvertOptions | None = None,
    on_bad_shard: OnBadShard = "error",
    cache_dir: str | os.PathLike[str] | None = None,
    cache_bytes: int | None = None,
    cluster: ClusterName | None = None,
    sampler: SamplerName | AnySampler = "uniform",
    budget: int | None = None,
    transport: TransportName = "auto",
    follow: bool = False,
    **unknown: Never,
) -> Dataset:
    """Opens a dataset, or a source that `convert` takes.

    A source is converted into the cache of this machine, and that dataset is opened. The second time, it is only
    opened. A source that changed is converted again, with a warning. If several processes open a source, one converts
    it, and the others wait. Camera videos stay where they are.

    Opening compares the manifest with the sizes of the files. Columns are mapped when they are first read. With the
    default arguments, the time to open does not grow with the number of steps.

    Args:
        path: folder or URL of the dataset, or any source of `convert`: a file, a folder, a URL, a hub id, several of
            them, or data in memory. A text USER/NAME is a hub id if there is no folder USER; any other path must exist.
            Datasets are not cached. From a URL (`s3://...`, or another that fsspec knows), shards are fetched
            when they are first needed. `gear://host:port,host:port` names nodes that serve the dataset
            (`gear-data serve`); they send the steps that are read.
        residency: where column bytes live. None: `mmap`, or `host` with `cluster`. The videos of cameras stay in
            their files.
            `mmap`: in the page cache, read from disk on demand.
            `host`: in shared memory, one copy per machine and user. The first process loads the copy now. The memory
            is released when no process uses it any more. On Linux, this also holds if processes were killed.
            `pinned`: such a copy, registered with CUDA, so that GPUs read it in place.
            `device`: all columns of a fixed size in the memory of CUDA's current device. The CPU reads the columns
            from disk, so they need not fit this machine's memory. If they do not fit the device, use `Dataset.place`.
        convert: options of the conversion, if `path` is a source. None: the defaults of `convert`.
        on_bad_shard: `error`: a shard of the wrong size raises now; other damage raises when the shard is read.
            `skip`: all shards are read and verified now. Episodes of bad shards are left out with a warning, which
            changes the fingerprint. Under torch.distributed, every rank must pass `skip`; all ranks leave out the
            shards that any rank cannot read.
        cache_dir: folder for converted sources and fetched files, shared by all processes of this machine. None:
            $GEAR_DATA_CACHE, else `gear-data` in $XDG_CACHE_HOME or ~/.cache. Of a dataset's folder, only video files
            at URLs are fetched.
        cache_bytes: largest total size of the fetched files. The files least recently used are removed first. Files
            that current batches need are kept even if they exceed the limit. None: 32 GiB, or half of the disk space
            that is available if that is less.
        cluster: `torchrun`: the nodes of this training run share the shards. Each node loads its own shards from
            `path` and reads other steps from the memory of the other nodes. Every rank must pass it. None: this
            process reads all shards itself.
        sampler, budget: only with `cluster`: they decide which nodes hold each shard, see `Dataset.placement`.
        transport: how steps are read from nodes. `verbs`: RDMA READ, from nodes that serve their memory. `flight`:
            Arrow Flight over TCP. `auto`: RDMA where both ends have a device, else Flight.
        follow: waits up to ten minutes for the first generation of a `Writer`, or for nodes that serve the dataset.
            `Dataset.refresh` gives the later generations, with or without this argument.

    Raises:
        DatasetNotFoundError: `path` has no dataset, or an unfinished conversion.
        RemoteError: the server cannot be reached, and the cache has no conversion of the source.
        ClusterError: the nodes cannot be reached, refuse the request, or do not hold all shards.
        VersionError, ManifestError, CorruptShardError: the dataset cannot be used.
        HostMemoryError: with `host` or `pinned`, the columns are larger than the available memory.
        MissingExtraError, DeviceError: CuPy or a GPU is missing (`pinned`, `device`), CUDA does not register the copy
            (`pinned`), or pyverbs or an RDMA device is missing (`verbs`).
        DeviceMemoryError: with `device`, the columns are larger than the device's memory.
        EmptySourceError: with `skip`, all shards are bad.
        SourceChangedError: a source changed while it was converted.
        StorageFullError, UnwritableError: the cache cannot be written to.
        InvalidArgumentError, UnknownNameError: an argument is invalid, or two arguments exclude each other.
        UnknownArgumentError: there is no argument of this name. It is a `TypeError` too.
        GearError: another error of `convert`, for a source.
    """
    refuse_keywords("open", unknown, list(inspect.signature(open_dataset).parameters)[:-1])
    if on_bad_shard not in get_args(OnBadShard):
        raise InvalidArgumentError(f"on_bad_shard must be 'error' or 'skip', not {on_bad_shard!r}")
    if cluster not in (None, *_CLUSTERS):
        raise unknown_name("cluster", cluster, _CLUSTERS)
    if cluster is None and (budget is not None or sampler != "uniform"):
        raise InvalidArgumentError(
            "sampler and budget place shards on the nodes of a cluster, but cluster is None",
            hint="pass cluster='torchrun', or leave them out",
        )
    check_transport(transport)

    def opened(place: str | os.PathLike[str]) -> Dataset:
        if follow and not is_cluster(plain_path(place)):
            _wait_for_manifest(place)
        if cluster is not None:
            return open_cluster(place, residency, on_bad_shard, sampler, budget, cache_dir, cache_bytes, transport)
        if is_cluster(plain_path(place)):
            return open_remote(place, residency, on_bad_shard, cache_dir, cache_bytes, transport, follow=follow)
        return open_local(place, residency, on_bad_shard, cache_dir, cache_bytes)

    failure: RemoteError | None = None
    text = plain_path(path) if isinstance(path, str | os.PathLike) else ""
    if convert is None and cluster is None and is_remote(text) and not _has_query(text):
        try:
            return opened(path)  # of a dataset, this saves a request
        except DatasetNotFoundError:
            if follow or is_cluster(text):
                raise
        except RemoteError as error:
            if follow or is_cluster(text):
                raise
            failure = error
    with dataset_place(path, convert, cache_dir, follow=follow, failure=failure) as place:
        return opened(place)


@contextmanager
def dataset_place(
    path: Any,
    convert: ConvertOptions | None = None,
    cache_dir: str | os.PathLike[str] | None = None,
    *,
    follow: bool = False,
    failure: RemoteError | None = None,
) -> Iterator[str | os.PathLike[str]]:
    """Yields the folder or URL of a dataset: for a source its dataset in the cache, else the path itself.

    Args:
        path, convert, cache_dir: see `open_dataset`.
        follow: the path is of a dataset, which may not be there yet.
        failure: the error of an earlier request for the URL. The URL is not asked again: only an earlier conversion can
            be opened.

    Raises:
        InvalidArgumentError: options of a conversion are given, and the path is of a dataset.
        RemoteError: the server cannot be reached, and the cache has no conversion of the URL.
        GearError: the errors of a conversion.
    """
    is_dataset = is_source = False
    if failure is None:
        try:
            is_dataset = follow or _is_dataset(path)
            is_source = not is_dataset and _is_source(path)
        except RemoteError as error:
            failure = error
    if is_dataset and convert is not None:
        raise InvalidArgumentError(
            f"convert= has the options of the conversion of a source, and {path} is a dataset",
            hint="leave convert out",
        )
    if failure is None and not is_source:
        yield path  # of what is no dataset, opening it says what is missing
        return
    # Datasets do not need it.
    from gear_data.ingest.cached.opening import source_dataset

    with source_dataset(path, convert, cache_dir, failure) as folder:
        yield folder


def _is_dataset(path: Any) -> bool:
    """Returns whether a path or URL has a manifest, or names nodes. A URL costs a request."""
    if not isinstance(path, str | os.PathLike):
        return False
    text = plain_path(path)
    if not is_remote(text):
        return os.path.lexists(os.path.join(text, MANIFEST_NAME))
    if is_cluster(text):
        return True
    if _has_query(text):
        return False
    from gear_data.storage.remote.object_store import open_file_store

    return open_file_store(text).size(MANIFEST_NAME) is not None


def _has_query(text: str) -> bool:
    """Returns whether a URL has a query, as that of a file may. With a name behind it, it is of the same file."""
    return text.startswith(("http://", "https://")) and "?" in text


def _is_source(path: Any) -> bool:
    from gear_data.ingest.cached.opening import may_be_source

    return may_be_source(path)


def _wait_for_manifest(path: str | os.PathLike[str]) -> None:
    """Waits until a folder or URL has a dataset, or the time is over."""
    from gear_data.storage.remote.object_store import open_file_store

    text = plain_path(path)
    store = open_file_store(text)
    seconds = _STORE_POLL_SECONDS if is_remote(text) else _POLL_SECONDS
    deadline, announced = time.monotonic() + _FOLLOW_SECONDS, False
    while store.size(MANIFEST_NAME) is None and time.monotonic() < deadline:
        if not announced:
            _log.info("%s: waiting for the first generation of a Writer", text)
            announced = True
        time.sleep(seconds)


def open_local(
    path: str | os.PathLike[str],
    residency: str | None,
    on_bad_shard: str,
    cache_dir: str | os.PathLike[str] | None,
    cache_bytes: int | None,
) -> Dataset:
    """Opens the dataset in a folder or object store; see `open_dataset`."""
    files = open_files(path, cache_dir, cache_bytes)
    bad_files = find_bad_shards(files) if on_bad_shard == "skip" else frozenset[str]()
    store = DatasetStore(files, residency or "mmap", bad_files)
    # Copies columns to the GPU now if the residency asks for it, so that a missing package or memory raises here.
    store.device_columns()
    view = whole_view(store)
    if bad_files:
        # No filter made this view: a refresh, or a file of a mixture, would have the damaged shards again.
        view = replace(view, rows=sound_episodes(store), made_by=None)
    return Dataset(store, view)


def open_remote(
    url: str | os.PathLike[str],
    residency: str | None,
    on_bad_shard: str,
    cache_dir: str | os.PathLike[str] | None,
    cache_bytes: int | None,
    transport: str,
    *,
    follow: bool,
) -> Dataset:
    """Opens the dataset that the nodes of a `gear://` URL serve; see `open_dataset`."""
    if residency not in (None, "mmap") or on_bad_shard != "error":
        raise InvalidArgumentError(
            f"residency={residency!r}, on_bad_shard={on_bad_shard!r}: the nodes that serve a dataset choose both",
            hint="leave them out; pass --residency to gear-data serve",
        )
    from gear_data.dataset.stores.remote import open_remote_store

    deadline = time.monotonic() + (_FOLLOW_SECONDS if follow else 0)
    while True:
        try:
            store = open_remote_store(plain_path(url), cache_dir, cache_bytes, transport)
            return Dataset(store, whole_view(store))
        except (NodeUnreachableError, MissingShardsError) as error:
            if time.monotonic() > deadline:
                raise
            _log.info("%s; waiting for the nodes", error)
            time.sleep(_NODES_POLL_SECONDS)


def open_cluster(
    path: str | os.PathLike[str],
    residency: str | None,
    on_bad_shard: str,
    sampler: SamplerName | AnySampler,
    budget: int | None,
    cache_dir: str | os.PathLike[str] | None,
    cache_bytes: int | None,
    transport: str,
) -> Dataset:
    """Opens a dataset that the nodes of this training run share.

    Every rank must call it; see `open_dataset`.
    """
    if is_cluster(plain_path(path)) or on_bad_shard != "error":
        raise InvalidArgumentError(
            f"{path}, on_bad_shard={on_bad_shard!r}: with cluster=, open a folder or URL whose shards are all sound",
            hint="gear-data verify lists the damaged shards",
        )
    if residency not in (None, "host", "pinned", "mmap"):
        raise InvalidArgumentError(
            f"with cluster=, residency must be 'host', 'pinned' or 'mmap', not {residency!r}",
            hint="'pinned' lets the GPUs of a node read its shards in place",
        )
    from gear_data.dataset.stores.partitioned import open_partitioned_store

    files = open_files(path, cache_dir, cache_bytes)

    def assign_shards(opened: DatasetFiles, nodes: Sequence[str]) -> tuple[Placement, Placement]:
        # Placement needs only the tables; this machine may lack the shards of other nodes.
        shards = files_elsewhere(opened.manifest(), ())
        whole = Dataset(DatasetStore(opened, "mmap", shards), View())
        return whole.placement(nodes, sampler, budget), whole.placement(nodes, sampler)

    store = open_partitioned_store(
        files, path, residency or "host", assign_shards, cache_dir, cache_bytes, transport, budget
    )
    store.device_columns()
    return Dataset(store, whole_view(store))


def reopen(dataset: Dataset, residency: str | None = None, queue_pairs: int | None = None) -> Dataset:
    """Returns the same dataset or view, opened again in another way.

    Args:
        dataset: the dataset. It is returned itself if nothing changes.
        residency: another residency; None: as it is.
        queue_pairs: RDMA queue pairs over which one thread reads one node; None: as it is.

    Raises:
        InvalidArgumentError: other nodes decide the residency, a plan is missing, or no other node is read by RDMA.
        GearError: see `open_dataset`.
    """
    store = dataset.store
    if queue_pairs is not None:
        from gear_data.dataset.stores.remote import RemoteDatasetFiles

        if not isinstance(store.files, RemoteDatasetFiles):
            raise InvalidArgumentError(
                f"queue_pairs={queue_pairs} is for a dataset at a gear:// URL, and this is {dataset.path}",
                hint="run gear-data tune for this dataset",
            )
        store = restored(type(store)(store.files.with_queue_pairs(queue_pairs), store.residency), None, store.discount)
    if residency not in (None, store.residency):
        if dataset.is_remote or residency == "tiered":
            raise InvalidArgumentError(
                f"the residency is {dataset.residency}, and cannot be changed to {residency} here",
                hint="call Dataset.place with a plan" if residency == "tiered" else "pass residency=dataset.residency",
            )
        store = restored(DatasetStore(store.files, str(residency), store.bad_files), None, store.discount)
        store.device_columns()
    return dataset if store is dataset.store else Dataset(store, dataset.view)
