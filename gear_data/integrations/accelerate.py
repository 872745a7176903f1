"""Hugging Face Accelerate: a loader in checkpoints, with the end of a pass known.

loader = prepare_loader(accelerator, gear_data.SequenceLoader(...))
for batch in loader:
    with accelerator.accumulate(model):
        ...
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from gear_data.errors import InvalidArgumentError
from gear_data.loaders.builders.batch import Batch

if TYPE_CHECKING:
    from gear_data.loaders.sequence_loader import SequenceLoader


def prepare_loader(accelerator: Any, loader: SequenceLoader) -> PreparedLoader:
    """Returns the loader as Accelerate expects a prepared DataLoader.

    `accelerator.save_state` saves the loader's state, and `accelerator.load_state` loads the state, also with another
    number of processes. Do not pass the loader to `accelerator.prepare`.

    Args:
        accelerator: an `accelerate.Accelerator`.
        loader: the loader. Each process reads its own rows of the global batch.
    """
    accelerator.register_for_checkpointing(loader)
    return PreparedLoader(accelerator, loader)


class PreparedLoader:
    """A loader's batches on the accelerator's device.

    Accelerate reads `end_of_dataloader`: `accelerator.accumulate` synchronises gradients at the last batch of a pass.

    Args:
        accelerator: an `accelerate.Accelerator`.
        loader: the loader.
    """

    #: For `gather_for_metrics`, which would drop rows that repeat in the last batch. A loader repeats none.
    remainder = -1

    def __init__(self, accelerator: Any, loader: SequenceLoader) -> None:
        self.loader, self.end_of_dataloader = loader, False
        self._accelerator = accelerator

    def __len__(self) -> int:
        """Returns the number of batches; raises TypeError if there is no end."""
        return len(self.loader)

    def __bool__(self) -> bool:
        return True

    def __iter__(self) -> Iterator[Batch]:
        """Yields the batches of one pass.

        Raises:
            InvalidArgumentError: a prepared scheduler would step several times a batch.
        """
        from accelerate.utils import send_to_device

        self._check_schedulers()
        batches, gradients = iter(self.loader), self._accelerator.gradient_state
        self.end_of_dataloader = False
        gradients._add_dataloader(self)
        try:
            for batch in batches:
                self.end_of_dataloader = batches.remaining == 0
                yield send_to_device(batch, self._accelerator.device)
        finally:
            gradients._remove_dataloader(self)
            batches.close()

    def _check_schedulers(self) -> None:
        """Raises InvalidArgumentError if a scheduler would step several times a batch.

        Accelerate steps a scheduler once for each process, because it assumes that each process reads a whole batch.
        """
        from accelerate.scheduler import AcceleratedScheduler

        processes = self._accelerator.num_processes
        for scheduler in self._accelerator._schedulers if processes > 1 else ():
            # DeepSpeed and Megatron-LM step theirs once a batch: Accelerate's wrappers of them do not step.
            if getattr(type(scheduler), "step", None) is not AcceleratedScheduler.step:
                continue
            if scheduler.step_with_optimizer and not scheduler.split_batches:
                raise InvalidArgumentError(
                    f"Accelerate would step the learning-rate scheduler {processes} times a batch, because it assumes "
                    "that each process reads a whole batch; a loader's batch_size is the batch of all processes",
                    hint="make the accelerator with Accelerator(dataloader_config="
                    "DataLoaderConfiguration(split_batches=True))",
                )
