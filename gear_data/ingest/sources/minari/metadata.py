"""Minari's `metadata.json`: spaces, and facts about the dataset.

Layout: https://minari.farama.org/content/dataset_standards. The file stores each space as JSON text, with bounds for
every element. Nested Dict and Tuple spaces are flattened to dotted names here, as columns are.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gear_data.errors import CorruptSourceError
from gear_data.ingest.findings.log import Finding, FindingLog
from gear_data.ingest.ideas.dataset_facts import dataset_facts
from gear_data.ingest.location import SourceFile
from gear_data.ingest.sources.json_files import json_object, read_json_object

METADATA = "metadata.json"

#: Longer texts and lists are not kept among the facts, in characters of JSON.
_MAX_FACT = 10_000
_MAX_DEPTH = 32
_HINT = "download the dataset again, or write it again with Minari"
_SPACES = {"observations": "observation_space", "actions": "action_space"}
#: Facts about one space that are kept. Bounds per element and character sets are not.
_SPACE_FACTS = ("type", "dtype", "shape", "n", "nvec", "start", "min_length", "max_length")


@dataclass(frozen=True)
class MinariMetadata:
    """The contents of `metadata.json`.

    Attributes:
        shapes: dotted column name, such as `observations.image` or `actions.0`, -> the shape of one step.
        total_episodes: the declared number of episodes, possibly wrong; None if not declared.
        total_steps: the declared number of steps, possibly wrong; None if not declared.
        facts: all other values of bounded size, JSON-able; spaces without their bounds.
        left_out: about values that are no facts.
    """

    shapes: Mapping[str, tuple[int, ...]]
    total_episodes: int | None
    total_steps: int | None
    facts: Mapping[str, Any]
    left_out: tuple[Finding, ...]

    def check_counts(self, episodes: int, steps: int | None, findings: FindingLog) -> None:
        """Adds a finding for each declared total that differs from the count, and for each value that is no fact.

        `steps` is None if not counted.
        """
        findings.extend(self.left_out)
        for unit, declared, counted in (
            ("episodes", self.total_episodes, episodes),
            ("steps", self.total_steps, steps),
        ):
            if declared is not None and counted is not None and declared != counted:
                message = f"total_{unit} is {declared}, but there are {counted}; all are read"
                findings.add(Finding("metadata-disagrees", message, file=METADATA, column=f"total_{unit}"))


def read_metadata(file: SourceFile) -> MinariMetadata:
    """Reads a `metadata.json`.

    Raises:
        CorruptSourceError: the file is not a JSON object, is too large, or has an invalid space.
    """
    file.check_readable()
    return parse_metadata(read_json_object(file), file.name)


def parse_metadata(raw: Mapping[str, Any], file: str) -> MinariMetadata:
    """Parses a metadata object; `file` is for errors.

    Raises CorruptSourceError for an invalid space.
    """
    shapes: dict[str, tuple[int, ...]] = {}
    facts = {key: value for key, value in raw.items() if key not in _SPACES.values()}
    for column, key in _SPACES.items():
        space = raw.get(key)
        if space is None:
            continue
        if isinstance(space, str | bytes):
            space = json_object(space, file, column=key)
        facts[key] = _read_space(space, column, f"{file} {key}", 0, shapes)
    too_large = dict.fromkeys(key for key, value in facts.items() if not _is_small(value))
    return MinariMetadata(
        shapes=shapes,
        total_episodes=_count(raw.get("total_episodes")),
        total_steps=_count(raw.get("total_steps")),
        facts={key: value for key, value in facts.items() if key not in too_large},
        left_out=dataset_facts(too_large, file)[1],
    )


def _read_space(space: Any, name: str, where: str, depth: int, shapes: dict[str, tuple[int, ...]]) -> dict[str, Any]:
    """Returns a space without bounds and character sets.

    Args:
        space: the space.
        name: its dotted name.
        where: the file and the key, for errors.
        depth: the number of spaces around it.
        shapes: receives the shapes of the spaces that have no subspaces, by dotted name.
    """
    if not isinstance(space, dict) or depth > _MAX_DEPTH:
        raise CorruptSourceError(f"'{name}' is not a space", file=where, hint=_HINT)
    kept = {key: space[key] for key in _SPACE_FACTS if key in space}
    kind, subspaces = str(space.get("type")), space.get("subspaces")
    if kind == "Dict" and isinstance(subspaces, dict):
        kept["subspaces"] = {
            key: _read_space(each, f"{name}.{key.replace('/', '.')}", where, depth + 1, shapes)
            for key, each in subspaces.items()
        }
    elif kind == "Tuple" and isinstance(subspaces, list):
        kept["subspaces"] = [
            _read_space(each, f"{name}.{index}", where, depth + 1, shapes) for index, each in enumerate(subspaces)
        ]
    else:
        shapes[name] = _shape(kind, space, name, where)
    return kept


def _shape(kind: str, space: Mapping[str, Any], name: str, where: str) -> tuple[int, ...]:
    shape = space.get("shape", ())
    if kind == "MultiBinary":
        shape = space.get("n", ())
    elif kind == "MultiDiscrete":
        nvec = space.get("nvec", ())
        shape = []
        while isinstance(nvec, list) and nvec:
            shape.append(len(nvec))
            nvec = nvec[0]
    sides = [shape] if isinstance(shape, int) else shape
    if not isinstance(sides, list | tuple) or not all(type(n) is int and n >= 0 for n in sides):
        raise CorruptSourceError(f"'{name}' has shape {shape!r}, not a list of sizes", file=where, hint=_HINT)
    return tuple(sides)


def _is_small(value: object) -> bool:
    try:
        return len(json.dumps(value)) <= _MAX_FACT
    except (TypeError, ValueError, RecursionError):
        return False


def _count(value: object) -> int | None:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return int(value) if isinstance(value, int | float) else None
