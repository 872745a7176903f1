"""Source over trees, whose episodes a mapping describes.

The mapping is the user's, or it follows from the names.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from gear_data.errors import BadEpisodeError, EmptySourceError, GearError, UnsupportedColumnError
from gear_data.ingest.findings.log import Finding, FindingLog
from gear_data.ingest.location import files_to_compare
from gear_data.ingest.mapping import FILES, GROUPS, MappedColumn, SourceMapping
from gear_data.ingest.pipeline.columns import choose_columns
from gear_data.ingest.source import UNIT_BYTES, SourceOptions, Unit
from gear_data.ingest.sources.arrays.blocks import episode_runs, merge_small_blocks
from gear_data.ingest.sources.tree.blocks import (
    PlacedEpisode,
    TreeLayout,
    block_of,
    read_facts,
    read_flat,
    read_place,
    type_of,
)
from gear_data.ingest.sources.tree.columns import TreeColumn, check_matches, describe
from gear_data.ingest.sources.tree.episodes import (
    EpisodePlace,
    FlatEpisodes,
    choose_split,
    chosen_containers,
    find_flat,
    find_places,
)
from gear_data.ingest.sources.tree.view import Container, Tree
from gear_data.schema import ColumnSpec
from gear_data.storage.episode_block import BEGIN, EpisodeBlock, Position

_BLOCK_BYTES = 16 << 20
_ACTIONS = "actions"
#: If bad episodes are skipped, the first sound one among these has the columns.
_TRIED_EPISODES = 16


def open_mapped(
    found: Sequence[Container], mapping: SourceMapping, options: SourceOptions, split: str | None, name: str
) -> TreeSource:
    """Opens the trees of a source with a mapping.

    Args:
        found: the trees, in source order.
        mapping: where the episodes and columns are.
        options: the user's options.
        split: the split to read, or None.
        name: the name of the source, for errors.

    Raises:
        EmptySourceError: no episode has a step.
        GearError: a file does not fit the mapping.
    """
    rule = choose_split(mapping, split, name)
    mapping = replace(mapping, columns=_chosen(mapping, options), splits=() if rule is None else (rule,))
    trees = chosen_containers(found, mapping, rule, name)
    for item in trees:
        with item.open() as tree:
            if mapping.episodes.flat:
                layout = _flat_layout(tree, mapping)
            else:
                layout = _placed_layout(tree, mapping, skip_bad=options.skip_bad)
            if layout is not None:
                rows = _rows(tree, layout.steps) if mapping.episodes.flat else 1
                source = TreeSource(trees, mapping, layout, item.size // rows, skip_bad=options.skip_bad)
                source.metadata = _metadata(tree, mapping)
                return source
    rule_text = f"{mapping.episodes.kind}: {', '.join(mapping.episodes.paths)}"
    raise EmptySourceError(
        f"no episode with a step is at {rule_text}",
        file=trees[0].name if trees else name,
        hint="correct episodes in the mapping; 'gear-data lint SRC --suggest-map' writes a mapping that fits",
    )


def _chosen(mapping: SourceMapping, options: SourceOptions) -> tuple[MappedColumn, ...]:
    """Returns the columns to read, under the names of --rename."""
    by_path = {column.path: column for column in mapping.step_columns}
    names = {path: column.name for path, column in by_path.items()}
    chosen = choose_columns(by_path, replace(options, rename={**names, **(options.rename or {})}))
    return (*(replace(by_path[path], name=name) for path, name in chosen.items()), *mapping.facts)


def _placed_layout(tree: Tree, mapping: SourceMapping, *, skip_bad: bool) -> TreeLayout | None:
    """Returns the columns of the first sound episode.

    Returns None if the tree has no episode with steps.
    """
    first_error: GearError | None = None
    places = find_places(tree, mapping.episodes, mapping.splits[0] if mapping.splits else None)
    for place in places[:_TRIED_EPISODES]:
        try:
            layout = _layout_of(tree, place, mapping)
        except (BadEpisodeError, UnsupportedColumnError) as error:
            first_error = first_error or error
            if not skip_bad:
                break
            continue
        if layout is not None:
            return layout
    if first_error is not None:
        raise first_error
    return None


def _layout_of(tree: Tree, place: EpisodePlace, mapping: SourceMapping) -> TreeLayout | None:
    """Returns the columns of an episode; None if it has no steps."""
    columns = []
    for mapped in mapping.step_columns:
        array = tree.array(place.path(mapped.path))
        if array is None:
            raise _missing(tree, place.path(mapped.path), mapped)
        columns.append(describe(array, mapped, tree.name))
        if mapped.next is not None and tree.array(place.path(mapped.next)) is None:
            raise _missing(tree, place.path(mapped.next), mapped)
    steps = _steps_of(columns)
    array = tree.array(place.path(steps.mapped.path))
    if array is not None and array.rows > steps.extra_rows:
        facts = read_facts(tree, place, mapping.facts)
        types = {name: type_of(value) for name, value in facts.items() if value is not None}
        return TreeLayout(tuple(columns), steps, mapping.facts, types, f"{tree.name} {place.key}".rstrip())
    return None


def _metadata(tree: Tree, mapping: SourceMapping) -> dict[str, Any]:
    """Returns the attributes of the file, and of the parent of the first episode."""
    found = dict(tree.attributes(""))
    if mapping.episodes.kind == GROUPS:
        places = find_places(tree, mapping.episodes, mapping.splits[0] if mapping.splits else None)
        found |= tree.attributes(places[0].key.rpartition("/")[0])
    return found


def _flat_layout(tree: Tree, mapping: SourceMapping) -> TreeLayout | None:
    columns = []
    for mapped in mapping.step_columns:
        array = tree.array(mapped.path)
        if array is None:
            raise _missing(tree, mapped.path, mapped)
        columns.append(describe(array, mapped, tree.name))
    steps = _steps_of(columns)
    return TreeLayout(tuple(columns), steps, mapping.facts, {}, tree.name) if _rows(tree, steps) else None


def _rows(tree: Tree, column: TreeColumn) -> int:
    array = tree.array(column.mapped.path)
    return 0 if array is None else array.rows


def _steps_of(columns: Sequence[TreeColumn]) -> TreeColumn:
    """Returns the column whose rows are the steps.

    It is the actions, or the first column without an extra row.
    """
    ranked = sorted(columns, key=lambda column: (column.extra_rows, column.name != _ACTIONS))
    return ranked[0]


def _missing(tree: Tree, path: str, mapped: MappedColumn) -> BadEpisodeError:
    return BadEpisodeError(
        f"has no array '{path}', which columns.{mapped.name} names",
        file=tree.name,
        column=path,
        hint="correct the path in the mapping; 'gear-data lint SRC --suggest-map' writes a mapping that fits",
    )


@dataclass(frozen=True)
class _Episodes:
    """The episodes of one tree."""

    places: Sequence[EpisodePlace] = ()
    flat: FlatEpisodes | None = None

    def __len__(self) -> int:
        return len(self.places) if self.flat is None else len(self.flat)


class TreeSource:
    """An `EpisodeSource` over trees.

    `Position.file` is the index of the tree, and `Position.row` counts its episodes.

    Args:
        trees: the files, in source order.
        mapping: where the episodes and columns are, with only the split to read.
        layout: the columns, as in the first episode.
        variable_bytes: the most bytes that the texts and encoded images of one step take, if all episodes share arrays.
        skip_bad: leave out bad episodes and report them, instead of raising an error.
    """

    def __init__(
        self,
        trees: Sequence[Container],
        mapping: SourceMapping,
        layout: TreeLayout,
        variable_bytes: int,
        *,
        skip_bad: bool,
    ) -> None:
        self.findings = FindingLog()
        self.resume_state: dict[str, Any] = {}
        self.metadata: Mapping[str, Any] = {}
        self.columns: tuple[ColumnSpec, ...] = tuple(column.spec for column in layout.columns)
        self.num_rows: int | None = len(trees) if mapping.episodes.kind == FILES else None
        self.rows_are_steps = mapping.episodes.flat
        self._trees = trees
        self._mapping = mapping
        self._layout = layout
        self._skip_bad = skip_bad
        self._row_bytes = sum(spec.row_bytes for spec in self.columns if not spec.variable_length)
        if mapping.episodes.flat and any(spec.variable_length for spec in self.columns):
            self._row_bytes += variable_bytes

    def units(self) -> Sequence[Unit]:
        names, sizes = [item.name for item in self._trees], [item.size for item in self._trees]
        if not self._skip_bad:
            for index in files_to_compare(names, sizes, UNIT_BYTES):
                self._compare(index)
        pieces: list[Unit] = []
        rows = 0
        for index, item in enumerate(self._trees):
            counted = self._pieces(index)
            rows += counted[-1]
            for first in counted[:-1]:
                size = item.size // (len(counted) - 1)
                if pieces and pieces[-1].bytes < UNIT_BYTES:
                    pieces[-1] = replace(pieces[-1], bytes=pieces[-1].bytes + size)
                else:
                    pieces.append(Unit(Position(index, first) if pieces else BEGIN, size))
        self.num_rows = rows
        return pieces or (Unit(BEGIN, 0),)

    def _pieces(self, index: int) -> list[int]:
        """Returns the first episodes of runs of about `UNIT_BYTES`.

        The last number is the tree's rows, for the progress bar.
        """
        if self._mapping.episodes.kind == FILES:
            return [0, 1]
        item = self._trees[index]
        with item.open() as tree:
            episodes = self._find(tree)
        if not len(episodes):
            return [0, 0]
        if episodes.flat is not None:
            runs = [first for first, _ in episode_runs(episodes.flat.lengths, self._row_bytes, UNIT_BYTES)]
            return [*runs, int(episodes.flat.lengths.sum())]
        count = max(1, UNIT_BYTES * len(episodes) // max(1, item.size))
        return [*range(0, len(episodes), count), len(episodes)]

    def _compare(self, index: int) -> None:
        """Compares the first episode of a tree with the columns.

        So a tree that does not fit is refused before anything is read.
        """
        with self._trees[index].open() as tree:
            if self._mapping.episodes.flat:
                paths = [(column, column.mapped.path) for column in self._layout.columns]
                row = 0
            else:
                places = find_places(tree, self._mapping.episodes, self._split)
                if not places:
                    return
                paths = [(column, places[0].path(column.mapped.path)) for column in self._layout.columns]
                row = places[0].number
            for column, path in paths:
                array = tree.array(path)
                if array is None:
                    raise BadEpisodeError(
                        f"is missing; {self._layout.model} has it",
                        file=tree.name,
                        column=path,
                        row=row,
                        hint="if the files are separate datasets, convert one at a time",
                    )
                check_matches(array, column, tree.name, row, self._layout.model)

    @property
    def _split(self) -> Any:
        return self._mapping.splits[0] if self._mapping.splits else None

    def _find(self, tree: Tree) -> _Episodes:
        rule = self._mapping.episodes
        if rule.flat:
            return _Episodes(flat=find_flat(tree, rule, _rows(tree, self._layout.steps), skip_bad=self._skip_bad))
        return _Episodes(places=find_places(tree, rule, self._split))

    def blocks(self, start: Position, stop: Position) -> Iterator[EpisodeBlock]:
        yield from merge_small_blocks(self._blocks(start, stop), self._row_bytes, _BLOCK_BYTES)

    def _blocks(self, start: Position, stop: Position) -> Iterator[EpisodeBlock]:
        for index in range(start.file, len(self._trees)):
            first = start.row if index == start.file else 0
            if (index, first) >= stop:
                return
            with self._trees[index].open() as tree:
                episodes = self._find(tree)
                last = stop.row if index == stop.file else len(episodes)
                if not len(episodes):
                    self.findings.add(Finding("empty-file", "holds no episode", file=tree.name))
                elif episodes.flat is not None:
                    yield from self._flat_blocks(tree, episodes.flat, index, first, last)
                else:
                    yield from self._placed_blocks(tree, episodes.places[first:last], index, first)

    def _flat_blocks(
        self, tree: Tree, episodes: FlatEpisodes, index: int, first: int, last: int
    ) -> Iterator[EpisodeBlock]:
        if first == 0 and len(episodes.indices) <= int(episodes.indices[-1]):
            missing = int(episodes.indices[-1]) + 1 - len(episodes.indices)
            message = "an episode without a step; skipped"
            self.findings.add(Finding("bad-episode", message, missing, tree.name, 0, self._mapping.episodes.paths[0]))
        array_of = cache(tree.array)
        for begin, end in episode_runs(episodes.lengths[first:last], self._row_bytes, _BLOCK_BYTES):
            position = Position(index, first + begin)
            yield read_flat(tree.name, array_of, episodes, self._layout, position, first + end, self.findings)

    def _placed_blocks(
        self, tree: Tree, places: Sequence[EpisodePlace], index: int, first: int
    ) -> Iterator[EpisodeBlock]:
        pending: list[PlacedEpisode] = []
        size, rows, position = 0, 0, Position(index, first)
        for row, place in enumerate(places, first):
            if not rows:
                # A run of bad episodes makes no block; the next block then starts at the first of them.
                position = Position(index, row)
            rows += 1
            try:
                pending.append(read_place(tree, place, self._layout, self.findings))
            except BadEpisodeError as error:
                self.findings.add_bad_episode(error, skip=self._skip_bad)
                continue
            size += pending[-1].nbytes
            if size >= _BLOCK_BYTES:
                yield block_of(pending, self._layout, tree.name, position, rows)
                pending, size, rows = [], 0, 0
        if pending:
            yield block_of(pending, self._layout, tree.name, position, rows)
