"""Facts of a file about all its demonstrations: attributes, filters, the task.

LIBERO writes a file per task. The task in words is `language_instruction` in the attribute `problem_info`, which is
JSON, or `(:language ...)` in the attribute `bddl_file_content`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import h5py

from gear_data.errors import UnknownFormatError
from gear_data.ingest.findings.log import Finding
from gear_data.ingest.location import SourceFile
from gear_data.ingest.sources.hdf5.attributes import attribute_facts, plain_value
from gear_data.ingest.sources.hdf5.datasets import check_dataset
from gear_data.ingest.sources.hdf5.heap_checks import check_heaps
from gear_data.ingest.sources.hdf5.inventory import inventory
from gear_data.ingest.sources.hdf5.open_file import open_hdf5, reading

#: The group of the demonstrations, and its attributes that count: steps and demonstrations.
DATA = "data"
TOTAL, DEMONSTRATIONS = "total", "num_demos"
_MASKS = "mask"
_PROBLEM, _INSTRUCTION, _BDDL = "problem_info", "language_instruction", "bddl_file_content"
_BDDL_LANGUAGE = re.compile(r"\(:language\s+([^()]+)\)")


@dataclass(frozen=True)
class FileFacts:
    """The attributes of `data` in all files.

    Attributes:
        shared: name -> value that all files have. They are facts of the dataset.
        own: a mapping per file, name -> value of the other attributes, and `task`. They are facts of the episodes.
        findings: attributes that cannot be facts.
    """

    shared: Mapping[str, Any]
    own: tuple[Mapping[str, Any], ...]
    findings: tuple[Finding, ...]

    @property
    def has_several_tasks(self) -> bool:
        """Whether the files are about several tasks."""
        return len({facts["task"] for facts in self.own if "task" in facts}) > 1


def read_file_facts(files: Sequence[SourceFile]) -> FileFacts:
    """Reads the attributes of `data` in all files.

    Raises:
        UnknownFormatError: files have no group `data`.
    """
    found: list[dict[str, Any]] = []
    others: list[str] = []
    findings: list[Finding] = []
    for file in files:
        with open_hdf5(file) as opened, reading(file.name):
            data = opened.get(DATA)
            if not isinstance(data, h5py.Group):
                others.append(file.name)
                continue
            facts, unreadable = attribute_facts(data, {TOTAL, DEMONSTRATIONS})
        found.append(facts)
        for name in unreadable:
            message = f"an attribute of '{DATA}' that is not a number or a short text; left out"
            findings.append(Finding("fact-left-out", message, 1, file.name, column=name))
    if others:
        raise UnknownFormatError(
            f"{len(others)} of {len(files)} HDF5 files have no group '{DATA}': {', '.join(others[:10])}",
            file=others[0],
            hint="leave --format out" if not found else "convert the files of each layout on their own",
        )
    names = dict.fromkeys(name for facts in found for name in facts)
    shared = {name: found[0][name] for name in names if all(_has(facts, name, found[0]) for facts in found)}
    own = [{name: facts.get(name) for name in names if name not in shared} for facts in found]
    for facts, attributes in zip(own, found, strict=True):
        if (task := _task(attributes)) is not None:
            facts["task"] = task
    return FileFacts(shared, tuple(own), tuple(findings))


def _has(facts: Mapping[str, Any], name: str, first: Mapping[str, Any]) -> bool:
    return name in facts and name in first and facts[name] == first[name]


def _task(attributes: Mapping[str, Any]) -> str | None:
    """Returns LIBERO's instruction; None if the file has none."""
    try:
        problem = json.loads(str(attributes.get(_PROBLEM, "")))
    except (ValueError, RecursionError):
        problem = None
    text = problem.get(_INSTRUCTION) if isinstance(problem, dict) else None
    if isinstance(text, list):  # words, as a BDDL parser returns them
        text = " ".join(map(str, text))
    if not isinstance(text, str):
        match = _BDDL_LANGUAGE.search(str(attributes.get(_BDDL, "")))
        text = match[1] if match else ""
    return text.strip().strip('"').strip() or None


def read_filters(file: h5py.File, source: SourceFile) -> Mapping[str, str]:
    """Returns demonstration -> the names of its filters, joined by commas."""
    masks: dict[str, list[str]] = {}
    if isinstance(file.get(_MASKS), h5py.Group):
        for mask, listed in inventory(file[_MASKS], source.name)[0].items():
            check_heaps(listed)
            check_dataset(listed.id, source, f"{_MASKS}/{mask}")
            for demo in map(plain_value, listed[...].reshape(-1).tolist()):
                masks.setdefault(str(demo), []).append(mask)
    return {demo: ",".join(names) for demo, names in masks.items()}
