"""Built-in formats over trees: a rule for the episodes, a role for each array, and a few hooks.

The columns are those of a model: the first episode of two steps or more. An episode of one step does not show which
arrays have one row for the whole episode, so it is the model only if there is no longer one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from gear_data.errors import EmptySourceError, GearError
from gear_data.ingest.findings.log import Finding, FindingLog
from gear_data.ingest.layout import Column, ColumnRole, EpisodeRule, Layout
from gear_data.ingest.pipeline.columns import SCALAR_COLUMNS, choose_columns
from gear_data.ingest.source import SourceOptions
from gear_data.ingest.sources.tree.blocks import TreeLayout, fact_value, type_of
from gear_data.ingest.sources.tree.columns import describe, with_dtypes
from gear_data.ingest.sources.tree.episodes import EpisodePlace, find_places
from gear_data.ingest.sources.tree.source import Hooks, TreeSource
from gear_data.ingest.sources.tree.view import ARRAY, LINKS, Container, Tree, TreeArray, contents, not_followed

#: Columns that belong to steps.
OF_STEPS = SCALAR_COLUMNS | {"actions"}
#: Episodes whose attributes are read to know the facts.
_FACT_EPISODES = 100


@dataclass(frozen=True)
class Model:
    """The episode that shows the columns of all.

    Attributes:
        tree: its tree.
        place: where it is.
        steps: its number of steps.
        kinds: everything below it: path -> kind.
        findings: receives the findings about its arrays.
    """

    tree: Tree
    place: EpisodePlace
    steps: int
    kinds: Mapping[str, str]
    findings: FindingLog = field(default_factory=FindingLog)

    def array(self, path: str) -> TreeArray:
        """Opens an array by its path in the episode.

        Raises:
            UnsupportedColumnError: a link is there.
            CorruptSourceError: the array is damaged.
        """
        with self.place.labels():
            array = self.tree.array(self.place.path(path))
            if array is not None:
                return array
        raise not_followed(path, self.kinds[path])

    def add(self, code: str, message: str, path: str) -> None:
        """Adds a finding about an array."""
        self.findings.add(Finding(code, message, 1, self.tree.name, column=path))


def column_by_rows(model: Model, path: str, name: str) -> Column:
    """Returns the column, or the fact, that an array becomes by its number of rows.

    One row belongs to the whole episode. Of T + 1 rows, the last is the final observation.
    """
    rows = model.array(path).rows
    if rows == 1 < model.steps:
        model.add("row-per-episode", f"has one row for {model.steps} steps; it becomes a fact of the episode", path)
        return Column(name, path, role=ColumnRole.ROW)
    if rows == model.steps + 1 and name not in OF_STEPS:
        message = "has T + 1 rows for T steps; the last row is kept as the final observation"
        model.add("row-after-last-step", message, path)
        return Column(name, path, role=ColumnRole.WITH_FINAL)
    return Column(name, path)


@dataclass(frozen=True)
class TreeFormat:
    """A built-in format over trees.

    Attributes:
        episodes: where the episodes are: groups or files.
        steps: the path of the array whose rows are the steps.
        names: path of an array -> its canonical name, where `gear_data.ingest.pipeline.names` does not know it.
        column: returns the column, or the fact, that an array of the model becomes, given its path and name; None
            leaves the array out.
        alias: returns the name of an array by which it is chosen and renamed; None for an array that is no column.
        beside: names that an episode may have and the model not.
        declared: the attribute that declares an episode's number of steps; None if there is none.
        ignored: attributes of an episode that are no facts. All others are.
        hooks: what else is particular to the format.
    """

    episodes: EpisodeRule
    steps: str
    names: Mapping[str, str] = field(default_factory=dict)
    column: Callable[[Model, str, str], Column | None] = column_by_rows
    alias: Callable[[str], str | None] = str
    beside: frozenset[str] = frozenset()
    declared: str | None = None
    ignored: frozenset[str] = frozenset()
    hooks: Hooks = field(default_factory=Hooks)


def open_format(
    form: TreeFormat, trees: Sequence[Container], options: SourceOptions, metadata: Mapping[str, Any]
) -> TreeSource:
    """Opens trees of a built-in format.

    Args:
        form: the format.
        trees: the trees, in source order.
        options: the user's options.
        metadata: facts about the source.

    Raises:
        EmptySourceError: no episode has steps.
        UnsupportedColumnError: a chosen column is a link, or has a type that no column has.
    """
    found = _find_model(form, trees)
    if found is None:
        raise EmptySourceError(f"holds no episode with steps in '{form.steps}'", file=trees[0].name)
    item, place, steps = found
    with item.open() as tree:
        model = Model(tree, place, steps, contents(tree, place.key))
        columns = _columns(form, model, options)
        layout = _layout(form, model, columns)
    source = TreeSource(trees, Layout(form.episodes, columns), layout, form.hooks, skip_bad=options.skip_bad)
    source.metadata = metadata
    source.findings.extend(model.findings)
    return source


def count_steps(tree: Tree, place: EpisodePlace, path: str) -> int:
    """Counts the rows of an array of an episode; 0 if the array is missing or damaged."""
    with suppress(GearError):  # reported when the episode is read
        array = tree.array(place.path(path))
        if array is not None and array.shape:
            return array.rows
    return 0


def _find_model(form: TreeFormat, trees: Sequence[Container]) -> tuple[Container, EpisodePlace, int] | None:
    """Returns (container, place, steps) of the first episode of two or more steps, else of one; None without any."""
    shortest = None
    for item in trees:
        with item.open() as tree:
            for place in find_places(tree, form.episodes, None):
                steps = count_steps(tree, place, form.steps)
                if steps > 1:
                    return item, place, steps
                if steps and shortest is None:
                    shortest = item, place, steps
    return shortest


def _columns(form: TreeFormat, model: Model, options: SourceOptions) -> tuple[Column, ...]:
    """Returns the columns and facts that the user chooses among those of the model."""
    arrays = [path for path, kind in model.kinds.items() if kind == ARRAY]
    scalars = _scalars(model)
    links = [path for path, kind in model.kinds.items() if kind in LINKS]
    names = {form.alias(path): path for path in (*arrays, *links) if path not in scalars}
    known = {path: name for path, name in form.names.items() if path in names}
    options = replace(options, rename={**known, **(options.rename or {})})
    chosen = choose_columns((alias for alias in names if alias is not None), options)
    columns = [form.column(model, names[alias], name) for alias, name in chosen.items()]
    return with_dtypes([column for column in columns if column is not None], options)


def _scalars(model: Model) -> dict[str, TreeArray]:
    """Returns path -> array of the scalars of the model."""
    found = {}
    for path in (path for path, kind in model.kinds.items() if kind == ARRAY):
        with suppress(GearError):  # raised again if the array is chosen
            if not (array := model.array(path)).shape:
                found[path] = array
    return found


def _layout(form: TreeFormat, model: Model, columns: Sequence[Column]) -> TreeLayout:
    tree, place = model.tree, model.place
    places = [place, *(find_places(tree, form.episodes, None)[:_FACT_EPISODES])]
    types: dict[str, object] = {}
    for attributes in (tree.attributes(each.key) for each in places):
        for key, value in attributes.items():
            if value is not None and key not in form.ignored:
                types.setdefault(key, type_of(value))
    facts = [(_fact_name(key), f"@{key}", type_) for key, type_ in types.items()]
    for path, array in _scalars(model).items():
        alias, value = form.alias(path), fact_value(array)
        if value is None:
            model.add("column-left-out", "a scalar that is neither a number nor a short text; left out", path)
        elif alias is not None and _fact_name(alias) not in {name for name, _, _ in facts}:
            facts.append((_fact_name(alias), path, type_of(value)))
    with place.labels():
        described = [describe(model.array(column.path), column) for column in columns]
    return TreeLayout(
        columns=tuple(column for column in described if column.mapped.role not in (ColumnRole.ROW, ColumnRole.ROWS)),
        steps=Column(form.steps, form.steps),
        facts=tuple(Column(name, path, role=ColumnRole.EPISODE) for name, path, _ in facts),
        fact_types={name: type_ for name, _, type_ in facts},
        model=f"{tree.name} {place.key.rpartition('/')[2]}".rstrip(),
        rows=tuple(column for column in described if column.mapped.role in (ColumnRole.ROW, ColumnRole.ROWS)),
        known=frozenset(model.kinds) | form.beside,
        ignored=form.ignored,
        declared=form.declared,
    )


def _fact_name(attribute: str) -> str:
    return attribute.replace("/", ".")
