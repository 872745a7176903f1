"""NumPy archives (`.npz`) of flat steps, padded episodes, or single episodes.

Layouts:

- D4RL's names.
- `imitation` (https://imitation.readthedocs.io): `obs`, `acts`, `rews`, `indices`, `terminal`, with T + 1 observations
  per episode.
- DreamerV2 and V3 episodes: `is_first`, `is_last`, `is_terminal`.
- Flat steps with `episode_ends`, or padded episodes with `episode_lengths`.

Arrays of Python objects are pickles and are never loaded.
"""

from __future__ import annotations

from functools import partial

from gear_data.errors import GearError, UnknownFormatError
from gear_data.ingest.location import Location
from gear_data.ingest.source import Format, SourceOptions
from gear_data.ingest.sources.arrays.layouts import USES, holds_steps, open_flat
from gear_data.ingest.sources.arrays.numpy_files import open_npz
from gear_data.ingest.sources.arrays.source import ArraySource

_SUFFIX = ".npz"


def probe(location: Location) -> str | None:
    """Returns the reason if the first archive holds steps; otherwise None.

    A damaged archive is accepted too, so that opening it raises the error.

    Raises UnknownFormatError if its first axis may be something else than the steps.
    """
    for file in location.with_suffix(_SUFFIX)[:1]:
        try:
            shapes = {name: array.shape for name, array in open_npz(file).items()}
        except GearError:
            return "an .npz file"
        if holds_steps(file.name, shapes, shapes, location, FORMAT.name):
            return f"NumPy archives: {file.name} holds steps"
    return None


def open_(location: Location, options: SourceOptions) -> ArraySource:
    """Opens `.npz` archives. Raises UnknownFormatError if there are none."""
    files = location.with_suffix(_SUFFIX)
    if not files:
        raise UnknownFormatError("holds no .npz file", hint="leave --format out")
    return open_flat([(file.name, file.size, partial(open_npz, file)) for file in files], options)


FORMAT = Format("npz", probe, open_, uses=USES, suffixes=(_SUFFIX,), in_time_order=True)
