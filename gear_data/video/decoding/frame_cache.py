"""FrameCache: decoded frames of a process, limited by bytes."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable

from gear_data.common.fork_lock import fork_safe_lock
from gear_data.video.decoding.decoder import Picture


class FrameCache:
    """Decoded frames. Thread-safe.

    It has two kinds of frames. Expected frames are those that somebody announced to need. The others, decoded on the
    way to a wanted frame, leave the cache first. Of each kind the frame used longest ago leaves first.

    A frame stays as the decoder gave it (YUV): half the bytes of RGB, and no copy.

    Attributes:
        bytes: of all frames.
    """

    def __init__(self) -> None:
        self.bytes = 0
        self._lock = fork_safe_lock()
        self._spare: OrderedDict[Hashable, Picture] = OrderedDict()
        self._expected: OrderedDict[Hashable, Picture] = OrderedDict()

    def get(self, key: Hashable, *, expected: bool = False) -> Picture | None:
        """Returns a frame, or None.

        Args:
            key: the frame.
            expected: whether the frame will be needed again.
        """
        with self._lock:
            picture = self._spare.pop(key, None) or self._expected.pop(key, None)
            if picture is not None:
                (self._expected if expected else self._spare)[key] = picture
            return picture

    def __contains__(self, key: Hashable) -> bool:
        return key in self._spare or key in self._expected

    def put(self, key: Hashable, picture: Picture, limit: int, *, expected: bool) -> None:
        """Adds a frame, and removes others until all frames have at most `limit` bytes."""
        if picture.bytes > limit:
            return
        removed = []
        with self._lock:
            for kind in (self._spare, self._expected):
                if key in kind:
                    removed.append(kind.pop(key))
                    self.bytes -= removed[-1].bytes
            (self._expected if expected else self._spare)[key] = picture
            self.bytes += picture.bytes
            while self.bytes > limit:
                _, oldest = (self._spare or self._expected).popitem(last=False)
                self.bytes -= oldest.bytes
                # Its memory is freed when the lock is free again.
                removed.append(oldest)
