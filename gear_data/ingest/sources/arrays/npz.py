"""NumPy archives: `.npz` files of flat steps, of padded episodes, or of one episode each.

Layouts: D4RL's names; `imitation` (https://imitation.readthedocs.io: `obs`, `acts`, `rews`, `indices`, `terminal`,
T + 1 observations an episode); DreamerV2 and V3 episodes (`is_first`, `is_last`, `is_terminal`); arrays of steps with
`episode_ends`, or of episodes with `episode_lengths`. Arrays of Python objects are pickles: they are never loaded.
"""

from __future__ import annotations

from gear_data.errors import GearError, UnknownFormatError
from gear_data.ingest.findings.log import FindingLog
from gear_data.ingest.location import Location
from gear_data.ingest.pipeline.columns import SCALAR_COLUMNS
from gear_data.ingest.pipeline.names import canonical_name
from gear_data.ingest.source import Format, SourceOptions
from gear_data.ingest.sources.arrays.layouts import step_arrays
from gear_data.ingest.sources.arrays.numpy_files import open_npz
from gear_data.ingest.sources.arrays.source import ArraySource, StepArrays

_SUFFIX = ".npz"


def probe(location: Location) -> str | None:
    files = location.with_suffix(_SUFFIX)
    if not files:
        return None
    try:
        names = {canonical_name(name) for name in open_npz(files[0])}
    except GearError:
        return "an .npz file"  # opening it says what is wrong
    if "actions" in names or names & SCALAR_COLUMNS:
        return f"NumPy archives: {files[0].name} holds steps"
    return None


def open_(location: Location, options: SourceOptions) -> ArraySource:
    files = location.with_suffix(_SUFFIX)
    if not files:
        raise UnknownFormatError("holds no .npz file", file=location.name)

    def part(i: int) -> StepArrays:
        arrays = open_npz(files[i])
        return step_arrays(files[i].name, files[i].size, arrays, options, alone=len(files) == 1, seekable=False)

    return ArraySource([file.name for file in files], [file.size for file in files], part, FindingLog())


FORMAT = Format(
    name="npz",
    probe=probe,
    open=open_,
    priority=12,
    uses=frozenset({"episode_column", "step_column", "end_column", "max_episode_steps"}),
    suffixes=(".npz",),
)
