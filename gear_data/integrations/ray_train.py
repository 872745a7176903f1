"""Ray Train: a loader's state in checkpoints, for any number of workers.

def train_loop(config):
    loader = gear_data.SequenceLoader(gear_data.open(config["dataset"]), 256)
    saved = load_checkpoint(loader)  # None in a new run
    for step, batch in zip(range(loader.state_dict()["step"] + 1, 10_001), loader):
        ...
        if step % 1000 == 0:
            report_checkpoint({"loss": loss.item()}, loader, {"model": model.state_dict()})
"""

from __future__ import annotations

import json
import pickle
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gear_data.common.private_folder import scratch_folder
from gear_data.errors import InvalidArgumentError

if TYPE_CHECKING:
    from gear_data.loaders.sequence_loader import SequenceLoader

#: Files of a checkpoint.
_LOADER, _STATE = "loader.json", "state.pt"


def load_checkpoint(loader: SequenceLoader) -> Any:
    """Loads the run's last checkpoint, and returns the state that was saved.

    Every worker calls this before it iterates the loader. The number of workers may have changed.

    Args:
        loader: the loader; its next step becomes the checkpoint's.

    Returns:
        The `state` of `report_checkpoint`, with tensors of the CPU; None if the run has no checkpoint yet.

    Raises:
        InvalidArgumentError: the loader would not read this worker's rows.
        StateMismatchError: the checkpoint is of a loader with other arguments.
    """
    import torch
    from ray import train

    _check_rank(loader, train.get_context())
    checkpoint = train.get_checkpoint()
    if checkpoint is None:
        return None

    with checkpoint.as_directory() as folder:
        loader.load_state_dict(json.loads(Path(folder, _LOADER).read_text()))
        return torch.load(Path(folder, _STATE), map_location="cpu", weights_only=True)


def report_checkpoint(metrics: Mapping[str, Any], loader: SequenceLoader, state: Mapping[str, Any]) -> None:
    """Reports metrics with a checkpoint of the loader's state and of `state`.

    Every worker calls this at the same step, because Ray waits for all of them. The worker of rank 0 writes.

    Args:
        metrics: of `ray.train.report`.
        loader: the loader; the checkpoint continues after the batch that it gave last.
        state: what `torch.save` writes, such as the states of the model and the optimizer. It has tensors, numbers,
            texts, lists and dictionaries: `load_checkpoint` loads no other objects.

    Raises:
        InvalidArgumentError: the state has another object, such as a number of NumPy.
    """
    import torch
    from ray import train

    if train.get_context().get_world_rank() != 0:
        train.report(dict(metrics))
        return

    with scratch_folder() as folder:
        (folder / _LOADER).write_text(json.dumps(loader.state_dict()))
        torch.save(state, folder / _STATE)
        _check_loads(folder / _STATE)
        train.report(dict(metrics), checkpoint=train.Checkpoint.from_directory(str(folder)))


def _check_loads(path: Path) -> None:
    """Raises InvalidArgumentError if `load_checkpoint` could not load a state. The run would notice when it resumes."""
    import torch

    try:
        # Of a mapped file, only the description of the tensors is read.
        torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except pickle.UnpicklingError as error:
        found = re.search(r"GLOBAL (\S+)", str(error))
        raise InvalidArgumentError(
            f"the state has an object that load_checkpoint does not load: {found[1] if found else error}",
            hint="give tensors, numbers, texts, lists and dictionaries, such as float(x) for a number of NumPy, and "
            "torch.from_numpy(x) for an array",
        ) from error


def _check_rank(loader: SequenceLoader, context: Any) -> None:
    """Raises InvalidArgumentError if a loader reads the rows of another worker."""
    spec = loader.spec()
    if "decentralized" in spec.get("selection", ()):
        return  # its ranks count within a node
    rank, workers = context.get_world_rank(), context.get_world_size()
    if (spec["rank"], spec["world_size"]) != (rank, workers):
        raise InvalidArgumentError(
            f"the loader reads the rows of rank {spec['rank']} of {spec['world_size']}, and this is worker {rank} of "
            f"{workers}",
            hint="with TorchTrainer, leave rank= and world_size= out; with trainers that start no process group of "
            "torch, give rank=ray.train.get_context().get_world_rank() and world_size=...get_world_size()",
        )
