"""The episode fact `embodiment`, which names the source of each episode."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePosixPath

from gear_data.errors import InvalidArgumentError
from gear_data.ingest.source import DATA_SUFFIXES

#: The column of the episode table.
EMBODIMENT = "embodiment"


def embodiment_names(sources: Sequence[str]) -> list[str]:
    """Returns a short name for each source: the last part of its path or URL.

    The suffix of a file is left out. Sources with the same last part get more parts, until all names differ: `a/train`,
    `b/train`.

    Raises:
        InvalidArgumentError: a source is given twice.
    """
    for shorten in (True, False):
        parts = [_parts(source, shorten) for source in sources]
        for count in range(1, max(map(len, parts)) + 1):
            names = ["/".join(part[-count:]) for part in parts]
            if len(set(names)) == len(names):
                return names
    twice = next((source for source in sources if sources.count(source) > 1), ", ".join(sources))
    raise InvalidArgumentError(
        "the source is given twice, and its episodes could not be told apart", file=twice, hint="give it once"
    )


def _parts(source: str, shorten: bool) -> list[str]:
    """Returns the parts of a path or URL.

    With `shorten` the suffix of a data file is left out.
    """
    path = PurePosixPath(source.split("://")[-1])
    if shorten and path.suffix.lower() in DATA_SUFFIXES:
        path = path.with_suffix("")
    return [part for part in path.parts if part != "/"]
