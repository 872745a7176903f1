"""Bucket: the folder of a dataset in an object store, as its writers see it."""

from __future__ import annotations

from gear_data.common.paths import join
from gear_data.errors import DestinationExistsError
from gear_data.ingest.card import CARD_NAME
from gear_data.ingest.videos.placing import VIDEOS
from gear_data.storage.generations.growth import GROWING_FOLDERS, JOURNALS
from gear_data.storage.manifest import MANIFEST_NAME, Manifest
from gear_data.storage.remote.conditional_store import ConditionalStore, VersionedFile
from gear_data.storage.remote.object_store import ObjectStore
from gear_data.storage.writing.progress_files import PROGRESS

_FOLDERS = frozenset({"shards", VIDEOS, JOURNALS, *GROWING_FOLDERS})


class Bucket:
    """The folder of a dataset in an object store.

    Args:
        url: its URL.

    Attributes:
        url: see above.
        objects: all its files.
        conditional: the files that several writers write.

    Raises:
        InvalidArgumentError: the store has no conditional puts.
    """

    def __init__(self, url: str) -> None:
        self.conditional = ConditionalStore(url)
        self.objects = ObjectStore(url)
        self.url = self.objects.name

    def check(self) -> None:
        """Checks that Writers can record here.

        Raises:
            InvalidArgumentError: the store ignores the conditions of puts.
            DestinationExistsError: the folder holds other files, or is being written by a conversion.
            UnwritableError: it cannot be written to.
            RemoteError: the server cannot be reached.
        """
        self.conditional.check()
        if self.newest() is not None:
            return
        files = self.objects.files()
        if MANIFEST_NAME in files:
            return  # another writer has published since
        for file in files:
            folder, separator, _ = file.partition("/")
            if folder == PROGRESS:
                raise DestinationExistsError(
                    "a conversion into this folder runs, or did not finish",
                    file=self.url,
                    hint="wait for it, or finish it with --resume (resume=True), or choose another URL",
                )
            if file != CARD_NAME and (folder not in _FOLDERS or not separator):
                raise DestinationExistsError(
                    f"the destination exists and is not a dataset: it has {file}",
                    file=self.url,
                    hint="choose another URL",
                )

    def newest(self) -> Manifest | None:
        """Returns the newest manifest; None if there is no dataset.

        Raises:
            ManifestError, VersionError: the manifest cannot be used.
            RemoteError: the server cannot be reached.
        """
        return self.versioned()[1]

    def versioned(self, file: str = MANIFEST_NAME) -> tuple[VersionedFile | None, Manifest | None]:
        """Returns a manifest, and its file for a conditional put. See `manifest`.

        Args:
            file: the file of the newest manifest, or of a generation.
        """
        found = self.conditional.read(file)
        return found, None if found is None else Manifest.from_bytes(found.data, join(self.url, file))

    def manifest(self, file: str) -> Manifest | None:
        """Returns the manifest of a generation; None if it does not exist.

        Raises:
            ManifestError, VersionError: the manifest cannot be used.
            RemoteError: the server cannot be reached.
        """
        return self.versioned(file)[1]
