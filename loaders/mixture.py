"""Mixture: several datasets for one loader, in exact proportions."""

from __future__ import annotations

import copy
import dataclasses
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Never

import numpy as np

from gear_data.common.keywords import check_range, refuse_keywords_of
from gear_data.dataset.dataset import Dataset
from gear_data.error_text import shown
from gear_data.errors import InvalidArgumentError, naming, unknown_name
from gear_data.loaders.arguments.checks import check_bool, check_word
from gear_data.loaders.presets.seconds import check_fps
from gear_data.loaders.presets.stacked import check_rename
from gear_data.loaders.presets.unlike import PadTo, check_pad_to
from gear_data.relative import check_relative
from gear_data.selection.schedule import CheckedSchedule, checked_schedule
from gear_data.stacking import check_parts
from gear_data.words import StatisticsOf

#: Arguments of a SequenceLoader that a dataset of a mixture can replace.
OPTIONS = (
    "choose", "columns", "embodiment", "fps", "normalize", "preset_options", "relative", "rename", "sampler", "stack",
)  # fmt: skip

_PAIRS = "each dataset with its proportion: Mixture([(a, 0.5), (b, 0.5)])"
#: Other names of the proportions -> what to give.
_MOVED = dict.fromkeys(("proportions", "shares", "weights"), _PAIRS)


@dataclass(frozen=True)
class MixtureComponent:
    """One dataset of a mixture: its proportion, and the arguments it replaces."""

    dataset: Dataset
    proportion: CheckedSchedule
    options: Mapping[str, Any]


class Mixture:
    """Datasets for one SequenceLoader, in exact proportions.

    After any number of batches, each dataset has had its share of the batches to within less than one. If the datasets
    share batches, this holds for windows. See `gear_data.selection.turns.Cycle`; for proportions that depend on the
    step, `gear_data.selection.scheduled_turns`.

    The loader normalises each dataset by the dataset's own statistics, unless `statistics` says otherwise. The
    option `preset_options={"return_scale": ...}` gives a dataset its own scale of return-to-go.

    Args:
        datasets: the datasets, in equal proportions; or for each dataset (dataset, proportion) or (dataset, proportion,
            options). Proportions are positive; only their ratios count. A proportion may depend on the step:
            breakpoints [(step, proportion), ...] with straight lines between them, or a function of the step, of at
            least 0. Options are `sampler`, `columns`, `choose`, `normalize`, `relative`, `preset_options` and `stack`,
            as in `SequenceLoader`; the loader's value applies where an option is missing. Another is `rename`: column
            of the dataset -> its name in batches and in the other arguments. Samplers see the dataset's own names. With
            `embodiment`, a number of at least 0 for each dataset, batches have the key `embodiment`, int64 [B].
            `fps` is its number of steps per second for `Seconds`, instead of what its source states.
        join: False gives batches of one dataset each, with all its columns. True gives batches with windows of all
            datasets, and with the columns that all datasets have.
        pad_to: for datasets of unlike shape: column -> elements to which its last axis is padded with zeros, after
            normalising; or `largest`: columns that differ get the most elements that a dataset has. Batches then have
            the columns of all datasets. KEY_dim_mask, bool [B, elements], is true for elements of the row's dataset.
            If a dataset lacks a column, its rows hold zeros, and KEY_present, bool [B], is false. None: columns of
            unlike shape are an error if `join` is True.
        statistics: `dataset`: each dataset is normalised by its own statistics. `embodiment`: datasets of one
            `embodiment` are normalised by those of all their steps together, as one dataset of all their episodes
            has them. Their `normalize` must be alike. Proportions do not count.

    Attributes:
        components: the datasets in order; `batch["source"]` and `loader.windows(step)["dataset"]` number them from 0.

    Raises:
        InvalidArgumentError: no datasets, an entry of another form, proportions of some datasets only, or a proportion
            that is not a positive number; `pad_to` of another form; or shared statistics of datasets without an
            embodiment.
        UnknownNameError: an unknown option or word.
        UnknownArgumentError: an unknown keyword.
    """

    def __init__(
        self, datasets: Sequence[Dataset] | Sequence[tuple[Any, ...]], *proportions: Never, join: bool = False,
        pad_to: PadTo | None = None, statistics: StatisticsOf = "dataset", **unknown: Never,
    ) -> None:  # fmt: skip
        refuse_keywords_of(Mixture, unknown, _MOVED)
        if proportions:
            raise InvalidArgumentError("a mixture takes proportions beside the datasets", hint=f"give {_PAIRS}")
        if not isinstance(datasets, list | tuple) or not datasets:
            raise InvalidArgumentError(
                f"a mixture takes a list of one dataset or more, not {shown(datasets)}",
                hint="Mixture([a, b]), or Mixture([(a, 0.7), (b, 0.3)])",
            )
        bare = [isinstance(entry, Dataset) for entry in datasets]
        if any(bare) and not all(bare):
            raise InvalidArgumentError(
                f"dataset {bare.index(True)} of the mixture has no proportion, and others have one",
                hint="give all datasets a proportion, or none for equal shares",
            )
        self.components = tuple(_component(entry, number) for number, entry in enumerate(datasets))
        without = [number for number, each in enumerate(self.components) if "embodiment" not in each.options]
        if 0 < len(without) < len(self.components):
            raise InvalidArgumentError(
                f"dataset {without[0]} of the mixture has no embodiment, and others have one",
                hint="give all datasets the option embodiment, or none",
            )
        check_word("statistics", statistics, StatisticsOf)
        if statistics == "embodiment" and without:
            raise InvalidArgumentError(
                "statistics is 'embodiment', and the datasets of the mixture have no embodiment",
                hint="give each dataset its number: (dataset, proportion, {'embodiment': 0})",
            )
        check_bool("join", join)
        self.join = join
        self.pad_to = check_pad_to(pad_to)
        self.statistics = statistics

    @staticmethod
    def from_yaml(path: str | os.PathLike[str]) -> Mixture:
        """Opens the mixture of a YAML file.

        The file has `datasets`, a list, and may have `join`, `pad_to` and `statistics`. A dataset has a `path`, a
        folder or URL relative to the file. It may have `share`, its proportion (1); `filters`, a list; and the options
        of a mixture's dataset. A filter is a mapping with a method of `Dataset` and its arguments: `{filter: length >=
        40}`, `{filter_steps: rewards > 0, mode: all}`, `{keep_ranges: ranges.json}`, `{drop_idle: actions, threshold:
        0.001, seconds: 0.5}`. A `sampler` is a name, or a mapping with its `name` and arguments.

        Args:
            path: the file, as a path or URL.

        Raises:
            LoaderConfigError: the file cannot be read, is not YAML, or a key or value is wrong. It names the place.
            GearError: a dataset cannot be opened, or an argument is invalid. The error names the place in the file.
        """
        from gear_data.loaders.mixing.yaml_file import read_mixture

        return read_mixture(path, OPTIONS, lambda datasets, arguments: Mixture(datasets, **arguments))

    def to_yaml(self, path: str | os.PathLike[str]) -> None:
        """Writes the mixture to a file that `from_yaml` reads, or replaces an older file.

        Datasets and files below the folder of the file have relative paths.

        Args:
            path: the file, as a path or URL.

        Raises:
            InvalidArgumentError: the file cannot hold a proportion, a filter or an option: functions, expressions of
                Polars, views of positions, edits that were not saved. The message says which dataset.
            UnwritableError: the file cannot be written.
            RemoteError: the server of a URL cannot be reached.
        """
        from gear_data.loaders.mixing.yaml_file import write_mixture

        components = [(each.dataset, each.proportion, each.options) for each in self.components]
        write_mixture(path, components, {"join": self.join, "pad_to": self.pad_to} | self._shared())

    @property
    def proportions(self) -> tuple[CheckedSchedule, ...]:
        """The proportions of the datasets, as given."""
        return tuple(component.proportion for component in self.components)

    @property
    def fingerprint(self) -> str:
        """The fingerprints of the datasets, joined by `+`."""
        return "+".join(component.dataset.fingerprint for component in self.components)

    def with_datasets(self, datasets: Sequence[Dataset]) -> Mixture:
        """Returns the mixture with other datasets, in the same order: later generations, for example."""
        mixture = copy.copy(self)
        mixture.components = tuple(
            dataclasses.replace(component, dataset=dataset)
            for component, dataset in zip(self.components, datasets, strict=True)
        )
        return mixture

    def __repr__(self) -> str:
        shares = self._percentages() or [f"proportion {shown(each)}" for each in self.proportions]
        entries = [f"{share} {each.dataset!r}" for share, each in zip(shares, self.components, strict=True)]
        given = {"join": self.join} | ({} if self.pad_to is None else {"pad_to": self.pad_to}) | self._shared()
        arguments = ", ".join(f"{name}={value!r}" for name, value in given.items())
        return f"Mixture([{', '.join(entries)}], {arguments})"

    def _shared(self) -> dict[str, str]:
        """Returns the argument `statistics`, unless it is the default."""
        return {} if self.statistics == "dataset" else {"statistics": self.statistics}

    def _percentages(self) -> list[str] | None:
        """Returns the shares of the datasets for people; None if they depend on the step."""
        fixed = [float(each) for each in self.proportions if isinstance(each, int | float | np.number) and each > 0]
        if len(fixed) < len(self.components):
            return None
        return [f"{100 * each / sum(fixed):.3g}%" for each in fixed]


def dataset_name(number: int, dataset: Dataset) -> str:
    """Returns a dataset of a mixture as errors name it."""
    return f"dataset {number} ({dataset.path})"


def _component(entry: Dataset | tuple[Any, ...], number: int) -> MixtureComponent:
    if isinstance(entry, Dataset):
        return MixtureComponent(entry, 1, {})
    if not isinstance(entry, tuple | list) or len(entry) not in (2, 3) or not isinstance(entry[0], Dataset):
        raise InvalidArgumentError(
            f"a mixture takes (dataset, proportion) or (dataset, proportion, options), not {shown(entry)}",
            hint="Mixture([a, b]), or Mixture([(a, 0.7), (b, 0.3)])",
        )
    dataset = entry[0]
    with naming(dataset_name(number, dataset), dataset.path):
        options = _options(entry[2] if len(entry) == 3 and entry[2] is not None else {})
        return MixtureComponent(dataset, _proportion(entry[1]), options)


def _options(options: Any) -> dict[str, Any]:
    """Returns the checked options of a dataset."""
    if not isinstance(options, Mapping):
        raise InvalidArgumentError(f"the options of a mixture's dataset must be a mapping, not {options!r}")
    for name in options:
        if name not in OPTIONS:
            raise unknown_name("mixture option", name, OPTIONS)
    checked = dict(options)
    for name, check in (("rename", check_rename), ("stack", check_parts), ("relative", check_relative)):
        if name in checked:
            checked[name] = check(checked[name])
    if "embodiment" in checked:
        check_range("embodiment", checked["embodiment"], 0)
        checked["embodiment"] = int(checked["embodiment"])
    if "fps" in checked:
        check_fps("fps", checked["fps"])
        checked["fps"] = float(checked["fps"])
    return checked


def _proportion(proportion: Any) -> CheckedSchedule:
    """Returns the checked proportion of a dataset."""
    if callable(proportion) or isinstance(proportion, list | tuple):
        return checked_schedule("a proportion", proportion)
    number = isinstance(proportion, int | float | np.number) and not isinstance(proportion, bool)
    if not number or not 0 < proportion < math.inf:
        raise InvalidArgumentError(
            f"a proportion must be a positive number, not {shown(proportion)}",
            hint="give a positive number, or leave the dataset out of the mixture",
        )
    return checked_schedule("a proportion", proportion)
