"""DeepSpeed: the batch sizes of a loader in a configuration.

config.update(batch_sizes(loader, config))
engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from gear_data.errors import InvalidArgumentError

if TYPE_CHECKING:
    from gear_data.loaders.sequence_loader import SequenceLoader

#: Keys of a configuration: rows of an optimizer step, rows of one batch of one process, and batches of a step.
_GLOBAL, _MICRO, _ACCUMULATED = "train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps"


def batch_sizes(loader: SequenceLoader, config: Mapping[str, Any] | None = None) -> dict[str, int]:
    """Returns the batch sizes of a DeepSpeed configuration for a loader.

    Every batch of the loader is one micro batch of all processes. Frameworks that fill in `"auto"` take
    `loader.batch_size`, the rows of all processes, for the rows of one. So fill the sizes in with this function.

    Args:
        loader: the loader, after torch.distributed was initialised. DeepSpeed wants equal rows in each process.
        config: the configuration. A number is checked; `"auto"` or a missing key is filled in. Without a number,
            `gradient_accumulation_steps` follows from `train_batch_size`, or is 1.

    Returns:
        `train_batch_size`, `train_micro_batch_size_per_gpu` and `gradient_accumulation_steps`.

    Raises:
        InvalidArgumentError: the number of processes does not divide `batch_size`, or a number of `config` differs.
    """
    spec, given = loader.spec(), {key: value for key, value in (config or {}).items() if value != "auto"}
    rows, processes = spec["batch_size"], spec["world_size"]
    if rows % processes:
        raise InvalidArgumentError(
            f"batch_size is {rows} for {processes} processes, and DeepSpeed wants equal rows in each process",
            hint=f"make the loader with a batch_size that is a multiple of {processes}",
        )
    accumulated = given.get(_ACCUMULATED) or max(1, given.get(_GLOBAL, rows) // rows)
    sizes = {_GLOBAL: rows * accumulated, _MICRO: loader.local_batch_size, _ACCUMULATED: accumulated}
    for key, size in sizes.items():
        if given.get(key, size) != size:
            raise InvalidArgumentError(
                f"the configuration has {key} {given[key]}, but batches of {rows} rows, {processes} processes and "
                f"{accumulated} batches for each step of the optimizer make {size}",
                hint=f"leave {key} at 'auto', or change the loader's batch_size or {_ACCUMULATED}",
            )
    return sizes
