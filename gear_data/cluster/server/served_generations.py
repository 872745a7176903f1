"""ServedGenerations: the generations of a dataset that a server holds for its clients."""

from __future__ import annotations

import threading
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from gear_data.cluster.placement import ShardPart
from gear_data.cluster.protocol import Handshake
from gear_data.cluster.rdma.server import RdmaServer, open_rdma_server
from gear_data.cluster.server.shard_server import ShardServer
from gear_data.errors import GearError, NodeRefusedError
from gear_data.storage.dataset_files import DatasetFiles
from gear_data.storage.identity import FileStamp, check_same_dataset, file_stamp
from gear_data.storage.manifest import MANIFEST_NAME, Manifest

#: Seconds for which a server keeps an earlier generation after its last client has gone.
KEEP_SECONDS = 600.0
_CHECK_SECONDS = 0.5


@dataclass(eq=False)
class ServedGeneration:
    """One generation, opened.

    Attributes:
        shards: the shards.
        rdma: their registered memory; None: clients cannot read by RDMA.
        readers: number of calls and streams of clients now.
        last_used: time of the end of the last one, by `time.monotonic`.
    """

    shards: ShardServer
    rdma: RdmaServer | None = None
    readers: int = 0
    last_used: float = field(default_factory=time.monotonic)

    @property
    def number(self) -> int:
        return self.shards.manifest.generation


class GenerationOpener:
    """Opens the generations of a dataset.

    Args:
        files: files of the dataset, of which no manifest was read: they would hold a generation.
        residency, transport: see `open_shards` and `open_rdma_server`.
        shards: the served shards. Positions are those in the manifest of one generation, so the server stays at this
            generation. A part, or all shards (None), are of every generation.
        by_clients: whether clients choose the shards, as in a training run.
    """

    def __init__(
        self,
        files: DatasetFiles,
        residency: str,
        transport: str,
        shards: Collection[int] | ShardPart | None = None,
        *,
        by_clients: bool = False,
    ) -> None:
        self._files, self._residency, self._transport = files, residency, transport
        self._shards, self.by_clients = shards, by_clients
        #: Whether there may be other generations.
        self.grows = shards is None or isinstance(shards, ShardPart) or by_clients
        self._manifest: Manifest | None = None
        #: The newest generation, and the stamp of its manifest's file: many clients ask for it.
        self._newest: tuple[FileStamp, int] | None = None

    def first(self) -> ServedGeneration:
        """Opens the newest generation.

        Raises:
            GearError: see `ShardServer` and `open_rdma_server`.
        """
        return self._open(self._at(None), self._shards)

    def newest(self) -> int:
        """Returns the number of the newest generation.

        Raises:
            DatasetReplacedError: another dataset took its place.
            GearError: the manifest cannot be read.
        """
        location = self._files.location
        stamp = file_stamp(location / MANIFEST_NAME) if isinstance(location, Path) else None
        if self._newest is not None and stamp == self._newest[0]:
            return self._newest[1]
        generation = self._checked(self._at(None)).generation
        self._newest = None if stamp is None else (stamp, generation)
        return generation

    def open(self, generation: int, shards: Collection[int] | None) -> ServedGeneration:
        """Opens a generation.

        Args:
            generation: the number.
            shards: the shards, if clients choose them.

        Raises:
            GenerationGoneError: it is not on disk.
            DatasetReplacedError: another dataset took its place.
            GearError: see `ShardServer` and `open_rdma_server`.
        """
        return self._open(self._at(generation), shards if self.by_clients else self._shards)

    def _at(self, generation: int | None) -> DatasetFiles:
        return self._files.at(generation) if self.grows else self._files

    def _checked(self, files: DatasetFiles) -> Manifest:
        manifest = files.manifest()
        self._manifest = self._manifest or manifest
        check_same_dataset(manifest, self._manifest, files.location)
        return manifest

    def _open(self, files: DatasetFiles, shards: Collection[int] | ShardPart | None) -> ServedGeneration:
        manifest = self._checked(files)
        if isinstance(shards, ShardPart):
            shards = shards.shards(manifest.shards)
        served = ShardServer(files, None if shards is None else sorted(shards), self._residency)
        return ServedGeneration(served, open_rdma_server(served, self._transport))


class ServedGenerations:
    """Generations that a server holds for its clients. Thread-safe.

    A generation is opened when a client asks for it. It is held as long as a client has a stream open, and some time
    longer. The newest one is held always. Clients of one generation do not wait while another one is opened.

    Args:
        first: the first generation; None: clients name the one that they read.
        opener: opens other generations; None: there are none.
        keep_seconds: seconds for which an earlier generation is held after its last use.
    """

    def __init__(
        self,
        first: ServedGeneration | None,
        opener: GenerationOpener | None = None,
        keep_seconds: float = KEEP_SECONDS,
    ) -> None:
        self._opener, self._keep_seconds = opener, keep_seconds
        #: In the order of opening. A generation is there twice if clients chose further shards of it.
        self._held = [] if first is None else [first]
        self._lock, self._opening = threading.Lock(), threading.Lock()
        self._watching = False

    def newest_held(self) -> ServedGeneration | None:
        """Returns the newest generation that is held; None if none is."""
        with self._lock:
            return max(self._held, key=lambda each: each.number, default=None)

    @contextmanager
    def reading(self, message: Handshake) -> Iterator[ServedGeneration]:
        """Yields the generation that a client names, and holds it during the block.

        A client that names no dataset gets the generation with its number. Without a number, or if the generation is
        not published yet, it gets the newest one.

        Raises:
            NodeRefusedError: the client reads another dataset.
            GenerationGoneError: the generation is not on disk any more.
            GearError: the generation cannot be opened.
        """
        served = self._acquire(message)
        try:
            yield served
        finally:
            with self._lock:
                served.readers -= 1
                served.last_used = time.monotonic()

    def _acquire(self, message: Handshake) -> ServedGeneration:
        served = self._acquire_held(message)
        if served is None:
            with self._opening:
                # Another client may have waited for the same generation.
                served = self._acquire_held(message) or self._acquire_opened(message)
        return served

    def _acquire_held(self, message: Handshake) -> ServedGeneration | None:
        with self._lock:
            for served in reversed(self._held):
                if message.dataset == served.shards.identity and self._has_shards(served, message):
                    served.readers += 1
                    return served
        return None

    def _has_shards(self, served: ServedGeneration, message: Handshake) -> bool:
        chosen = self._opener is not None and self._opener.by_clients and message.shards is not None
        return not chosen or (message.shards or frozenset()).issubset(served.shards.shards)

    def _acquire_opened(self, message: Handshake) -> ServedGeneration:
        served = self._found(message)
        if message.dataset not in ("", served.shards.identity):
            raise NodeRefusedError(
                "serves another dataset, or another conversion of it",
                hint="restart it with the dataset of the other nodes",
            )
        with self._lock:
            served.readers += 1
            if served not in self._held:
                self._held.append(served)
            if not self._watching and len(self._held) > 1:
                self._watching = True
                threading.Thread(target=self._watch, name="gear-data-generations", daemon=True).start()
        return served

    def _found(self, message: Handshake) -> ServedGeneration:
        newest = self._newest()
        number = newest if message.generation is None else message.generation
        if not message.dataset:
            number = min(number, newest)
        with self._lock:
            held = [each for each in self._held if each.number == number]
            for each in held:
                each.last_used = time.monotonic()  # it is not let go meanwhile
        if held and self._has_shards(held[-1], message):
            return held[-1]
        opener = self._opener
        if opener is None or not opener.grows:
            if not self._held:
                raise NodeRefusedError("holds no shards", hint="read them from another node")
            return self._held[-1]
        shards = {*(message.shards or ()), *(held[-1].shards.shards if held else ())}
        if opener.by_clients and not shards:
            raise NodeRefusedError(f"holds no shards of generation {number}", hint="read them from another node")
        return opener.open(number, shards)

    def _newest(self) -> int:
        """Returns the newest generation on disk; the newest one that is held if the dataset is gone."""
        with self._lock:
            held = max((each.number for each in self._held), default=None)
        if self._opener is None or not self._opener.grows:
            return held or 0
        try:
            return self._opener.newest()
        except GearError:
            if held is None:
                raise
            return held

    def _watch(self) -> None:
        """Lets go of generations that no client reads, until only the newest one is left."""
        while self._watching:
            time.sleep(_CHECK_SECONDS)
            limit = time.monotonic() - self._keep_seconds
            with self._lock:
                newest = max(reversed(self._held), key=lambda each: each.number)
                unread = [each for each in self._held if not each.readers and each.last_used < limit]
                gone = [each for each in unread if each is not newest]
                self._held = [each for each in self._held if each not in gone]
                self._watching = len(self._held) > 1
            while gone:
                if (rdma := gone.pop().rdma) is not None:
                    rdma.close()
            del unread, newest
