"""Describes the arrays of a source, for the error about an unclear layout."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice

from gear_data.common.paths import printable
from gear_data.errors import UnknownFormatError
from gear_data.ingest.sources.tree.find import number_of
from gear_data.ingest.sources.tree.suggest import suggest
from gear_data.ingest.sources.tree.view import ARRAY, GROUP, Container, Tree, join

_MAX_LINES = 20
_MAX_DEPTH = 16


def unclear(
    trees: Sequence[Container], name: str, rename: Mapping[str, str], ids: tuple[str, ...] = ()
) -> UnknownFormatError:
    """Returns the error for trees whose episodes are not clear.

    It has at most 20 lines about the first tree, and the nearest mapping.

    Args:
        trees: the trees of the source, at least one.
        name: the name of the source.
        rename: path of an array -> the name that the user gives it.
        ids: the paths of the arrays that name the episodes, if the user says which.
    """
    with trees[0].open() as tree:
        lines = list(islice(_lines(tree, "", 0), _MAX_LINES + 1))
    if len(lines) > _MAX_LINES:
        lines[_MAX_LINES - 1 :] = ["..."]
    seen = "".join(f"\n    {printable(line)}" for line in lines)
    suggestion = suggest(trees, rename, ids)
    if suggestion is None:
        message, nearest = "the format is not recognised, and it holds no array", ""
    else:
        message = "the format is not recognised"
        message += f"; {'; '.join(suggestion.doubts)}" if suggestion.doubts else ""
        yaml = "".join(f"\n    {line}" for line in suggestion.yaml().splitlines()[:_MAX_LINES])
        nearest = f"\n  the nearest mapping:{yaml}"
    hint = (
        "say where the episodes and columns are: write a mapping with 'gear-data lint SRC --suggest-map > map.yaml', "
    )
    actions = [] if suggestion is None else suggestion.parts_of_actions
    joined = f"; --stack actions={','.join(actions)} makes one column of the {len(actions)} actions" if actions else ""
    hint += f"check it, and convert with --map map.yaml{joined}{nearest}"
    return UnknownFormatError(f"{message}; {trees[0].name} holds:{seen}", file=name, hint=hint)


def _lines(tree: Tree, group: str, depth: int) -> Iterator[str]:
    """Yields a line for each array.

    Of names that differ only in a number, the first stands for all.
    """
    counts: dict[tuple[str, str], int] = {}
    children = tree.children(group)
    for name, kind in children.items():
        family = (number_of(name) or (name, ""))[0], kind
        counts[family] = counts.get(family, 0) + 1
    shown = set()
    for name, kind in children.items():
        family = (number_of(name) or (name, ""))[0], kind
        if family in shown:
            continue
        shown.add(family)
        path = join(group, name)
        more = f" (and {counts[family] - 1} more {family[0]}*)" if counts[family] > 1 else ""
        if kind == ARRAY:
            array = tree.array(path)
            yield f"{path}: {'damaged' if array is None else f'{array.dtype} {array.shape}'}{more}"
        elif kind == GROUP and depth < _MAX_DEPTH:
            if more:
                yield f"{path}/{more}"
            yield from _lines(tree, path, depth + 1)
        else:
            yield f"{path}: {kind}, not followed"
