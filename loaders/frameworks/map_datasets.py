"""Map-style torch datasets of windows and of episodes, for a trainer that brings its own DataLoader."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any, SupportsIndex

import numpy as np
import torch
from torch.utils.data import Dataset as TorchDataset

from gear_data.common.keywords import suggest_keywords
from gear_data.dataset.dataset import Dataset
from gear_data.dataset.tables.conversions import check_whole_episodes
from gear_data.errors import EpisodeIndexError, InvalidArgumentError, UnsupportedColumnError
from gear_data.loaders.arguments.config import LoaderConfig
from gear_data.loaders.presets.facts import FactValues, batch_facts, split_columns
from gear_data.loaders.sequence_loader import SequenceLoader

#: Arguments of a SequenceLoader that its windows do not depend on, or that the DataLoader decides; and `pack`, whose
#: rows have several windows.
_OF_BATCHES = {
    "batch_size", "device", "epochs", "execution", "framework", "pack", "passes", "prefetch", "rank", "sampler", "seed",
    "steps", "world_size",
}  # fmt: skip
#: Passes over the windows. An item has what is drawn in one of them.
_PASSES = 1 << 20


class WindowDataset(TorchDataset[dict[str, Any]]):
    """Windows of a dataset, one an item, in the order of the dataset.

    Item i has the keys of a `SequenceLoader` batch without the leading axis. So the default `collate_fn` gives batches
    like those of the loader. The DataLoader shuffles, batches and divides the items among ranks.

    Goals, augmentations, choices, random anchors, and the numbers of `transform` are drawn again each time that an item
    is read, by torch's generator, which a DataLoader seeds in its workers.

    Args:
        dataset: the dataset or view. A step filter leaves out windows.
        context: the most steps of a window.
        **arguments: arguments of `SequenceLoader` about windows, such as `preset`, `columns`, `normalize` and
            `windows`.

    Raises:
        InvalidArgumentError: an argument that the DataLoader decides, such as `batch_size`; or rows of patches of one
            length (preset `gato`, `ragged` false).
        GearError: see `SequenceLoader`.
    """

    def __init__(self, dataset: Dataset, context: int, **arguments: Any) -> None:
        refused = sorted(_OF_BATCHES & arguments.keys())
        if refused:
            raise InvalidArgumentError(
                f"a dataset of windows has no {', '.join(refused)}",
                hint="give it to the DataLoader, or make batches by gear_data.SequenceLoader",
            )
        self._loader = SequenceLoader(
            dataset, 1, context=context, sampler="fifo", epochs=1, prefetch=0, framework="torch", rank=0, world_size=1,
            **arguments,
        )  # fmt: skip
        tokens = self._loader._config.batch_format.tokens
        if tokens is not None and tokens.patch and not tokens.ragged:
            raise InvalidArgumentError(
                "with ragged=False the patches of a batch are one array, of which no window has a part of its own",
                hint="leave ragged=False out of tokens, or make batches by gear_data.SequenceLoader",
            )
        self._draws = _has_draws(self._loader._config)

    def __len__(self) -> int:
        """Returns the number of windows."""
        return len(self._loader)

    def __getitem__(self, index: SupportsIndex) -> dict[str, Any]:
        """Returns a window, key -> tensor [context, ...]; text is a list.

        Raises:
            EpisodeIndexError: there is no such window. It is an `IndexError` too.
        """
        count = len(self)
        # Every pass of the loader has these windows in this order, and draws of its own. In a map-style dataset, nobody
        # says which pass it is.
        number = int(torch.randint(_PASSES, ())) if self._draws else 0
        batch = self._loader.batch(_position(index, count, "window") + number * count)
        return {key: values[0] for key, values in batch.items()}


@suggest_keywords
class EpisodeDataset(TorchDataset[dict[str, Any]]):
    """Episodes of a dataset, one an item.

    An item has `episode_id`, each column as a tensor [T, ...] or a list of T texts or bytes, and `final_X` for each
    column X of the final observation (None if the episode has none). A fact that `columns` names is a text, bytes, or a
    tensor without axes. Tensors are copies. Frames of cameras are decoded
    when the item is read. Episodes differ in T, so a DataLoader needs `batch_size=None` or a `collate_fn`.

    Args:
        dataset: the dataset or view.
        columns: names of columns, and of facts: columns of the episode table, such as `task`. A fact that has the name
            of a column, or of another key of the item, is `facts.NAME`. None: all columns.

    Raises:
        UnknownNameError: a column does not exist. The error lists the columns and facts.
        InvalidArgumentError: the view has a step filter, or an episode has no value of a fact.
        UnsupportedColumnError: the values of a fact are neither text, bytes nor numbers; or a column is called
            `episode_id`, or `final_X` for a column X of the final observation.
    """

    def __init__(self, dataset: Dataset, columns: Sequence[str] | None = None) -> None:
        check_whole_episodes(dataset)
        schema = dataset.schema
        names, facts = (schema.names, {}) if columns is None else split_columns(dataset, schema, columns)
        self._columns = [schema[name] for name in dict.fromkeys(names)]
        finals = [f"final_{spec.name}" for spec in self._columns if spec.has_final]
        taken = ["episode_id", *(spec.name for spec in self._columns), *finals]
        if twice := next((key for key in taken if taken.count(key) > 1), None):
            raise UnsupportedColumnError(
                "is the name of two keys of an item", column=twice, hint="choose other columns with columns="
            )
        self._facts = batch_facts(dataset, facts, {}, taken, ())
        self._dataset = dataset

    def __len__(self) -> int:
        """Returns the number of episodes."""
        return len(self._dataset)

    def __getitem__(self, index: SupportsIndex) -> dict[str, Any]:
        """Returns an episode.

        Raises:
            EpisodeIndexError: there is no such episode. It is an `IndexError` too.
        """
        position = _position(index, len(self), "episode")
        episode = self._dataset[position]
        item: dict[str, Any] = {"episode_id": episode.id}
        for spec in self._columns:
            values = episode[spec.name]
            item[spec.name] = values.tolist() if spec.variable_length else _tensor(values)
        row = np.array([position if self._dataset.view.rows is None else self._dataset.view.rows[position]])
        for fact in self._facts:
            (value,) = FactValues(self._dataset, fact).take(row, np.zeros(1, np.int64))
            item[fact.key] = value if fact.variable_length else _tensor(value)
        finals = episode.final or {}
        for spec in self._columns:
            if spec.has_final:
                item[f"final_{spec.name}"] = _tensor(finals[spec.name]) if finals else None
        return item


def _tensor(values: Any) -> torch.Tensor:
    # A copy: torch would write into memory that is mapped for reading.
    return torch.from_numpy(np.array(values))


def _has_draws(config: LoaderConfig) -> bool:
    """Returns whether the items of windows are drawn in part."""
    own = config.batch_format
    return (
        config.goals is not None
        or config.transform is not None
        or bool(config.choose or config.batch.augment or own.goals)
        or config.rule.anchor == "random"
        or (own.tokens is not None and own.tokens.patch > 0 and own.tokens.sample)
    )


def _position(index: SupportsIndex, count: int, noun: str) -> int:
    position = operator.index(index)
    if not -count <= position < count:
        raise EpisodeIndexError(f"there is no {noun} {position}", hint=f"{noun}s are 0 to {count - 1}")
    return position % count
