"""Refuses rows that may be steps, or only the final observations of episodes.

RLDS and Dreamer mark the rows of an episode by `is_first`, `is_last` and `is_terminal`. Their last row has no valid
action. Others write the same names beside rows that are all steps.
"""

from __future__ import annotations

from gear_data.errors import UnknownFormatError
from gear_data.ingest.pipeline.columns import END_FLAGS, ONE_VALUE, other_flags
from gear_data.ingest.source import EpisodeSource

_FIRST = "is_first"
_LAST = {"is_last": "dones", "is_terminal": "terminated"}


def refuse_unclear_last_rows(source: EpisodeSource, file: str) -> None:
    """Refuses a source whose last rows are not clear.

    They are steps if the source has the final observations elsewhere, or end flags of usual names.

    Args:
        source: the source.
        file: the name of the source, for the error.

    Raises:
        UnknownFormatError: the names are those of RLDS, and nothing else says what the last row of an episode is.
    """
    names = {spec.name: spec.source or spec.name for spec in source.columns if spec.shape in ONE_VALUE}
    last = next((name for name in _LAST if name in other_flags(names)), None)
    if last is None or _FIRST not in names or END_FLAGS & names.keys() or any(s.has_final for s in source.columns):
        return
    raise UnknownFormatError(
        f"could mean two things: the row of '{names[last]}' may be a step, or only the final observation (RLDS, "
        "Dreamer)",
        file=file,
        column=names[_FIRST],
        hint=f"if it is a step: --rename {names[last]}={_LAST[last]}; if it is the final observation, save the arrays "
        "with numpy.savez, under the names that RLDS or Dreamer uses, and convert the .npz files",
    )
