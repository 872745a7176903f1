"""Layout of HDF5 files with one numbered group per episode.

The groups have names such as `episode_12` or `demo_12`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import h5py
from h5py import h5d, h5g, h5l, h5o

from gear_data.errors import BadEpisodeError, CorruptSourceError, GearError
from gear_data.ingest.findings.log import FindingLog
from gear_data.ingest.location import SourceFile
from gear_data.ingest.sources.hdf5.open_file import reading

#: Digits of an episode's number, so that it fits int64.
MAX_DIGITS = 18


@dataclass(frozen=True)
class GroupLayout:
    """Where the files of one format have their episodes.

    Attributes:
        parent: path of the group that holds the episodes; "/" for the file itself.
        prefix: start of the episodes' names; a number follows.
        steps: path of the dataset whose rows are an episode's steps.
        declared: attribute of an episode that declares its number of steps.
        ignored: attributes of an episode that are not kept as facts.
        facts: reads further facts from a file: name of an episode -> its facts.
        check: checks a file as a whole, when its first episode is read. The arguments are the file, its name, its
            number of episodes, its total number of steps, and the log that receives findings.
    """

    parent: str
    prefix: str
    steps: str
    declared: str
    ignored: frozenset[str]
    facts: Callable[[h5py.File, SourceFile], Mapping[str, Mapping[str, Any]]]
    check: Callable[[h5py.File, str, int, int, FindingLog], None]

    def episodes(self, file: h5py.File, name: str) -> list[tuple[int, str]]:
        """Lists the episodes of a file as (number, group name), sorted by number.

        Raises:
            CorruptSourceError: two groups have the same number.
        """
        pattern = re.compile(rf"{re.escape(self.prefix)}([0-9]{{1,{MAX_DIGITS}}})")
        with reading(name):
            found = sorted((int(match[1]), key) for key in file[self.parent] if (match := pattern.fullmatch(key)))
        for (number, key), (next_number, next_key) in pairwise(found):
            if number == next_number:
                raise CorruptSourceError(
                    f"groups '{key}' and '{next_key}' have the same number",
                    file=name,
                    row=number,
                    hint="rename one of the two groups",
                )
        return found

    def group(self, parent: h5py.Group, name: str, number: int, key: str) -> h5py.Group:
        """Opens an episode's group. Raises BadEpisodeError if `key` is not a group."""
        with reading(name, row=number):
            encoded = key.encode()
            if parent.id.links.get_info(encoded).type == h5l.TYPE_HARD:
                item = h5o.open(parent.id, encoded)
                if isinstance(item, h5g.GroupID):
                    return h5py.Group(item)
        raise BadEpisodeError(f"'{key}' is not a group of this file", file=name, row=number)

    def count_steps(self, parent: h5py.Group, name: str, number: int, key: str) -> int:
        """Counts the rows of an episode's steps dataset.

        Returns 0 for a bad episode, which is reported when it is read.
        """
        steps = self.steps.encode()
        try:
            with reading(name):
                group = self.group(parent, name, number, key)
                if group.id.links.get_info(steps).type == h5l.TYPE_HARD:
                    return int(h5d.open(group.id, steps).shape[0])
        except GearError:
            pass
        return 0
