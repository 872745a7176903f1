"""The meaning of the datasets of a demonstration, by their numbers of rows.

Most datasets have T rows, one per step. Two other numbers have a meaning:

- One row belongs to the whole episode. Isaac Lab writes `initial_state/*` so: the state after the reset.
- T + 1 rows were taken before each step and after the last one. The last row is the final observation.

Rewards, end flags and actions belong to steps, so they must have T rows. Any other number of rows is an error when the
demonstration is read.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

import h5py

from gear_data.ingest.findings.log import Finding
from gear_data.ingest.pipeline.columns import SCALAR_COLUMNS, choose_columns
from gear_data.ingest.source import SourceOptions
from gear_data.ingest.sources.hdf5.datasets import step_spec
from gear_data.ingest.sources.hdf5.episode_reader import MAX_FACT_VALUES, GroupColumn, GroupContents
from gear_data.ingest.sources.hdf5.inventory import links_of, refuse_links
from gear_data.ingest.sources.hdf5.open_file import reading

#: The dataset whose rows are the steps.
STEPS = "actions"
#: The states of the whole simulator, as robosuite flattens them.
SCENE_STATES = "states"
_OBSERVATIONS, _NEXT_OBSERVATIONS = "obs/", "next_obs/"
#: Isaac Lab's state after the reset. Its own writer writes one row, so there is no finding.
_INITIAL_STATE = "initial_state/"
#: MimicGen's list of source demonstrations, one for each subtask.
_LISTS = frozenset({"src_demo_inds"})
#: Columns that belong to steps.
_OF_STEPS = SCALAR_COLUMNS | {"actions"}


def describe(
    datasets: Mapping[str, h5py.Dataset], non_columns: Mapping[str, str], file: str, options: SourceOptions
) -> GroupContents:
    """Returns the columns and facts of a demonstration.

    Args:
        datasets: path -> dataset.
        non_columns: path -> kind of the entries that cannot be columns, as `inventory` returns them.
        file: the name of the file, for errors and findings.
        options: the user's choice of columns.

    Raises:
        UnsupportedColumnError: a chosen column is a link, or has a type that no column has.
    """
    paths = [path for path in [*datasets, *links_of(non_columns)] if not path.startswith(_NEXT_OBSERVATIONS)]
    chosen = choose_columns(paths, options)
    refuse_links(non_columns, chosen, file)
    steps = datasets[STEPS].shape[0]
    columns: list[GroupColumn] = []
    facts: list[GroupColumn] = []
    findings: list[Finding] = []
    for path, name in chosen.items():
        if not _is_fact(path, name, datasets[path].shape[0], steps):
            columns.append(_column(path, name, datasets, steps, file, findings))
        elif 0 < (values := math.prod(datasets[path].shape)) <= MAX_FACT_VALUES:
            with reading(file, path):
                spec = step_spec(datasets[path], path, name, file)
            facts.append(GroupColumn(spec, path, is_list=path in _LISTS))
            if path not in _LISTS and not path.startswith(_INITIAL_STATE):
                message = f"has one row for {steps} steps; it becomes a fact of the episode"
                findings.append(Finding("row-per-episode", message, 1, file, column=path))
        else:
            message = f"{values} values for the whole episode; a fact has 1 to {MAX_FACT_VALUES}; left out"
            findings.append(Finding("fact-left-out", message, 1, file, column=path))
    return GroupContents(tuple(columns), tuple(facts), tuple(findings))


def _is_fact(path: str, name: str, rows: int, steps: int) -> bool:
    """Returns whether a dataset belongs to the whole episode.

    In an episode of one step only the name of Isaac Lab's group tells.
    """
    if path in _LISTS:
        return True
    return rows == 1 and name not in _OF_STEPS and (steps > 1 or path.startswith(_INITIAL_STATE))


def _column(
    path: str, name: str, datasets: Mapping[str, h5py.Dataset], steps: int, file: str, findings: list[Finding]
) -> GroupColumn:
    if datasets[path].shape[0] == steps + 1 and name not in _OF_STEPS:
        final: str | None = path
        message = "has T + 1 rows for T steps; the last row is kept as the final observation"
        findings.append(Finding("row-after-last-step", message, 1, file, column=path))
    else:
        next_path = _NEXT_OBSERVATIONS + path.removeprefix(_OBSERVATIONS) if path.startswith(_OBSERVATIONS) else None
        final = next_path if next_path in datasets else None
    with reading(file, path):
        spec = step_spec(datasets[path], path, name, file, has_final=final is not None)
    if final == path:  # also of text, whose final observations are reported as left out
        return GroupColumn(replace(spec, has_final=True), path, final)
    return GroupColumn(spec, path, final if spec.has_final else None)
