"""Columns and end rule of a D4RL source.

They are taken from the first file with steps, and the other files are checked against them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import h5py

from gear_data.errors import BadEpisodeError, CorruptSourceError, UnknownFormatError, UnsupportedColumnError
from gear_data.ingest.location import SourceFile, separate_datasets_hint
from gear_data.ingest.pipeline.columns import choose_columns
from gear_data.ingest.pipeline.names import DONES, canonical_name, name_map
from gear_data.ingest.source import SourceOptions
from gear_data.ingest.sources.d4rl.episode_ends import EndRule
from gear_data.ingest.sources.hdf5.attributes import attribute_facts, plain_value
from gear_data.ingest.sources.hdf5.datasets import check_dataset, hold_images, step_spec
from gear_data.ingest.sources.hdf5.heap_checks import check_heaps
from gear_data.ingest.sources.hdf5.inventory import LEAVE_OUT, SCALAR, inventory, links_of, refuse_links
from gear_data.ingest.sources.hdf5.open_file import reading
from gear_data.schema import ColumnSpec

REQUIRED = ("observations", "actions", "rewards", "terminals")
_METADATA = "metadata/"
_MAX_STEPS = "max_episode_steps"


@dataclass(frozen=True)
class D4rlLayout:
    """Columns and end rule of a source, taken from one file.

    Attributes:
        file: name of the file that the layout was taken from.
        rows: number of steps in that file.
        observations: name of the dataset of observations.
        sources: name of a dataset -> canonical name of its column, for the columns to read.
        columns: the columns to read, in the order of `sources`.
        end_rule: finds the episodes' ends.
        has_final: whether observations have a final observation.
        metadata: facts about the source.
    """

    file: str
    rows: int
    observations: str
    sources: Mapping[str, str]
    columns: tuple[ColumnSpec, ...]
    end_rule: EndRule
    has_final: bool
    metadata: Mapping[str, Any]

    @property
    def row_bytes(self) -> int:
        """Bytes of one step, at least 1."""
        return max(1, sum(spec.row_bytes for spec in self.columns))


def read_layout(file: h5py.File, name: str, options: SourceOptions) -> D4rlLayout:
    """Reads the layout from an open file with this name.

    Raises:
        UnknownFormatError: a required dataset is missing.
        UnsupportedColumnError: a column to read is a link, or does not hold numbers.
    """
    datasets, non_columns = inventory(file, name)
    datasets = {path: dataset for path, dataset in datasets.items() if not path.startswith(_METADATA)}
    metadata = _read_metadata(file, non_columns, name)
    candidates = [*datasets, *(path for path in links_of(non_columns) if not path.startswith(_METADATA))]
    by_name = {column: source for source, column in name_map(candidates, options.rename).items()}
    for required in REQUIRED:
        if canonical_name(required) not in by_name:
            raise UnknownFormatError(
                f"has no dataset '{required}'",
                file=name,
                column=required,
                hint=f"rename it with --rename NAME={canonical_name(required)}, or leave --format out",
            )
    next_observations, timeouts, dones = (by_name.get(name) for name in ("next_observations", "truncated", DONES))
    observations = by_name["observations"]
    max_steps = None
    if timeouts is None and dones is None and next_observations is None:
        max_steps = _max_steps(options.episodes.max_episode_steps, metadata, name)
    chosen = choose_columns(candidates, options)
    needed = {*chosen, observations, *([next_observations] if next_observations else [])}
    refuse_links(non_columns, needed, name)
    keeps_next = options.columns is not None and "next_observations" in options.columns
    sources = {source: column for source, column in chosen.items() if keeps_next or column != "next_observations"}
    has_final = next_observations is not None and "observations" in sources.values()
    return D4rlLayout(
        file=name,
        rows=int(datasets[observations].shape[0]),
        observations=observations,
        sources=sources,
        columns=tuple(
            _column(datasets, source, column, name, has_final and column == "observations")
            for source, column in sources.items()
        ),
        end_rule=EndRule(by_name["terminated"], timeouts, dones, next_observations, max_steps),
        has_final=has_final,
        metadata=metadata,
    )


def check_file(file: h5py.File, source: SourceFile, layout: D4rlLayout, files: tuple[SourceFile, ...]) -> int:
    """Checks a file against the layout, and returns its number of steps.

    Args:
        file: the open file.
        source: the same file, as it was located.
        layout: the layout of the source.
        files: all files of the source, for the error's hint.

    Raises:
        CorruptSourceError: a dataset is missing, or has another dtype or shape than in the layout's file.
        BadEpisodeError: the datasets have different lengths.
    """
    name = source.name
    datasets, non_columns = inventory(file, name)
    next_observations = layout.end_rule.next_observations
    names = [*layout.sources, *([next_observations] if next_observations else []), layout.observations]
    refuse_links(non_columns, names, name)
    hint = separate_datasets_hint([file.name for file in files], layout.file, name)
    for column in names:
        if column not in datasets:
            raise CorruptSourceError(f"is missing; {layout.file} has it", file=name, column=column, hint=hint)
        with reading(name, column):
            check_dataset(datasets[column].id, source, column)
            if hold_images(datasets[column]):
                raise _no_numbers("encoded images", name, column)
    rows = int(datasets[layout.observations].shape[0])
    for column in names:
        own_rows = int(datasets[column].shape[0])
        if own_rows != rows:
            raise BadEpisodeError(
                f"has {own_rows} rows, where '{layout.observations}' has {rows}",
                file=name,
                column=column,
                row=min(rows, own_rows),
                hint="repair the file, or name the columns of equal length with --columns (columns=[...])",
            )
    if rows:
        _check_columns(datasets, name, layout, hint)
    return rows


def _check_columns(datasets: Mapping[str, h5py.Dataset], name: str, layout: D4rlLayout, hint: str | None) -> None:
    """Checks dtypes and shapes of a file's datasets against the layout."""
    next_observations = layout.end_rule.next_observations
    if next_observations is not None:
        model, found = (_column(datasets, n, n, name) for n in (layout.observations, next_observations))
        if (model.dtype, model.shape) != (found.dtype, found.shape):
            raise CorruptSourceError(
                f"is {found.dtype} {found.shape}, where '{layout.observations}' is {model.dtype} {model.shape}",
                file=name,
                column=next_observations,
                hint="final observations must have the dtype and shape of the other observations; convert a copy of "
                "the file without this dataset",
            )
    for source, spec in zip(layout.sources, layout.columns, strict=True):
        found = _column(datasets, source, spec.name, name, spec.has_final)
        if found != spec:
            raise CorruptSourceError(
                f"is {found.dtype} {found.shape}, in {layout.file} {spec.dtype} {spec.shape}",
                file=name,
                column=source,
                hint=hint,
            )


def _column(
    datasets: Mapping[str, h5py.Dataset], source: str, name: str, file: str, has_final: bool = False
) -> ColumnSpec:
    with reading(file, source):
        spec = step_spec(datasets[source], source, name, file, has_final=has_final)
    if spec.variable_length:
        raise _no_numbers(f"{spec.dtype} values", file, source)
    return spec


def _no_numbers(found: str, file: str, column: str) -> UnsupportedColumnError:
    return UnsupportedColumnError(
        f"holds {found}, where D4RL's columns hold numbers",
        file=file,
        column=column,
        hint=f"read it with --map: 'gear-data lint SRC --suggest-map' writes a mapping; or {LEAVE_OUT}",
    )


def _read_metadata(file: h5py.File, non_columns: Mapping[str, str], name: str) -> dict[str, Any]:
    """Reads the attributes of the file, and its scalars."""
    with reading(name):
        facts, _ = attribute_facts(file, ())
        for path in (path for path, kind in non_columns.items() if kind == SCALAR):
            check_heaps(file[path])
            if (value := plain_value(file[path][()])) is not None:
                facts[path.removeprefix(_METADATA)] = value
    return facts


def _max_steps(option: int | None, metadata: Mapping[str, Any], file: str) -> int | None:
    """Returns the number of steps after which episodes were truncated.

    The option comes before the file's metadata.
    """
    max_steps = metadata.get(_MAX_STEPS) if option is None else option
    if max_steps is None:
        return None
    if type(max_steps) is not int or max_steps < 1:
        raise CorruptSourceError(
            f"'{_MAX_STEPS}' is {max_steps!r}, not a number of steps",
            file=file,
            hint="give the number of steps with --max-episode-steps N "
            "(episodes=EpisodeBoundaries(max_episode_steps=N))",
        )
    return max_steps
