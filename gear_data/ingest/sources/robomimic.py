"""robomimic HDF5: one group per demonstration, filters under `mask/`.

A group `data/demo_{i}` has `actions`, `obs/*`, `next_obs/*`, `rewards`, `dones` and `states`. Isaac Lab, LIBERO and
MimicGen write this layout, too.

Layout: https://robomimic.github.io/docs/datasets/overview.html. The numbers of demonstrations may have gaps. The
attributes that count samples may be wrong, so the datasets are counted. `obs/x` becomes `observations.x`; the last row
of `next_obs/x` is its final observation. The other rows of `next_obs/x` repeat `obs/x` and are not stored.

Most datasets have T rows, one per step. Two other numbers have a meaning:

- One row belongs to the whole episode. Isaac Lab writes `initial_state/*` so: the state after the reset.
- T + 1 rows were taken before each step and after the last one. The last row is the final observation.

Rewards, end flags and actions belong to steps, so they must have T rows. Any other number of rows is an error when the
demonstration is read.

LIBERO writes a file per task. The task in words is `language_instruction` in the attribute `problem_info`, which is
JSON, or `(:language ...)` in the attribute `bddl_file_content`.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import pyarrow as pa

from gear_data.errors import GearError, UnknownFormatError
from gear_data.ingest.findings.log import Finding, FindingLog
from gear_data.ingest.ideas.dataset_facts import dataset_facts
from gear_data.ingest.layout import Column, ColumnRole, EpisodeRule, Kind
from gear_data.ingest.location import Location
from gear_data.ingest.source import Format, SourceOptions
from gear_data.ingest.sources.tree.blocks import MAX_ROW_VALUES
from gear_data.ingest.sources.tree.episodes import EpisodePlace, find_places
from gear_data.ingest.sources.tree.formats import OF_STEPS, Model, TreeFormat, column_by_rows, count_steps, open_format
from gear_data.ingest.sources.tree.hdf5_view import hdf5_trees
from gear_data.ingest.sources.tree.source import Hooks, TreeSource
from gear_data.ingest.sources.tree.view import ARRAY, GROUP, Container, Tree, contents
from gear_data.schema import VARIABLE_TYPES

_STEPS = "actions"
#: The states of the whole simulator, as robosuite flattens them.
_SCENE_STATES = "states"
_OBSERVATIONS, _NEXT_OBSERVATIONS = "obs/", "next_obs/"
#: Isaac Lab's state after the reset. Its own writer writes one row, so there is no finding.
_INITIAL_STATE = "initial_state/"
#: MimicGen's list of source demonstrations, one for each subtask.
_LISTS = frozenset({"src_demo_inds"})
#: The group of the demonstrations, and its attributes that count: steps and demonstrations.
_DATA, _MASKS = "data", "mask"
_COUNTS = ("total", "num_demos")
_EPISODES = EpisodeRule(Kind.GROUPS, (f"{_DATA}/demo_*",), numbered=True)
_BDDL_LANGUAGE = re.compile(r"\(:language\s+([^()]+)\)")


def probe(location: Location) -> str | None:
    """Returns the reason if the first HDF5 file is robomimic's; otherwise None."""
    with suppress(GearError):  # a damaged file is not recognised as robomimic
        first = hdf5_trees(location)[0]
        with first.open() as tree:
            # Isaac Lab writes a demonstration without steps if an environment is reset twice.
            for place in find_places(tree, _EPISODES, None):
                if tree.children(place.key).get(_STEPS) == ARRAY:
                    return f"robomimic HDF5: {place.key} in {first.name} has '{_STEPS}'"
    return None


def open_(location: Location, options: SourceOptions) -> TreeSource:
    """Opens robomimic HDF5 files.

    Raises:
        UnknownFormatError: there is no HDF5 file, or files have no group `data`.
    """
    trees = hdf5_trees(location)
    findings = FindingLog()
    attributes = _attributes(trees, findings)
    shared, own = _file_facts(attributes)
    is_left_out = False
    several = len({facts["task"] for facts in own.values() if "task" in facts}) > 1
    if several and options.columns is None and _SCENE_STATES not in (options.rename or {}):
        is_left_out = _report_differing_states(trees, findings)
    form = TreeFormat(
        episodes=_EPISODES,
        steps=_STEPS,
        column=_column,
        alias=partial(_alias, left_out=_SCENE_STATES if is_left_out else ""),
        declared="num_samples",
        hooks=Hooks(file_facts=lambda tree: _episode_facts(tree, own[tree.name]), check_file=_check_counts),
    )
    source = open_format(form, trees, options, shared)
    source.findings.extend(findings)
    return source


def _alias(path: str, left_out: str) -> str | None:
    return None if path.startswith(_NEXT_OBSERVATIONS) or path == left_out else path


def _column(model: Model, path: str, name: str) -> Column | None:
    array, steps = model.array(path), model.steps
    # In an episode of one step only the name of Isaac Lab's group tells.
    is_row = array.rows == 1 and name not in OF_STEPS and (steps > 1 or path.startswith(_INITIAL_STATE))
    if path in _LISTS or is_row:
        values = math.prod(array.shape)
        if not 0 < values <= MAX_ROW_VALUES:
            message = f"{values} values for the whole episode; a fact has 1 to {MAX_ROW_VALUES}; left out"
            model.add("fact-left-out", message, path)
            return None
        if path in _LISTS or path.startswith(_INITIAL_STATE):
            return Column(name, path, role=ColumnRole.ROWS if path in _LISTS else ColumnRole.ROW)
    if is_row or (array.rows == steps + 1 and name not in OF_STEPS):
        return column_by_rows(model, path, name)
    after = _NEXT_OBSERVATIONS + path.removeprefix(_OBSERVATIONS)
    has_next = path.startswith(_OBSERVATIONS) and after in model.kinds and array.dtype not in VARIABLE_TYPES
    return Column(name, path, next=after if has_next else None)


def _attributes(trees: Sequence[Container], findings: FindingLog) -> dict[str, dict[str, Any]]:
    """Returns name of a file -> the attributes of `data`, without those that count."""
    found: dict[str, dict[str, Any]] = {}
    others: list[str] = []
    for item in trees:
        with item.open() as tree:
            if tree.children("").get(_DATA) != GROUP:
                others.append(item.name)
                continue
            attributes = {key: value for key, value in tree.attributes(_DATA).items() if key not in _COUNTS}
        found[item.name], left_out = dataset_facts(attributes, item.name)
        findings.extend(left_out)
    if others:
        raise UnknownFormatError(
            f"{len(others)} of {len(trees)} HDF5 files have no group '{_DATA}': {', '.join(others[:10])}",
            file=others[0],
            hint="leave --format out" if not found else "convert the files of each layout on their own",
        )
    return found


def _file_facts(attributes: Mapping[str, Mapping[str, Any]]) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """Returns the attributes that all files share, and name of a file -> the others and the task."""
    first = next(iter(attributes.values()))
    shared = {
        key: value
        for key, value in first.items()
        if all(key in facts and facts[key] == value for facts in attributes.values())
    }
    names = dict.fromkeys(key for facts in attributes.values() for key in facts if key not in shared)
    own = {file: {key: facts.get(key) for key in names} for file, facts in attributes.items()}
    for file, facts in attributes.items():
        if (task := _task(facts)) is not None:
            own[file]["task"] = task
    return shared, own


def _task(attributes: Mapping[str, Any]) -> str | None:
    """Returns LIBERO's instruction; None if the file has none."""
    try:
        problem = json.loads(str(attributes.get("problem_info", "")))
    except (ValueError, RecursionError):
        problem = None
    text = problem.get("language_instruction") if isinstance(problem, dict) else None
    if isinstance(text, list):  # words, as a BDDL parser returns them
        text = " ".join(map(str, text))
    if not isinstance(text, str):
        match = _BDDL_LANGUAGE.search(str(attributes.get("bddl_file_content", "")))
        text = match[1] if match else ""
    return text.strip().strip('"').strip() or None


def _episode_facts(tree: Tree, own: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Returns path of a demonstration -> the facts of its file, and the names of its filters, joined by commas."""
    masks: dict[str, list[str]] = {}
    for name, kind in contents(tree, _MASKS).items():
        listed = tree.array(f"{_MASKS}/{name}") if kind == ARRAY else None
        if listed is not None and listed.shape:
            demos = listed.read(0, listed.rows)
            for demo in demos.to_pylist() if isinstance(demos, pa.Array) else demos.reshape(-1).tolist():
                masks.setdefault(f"{_DATA}/{demo}", []).append(name)
    filters = {path: {"mask": ",".join(names)} for path, names in masks.items()}
    if not own:
        return filters
    places = find_places(tree, _EPISODES, None)
    return {place.key: {**own, "mask": None, **filters.get(place.key, {})} for place in places}


def _report_differing_states(trees: Sequence[Container], findings: FindingLog) -> bool:
    """Returns whether the states of the simulator differ in width between files, which is a finding.

    A scene of each task has its own objects, and `states` holds the state of all of them. A column has one shape.
    """
    shapes: dict[tuple[int, ...], str] = {}
    for item in trees:
        with item.open() as tree:
            for place in find_places(tree, _EPISODES, None)[:1]:
                if (states := tree.array(place.path(_SCENE_STATES))) is not None:
                    shapes.setdefault(states.shape[1:], item.name)
    if len(shapes) < 2:
        return False
    (shape, first), (other_shape, other) = list(shapes.items())[:2]
    message = (
        f"has rows of shape {shape} in {first} and {other_shape} in {other}: each task has its own scene; left out"
    )
    findings.add(Finding("column-left-out", message, 1, other, column=_SCENE_STATES))
    return True


def _check_counts(tree: Tree, places: Sequence[EpisodePlace], findings: FindingLog) -> None:
    declared = tree.attributes(_DATA)
    steps = sum(count_steps(tree, place, _STEPS) for place in places)
    for key, unit, counted in zip(_COUNTS, ("steps", "demonstrations"), (steps, len(places)), strict=True):
        if declared.get(key) not in (None, counted):
            message = f"'{key}' is {declared[key]}, but there are {counted} {unit}; all are read"
            findings.add(Finding("metadata-disagrees", message, file=tree.name, column=key))


FORMAT = Format("robomimic", probe, open_, uses=frozenset({"dtype"}), suffixes=(".hdf5", ".h5"))
