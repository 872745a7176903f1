"""Detection of frameworks that would batch or divide batches again.

A loader yields the rows of its rank, as whole batches. Accelerate's `DataLoaderDispatcher` reads on rank 0 and divides
what it reads: no rank would get the rows of the other ranks. A DataLoader with a `batch_size` stacks several batches.
Neither calls the loader in another way than a right DataLoader does. So the loader looks at the frames that call
`iter(loader)`.

Why: docs/explanation/decisions/whole-batches.md
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Iterable, Iterator
from types import FrameType

from gear_data.errors import InvalidArgumentError
from gear_data.loaders.frameworks.framework import Framework

#: Modules of the frames that are looked at. `__init__` of a fetcher and `__iter__` of a dispatcher have `self`.
_FETCHER, _DISPATCHER = "torch.utils.data._utils.fetch", "accelerate.data_loader"
_LIGHTNING = ("lightning.pytorch.loops.fetchers", "pytorch_lightning.loops.fetchers")
#: Modules here know that their framework fetches ahead.
_INTEGRATIONS = "gear_data.integrations."
_DEEPSPEED, _SAMPLER = "deepspeed.runtime.dataloader", "torch.utils.data.distributed"
#: Options of a DataLoader that change batches.
_CHANGE_BATCHES = ("batch_size", "batch_sampler", "sampler", "shuffle", "drop_last", "collate_fn")


def calling_frames() -> Iterator[tuple[str, FrameType]]:
    """Yields (module, frame) of the caller, of its caller, and so on."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        yield str(frame.f_globals.get("__name__")), frame
        frame = frame.f_back


def check_consumer(loader: object, resumes: bool) -> None:
    """Raises InvalidArgumentError if the caller would change or lose batches.

    Args:
        loader: the loader that is iterated.
        resumes: whether the iteration starts at the step of a loaded state.

    A forked DataLoader worker has the frames of the process that started it. A spawned worker has not: there, the
    process that starts the worker must call this.
    """
    for module, frame in calling_frames():
        if module == _FETCHER and getattr(frame.f_locals.get("self"), "auto_collation", False):
            raise InvalidArgumentError(
                "this DataLoader has a batch_size, so it would stack several batches of the loader into one",
                hint="pass batch_size=None: DataLoader(loader, batch_size=None), or use loader.dataloader(); with "
                "transformers.Trainer, use gear_data.integrations.transformers.LoaderTrainer(model, args, "
                "train_dataset=loader)",
            )
        if module == _DISPATCHER and _divides(frame):
            raise InvalidArgumentError(
                "Accelerate would read batches on rank 0 only, and divide them among the ranks: other ranks' rows are "
                "never read",
                hint="do not prepare the DataLoader: accelerator.prepare(model, optimizer), and iterate the loader, "
                "which reads this rank's rows; for checkpoints, iterate "
                "gear_data.integrations.accelerate.prepare_loader(accelerator, loader)",
            )
        if resumes and module == _DISPATCHER and (skipped := _skips(frame, loader)):
            raise InvalidArgumentError(
                f"the loader resumes at the step of a loaded state, and Accelerate would skip {skipped} more batches",
                hint="with transformers.Trainer, use gear_data.integrations.transformers.LoaderTrainer(model, args, "
                "train_dataset=loader); with Accelerate, leave skip_first_batches out; or do not load the loader's "
                "state",
            )


def check_fetcher() -> None:
    """Raises InvalidArgumentError if Lightning fetches batches ahead.

    The first batch must call this, not `iter(loader)`: Lightning's clean-up hides errors of the latter.
    """
    for module, frame in calling_frames():
        if module.startswith(_INTEGRATIONS):
            return
        if module in _LIGHTNING and _fetches_ahead(frame):
            raise InvalidArgumentError(
                "Lightning fetches one batch ahead from a loader without an end, so a checkpoint would hold a position "
                "that is one batch too far",
                hint="use gear_data.integrations.lightning: trainer.fit(model, datamodule=LoaderDataModule(loader))",
            )


def check_sampler() -> None:
    """Raises InvalidArgumentError if a sampler asks for the length, to divide it."""
    for module, frame in calling_frames():
        if module == _DEEPSPEED:
            raise InvalidArgumentError(
                "DeepSpeed would divide and batch the loader's batches, which already are this rank's rows",
                hint="leave training_data= out of deepspeed.initialize, and iterate the loader; "
                "gear_data.integrations.deepspeed.batch_sizes gives the configuration's batch sizes",
            )
        if module == _SAMPLER and frame.f_back is not None and frame.f_back.f_globals.get("__name__") != _DEEPSPEED:
            raise InvalidArgumentError(
                "a DistributedSampler would divide the loader's batches, which already are this rank's rows",
                hint="leave sampler= out: DataLoader(loader, batch_size=None), or use loader.dataloader()",
            )


def check_group() -> None:
    """Raises InvalidArgumentError if torchrun's ranks form no group."""
    count = os.environ.get("WORLD_SIZE", "1")
    if count != "1" and "TORCHELASTIC_RUN_ID" in os.environ:
        raise InvalidArgumentError(
            f"torchrun started {count} processes, and torch.distributed is not initialised: each process would read "
            "all rows of every batch",
            hint="call torch.distributed.init_process_group() first, or give rank= and world_size= to the loader; "
            "rank=0, world_size=1 reads all rows",
        )


def check_dataloader_options(framework: Framework, options: Iterable[str]) -> None:
    """Raises InvalidArgumentError if these options would change batches."""
    if framework.name != "torch":
        raise InvalidArgumentError(
            f"torch's DataLoader turns arrays into tensors, and the batches are of {framework.name}",
            hint="iterate the loader itself, or give it framework='torch'",
        )
    for name in options:
        if name in _CHANGE_BATCHES:
            raise InvalidArgumentError(
                f"a DataLoader with {name}= would change batches that are already whole",
                hint="give batch_size=, sampler= and transform= to the SequenceLoader",
            )


def _divides(frame: FrameType) -> bool:
    """Returns whether a frame belongs to Accelerate's dispatcher of several processes."""
    consumer = frame.f_locals.get("self")
    state = getattr(consumer, "state", None)
    return type(consumer).__name__ == "DataLoaderDispatcher" and getattr(state, "num_processes", 1) > 1


def _fetches_ahead(frame: FrameType) -> bool:
    """Returns whether a fetcher of Lightning reads loaders of which one has no end."""
    limits = getattr(getattr(frame.f_locals.get("self"), "_combined_loader", None), "limits", None)
    return isinstance(limits, list) and math.inf in limits


def _skips(frame: FrameType, loader: object) -> int:
    """Returns how many of the loader's batches a frame of Accelerate skips."""
    consumer = frame.f_locals.get("self")
    return getattr(consumer, "skip_batches", 0) if getattr(consumer, "dataset", None) is loader else 0
