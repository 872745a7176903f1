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

from gear_data.errors import GearError, UnknownFormatError
from gear_data.ingest.findings.log import FindingLog
from gear_data.ingest.location import Location
from gear_data.ingest.pipeline.columns import SCALAR_COLUMNS
from gear_data.ingest.pipeline.names import usual_name
from gear_data.ingest.source import Format, SourceOptions
from gear_data.ingest.sources.arrays.axes import refuse_unclear_axes
from gear_data.ingest.sources.arrays.layouts import build_step_arrays
from gear_data.ingest.sources.arrays.numpy_files import open_npz
from gear_data.ingest.sources.arrays.source import ArraySource
from gear_data.ingest.sources.arrays.step_arrays import StepArrays

_SUFFIX = ".npz"


def probe(location: Location) -> str | None:
    """Returns the reason if the first archive holds steps; otherwise None.

    A damaged archive is accepted too, so that opening it raises the error.

    Raises UnknownFormatError if its first axis may be something else than the steps.
    """
    files = location.with_suffix(_SUFFIX)
    if not files:
        return None
    try:
        arrays = open_npz(files[0])
    except GearError:
        return "an .npz file"
    names = {usual_name(name, location.rename) for name in arrays}
    shapes = {location.rename.get(name, name): array.shape for name, array in arrays.items()}
    refuse_unclear_axes(files[0].name, shapes, "npz")
    if "actions" in names or names & SCALAR_COLUMNS:
        return f"NumPy archives: {files[0].name} holds steps"
    return None


def open_(location: Location, options: SourceOptions) -> ArraySource:
    """Opens `.npz` archives. Raises UnknownFormatError if there are none."""
    files = location.with_suffix(_SUFFIX)
    if not files:
        raise UnknownFormatError("holds no .npz file", hint="leave --format out")

    def open_arrays(i: int) -> StepArrays:
        file = files[i]
        return build_step_arrays(file.name, open_npz(file), options, whole_source=len(files) == 1, is_first=i == 0)

    names, sizes = [file.name for file in files], [file.size for file in files]
    return ArraySource(names, sizes, open_arrays, FindingLog(), dtypes=options.tables.dtype)


FORMAT = Format(
    "npz",
    probe,
    open_,
    uses=frozenset({"episode_column", "step_column", "end_column", "max_episode_steps", "dtype"}),
    suffixes=(".npz",),
)
