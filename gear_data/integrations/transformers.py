"""Hugging Face Transformers: a Trainer whose batches are a loader's.

trainer = LoaderTrainer(model=model, args=args, train_dataset=gear_data.SequenceLoader(...))
trainer.train(resume_from_checkpoint=True)
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import chain, repeat
from typing import Any

from torch.utils.data import DataLoader, IterableDataset
from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from gear_data.errors import InvalidArgumentError, StateMismatchError
from gear_data.integrations.accelerate import PreparedLoader
from gear_data.integrations.deepspeed import batch_sizes
from gear_data.loaders.sequence_loader import SequenceLoader

#: Name of the loader's state in trainer_state.json, among the states of callbacks.
_STATE = "SequenceLoader"


class LoaderTrainer(Trainer):
    """A Trainer that takes its batches from loaders, whole and as they are.

    A pass of the loader is an epoch. The next epoch has new batches. Checkpoints hold the loader's state in
    trainer_state.json: a resumed run continues with the next batch, also on another number of processes.

    The loader decides the batch size, so `args.per_device_train_batch_size` and the batch sizes of a DeepSpeed
    configuration are set to this process's rows. The model is called with all keys of a batch: choose them by the
    loader's preset and columns.

    Args:
        model: see `transformers.Trainer`.
        args: see `transformers.Trainer`.
        train_dataset: the loader. Without an end, `args.max_steps` is needed.
        **options: other arguments of `transformers.Trainer`. `eval_dataset` may be a loader with an end, too.

    Raises:
        InvalidArgumentError: the training set is not a loader, `args` has worker processes, or a loader for evaluation
            has no end.
    """

    def __init__(
        self, model: Any = None, args: TrainingArguments | None = None, *, train_dataset: SequenceLoader, **options: Any
    ) -> None:
        if not isinstance(train_dataset, SequenceLoader):
            raise InvalidArgumentError(
                f"train_dataset is a {type(train_dataset).__name__}, not a SequenceLoader",
                hint="give train_dataset=gear_data.SequenceLoader(...), or use transformers.Trainer",
            )
        evaluated = options.get("eval_dataset")
        for each in evaluated.values() if isinstance(evaluated, Mapping) else (evaluated,):
            _check_end(each)
        super().__init__(model, args, train_dataset=train_dataset, **options)
        if self.args.dataloader_num_workers:
            raise InvalidArgumentError(
                f"dataloader_num_workers is {self.args.dataloader_num_workers}, but the loader builds batches in a "
                "thread, and checkpoints need its position",
                hint="leave dataloader_num_workers at 0; SequenceLoader(prefetch=...) keeps batches ready",
            )
        self.args.per_device_train_batch_size = train_dataset.local_batch_size
        self._train_batch_size = self.args.train_batch_size
        if (plugin := self.accelerator.state.deepspeed_plugin) is not None:
            # Sizes that were "auto" are numbers by now, made of the arguments' own per_device_train_batch_size.
            accumulated = {"gradient_accumulation_steps": self.args.gradient_accumulation_steps}
            plugin.deepspeed_config.update(batch_sizes(train_dataset, accumulated))
        self._passes = _Passes(train_dataset)
        self.add_callback(_LoadState(self._passes))

    def get_train_dataloader(self) -> DataLoader[Any]:
        """Returns a DataLoader of the training loader's batches."""
        return DataLoader(self._passes, batch_size=None)

    def get_eval_dataloader(self, eval_dataset: Any = None) -> DataLoader[Any]:
        """Returns a DataLoader of a loader's batches, or Trainer's of another dataset."""
        chosen = self.eval_dataset if eval_dataset is None else eval_dataset
        if isinstance(chosen, str):
            chosen = self.eval_dataset[chosen]
        gathers = self.compute_metrics is not None
        own = isinstance(chosen, SequenceLoader)
        return self._eval_batches(chosen, gathers) if own else super().get_eval_dataloader(eval_dataset)

    def get_test_dataloader(self, test_dataset: Any) -> DataLoader[Any]:
        """Returns a DataLoader of a loader's batches for `predict`, or Trainer's of another dataset."""
        own = isinstance(test_dataset, SequenceLoader)
        return self._eval_batches(test_dataset, True) if own else super().get_test_dataloader(test_dataset)

    def _eval_batches(self, loader: SequenceLoader, gathers: bool) -> DataLoader[Any]:
        """Returns a DataLoader of a loader's batches for an evaluation.

        gathers: whether Trainer gathers the predictions, unless the arguments say that only the loss counts.
        """
        _check_end(loader)
        if gathers and not self.args.prediction_loss_only:
            _check_rows(loader)
        return _EvaluationBatches(_Evaluation(PreparedLoader(self.accelerator, loader)), batch_size=None)

    def num_examples(self, dataloader: DataLoader[Any]) -> int:
        """Returns the number of windows of a pass, of all processes."""
        if isinstance(dataloader.dataset, _Passes | _Evaluation):
            loader: SequenceLoader = dataloader.dataset.loader
            return (len(loader) - 1) * loader.batch_size + loader._layout.last_rows
        return super().num_examples(dataloader)  # type: ignore[no-any-return]

    def _save_checkpoint(self, *arguments: Any, **options: Any) -> None:
        self.state.stateful_callbacks[_STATE] = self.train_dataset.state_dict()
        super()._save_checkpoint(*arguments, **options)


def _check_end(dataset: Any) -> None:
    """Raises InvalidArgumentError if an evaluation of a dataset would never end."""
    try:
        if isinstance(dataset, SequenceLoader):
            len(dataset)
    except TypeError as error:
        raise InvalidArgumentError(
            "the loader for evaluation has no end, so the evaluation would have none",
            hint="give this SequenceLoader steps= or epochs=, and passes='repeat' for the same batches each time",
        ) from error


def _check_rows(loader: SequenceLoader) -> None:
    """Raises InvalidArgumentError if processes have unlike numbers of rows: to gather them would hang or fail."""
    processes, last = loader.spec()["world_size"], loader._layout.last_rows
    if loader.batch_size % processes or last % processes:
        raise InvalidArgumentError(
            f"the loader has {loader.batch_size} rows in a batch, and {last} in the last one, for {processes} "
            "processes, and Trainer gathers predictions of equal rows",
            hint=f"give this SequenceLoader a batch_size that is a multiple of {processes}, and steps= instead of "
            "epochs=, so that every batch is whole; or TrainingArguments(prediction_loss_only=True), without metrics",
        )


class _Passes(IterableDataset[Any]):
    """A loader's passes, each from its beginning.

    Attributes:
        loader: the loader.
    """

    def __init__(self, loader: SequenceLoader) -> None:
        super().__init__()
        self.loader = loader
        # The first iteration after `resume`.
        self._resumed: Iterator[Any] | None = None

    def resume(self, state: dict[str, Any], dropped: int) -> None:
        """Makes the next iteration continue from a state.

        Args:
            state: of the loader.
            dropped: number of batches that `Trainer` drops first. It gets None for each, so none is built again.
        """
        self.loader.load_state_dict(state)
        # A loader refuses to resume below a frame of Accelerate that drops batches, as `Trainer` does here.
        self._resumed = chain(repeat(None, dropped), iter(self.loader))

    def __len__(self) -> int:
        return len(self.loader)

    def __bool__(self) -> bool:
        return True

    def __iter__(self) -> Iterator[Any]:
        batches, self._resumed = self._resumed, None
        return iter(self.loader) if batches is None else batches


class _Evaluation(IterableDataset[Any]):
    """A loader's batches for an evaluation. Accelerate knows the last one, where `batch_eval_metrics` ends.

    It has no length, which `Trainer` would take for the number of windows.

    Args:
        batches: the loader, prepared.

    Attributes:
        loader: the loader.
    """

    def __init__(self, batches: PreparedLoader) -> None:
        super().__init__()
        self.loader, self._batches = batches.loader, batches

    def __iter__(self) -> Iterator[Any]:
        return iter(self._batches)


class _EvaluationBatches(DataLoader[Any]):
    """A DataLoader of an `_Evaluation`, whose length is the number of batches."""

    dataset: _Evaluation

    def __len__(self) -> int:
        return len(self.dataset.loader)


class _LoadState(TrainerCallback):
    """Callback that loads the state of a checkpoint into a loader."""

    def __init__(self, passes: _Passes) -> None:
        self._passes = passes

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        if not state.global_step:
            return
        saved = state.stateful_callbacks.get(_STATE)
        if saved is None:
            raise StateMismatchError(
                f"the checkpoint of step {state.global_step} has no state of a loader",
                hint="resume from a checkpoint that LoaderTrainer saved",
            )
        # As many as `Trainer` drops.
        accumulated = args.gradient_accumulation_steps
        try:
            updates = -(-len(self._passes) // accumulated)
        except TypeError:  # no end: the epoch has all steps of the run
            updates = args.max_steps
        dropped = 0 if args.ignore_data_skip else state.global_step % updates * accumulated
        self._passes.resume(saved, dropped)
