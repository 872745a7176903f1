"""The episode fact `embodiment`, which names the source of each episode."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePosixPath

from gear_data.errors import InvalidArgumentError

#: The column of the episode table.
EMBODIMENT = "embodiment"


def embodiment_names(sources: Sequence[str]) -> list[str]:
    """Returns a short name for each source: the last part of its path or URL.

    Sources with the same last part get more parts, until all names differ: `a/train`, `b/train`.

    Raises:
        InvalidArgumentError: a source is given twice.
    """
    parts = [[part for part in PurePosixPath(source.split("://")[-1]).parts if part != "/"] for source in sources]
    for count in range(1, max(map(len, parts)) + 1):
        names = ["/".join(part[-count:]) for part in parts]
        if len(set(names)) == len(names):
            return names
    twice = next((source for source in sources if sources.count(source) > 1), ", ".join(sources))
    raise InvalidArgumentError(
        "the source is given twice, and its episodes could not be told apart", file=twice, hint="give it once"
    )
