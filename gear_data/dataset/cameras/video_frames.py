"""VideoFrames: the frames of one camera in one episode, as a lazy array."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from gear_data.dataset.stores.store import DatasetStore

#: Frames that an iteration decodes at once.
_FRAMES_AT_ONCE = 32


class VideoFrames:
    """The frames of one camera in one episode: a lazy array [T, H, W, 3] of uint8, or [T, H, W, 1] of float32 depth.

    It is indexed as a NumPy array, and each access decodes the frames that it returns: `frames[3]`, `frames[10:20]`,
    `frames[[0, -1]]`, `frames[:, ::2, ::2]`. The results are new arrays. `numpy.asarray(frames)` decodes all frames. It
    can be pickled; unpickling opens the dataset again.

    Attributes:
        dtype: uint8, or float32 of depth.
        ndim: 4.
        shape: (T, H, W, 3), or (T, H, W, 1) of depth.
    """

    ndim = 4

    def __init__(self, store: DatasetStore, camera: str, episode: int) -> None:
        self._store = store
        self._camera = camera
        self._episode = episode
        self.shape: tuple[int, ...] = (int(store.lengths[episode]), *store.schema[camera].shape)
        self.dtype: np.dtype[Any] = store.schema[camera].numpy_dtype

    def __repr__(self) -> str:
        shape = " x ".join(map(str, self.shape))
        return f"VideoFrames({self._camera!r}, episode {self._episode}, {shape} {self.dtype})"

    def __len__(self) -> int:
        """Returns the number of frames, T."""
        return self.shape[0]

    @property
    def size(self) -> int:
        """Number of elements."""
        return int(np.prod(self.shape, dtype=np.int64))

    @property
    def nbytes(self) -> int:
        """Number of bytes of all frames when they are decoded."""
        return self.size * self.dtype.itemsize

    def __getitem__(self, key: Any) -> npt.NDArray[Any]:
        """Returns frames, or parts of them, as NumPy indexes an array.

        Args:
            key: an int, a slice, an array of integers or of T Booleans; or a tuple of one of them and of indices of
                rows, columns and channels.

        Raises:
            IndexError: an index is outside the array.
            CorruptShardError: the video is damaged.
            MissingExtraError: PyAV is not installed.
        """
        first, *rest = key if isinstance(key, tuple) and key else (key,)
        if first is Ellipsis or first is None or isinstance(first, tuple):
            return self._decode(np.arange(len(self)))[key]  # type: ignore[no-any-return]
        steps = np.arange(len(self))[first]
        if not rest:
            return self._decode(steps.reshape(-1)).reshape(*steps.shape, *self.shape[1:])
        if isinstance(first, slice):
            return self._decode(steps)[(slice(None), *rest)]
        # Frames are decoded once each. NumPy then combines the index of frames with the others.
        frames, places = np.unique(steps, return_inverse=True)
        found: Any = int(places.reshape(-1)[0]) if steps.ndim == 0 else places.reshape(steps.shape)
        return self._decode(frames)[(found, *rest)]  # type: ignore[no-any-return]

    def __iter__(self) -> Iterator[npt.NDArray[Any]]:
        """Yields every frame, [H, W, 3]."""
        for first in range(0, len(self), _FRAMES_AT_ONCE):
            yield from self[first : first + _FRAMES_AT_ONCE]

    def __array__(self, dtype: npt.DTypeLike | None = None, copy: bool | None = None) -> npt.NDArray[Any]:
        """Decodes all frames."""
        if copy is False:
            raise ValueError("frames are decoded into a new array, which copy=False excludes")
        frames = self[:]
        return frames if dtype is None else frames.astype(dtype, copy=False)

    def _decode(self, steps: npt.NDArray[np.int64]) -> npt.NDArray[Any]:
        episodes = np.full(len(steps), self._episode)
        return self._store.videos.frames(self._store.schema[self._camera], episodes, steps)
