"""Mixture: several datasets in exact proportions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gear_data.dataset.dataset import Dataset
from gear_data.errors import InvalidArgumentError, unknown_name

#: Arguments of a SequenceLoader that a dataset of a mixture may have of its own.
OPTIONS = ("columns", "normalize", "preset_options", "sampler")


@dataclass(frozen=True)
class MixtureComponent:
    """One dataset of a mixture: its proportion, and the loader's arguments it has of its own."""

    dataset: Dataset
    proportion: float
    options: Mapping[str, Any]


class Mixture:
    """Datasets for one SequenceLoader, in exact proportions (`gear_data.selection.turns.Cycle`): after any number of
    batches each dataset has had its share of them, or joined, of the windows, to within less than one.

    Each dataset is normalised by its own statistics; `preset_options={"return_scale": ...}` of its own gives it a
    return-to-go scale of its own.

    Args:
        datasets: (dataset, proportion) or (dataset, proportion, options). Proportions are positive, and only their
            ratios count. Options: `sampler`, `columns`, `normalize` and `preset_options`, as of the loader; what is not
            given is the loader's.
        join: False: every batch is of one dataset, whose columns it has. True: the datasets share every batch, which
            has the columns that all of them have.

    Attributes:
        components: in order; `batch["source"]` and `loader.windows(step)["dataset"]` number them from 0.

    Raises:
        InvalidArgumentError: no datasets, an entry of another form, or a proportion that is not a positive number.
        UnknownNameError: an option there is not.
    """

    def __init__(self, datasets: Sequence[tuple[Any, ...]], *, join: bool = False) -> None:
        if not isinstance(datasets, Sequence) or not datasets:
            raise InvalidArgumentError(f"a mixture takes a list of one dataset or more, not {datasets!r}")
        self.components = tuple(_component(entry) for entry in datasets)
        self.join = join

    @property
    def proportions(self) -> tuple[float, ...]:
        return tuple(component.proportion for component in self.components)

    @property
    def fingerprint(self) -> str:
        """Those of the datasets, joined by `+`."""
        return "+".join(component.dataset.fingerprint for component in self.components)

    def __repr__(self) -> str:
        parts = ", ".join(f"({c.dataset!r}, {c.proportion!r})" for c in self.components)
        return f"Mixture([{parts}], join={self.join})"


def _component(entry: tuple[Any, ...]) -> MixtureComponent:
    if not isinstance(entry, tuple | list) or len(entry) not in (2, 3) or not isinstance(entry[0], Dataset):
        raise InvalidArgumentError(
            f"a mixture takes (dataset, proportion) or (dataset, proportion, options), not {entry!r}"
        )
    options = entry[2] if len(entry) == 3 and entry[2] is not None else {}
    if not isinstance(options, Mapping):
        raise InvalidArgumentError(f"options of a mixture's dataset are a mapping, not {options!r}")
    for name in options:
        if name not in OPTIONS:
            raise unknown_name("mixture option", name, OPTIONS)
    return MixtureComponent(entry[0], entry[1], dict(options))
