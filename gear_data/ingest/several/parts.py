"""The parts of a conversion of several sources or splits."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gear_data.common.paths import is_remote, plain_path
from gear_data.errors import InvalidArgumentError
from gear_data.ingest.location import Location, locate
from gear_data.ingest.several.embodiments import embodiment_names

#: The value of `split` that means every split of a source, each as a part.
ALL_SPLITS = "all"


@dataclass(frozen=True)
class SourcePart:
    """One source, or one split of it.

    Attributes:
        source: a path, a URL, a hub id, or an object in memory.
        split: the split to read; None if the source has only one.
        embodiment: the name of the source among several. None if there is one source, or if its episodes have the fact
            already, such as the episodes of a merged dataset.
    """

    source: Any
    split: str | None
    embodiment: str | None

    @property
    def name(self) -> str:
        """The name of the part, for messages."""
        name = str(self.source) if isinstance(self.source, str | os.PathLike) else type(self.source).__name__
        return name if self.split is None else f"{name} ({self.split})"


def plain_source(source: Any) -> Any:
    """Returns a source with paths as text.

    A list or tuple of paths is several sources, as a tuple; if it has one path, that path. An iterable of anything else
    holds episodes: no episode is a path.

    Raises:
        InvalidArgumentError: some items are paths, and others are not.
    """
    if isinstance(source, str | os.PathLike):
        return plain_path(source)
    if not isinstance(source, list | tuple) or not source:
        return source
    paths = [isinstance(item, str | os.PathLike) for item in source]
    if not any(paths):
        return source
    if not all(paths):
        other = source[paths.index(False)]
        raise InvalidArgumentError(
            f"a list of sources must hold only paths, URLs and hub ids, but holds {type(other).__name__}, too",
            hint="convert episodes in memory separately, then use gear_data.merge",
        )
    return plain_path(source[0]) if len(source) == 1 else tuple(map(plain_path, source))


def source_parts(source: Any, splits_of: Sequence[Sequence[str | None]]) -> tuple[SourcePart, ...]:
    """Returns the parts of a source of `plain_source`.

    Args:
        source: one source, or a tuple of paths.
        splits_of: the splits of each source.

    Raises:
        InvalidArgumentError: a source is given twice.
    """
    if not isinstance(source, tuple):
        return tuple(SourcePart(source, split, None) for split in splits_of[0])
    places = [os.path.realpath(item) if not is_remote(item) and os.path.exists(item) else item for item in source]
    return tuple(
        SourcePart(item, split, name)
        for item, name, splits in zip(source, embodiment_names(places), splits_of, strict=True)
        for split in splits
    )


def check_splits(split: Any) -> str | tuple[str, ...] | None:
    """Checks the argument `split` and returns it; a list of several as a tuple.

    Raises:
        InvalidArgumentError: it is no text and no list of different texts.
    """
    if split is None or isinstance(split, str):
        return split
    if not isinstance(split, list | tuple) or not split or not all(isinstance(name, str) for name in split):
        raise InvalidArgumentError(f"split must be a name, a list of names or 'all', not {split!r}")
    if len(set(split)) < len(split) or (ALL_SPLITS in split and len(split) > 1):
        raise InvalidArgumentError(f"the splits overlap: {', '.join(split)}", hint="give each split once")
    return split[0] if len(split) == 1 else tuple(split)


def locate_parts(parts: Sequence[SourcePart], follow_links: bool) -> Location:
    """Locates all parts. Raises the errors of `locate`."""
    locations = tuple(locate(part.source, part.split, follow_links=follow_links) for part in parts)
    files = {(str(file.filesystem), file.path): file for location in locations for file in location.files}
    return Location(
        ", ".join(dict.fromkeys(location.name for location in locations)), tuple(files.values()), parts=locations
    )
