"""Trainer: trains a `DecisionTransformerModel` from a SequenceLoader.

loader = gear_data.SequenceLoader(ds, batch_size=64, context=20, preset="decision_transformer", normalize=True)
trainer = Trainer(loader, Hyperparameters(learning_rate=1e-3))
for loss in trainer.run(steps=1000):
    ...
trainer.save(Path("runs/x/checkpoint.safetensors"))
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch

# DistributedDataParallel imports torch.distributed.nn at its first use. The module's functions take the default process
# group of that moment as a default argument. After init_process_group, this argument keeps the group alive until the
# process ends. Gloo's threads then outlive destroy_process_group. A thread that frees a tensor while the interpreter
# ends aborts the process. Imported here, before there is a group, the module keeps no group.
import torch.distributed.nn
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import clip_grad_norm_

from gear_data.demo.checkpoint import read_checkpoint, write_checkpoint
from gear_data.demo.model import MODEL_KEYS, Hyperparameters, build_model, masked_action_loss, seeded
from gear_data.errors import DeviceError, InvalidArgumentError, NonFiniteError, ResumeError, StateMismatchError
from gear_data.loaders.arguments.checks import check_dataset
from gear_data.loaders.builders.batch import Batch
from gear_data.loaders.frameworks.torch_tensors import check_device
from gear_data.loaders.sequence_loader import SequenceLoader

#: Key of the losses among a checkpoint's tensors.
_LOSSES = "losses"


def resolve_device(device: str | torch.device = "auto") -> torch.device:
    """Returns the device to train on.

    `auto` is the current CUDA device, or the CPU on a machine without CUDA.

    Raises:
        DeviceError: this machine has no such device.
    """
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    found = check_device(device)
    if found.type not in ("cpu", "cuda"):
        raise DeviceError(f"training runs on 'cpu' or 'cuda', not on {str(found)!r}")
    if found.type == "cuda" and found.index is None:
        found = torch.device("cuda", torch.cuda.current_device())
    return found


class Trainer:
    """A model in training, resumable bit for bit on a CPU.

    Step n is a function of the weights before it and of (loader seed, hyperparameters.seed, n): dropout draws from a
    generator that is seeded for each step. No generator state is saved, and other random draws of the process do not
    matter. On a CPU, with the same number of threads, equal runs have equal losses, bit for bit.

    If torch.distributed is initialised, gradients are averaged over its ranks. A checkpoint can be resumed on another
    number of ranks.

    Args:
        loader: a loader with preset `decision_transformer`.
        hyperparameters: settings of model and optimizer.
        device: `auto` (CUDA if present), `cpu`, `cuda` or `cuda:N`.

    Attributes:
        model: the `DecisionTransformerModel`.
        losses: one float per step since step 0, resumed runs included.

    Raises:
        InvalidArgumentError: the loader has another preset, or a batch has fewer windows than there are ranks.
        DeviceError: this machine has no such device.
        MissingExtraError: transformers is not installed.
    """

    def __init__(
        self,
        loader: SequenceLoader,
        hyperparameters: Hyperparameters | None = None,
        *,
        device: str | torch.device = "auto",
    ) -> None:
        self.loader = loader
        self.hyperparameters = hyperparameters or Hyperparameters()
        self.device = resolve_device(device)
        self.losses: list[float] = []
        self._rank, self._world_size = 0, 1
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            self._rank, self._world_size = torch.distributed.get_rank(), torch.distributed.get_world_size()
        if loader.batch_size < self._world_size:
            raise InvalidArgumentError(
                f"batch_size is {loader.batch_size}, less than the {self._world_size} ranks",
                hint="each rank needs at least one window of a batch",
            )
        self.model = build_model(loader, self.hyperparameters).to(self.device).train()
        self._network: torch.nn.Module = self.model
        if self._world_size > 1:
            # The loss does not use the model's heads for states and returns.
            self._network = DistributedDataParallel(self.model, find_unused_parameters=True)
        self.optimizer = torch.optim.AdamW(
            self.model.parameters(),
            lr=self.hyperparameters.learning_rate,
            weight_decay=self.hyperparameters.weight_decay,
        )
        self._loader_state = loader.state_dict()

    @property
    def step(self) -> int:
        """Number of steps trained."""
        return len(self.losses)

    @property
    def num_parameters(self) -> int:
        return sum(parameter.numel() for parameter in self.model.parameters())

    def run(self, steps: int | None = None) -> Iterator[float]:
        """Trains from the current step and yields the loss of each step.

        The iteration may stop at any step; a later call continues there.

        Args:
            steps: total number of steps to reach, earlier runs included. None: until the loader ends.

        Raises:
            NonFiniteError: the loss is NaN or infinite. The weights are the weights before that step.
            ResumeError: the ranks are at different steps.
        """
        if self._world_size > 1:
            self._check_same_step()
        if steps is not None and self.step >= steps:
            return
        self.loader.load_state_dict(self._loader_state)
        stream = iter(self.loader)
        try:
            for batch in stream:
                loss = self._train_step(batch)
                self._loader_state = self.loader.state_dict()
                self.losses.append(loss)
                yield loss
                if self.step == steps:
                    return
        finally:
            stream.close()  # ends its prefetch thread now

    def _check_same_step(self) -> None:
        """Checks that all ranks are at one step: ranks with different weights would train a model of neither."""
        bounds = torch.tensor([self.step, -self.step], device=self.device)
        torch.distributed.all_reduce(bounds, op=torch.distributed.ReduceOp.MAX)
        most, least = bounds[0].item(), -bounds[1].item()
        if least < most:
            raise ResumeError(
                f"the ranks are at the steps {least} to {most}",
                hint="load one checkpoint on all ranks; on several machines, from a folder that all of them see",
            )

    def learning_rate(self, step: int) -> float:
        """Returns the learning rate of a step: linear warm-up, then constant.

        The paper's code has the same schedule. It is a function of the step, so a checkpoint stores no schedule.
        """
        return self.hyperparameters.learning_rate * min(1.0, (step + 1) / max(1, self.hyperparameters.warmup_steps))

    def _train_step(self, batch: Batch) -> float:
        inputs = {key: self._to_device(batch[key]) for key in MODEL_KEYS}
        for group in self.optimizer.param_groups:
            group["lr"] = self.learning_rate(self.step)
        with seeded(self.device, self.hyperparameters.seed, self.step + 1, self._rank):
            predicted = self._network(**inputs, return_dict=True).action_preds
        loss = masked_action_loss(predicted, inputs["actions"], inputs["attention_mask"], self._world_size)
        mean_loss = loss.detach()
        if self._world_size > 1:
            mean_loss = mean_loss.clone() / self._world_size
            torch.distributed.all_reduce(mean_loss)
        value = mean_loss.item()
        if not np.isfinite(value):
            raise NonFiniteError(
                f"the loss of step {self.step} is {value}",
                file=str(check_dataset(self.loader.dataset).path),
                hint="look for NaN in the data with 'gear-data inspect', or lower the learning rate",
            )
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        clip_grad_norm_(self.model.parameters(), self.hyperparameters.max_grad_norm)
        self.optimizer.step()
        return float(value)

    def _to_device(self, tensor: torch.Tensor) -> torch.Tensor:
        """Returns the tensor on the device; floats as float32, the dtype of the weights."""
        return tensor.to(self.device, torch.float32 if tensor.is_floating_point() else None, non_blocking=True)

    def save(self, path: Path) -> None:
        """Writes a checkpoint atomically.

        A checkpoint is one safetensors file. Its tensors are the weights, AdamW's state and the losses. Its metadata is
        JSON: the hyperparameters, the loader's arguments and the loader's state.

        Raises:
            StorageFullError: the disk is full; an earlier checkpoint at `path` is kept.
        """
        tensors = {f"model/{name}": tensor for name, tensor in self.model.state_dict().items()}
        for name, parameter in self.model.named_parameters():
            for key, value in self.optimizer.state.get(parameter, {}).items():
                tensors[f"optimizer/{key}/{name}"] = value
        tensors[_LOSSES] = torch.tensor(self.losses, dtype=torch.float64)
        write_checkpoint(path, tensors, {"loader": self._loader_state, **self.spec()})

    def load(self, path: Path) -> None:
        """Restores a checkpoint. No pickle is read.

        Raises:
            ResumeError: `path` has no checkpoint, or an invalid one.
            StateMismatchError: the checkpoint has another dataset, loader or hyperparameters; the message names them.
        """
        tensors, meta = read_checkpoint(path)
        self._check_identity(meta, path)
        self.loader.load_state_dict(meta["loader"])
        number = {name: i for i, (name, _) in enumerate(self.model.named_parameters())}
        state: dict[int, dict[str, torch.Tensor]] = {}
        weights = {}
        try:
            for key, tensor in tensors.items():
                owner, _, rest = key.partition("/")
                if owner == "model":
                    weights[rest] = tensor
                elif owner == "optimizer":
                    kind, _, name = rest.partition("/")
                    state.setdefault(number[name], {})[kind] = tensor
            self.model.load_state_dict(weights)
        except (KeyError, RuntimeError) as error:
            raise ResumeError(
                f"the weights do not fit the model: {error}",
                file=str(path),
                hint="the checkpoint may come from another version of transformers",
            ) from error
        self.optimizer.load_state_dict({"state": state, "param_groups": self.optimizer.state_dict()["param_groups"]})
        self.losses = tensors[_LOSSES].tolist()
        self._loader_state = dict(meta["loader"])

    def spec(self) -> dict[str, Any]:
        """Returns the settings that must be equal to resume a run, JSON-able.

        Returns:
            `feed`: the loader's arguments, with the mean and std it normalises by and without its rank and world size.
            `hyperparameters`: see `Hyperparameters`.
        """
        feed = {key: value for key, value in self.loader.spec().items() if key not in ("rank", "world_size")}
        return {"feed": feed, "hyperparameters": asdict(self.hyperparameters)}

    def _check_identity(self, meta: Mapping[str, Any], path: Path) -> None:
        if meta["feed"].get("fingerprint") != self.loader.dataset.fingerprint:
            raise StateMismatchError(
                "the checkpoint belongs to another dataset", file=str(path), hint="train into another folder"
            )
        for group, settings in self.spec().items():
            for name, value in settings.items():
                if meta[group].get(name) != value:
                    saved = _short(meta[group].get(name))
                    raise StateMismatchError(
                        f"the checkpoint has another {name}: {saved}, and this run {_short(value)}",
                        file=str(path),
                        hint="resume with the arguments of the saved run, or train into another folder",
                    )


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
