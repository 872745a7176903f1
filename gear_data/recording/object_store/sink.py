"""BucketSink: finished episodes go into journals of this machine, and from there into an object store."""

from __future__ import annotations

from gear_data.common.cancellation import call_interruptibly
from gear_data.recording.object_store.publisher import BucketPublisher
from gear_data.recording.sinks.journal_sink import JournalSink


class BucketSink(JournalSink):
    """Puts episodes into journals of this machine. `flush` and `seal` upload them.

    Args:
        publisher, every: see `JournalSink`.
    """

    def __init__(self, publisher: BucketPublisher, every: float | None) -> None:
        super().__init__(publisher, every)
        self._bucket = publisher

    def flush(self) -> None:
        """Uploads all episodes as a sealed journal.

        Raises:
            StorageFullError, UnwritableError: the disk of this machine failed.
            RemoteError: the server cannot be reached. The episodes stay in journals of this machine.
        """
        call_interruptibly(self._upload)  # as `seal`

    def _upload(self) -> None:
        with self._publishing:
            if not self._is_released:
                self._bucket.upload(self._rotated(), progress=None)

    def _may_lack_columns(self) -> bool:
        """Returns False: a look costs requests, and does not show the journals of other machines."""
        return False
