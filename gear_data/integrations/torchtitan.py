"""TorchTitan: a loader as the dataloader of a TrainSpec.

make_loader = functools.partial(gear_data.SequenceLoader, ds, context=20)
TrainSpec(..., build_dataloader_fn=dataloader_builder(make_loader, inputs_and_labels))
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from gear_data.loaders.builders.batch import Batch

if TYPE_CHECKING:
    from gear_data.loaders.sequence_loader import SequenceLoader

#: Key of the loader's state in a checkpoint.
_LOADER = "loader"


class TitanDataLoader:
    """A loader as TorchTitan's Trainer and CheckpointManager take it.

    The state is the same for every rank, and valid for any number of ranks. TorchTitan's own dataloaders refuse the
    state of another number.

    Args:
        loader: the loader, with the rank and the number of the data-parallel groups.
        split: called as split(batch); returns (inputs, labels). `inputs["input"]` is the model's main input; its other
            keys are further arguments of the model.
    """

    def __init__(self, loader: SequenceLoader, split: Callable[[Batch], tuple[dict[str, Any], Any]]) -> None:
        self.loader, self._split = loader, split

    def __iter__(self) -> Iterator[tuple[dict[str, Any], Any]]:
        """Yields (inputs, labels) of each batch."""
        return map(self._split, iter(self.loader))

    def state_dict(self) -> dict[str, Any]:
        """Returns the loader's state as one text.

        A distributed checkpoint would flatten a dictionary, and load only its keys at the time of loading.
        """
        return {_LOADER: json.dumps(self.loader.state_dict())}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Makes the next iteration continue from a state; an empty state changes nothing.

        Raises:
            StateMismatchError: the state is of a loader with another dataset or other arguments.
        """
        if state:
            self.loader.load_state_dict(json.loads(state[_LOADER]))


def dataloader_builder(
    make_loader: Callable[..., SequenceLoader], split: Callable[[Batch], tuple[dict[str, Any], Any]]
) -> Callable[..., TitanDataLoader]:
    """Returns the `build_dataloader_fn` of a TrainSpec.

    The loader's batch is `training.local_batch_size` rows of each data-parallel rank. To resume with another number of
    ranks, change `local_batch_size` so that the product stays.

    Args:
        make_loader: called with batch_size, rank and world_size.
        split: see `TitanDataLoader`.
    """

    def build(*, dp_world_size: int, dp_rank: int, job_config: Any, **_: Any) -> TitanDataLoader:
        rows = job_config.training.local_batch_size * dp_world_size
        return TitanDataLoader(make_loader(batch_size=rows, rank=dp_rank, world_size=dp_world_size), split)

    return build
