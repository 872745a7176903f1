"""D4RL HDF5: flat datasets whose `terminals` and `timeouts` end the episodes.

Layout: https://github.com/Farama-Foundation/D4RL: `observations` (N, S), `actions` (N, A), `rewards` and `terminals`
(N,) or (N, 1), optionally `timeouts`, `next_observations`, `infos/*`, `metadata/*`.

Without `timeouts` an episode ends where `next_observations[t]` differs from `observations[t + 1]`. Without both, it
ends after `max_episode_steps` steps: from the option, else from the file (a scalar or attribute under `metadata` or at
the root).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np

from gear_data.errors import CorruptSourceError, EmptySourceError, UnknownFormatError
from gear_data.ingest.findings.log import Finding
from gear_data.ingest.ideas.dataset_facts import dataset_facts
from gear_data.ingest.layout import Column, EndsAre, EpisodeRule, Kind, Layout
from gear_data.ingest.location import Location
from gear_data.ingest.pipeline.columns import choose_columns
from gear_data.ingest.pipeline.end_flags import end_flag_columns
from gear_data.ingest.pipeline.mapped_source import MappedSource
from gear_data.ingest.pipeline.names import DONES, canonical_name, name_map
from gear_data.ingest.source import UNIT_BYTES, Format, SourceOptions, Unit
from gear_data.ingest.sources.arrays.axes import refuse_unclear_axes
from gear_data.ingest.sources.arrays.boundaries import limit_lengths, scan_lengths
from gear_data.ingest.sources.arrays.step_arrays import EpisodeRanges
from gear_data.ingest.sources.hdf5.flat_file import FlatFile, flat_file, root_scalars
from gear_data.ingest.sources.hdf5.open_file import HDF5_SUFFIXES, hdf5_files
from gear_data.ingest.sources.tree.blocks import TreeLayout
from gear_data.ingest.sources.tree.columns import TreeColumn, describe, with_dtypes
from gear_data.ingest.sources.tree.hdf5_view import hdf5_tree, hdf5_trees
from gear_data.ingest.sources.tree.source import Hooks, TreeSource
from gear_data.ingest.sources.tree.view import GROUP, Container, Tree
from gear_data.storage.episode_block import BEGIN, EpisodeBlock, Position, offsets_of

_REQUIRED = ("observations", "actions", "rewards", "terminals")
_METADATA, _NEXT, _MAX_STEPS = "metadata/", "next_observations", "max_episode_steps"


def probe(location: Location) -> str | None:
    """Returns the reason if the first HDF5 file has D4RL's datasets; otherwise None.

    Raises UnknownFormatError if their first axis may be something else than the steps.
    """
    files = hdf5_files(location)
    if not files:
        return None
    with hdf5_tree(files[0]).open() as tree:
        file = FlatFile(tree, tree.children(""))
        names = {location.rename.get(name, name): name for name, kind in file.kinds.items() if kind != GROUP}
        if not names.keys() >= {name if name in file.kinds else canonical_name(name) for name in _REQUIRED}:
            return None
        shapes = {name: shape for name, path in names.items() if (shape := file.shape(path))}
        refuse_unclear_axes(files[0].name, shapes, "d4rl")
    return "D4RL: flat HDF5 datasets " + ", ".join(_REQUIRED)


def open_(location: Location, options: SourceOptions) -> D4rlSource:
    """Opens D4RL HDF5 files.

    Raises:
        UnknownFormatError: there is no HDF5 file, a required dataset is missing, or nothing says where episodes end.
        EmptySourceError: no file has steps.
        UnsupportedColumnError: a column to read is a link, or has a type that no column has.
    """
    trees = hdf5_trees(location)
    for item in trees:
        with item.open() as tree:
            found = _read(tree, options)
            if found.rows:
                break
    else:
        raise EmptySourceError("holds no steps", file=trees[0].name, column=found.paths["observations"])
    found.check_ends()
    return D4rlSource(trees, found, item.size // found.rows, options)


@dataclass(frozen=True)
class _Datasets:
    """The datasets of a source, taken from the first file with steps.

    Attributes:
        file: the name of the file.
        known: the paths of all its datasets; None if the user chose columns.
        rows: the number of its steps.
        paths: canonical name -> path of a dataset.
        columns: the columns to read.
        max_steps: the steps after which episodes end, if nothing else says it.
        metadata: facts about the source.
        left_out: about values that are no facts.
    """

    file: str
    known: frozenset[str] | None
    rows: int
    paths: Mapping[str, str]
    columns: tuple[TreeColumn, ...]
    max_steps: int | None
    metadata: Mapping[str, Any]
    left_out: tuple[Finding, ...]

    @property
    def end_flags(self) -> str | None:
        """The dataset that marks the ends of episodes without a terminal step."""
        return self.paths.get("truncated") or self.paths.get(DONES)

    @property
    def by_jumps(self) -> bool:
        """Whether only the observations show where episodes end."""
        return self.end_flags is None and _NEXT in self.paths

    def check_ends(self) -> None:
        """Raises UnknownFormatError if nothing shows the ends of episodes without a terminal step."""
        if self.end_flags is None and _NEXT not in self.paths and self.max_steps is None:
            raise UnknownFormatError(
                "neither 'timeouts' nor 'next_observations' says where episodes end",
                file=self.file,
                hint="give the environment's limit of steps with --max-episode-steps N "
                "(episodes=EpisodeBoundaries(max_episode_steps=N)); or add a 'timeouts' dataset "
                "that is true at the last step of each truncated episode",
            )


def _read(tree: Tree, options: SourceOptions) -> _Datasets:
    """Reads the columns and the metadata of a file."""
    file = flat_file(tree)
    scalars = [path for path in file.kinds if file.shape(path) == ()]
    candidates = [path for path in file.kinds if path not in scalars and not path.startswith(_METADATA)]
    paths = {name: path for path, name in name_map(candidates, options.rename).items()}
    for required in _REQUIRED:
        if (name := canonical_name(required)) not in paths:
            raise UnknownFormatError(
                f"has no dataset '{required}'",
                column=required,
                hint=f"rename it with --rename NAME={name}, or leave --format out",
            )
    found = root_scalars(tree, (file.array(path, tree.name) for path in scalars))
    found |= {path: None for path in file.kinds if path.startswith(_METADATA) and path not in scalars}
    facts, left_out = dataset_facts(found, tree.name)
    metadata = {name.removeprefix(_METADATA): value for name, value in facts.items()}
    chosen = choose_columns(candidates, options)
    mapped = with_dtypes([Column(name, path) for path, name in chosen.items()], options)
    dtypes = {each.name: each.dtype for each in mapped}
    # The last next observation becomes the final observation, of one dtype with the others.
    mapped = tuple(replace(each, dtype=each.dtype or dtypes.get(each.name.removeprefix("next_"))) for each in mapped)
    columns = tuple(describe(file.array(each.path, tree.name), each) for each in mapped)
    end_flag_columns(tuple(column.spec for column in columns))  # refuses flags of several values per step
    limited = paths.keys().isdisjoint(("truncated", DONES, _NEXT))
    max_steps = _max_steps(options, metadata) if limited else None
    rows = file.array(paths["observations"], tree.name).rows
    known = frozenset(file.kinds) if options.columns is None else None
    return _Datasets(tree.name, known, rows, paths, columns, max_steps, metadata, left_out)


def _max_steps(options: SourceOptions, metadata: Mapping[str, Any]) -> int | None:
    """Returns the steps after which episodes end. The option comes before the metadata of the file."""
    option = options.episodes.max_episode_steps
    max_steps = metadata.get(_MAX_STEPS) if option is None else option
    if max_steps is None or (type(max_steps) is int and max_steps > 0):
        return max_steps
    raise CorruptSourceError(
        f"'{_MAX_STEPS}' is {max_steps!r}, not a number of steps",
        hint="give the number of steps with --max-episode-steps N (episodes=EpisodeBoundaries(max_episode_steps=N))",
    )


class D4rlSource(MappedSource):
    """An `EpisodeSource` over D4RL HDF5 files.

    `Position.row` counts steps.

    Args:
        trees: the files.
        datasets: the datasets of the first file with steps.
        variable_bytes: the most bytes that the texts and encoded images of a step take.
        options: the user's options.
    """

    def __init__(
        self, trees: Sequence[Container], datasets: _Datasets, variable_bytes: int, options: SourceOptions
    ) -> None:
        self._trees, self._datasets = trees, datasets
        self._found: dict[str, EpisodeRanges] = {}
        columns, observations = datasets.columns, datasets.paths["observations"]
        self._tree_source = TreeSource(
            trees,
            Layout(
                EpisodeRule(Kind.ENDS, (datasets.paths["terminated"],), EndsAre.FLAGS),
                tuple(column.mapped for column in columns),
            ),
            TreeLayout(columns, Column("observations", observations), (), {}, datasets.file),
            Hooks(find_flat=self._find),
            variable_bytes=variable_bytes,
            skip_bad=options.skip_bad,
        )
        self._tree_source.metadata = datasets.metadata
        super().__init__(self._tree_source)
        self.findings.extend(datasets.left_out)
        stored = [spec for spec in self.columns if spec.name != _NEXT or options.names_column(spec)]
        self._row_bytes = max(1, sum(variable_bytes if spec.variable_length else spec.row_bytes for spec in stored))
        if datasets.max_steps is not None:
            message = f"neither 'timeouts' nor 'next_observations'; episodes end after {datasets.max_steps} steps"
            self.findings.add(Finding("ends-by-length", message, file=datasets.file))

    def units(self) -> Sequence[Unit]:
        """Returns runs of episodes of about `UNIT_BYTES`, or whole files if only observations show the ends."""
        units: list[Unit] = []
        self._tree_source.num_rows = 0
        least = max(1, UNIT_BYTES // self._row_bytes)
        for index, item in enumerate(self._trees):
            episodes = self._episodes(index)
            edges, rows = [0], int(episodes.lengths.sum())
            while not self._datasets.by_jumps:
                first = int(np.searchsorted(episodes.starts, edges[-1] + least))
                if first == len(episodes):
                    break
                edges.append(int(episodes.starts[first]))
            for start, stop in pairwise([*edges, rows] if rows else ()):
                units.append(Unit(Position(index, start) if units else BEGIN, item.size * (stop - start) // rows))
            self._tree_source.num_rows += rows
        return units or [Unit(BEGIN, 0)]

    def blocks(self, start: Position, stop: Position) -> Iterator[EpisodeBlock]:
        for block in super().blocks(self._by_episode(start), self._by_episode(stop)):
            yield replace(block, position=Position(block.position.file, int(block.rows[0])))

    def _by_episode(self, position: Position) -> Position:
        """Returns a position whose row counts episodes, for the trees."""
        if not position.row:
            return position
        first = np.searchsorted(self._episodes(position.file).starts, position.row)
        return Position(position.file, int(first))

    def _episodes(self, index: int) -> EpisodeRanges:
        with self._trees[index].open() as tree:
            return self._find(tree)

    def _find(self, tree: Tree) -> EpisodeRanges:
        """Returns the episodes of a file. Those of the last file are kept, because all its rows may have to be read."""
        if tree.name not in self._found:
            self._found = {tree.name: self._located(tree)}
        return self._found[tree.name]

    def _located(self, tree: Tree) -> EpisodeRanges:
        """Checks a file against the first one, and finds its episodes."""
        paths, datasets = self._datasets.paths, self._datasets
        others = [paths["observations"], *([paths[_NEXT]] if datasets.by_jumps else [])]
        file = flat_file(tree)
        arrays = file.checked(datasets.columns, others, datasets.file, [item.name for item in self._trees])
        observations = arrays[others[0]]
        flags = [arrays[paths["terminated"]], *([arrays[datasets.end_flags]] if datasets.end_flags else [])]
        pairs = []
        if datasets.by_jumps:
            after = arrays[paths[_NEXT]]
            alike = (after.dtype, after.shape[1:]) == (observations.dtype, observations.shape[1:])
            if not (alike and observations.kind):
                raise CorruptSourceError(
                    f"is {after.dtype} {after.shape[1:]}, where '{observations.path}' is {observations.dtype} "
                    f"{observations.shape[1:]}: it does not show where episodes end",
                    column=after.path,
                    hint="add a 'timeouts' dataset that is true at the last step of each truncated episode",
                )
            pairs.append((observations.read, after.read))
        row_bytes = len(flags) + len(pairs) * observations.row_bytes
        lengths = scan_lengths(observations.rows, row_bytes, [flag.read for flag in flags], next_pairs=pairs)
        if datasets.max_steps is not None:
            lengths = limit_lengths(lengths, datasets.max_steps)
        findings = () if datasets.known is None else file.left_out(datasets.known, datasets.file)
        return EpisodeRanges(lengths, offsets_of(lengths)[:-1], findings=findings)

    def _mapped(self, piece: EpisodeBlock) -> Iterator[EpisodeBlock]:
        """Sets `truncated`.

        If both flags are set the step is terminal, as D4RL reads it. If a stated length ends episodes, an episode of
        this length whose last step is not terminal was truncated.
        """
        terminated, limit = piece.columns["terminated"].astype(np.bool_), self._datasets.max_steps
        if limit is not None:
            truncated, last = np.zeros(len(terminated), np.bool_), piece.offsets[1:] - 1
            truncated[last] = (piece.lengths == limit) & ~terminated[last]
            yield replace(piece, columns={**piece.columns, "truncated": truncated})
            return
        truncated = piece.columns.get("truncated", np.zeros_like(terminated)).astype(np.bool_)
        both = terminated & truncated
        if not both.any():
            yield piece
            return
        episode, step = piece.locate(int(np.argmax(both)))
        message = "terminals and timeouts are both set; read as terminated, not truncated"
        row = int(piece.rows[episode]) + step
        self.findings.add(Finding("both-flags", message, int(both.sum()), piece.sources[episode], row))
        yield replace(piece, columns={**piece.columns, "truncated": truncated & ~both})


FORMAT = Format(
    "d4rl", probe, open_, uses=frozenset({"max_episode_steps", "dtype"}), suffixes=HDF5_SUFFIXES, in_time_order=True
)
