"""HDF5 files of datasets whose rows are the steps of all episodes."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from gear_data.errors import BadEpisodeError, CorruptSourceError, GearError
from gear_data.ingest.findings.log import Finding
from gear_data.ingest.location import separate_datasets_hint
from gear_data.ingest.sources.hdf5.attributes import plain_value
from gear_data.ingest.sources.tree.columns import TreeColumn, describe
from gear_data.ingest.sources.tree.view import ARRAY, LINKS, Tree, TreeArray, contents, not_followed


@dataclass(frozen=True)
class FlatFile:
    """The datasets of an open file.

    Attributes:
        tree: the file.
        kinds: path of a dataset or a link -> its kind.
    """

    tree: Tree
    kinds: Mapping[str, str]

    def shape(self, path: str) -> tuple[int, ...] | None:
        """Returns the shape of a dataset; None for a link, and for a damaged one, which is an error if it is read."""
        with suppress(GearError):
            array = self.tree.array(path)
            return None if array is None else array.shape
        return None

    def array(self, path: str, model: str) -> TreeArray:
        """Opens a dataset that the file `model` has.

        Raises:
            UnsupportedColumnError: it is a link.
            CorruptSourceError: it is missing or damaged.
        """
        array = self.tree.array(path)
        if array is not None:
            return array
        if path not in self.kinds:
            raise CorruptSourceError(f"is missing; {model} has it", column=path)
        raise not_followed(path, self.kinds[path])

    def checked(
        self, columns: Sequence[TreeColumn], others: Sequence[str], model: str, files: Sequence[str]
    ) -> dict[str, TreeArray]:
        """Opens the datasets of columns, and others.

        Args:
            columns: the columns, as in the first file.
            others: paths of other datasets. The first one has a row for each step.
            model: the name of the first file.
            files: the names of all files, for the hint.

        Returns:
            Path -> array.

        Raises:
            CorruptSourceError: a dataset is missing or damaged, or has another dtype or shape than in the first file.
            BadEpisodeError: the datasets have different numbers of rows.
        """
        specs = {column.mapped.path: column for column in columns}
        try:
            arrays = {path: self.array(path, model) for path in dict.fromkeys([*specs, *others])}
            rows = arrays[others[0]].rows
            for path, array in arrays.items():
                if array.rows != rows:
                    raise self._wrong_rows(array, rows, others)
                if rows and path in specs:
                    self._check_matches(array, specs[path], model)
        except CorruptSourceError as error:
            error.hint = error.hint or separate_datasets_hint(files, model, self.tree.name)
            raise
        return arrays

    def left_out(self, known: Collection[str], model: str) -> tuple[Finding, ...]:
        """Returns a finding about datasets that the file `model`, with the datasets `known`, does not have."""
        extra = sorted(path for path, kind in self.kinds.items() if kind == ARRAY and path not in known)
        if not extra:
            return ()
        message = f"'{extra[0]}' is not in {model}, so it is not a column; left out"
        return (Finding("column-left-out", message, len(extra), self.tree.name),)

    def _wrong_rows(self, array: TreeArray, rows: int, needed: Sequence[str]) -> BadEpisodeError:
        leave_out = "or name the columns of equal length with --columns (columns=[...])"
        return BadEpisodeError(
            f"has {array.rows} rows, where '{needed[0]}' has {rows}",
            column=array.path,
            row=min(rows, array.rows),
            hint="download the file again" if array.path in needed else f"repair the file, {leave_out}",
        )

    def _check_matches(self, array: TreeArray, column: TreeColumn, model: str) -> None:
        found, expected = describe(array, column.mapped).spec, column.spec
        if found != expected:
            raise CorruptSourceError(
                f"is {found.dtype} {found.shape}, in {model} {expected.dtype} {expected.shape}", column=array.path
            )


def root_scalars(tree: Tree, arrays: Iterable[TreeArray]) -> dict[str, Any]:
    """Returns the attributes of a file and the values of scalars: name or path -> plain Python value.

    What is no number, flag or text of bounded size is None.
    """
    found = dict(tree.attributes(""))
    for array in arrays:
        found[array.path] = None
        if array.kind or array.dtype == "string" or array.dtype.startswith("|S"):
            with suppress(BadEpisodeError):  # a text that is not UTF-8
                values = array.read(0, 1)
                found[array.path] = plain_value(values[0].as_py() if isinstance(values, pa.Array) else values[0])
    return found


def flat_file(tree: Tree) -> FlatFile:
    """Lists the datasets and links of an open file.

    Raises:
        CorruptSourceError: the file is damaged, or holds too many names.
    """
    return FlatFile(tree, {path: kind for path, kind in contents(tree, "").items() if kind in (ARRAY, *LINKS)})
