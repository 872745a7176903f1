"""Source over trees, whose episodes a mapping describes.

The mapping is the user's, or it follows from the names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from gear_data.errors import BadEpisodeError, EmptySourceError, GearError, UnsupportedColumnError
from gear_data.ingest.findings.log import Finding, FindingLog
from gear_data.ingest.ideas.dataset_facts import dataset_facts
from gear_data.ingest.layout import Column, Kind, Layout, SplitRule
from gear_data.ingest.pipeline.columns import choose_columns
from gear_data.ingest.pipeline.previews import compare_files
from gear_data.ingest.source import UNIT_BYTES, SourceOptions, Unit, files_between
from gear_data.ingest.sources.arrays.blocks import (
    ReadEpisode,
    block_of,
    episode_runs,
    merge_small_blocks,
    read_block,
)
from gear_data.ingest.sources.arrays.step_arrays import EpisodeRanges
from gear_data.ingest.sources.tree.blocks import (
    FlatReader,
    TreeLayout,
    flat_arrays,
    read_facts,
    read_place,
    type_of,
)
from gear_data.ingest.sources.tree.columns import TreeColumn, describe, with_dtypes
from gear_data.ingest.sources.tree.episodes import (
    EpisodePlace,
    chosen_containers,
    find_flat,
    find_places,
)
from gear_data.ingest.sources.tree.padded import EPISODES as UNPADDED
from gear_data.ingest.sources.tree.padded import unpadded
from gear_data.ingest.sources.tree.view import Container, Tree
from gear_data.ingest.splits import one_split
from gear_data.schema import ColumnSpec
from gear_data.storage.episode_block import BEGIN, EpisodeBlock, Position

_BLOCK_BYTES = 16 << 20
_ACTIONS = "actions"
#: If bad episodes are skipped, the first sound one among these has the columns.
_TRIED_EPISODES = 16


def open_mapped(
    found: Sequence[Container], mapping: Layout, options: SourceOptions, split: str | None, name: str
) -> TreeSource:
    """Opens the trees of a source with a mapping.

    Args:
        found: the trees, in source order.
        mapping: where the episodes and columns are.
        options: the user's options.
        split: the split to read, or None.
        name: the name of the source, for errors.

    Raises:
        SplitNeededError: the mapping has several splits, and none is chosen.
        InvalidArgumentError: the split does not exist.
        EmptySourceError: no episode has a step.
        GearError: a file does not fit the mapping.
    """
    splits: Mapping[str, SplitRule | None] = {rule.name: rule for rule in mapping.splits}
    rule = one_split(name, splits or {"": None}, split)
    rule_text = f"{mapping.episodes.kind}: {', '.join(mapping.episodes.paths)}"
    mapping = replace(mapping, columns=_chosen(mapping, options), splits=() if rule is None else (rule,))
    trees = chosen_containers(found, mapping, rule, name)
    if mapping.episodes.kind == Kind.PADDED:
        trees = tuple(unpadded(item, mapping) for item in trees)
        mapping = replace(mapping, episodes=UNPADDED)
    for item in trees:
        with item.open() as tree:
            # The user chose the arrays of a mapping, and those that --columns names.
            is_found = options.mapping is None and options.columns is None
            layout = _first_layout(tree, mapping, reports_names=is_found, skip_bad=options.skip_bad)
            if layout is not None:
                rows = _rows(tree, layout.steps) if mapping.episodes.flat else 1
                source = TreeSource(trees, mapping, layout, variable_bytes=item.size // rows, skip_bad=options.skip_bad)
                source.metadata, left_out = _metadata(tree, mapping)
                source.findings.extend(left_out)
                return source
    raise EmptySourceError(
        f"no episode with a step is at {rule_text}",
        file=trees[0].name if trees else name,
        hint="correct episodes in the mapping; 'gear-data lint SRC --suggest-map' writes a mapping that fits",
    )


def _chosen(mapping: Layout, options: SourceOptions) -> tuple[Column, ...]:
    """Returns the columns to read, under the names of --rename."""
    by_path = {column.path: column for column in mapping.step_columns}
    names = {path: column.name for path, column in by_path.items()}
    options = replace(options, rename={**names, **(options.rename or {})})
    chosen = choose_columns(by_path, options, structure={*mapping.episodes.paths} - by_path.keys())
    columns = [replace(by_path[path], name=name) for path, name in chosen.items()]
    return (*with_dtypes(columns, options), *mapping.facts)


def _first_layout(tree: Tree, mapping: Layout, *, reports_names: bool, skip_bad: bool) -> TreeLayout | None:
    """Returns the columns of the first sound episode, or of the arrays that hold all episodes.

    Returns None if the tree has no episode with steps. With `reports_names`, names that only other episodes have are
    reported.
    """
    first_error: GearError | None = None
    for place in _places(tree, mapping)[:_TRIED_EPISODES]:
        try:
            layout = _layout_of(tree, place, mapping)
        except (BadEpisodeError, UnsupportedColumnError) as error:
            first_error = first_error or error
            if not skip_bad:
                break
            continue
        if layout is not None:
            reports = reports_names and mapping.episodes.kind in (Kind.GROUPS, Kind.FILES)
            return replace(layout, known=frozenset(tree.names(place.key))) if reports else layout
    if first_error is not None:
        raise first_error
    return None


def _places(tree: Tree, mapping: Layout) -> list[EpisodePlace]:
    return find_places(tree, mapping.episodes, mapping.splits[0] if mapping.splits else None)


def _layout_of(tree: Tree, place: EpisodePlace, mapping: Layout) -> TreeLayout | None:
    """Returns the columns of an episode; None if it has no steps."""
    columns = []
    with place.labels():
        for mapped in mapping.step_columns:
            array = tree.array(place.path(mapped.path))
            if array is None:
                raise _missing(place.label(place.path(mapped.path)), mapped)
            columns.append(describe(array, mapped))
            if mapped.next is not None and tree.array(place.path(mapped.next)) is None:
                raise _missing(place.label(place.path(mapped.next)), mapped)
    steps = _steps_of(columns)
    array = tree.array(place.path(steps.mapped.path))
    if array is not None and array.rows > steps.mapped.extra_rows:
        facts = read_facts(tree, place, mapping.facts)
        types = {name: type_of(value) for name, value in facts.items() if value is not None}
        return TreeLayout(tuple(columns), steps.mapped, mapping.facts, types, f"{tree.name} {place.key}".rstrip())
    return None


def _metadata(tree: Tree, mapping: Layout) -> tuple[dict[str, Any], tuple[Finding, ...]]:
    """Returns the attributes of the file, and of the parent of the first episode, and findings."""
    found = dict(tree.attributes(""))
    if mapping.episodes.kind == Kind.GROUPS:
        found |= tree.attributes(_places(tree, mapping)[0].key.rpartition("/")[0])
    return dataset_facts(found, tree.name)


def _rows(tree: Tree, column: Column) -> int:
    array = tree.array(column.path)
    return 0 if array is None else array.rows


def _steps_of(columns: Sequence[TreeColumn]) -> TreeColumn:
    """Returns the column whose rows are the steps.

    It is the actions, or the first column without an extra row.
    """
    ranked = sorted(columns, key=lambda column: (column.mapped.extra_rows, column.name != _ACTIONS))
    return ranked[0]


def _missing(path: str, mapped: Column) -> BadEpisodeError:
    return BadEpisodeError(
        f"has no array '{path}', which columns.{mapped.name} names",
        column=path,
        hint="correct the path in the mapping; 'gear-data lint SRC --suggest-map' writes a mapping that fits",
    )


@dataclass(frozen=True)
class Hooks:
    """What is particular to a built-in format. A mapping has none of these.

    Attributes:
        file_facts: reads facts that a file keeps outside of its episodes: path of an episode -> facts.
        check_file: checks a file as a whole, given its episodes, when the first one is read.
        check_files: checks all files before they are read, unless bad episodes are skipped.
        check_episode: checks an episode that was read.
        find_flat: checks a file whose arrays hold all episodes, and finds the episodes; None finds them by the rule.
        whole_files: whether a unit is one or more files, if there are several.
    """

    file_facts: Callable[[Tree], Mapping[str, Mapping[str, Any]]] = lambda tree: {}
    check_file: Callable[[Tree, Sequence[EpisodePlace], FindingLog], None] = lambda tree, places, findings: None
    check_files: Callable[[Sequence[Container]], None] = lambda trees: None
    check_episode: Callable[[Tree, ReadEpisode, FindingLog], None] = lambda tree, episode, findings: None
    find_flat: Callable[[Tree], EpisodeRanges] | None = None
    whole_files: bool = False


class TreeSource:
    """An `EpisodeSource` over trees.

    `Position.file` is the index of the tree, and `Position.row` counts its episodes.

    Args:
        trees: the files, in source order.
        layout: where the episodes and columns are, with only the split to read.
        contents: the columns, as in the first episode.
        hooks: what is particular to the format.
        variable_bytes: the most bytes that the texts and encoded images of one step take, if all episodes share arrays.
        skip_bad: leave out bad episodes and report them, instead of raising an error.
    """

    def __init__(
        self,
        trees: Sequence[Container],
        layout: Layout,
        contents: TreeLayout,
        hooks: Hooks | None = None,
        *,
        variable_bytes: int = 0,
        skip_bad: bool,
    ) -> None:
        self.findings = FindingLog()
        self.resume_state: dict[str, Any] = {}
        self.metadata: Mapping[str, Any] = {}
        self.columns: tuple[ColumnSpec, ...] = (*(column.spec for column in contents.columns), *contents.flags)
        self.num_rows: int | None = len(trees) if layout.episodes.kind == Kind.FILES else None
        self.rows_are_steps = layout.episodes.flat
        self._trees = trees
        self._rule = layout.episodes
        self._split = layout.splits[0] if layout.splits else None
        self._contents = contents
        self._hooks = hooks or Hooks()
        self._skip_bad = skip_bad
        self._row_bytes = sum(spec.row_bytes for spec in self.columns if not spec.variable_length)
        if self._rule.flat and any(spec.variable_length for spec in self.columns):
            self._row_bytes += variable_bytes

    def units(self) -> Sequence[Unit]:
        if not self._skip_bad:
            self._hooks.check_files(self._trees)
            separate = "if the files are separate datasets, convert one at a time"
            compare_files(self, [(item.name, item.size) for item in self._trees], separate)
        units: list[Unit] = []
        rows = 0
        for index in range(len(self._trees)):
            pieces, counted = self._pieces(index)
            rows += counted
            for first, size in pieces:
                may_join = not self._rule.numbered and (first == 0 or not self._hooks.whole_files)
                if units and units[-1].bytes < UNIT_BYTES and may_join:
                    units[-1] = replace(units[-1], bytes=units[-1].bytes + size)
                else:
                    units.append(Unit(Position(index, first) if units else BEGIN, size))
        self.num_rows = rows
        return units or (Unit(BEGIN, 0),)

    def _pieces(self, index: int) -> tuple[list[tuple[int, int]], int]:
        """Returns (first episode, bytes) of runs of about `UNIT_BYTES`, and the tree's rows for the progress bar."""
        item = self._trees[index]
        if self._rule.kind == Kind.FILES:
            return [(0, item.size)], 1
        with item.open() as tree:
            episodes = self._find(tree)
        total = len(episodes)
        if isinstance(episodes, EpisodeRanges):
            starts = [first for first, _ in episode_runs(episodes.lengths, self._row_bytes, UNIT_BYTES)] or [0]
            if self._hooks.whole_files and (len(self._trees) > 1 or item.size <= UNIT_BYTES):
                starts = [0]
            return [(first, item.size // len(starts)) for first in starts], int(episodes.lengths.sum())
        count = max(1, UNIT_BYTES * total // max(1, item.size))
        starts = list(range(0, total, count))
        if self._rule.numbered:
            return [(first, item.size * min(count, total - first) // total) for first in starts], total
        return [(first, item.size // len(starts)) for first in starts], total

    def _find(self, tree: Tree) -> EpisodeRanges | list[EpisodePlace]:
        if self._hooks.find_flat is not None:
            return self._hooks.find_flat(tree)
        if self._rule.flat:
            rows = _rows(tree, self._contents.steps)
            return find_flat(tree, self._rule, rows, self._contents.facts, skip_bad=self._skip_bad)
        return find_places(tree, self._rule, self._split)

    def blocks(self, start: Position, stop: Position) -> Iterator[EpisodeBlock]:
        yield from merge_small_blocks(self._blocks(start, stop), self._row_bytes, _BLOCK_BYTES)

    def _blocks(self, start: Position, stop: Position) -> Iterator[EpisodeBlock]:
        for index, first, last in files_between(start, stop, len(self._trees)):
            with self._trees[index].open() as tree:
                episodes = self._find(tree)
                if isinstance(episodes, EpisodeRanges) and first == 0:
                    self.findings.extend(episodes.findings)
                if not len(episodes):
                    self.findings.add(Finding("empty-file", "holds no episode", file=tree.name))
                elif isinstance(episodes, EpisodeRanges):
                    yield from self._flat_blocks(tree, episodes, index, first, last)
                else:
                    yield from self._placed_blocks(tree, episodes, index, first, last)

    def _flat_blocks(
        self, tree: Tree, episodes: EpisodeRanges, index: int, first: int, last: int | None
    ) -> Iterator[EpisodeBlock]:
        arrays = flat_arrays(tree.name, self._contents.columns, episodes)
        reader = FlatReader(tree, self._contents.model, self.findings, is_first=first == 0)
        for begin, end in episode_runs(episodes.lengths[first:last], self._row_bytes, _BLOCK_BYTES):
            position = Position(index, first + begin)
            yield read_block(arrays, self.columns, episodes, reader, position, first + end)

    def _placed_blocks(
        self, tree: Tree, places: Sequence[EpisodePlace], index: int, first: int, last: int | None
    ) -> Iterator[EpisodeBlock]:
        if first == 0:
            self._check_file(tree, places)
        file_facts = self._hooks.file_facts(tree)
        pending: list[ReadEpisode] = []
        size, rows, position = 0, 0, Position(index, first)
        for row, place in enumerate(places[first:last], first):
            if not rows:
                # A run of bad episodes makes no block; the next block then starts at the first of them.
                position = Position(index, row)
            rows += 1
            try:
                episode = read_place(tree, place, self._contents, self.findings)
            except BadEpisodeError as error:
                self.findings.add_bad_episode(error, skip=self._skip_bad)
                continue
            self._hooks.check_episode(tree, episode, self.findings)
            episode.facts |= file_facts.get(place.key, {})
            pending.append(episode)
            size += episode.nbytes
            if size >= _BLOCK_BYTES:
                yield block_of(pending, self.columns, tree.name, position, rows)
                pending, size, rows = [], 0, 0
        if pending:
            yield block_of(pending, self.columns, tree.name, position, rows)

    def _check_file(self, tree: Tree, places: Sequence[EpisodePlace]) -> None:
        """Reports gaps in the numbers of episodes, and runs the format's own check."""
        missing = places[-1].number - places[0].number + 1 - len(places)
        if self._rule.numbered and missing:
            row = next(place.number for i, place in enumerate(places) if place.number != places[0].number + i)
            message = "numbers are missing before this episode's number; the other episodes are read in order"
            self.findings.add(Finding("gapped-episodes", message, missing, tree.name, row))
        self._hooks.check_file(tree, places, self.findings)
