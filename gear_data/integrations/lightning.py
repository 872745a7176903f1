"""Lightning: a LightningDataModule whose checkpoints hold the loader's position.

trainer.fit(model, datamodule=LoaderDataModule(gear_data.SequenceLoader(...)), ckpt_path="last")
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from lightning.pytorch import LightningDataModule

from gear_data.loaders.builders.batch import Batch
from gear_data.loaders.sequence_loader import SequenceLoader


class LoaderDataModule(LightningDataModule):
    """Data of a Lightning Trainer: a loader for training, and one for validation.

    A pass of the training loader is an epoch, and the next epoch has new batches. Checkpoints hold the position after
    the last batch on which the model was trained. So a resumed run continues with the next batch, also in the middle of
    an epoch, and with another number of processes. Each validation has the same batches.

    Args:
        train: the loader for training, with an end or without.
        val: the loader for validation. None: no validation. Without an end, the Trainer needs `limit_val_batches`.
    """

    def __init__(self, train: SequenceLoader, val: SequenceLoader | None = None) -> None:
        super().__init__()
        self._train = _TrainingBatches(self, train)
        self._val = None if val is None else _ValidationBatches(val)
        if val is None:
            # Lightning validates if a module has another method than its own.
            self.val_dataloader = super().val_dataloader  # type: ignore[method-assign]

    def train_dataloader(self) -> Any:
        """Returns the batches of the training loader."""
        return self._train

    def val_dataloader(self) -> Any:
        """Returns the batches of the validation loader."""
        return self._val

    def state_dict(self) -> dict[str, Any]:
        """Returns the training loader's state after the last batch that was trained on."""
        return self._train.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Makes the training loader continue from a state.

        Raises:
            StateMismatchError: the state is of a loader with another dataset or other arguments.
        """
        self._train.load_state_dict(state_dict)


class _Batches:
    """A loader's batches, as Lightning takes them.

    Args:
        loader: the loader.
    """

    def __init__(self, loader: SequenceLoader) -> None:
        self._loader = loader

    def __len__(self) -> int:
        return len(self._loader)

    def __bool__(self) -> bool:
        return True

    def _seek(self, step: int) -> None:
        """Makes the next iteration start at a step."""
        # Also if the loader is there: a pass that the Trainer left early would be over.
        self._loader.load_state_dict({**self._loader.state_dict(), "step": step})


class _ValidationBatches(_Batches):
    """A loader's first pass, each time."""

    def __iter__(self) -> Iterator[Batch]:
        self._seek(0)
        yield from self._loader


class _TrainingBatches(_Batches):
    """A loader's passes, with a state that counts finished batches.

    Lightning fetches one batch ahead from a loader without an end, so the loader's own position is one too far.

    Args:
        module: the module whose Trainer counts batches.
        loader: the loader.
    """

    def __init__(self, module: LoaderDataModule, loader: SequenceLoader) -> None:
        super().__init__(loader)
        self._module = module
        # The next step when the Trainer had finished `_finished` batches. None: no iteration began since.
        self._step: int = loader.state_dict()["step"]
        self._finished: int | None = None

    def __iter__(self) -> Iterator[Batch]:
        # Lightning restores its count between loading this state and the first iteration.
        self._step, self._finished = self._next_step(), self._count()
        self._seek(self._step)
        yield from self._loader

    def state_dict(self) -> dict[str, Any]:
        return {**self._loader.state_dict(), "step": self._next_step()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._loader.load_state_dict(state)
        self._step, self._finished = state["step"], None

    def _next_step(self) -> int:
        step = self._step + (0 if self._finished is None else self._count() - self._finished)
        layout = self._loader._layout
        return step % layout.batches if layout.repeat and layout.batches else step

    def _count(self) -> int:
        """Returns the number of batches that the Trainer has finished, in all epochs."""
        return int(self._module.trainer.fit_loop.epoch_loop.batch_progress.total.processed)
