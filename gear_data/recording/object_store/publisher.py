"""BucketPublisher: the journals of this machine become generations of a dataset in an object store."""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import xxhash

from gear_data.errors import DatasetReplacedError, GearError, RemoteError
from gear_data.growing.added_journals import SealedJournal
from gear_data.growing.next_generation import growth_of
from gear_data.growing.object_store.bucket import Bucket
from gear_data.growing.object_store.generations import BucketGenerations
from gear_data.growing.object_store.mirror import Mirror
from gear_data.growing.object_store.retirement import keep_seconds, remove_unfinished
from gear_data.growing.object_store.sealed_objects import SealedName, claim_name, upload_sealed
from gear_data.growing.publish import Publication, publish
from gear_data.growing.returned import WAY_OUT, sort_journals
from gear_data.growing.seal_options import SealOptions
from gear_data.recording.acceptance.checks import Acceptance
from gear_data.recording.journal_folder import JournalFolder, journals_of, visit_left_behind
from gear_data.recording.object_store.local_journals import journal_base
from gear_data.recording.publisher import JournalPublisher, growth_id
from gear_data.recording.sealing import sealed, set_aside_whole
from gear_data.storage.generations.growth import Growth
from gear_data.storage.journal.reading import Journal, read_journal
from gear_data.storage.journal.writing import SUFFIX
from gear_data.storage.manifest import Manifest

#: Folder of local copies, in the folder of the journals.
_MIRROR = "mirror"

_log = logging.getLogger(__name__)


class BucketPublisher(JournalPublisher):
    """Uploads the journals of one writer, and publishes the sealed journals of all writers.

    Not thread-safe.

    Args:
        url: URL of the dataset.
        options: how journals are sealed.

    Raises:
        GearError: see `Bucket.check`, and `JournalFolder`.
    """

    def __init__(self, url: str, options: SealOptions) -> None:
        keep_seconds()  # a wrong value should be an error now
        self._bucket = Bucket(url)
        self._bucket.check()
        self.location, self.options = self._bucket.url, options
        self._base = journal_base(self.location)
        self.journals = JournalFolder(self._base)
        self._uploads = _Uploads(self._bucket, self.journals)

    def newest(self) -> Manifest | None:
        """Returns the newest manifest; None if there is no dataset."""
        return self._bucket.newest()

    def acceptance(self) -> Acceptance:
        """Returns the checks of the dataset, and of the journals on this machine."""
        found = _acceptance(self._bucket, self.newest())
        found.add_journals(sorted(journals_of(self._base).glob(f"*/*{SUFFIX}")))
        return found

    def num_waiting(self) -> int:
        """Returns the number of episodes on this machine that no generation has."""
        newest = self.newest()
        growth, is_converted = growth_of(newest), Acceptance(self.location, newest, None).is_converted
        return self.journals.num_episodes(
            lambda journal, number: growth.has_journal(journal.series, number), is_converted
        )

    def upload(self, files: Sequence[Path], *, progress: bool | None) -> None:
        """Uploads ended journals, and removes them here.

        Raises:
            GearError: the journals cannot be sealed or uploaded. They stay.
        """
        self._uploads.upload(files, progress)

    def publish(
        self, files: Sequence[Path], *, gone: Collection[str] = (), progress: bool | None
    ) -> Publication | None:
        """Uploads ended journals, and publishes all sealed journals of the bucket. See `JournalPublisher`."""
        self.upload(files, progress=progress)
        publication = self._publish_sealed(self._uploads)
        waiting = self._uploads.waiting
        if publication is None and waiting and (newest := self.newest()) is not None:
            # Another writer published the journals of this one.
            episodes, steps = (sum(each) for each in zip(*waiting.values(), strict=True))
            publication = Publication(
                newest.generation, episodes, steps, 0, newest.episodes, newest.steps, newest.fingerprint
            )
        waiting.clear()
        return publication

    def _publish_sealed(self, uploads: _Uploads) -> Publication | None:
        store = BucketGenerations(self._bucket, uploads.mirror, self.options.shard_bytes)
        return publish(store, self.options)

    def publish_left_behind(self, *, progress: bool | None) -> None:
        """Uploads and publishes the journals of writers of this machine that died."""

        def publish_ended(journals: JournalFolder) -> None:
            uploads = _Uploads(self._bucket, journals)
            uploads.upload(journals.ended(), progress)
            self._publish_sealed(uploads)
            uploads.mirror.remove_folder()

        visit_left_behind(self._base, f"*{SUFFIX}", publish_ended)
        try:
            remove_unfinished(self._bucket)
        except (GearError, FileNotFoundError) as error:
            _log.warning("%s: files that are not needed any more stay for now: %s", self.location, error)

    def close(self) -> None:
        """Releases the journals. Those that are left wait for the next writer of this machine."""
        self._uploads.mirror.remove_folder()
        self.journals.close()


class _Uploads:
    """Uploads the journals of one writer.

    Args:
        bucket: the bucket.
        journals: the journals, which only this process uses.

    Attributes:
        mirror: local copies of the bucket's files.
        waiting: journals that this process uploaded -> their episodes and steps. The dataset lacked them so far.
    """

    def __init__(self, bucket: Bucket, journals: JournalFolder) -> None:
        self._bucket, self._journals = bucket, journals
        self.mirror = Mirror(journals.path / _MIRROR, bucket.objects)
        self.waiting: dict[SealedName, tuple[int, int]] = {}
        #: The id of the growth of the dataset, when this process looked last.
        self._growth = ""

    def upload(self, files: Sequence[Path], progress: bool | None) -> None:
        """Uploads journals in order, and removes them here."""
        newest = self._bucket.newest() if files or self.waiting else None
        self._check_waiting(newest)
        growth, acceptance = growth_of(newest), _acceptance(self._bucket, newest)

        contents = {file: read_journal(file) for file in files}
        names = {file: _name_of(file, journal) for file, journal in contents.items()}

        def seal(file: Path) -> SealedJournal | None:
            name, folder = names[file], sealed(file, contents[file], progress, acceptance)
            if folder is None:
                return None
            comes_back = file not in self._journals.new and self._bucket.conditional.read(name.claim) is None
            return SealedJournal(name.writer, name.number, folder, Manifest.load(folder), comes_back)

        earlier = {file: seal(file) for file in files if names[file].may_be_published(growth)}
        lacks = self._lacks(growth, [journal for journal in earlier.values() if journal is not None])
        for file in files:
            journal = earlier[file] if file in earlier else seal(file)
            if journal is not None and (file not in earlier or journal.folder in lacks):
                self._upload(file, journal, growth)
            self._journals.remove(file)

    def _lacks(self, growth: Growth, journals: Sequence[SealedJournal]) -> set[Path]:
        """Returns the folders of the journals that the dataset lacks. Keeps those of which nobody knows."""
        found = sort_journals(growth, journals)
        for journal, reason in found.doubtful:
            self._keep(growth, journal, reason)
        return {journal.folder for journal in found.new}

    def _keep(self, growth: Growth, journal: SealedJournal, reason: str) -> None:
        set_aside_whole(journal.folder, reason)
        self._journals.begin_series(growth.largest_series)  # a copy of this machine may use the same one

    def _upload(self, file: Path, journal: SealedJournal, growth: Growth) -> None:
        name = SealedName(journal.writer, journal.number)
        if claim_name(self._bucket, name, journal.manifest.fingerprint):
            self._journals.new.discard(file)
            # A copy of this machine may have published it before the claim. Nobody can publish it after the claim.
            growth = growth_of(self._bucket.newest())
            if not name.is_published(growth) or self._lacks(growth, [journal]):
                upload_sealed(self.mirror, self._bucket, journal.folder, name)
                self.waiting[name] = (journal.manifest.episodes, journal.manifest.steps)
        else:
            reason = f"another Writer has uploaded other episodes as {name}: its machine was copied while it ran"
            self._keep(growth, journal, f"{reason}; {WAY_OUT}")

    def _check_waiting(self, newest: Manifest | None) -> None:
        """Checks that the bucket still has what this process uploaded, if another dataset has taken the place.

        Raises:
            DatasetReplacedError: it was removed. A second call goes on.
        """
        growth, self._growth = self._growth, growth_id(newest)
        if growth in ("", self._growth):
            return
        new = growth_of(newest)
        there = {name for name in self.waiting if self._bucket.manifest(name.manifest) or name.is_published(new)}
        if gone := [self.waiting.pop(name)[0] for name in self.waiting.keys() - there]:
            raise DatasetReplacedError(
                f"the dataset was replaced, and {sum(gone)} episodes that this Writer had uploaded were removed",
                file=self._bucket.url,
                hint="restore the objects under journals/ and shards/; a second call publishes what is left",
            )


def _name_of(file: Path, journal: Journal) -> SealedName:
    """Returns the name of a sealed journal. The same journal has the same one, on every machine."""
    writer = journal.series or journal.id.decode() or xxhash.xxh3_64_hexdigest(file.read_bytes())
    return SealedName(writer, int(file.stem))


def _acceptance(bucket: Bucket, manifest: Manifest | None) -> Acceptance:
    """Returns the checks of the dataset in a bucket.

    Args:
        bucket: the bucket.
        manifest: its newest manifest.
    """
    if manifest is None:
        return Acceptance(bucket.url, None, None)
    entry = manifest.tables["episodes"]
    table = None
    try:
        with bucket.objects.reader(entry.file, entry.bytes) as file:
            data = file.read()
    except RemoteError as error:
        if not isinstance(error.__cause__, FileNotFoundError):
            raise  # else another process replaced it, or the publication says what is missing
    else:
        with suppress(pa.ArrowException, OSError):  # the publication says what is wrong
            table = pa.ipc.open_file(pa.py_buffer(data)).read_all()
    return Acceptance(bucket.url, manifest, table)
