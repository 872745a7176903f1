"""Training `transformers.DecisionTransformerModel` from a SequenceLoader: the part that scripts share.

    loader = gear_data.SequenceLoader(ds, batch_size=64, context=20, preset="decision_transformer", normalize=True)
    trainer = Trainer(loader, Hyperparameters(learning_rate=1e-3))
    for loss in trainer.run(steps=1000):
        ...
    trainer.save(Path("runs/x/checkpoint.safetensors"))

Sources: Chen et al., "Decision Transformer" (2021), appendix A and its `gym` code; HuggingFace's "Train your first
Decision Transformer" (2022).

A dataset of discrete actions (one integer a step) is trained as a regression onto the action's number, since the
preset gives float32 [B, K, 1]; there is no classification head yet.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

# DistributedDataParallel imports this when it is first used, and its functions take the default process group of that
# moment as the default of an argument: imported after init_process_group, it keeps the group alive for ever.
# Gloo's threads then outlive destroy_process_group, and one that still frees a tensor while the interpreter ends aborts
# the process. Imported here, before any group is, there is nothing for it to keep.
import torch.distributed.nn
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import clip_grad_norm_

from gear_data.common.extras import import_extra
from gear_data.demo.checkpoint import read_checkpoint, write_checkpoint
from gear_data.errors import DeviceError, InvalidArgumentError, NonFiniteError, ResumeError, StateMismatchError
from gear_data.loaders.arguments import check_dataset, check_device
from gear_data.loaders.batch_builder import Batch
from gear_data.loaders.sequence_loader import SequenceLoader

#: What the model takes of a batch.
MODEL_KEYS = ("states", "actions", "rewards", "returns_to_go", "timesteps", "attention_mask")
#: Key of the losses among a checkpoint's tensors.
_LOSSES = "losses"


@dataclass(frozen=True)
class Hyperparameters:
    """Model and optimizer of one run; names as in `DecisionTransformerConfig` and `TrainingArguments`. The defaults
    are the paper's for Hopper, but for the warm-up, which is 10,000 of 100,000 steps there.

    Attributes:
        hidden_size: width of the transformer.
        n_layer, n_head: blocks, and attention heads of each; heads divide the width.
        activation_function: of the feed-forward layers, a name `transformers` knows.
        dropout: probability, at attention, residuals and embeddings alike.
        action_tanh: predictions go through tanh. None: where all actions of the dataset lie in [-1, 1].
        max_ep_len: timesteps that have an embedding. None: the dataset's longest episode.
        learning_rate, weight_decay: of AdamW.
        warmup_steps: the learning rate rises linearly over so many steps, then stays.
        max_grad_norm: gradients are clipped to this norm.
        seed: of initial weights and dropout; the loader has its own.

    Raises:
        InvalidArgumentError: a value out of its range.
    """

    hidden_size: int = 128
    n_layer: int = 3
    n_head: int = 1
    activation_function: str = "relu"
    dropout: float = 0.1
    action_tanh: bool | None = None
    max_ep_len: int | None = None
    learning_rate: float = 1e-4
    weight_decay: float = 1e-4
    warmup_steps: int = 200
    max_grad_norm: float = 0.25
    seed: int = 0

    def __post_init__(self) -> None:
        positive = ("hidden_size", "n_layer", "n_head", "learning_rate", "max_grad_norm")
        for name in positive:
            if not getattr(self, name) > 0:
                raise InvalidArgumentError(f"{name} must be above 0, not {getattr(self, name)}")
        for name in ("weight_decay", "warmup_steps", "seed"):
            if not getattr(self, name) >= 0:
                raise InvalidArgumentError(f"{name} must be at least 0, not {getattr(self, name)}")
        if not 0 <= self.dropout < 1:
            raise InvalidArgumentError(f"dropout must be from 0 to below 1, not {self.dropout}")
        if self.hidden_size % self.n_head:
            raise InvalidArgumentError(f"hidden_size {self.hidden_size} is no multiple of n_head {self.n_head}")


def resolve_device(device: str | torch.device = "auto") -> torch.device:
    """`auto` is the current CUDA device, or the CPU where there is none.

    Raises:
        DeviceError: no such device here.
    """
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    found = check_device(device)
    if found.type not in ("cpu", "cuda"):
        raise DeviceError(f"training runs on 'cpu' and 'cuda', not on {str(found)!r}")
    if found.type == "cuda" and found.index is None:
        found = torch.device("cuda", torch.cuda.current_device())
    return found


def build_model(loader: SequenceLoader, hyperparameters: Hyperparameters) -> Any:
    """A `DecisionTransformerModel` with fresh weights, on the CPU, that takes the loader's batches.

    Raises:
        InvalidArgumentError: the loader's preset is another, or `max_ep_len` is below the longest episode.
        MissingExtraError: transformers is not installed.
    """
    if loader.preset != "decision_transformer":
        raise InvalidArgumentError(f"training takes preset 'decision_transformer', not '{loader.preset}'")
    transformers = import_extra("transformers")
    dataset, chosen = check_dataset(loader.dataset), hyperparameters
    longest = int(dataset.lengths.max())
    if chosen.max_ep_len is not None and chosen.max_ep_len < longest:
        raise InvalidArgumentError(f"max_ep_len is {chosen.max_ep_len}, and the longest episode has {longest} steps")
    config = transformers.DecisionTransformerConfig(
        state_dim=dataset.schema["observations"].size,
        act_dim=dataset.schema["actions"].size,
        hidden_size=chosen.hidden_size,
        max_ep_len=chosen.max_ep_len or longest,
        action_tanh=_fits_tanh(loader) if chosen.action_tanh is None else chosen.action_tanh,
        n_layer=chosen.n_layer,
        n_head=chosen.n_head,
        # A step is three tokens: return-to-go, state, action.
        n_positions=max(1024, 3 * loader.context),
        activation_function=chosen.activation_function,
        resid_pdrop=chosen.dropout,
        embd_pdrop=chosen.dropout,
        attn_pdrop=chosen.dropout,
        use_cache=False,
        # There are no words; the defaults are those of GPT-2.
        bos_token_id=None,
        eos_token_id=None,
        architectures=["DecisionTransformerModel"],
    )
    with _seeded(torch.device("cpu"), chosen.seed):
        return transformers.DecisionTransformerModel(config)


def _fits_tanh(loader: SequenceLoader) -> bool:
    """Whether the actions, as the loader gives them, lie in [-1, 1]."""
    actions = check_dataset(loader.dataset).statistics["actions"]
    low, high = actions.min, actions.max
    if "actions" in loader.spec()["normalize"]:
        return False
    return bool((low >= -1).all() and (high <= 1).all())


def masked_action_loss(
    predicted: torch.Tensor, actions: torch.Tensor, attention_mask: torch.Tensor, world_size: int = 1
) -> torch.Tensor:
    """Mean squared error of the actions over valid positions alone: padding counts neither above nor below the line.

    Args:
        predicted, actions: [B, K, A].
        attention_mask: [B, K], 1 = valid.
        world_size: with more than one rank, positions are counted over all of them and this rank's loss is scaled so
            that the mean of the ranks' losses, and of their gradients, is that of the whole batch.

    Returns:
        A scalar.
    """
    error = torch.where(attention_mask[..., None] > 0, (predicted - actions).square(), 0.0)
    count = (attention_mask > 0).sum() * actions.shape[-1]
    if world_size > 1:
        torch.distributed.all_reduce(count)
    return error.sum() * world_size / count


class Trainer:
    """A model in training. Step n is a function of the weights before it and of (loader seed, hyperparameters.seed,
    n): dropout draws from a generator seeded for the step, so no generator's state needs keeping, and what else the
    process draws makes no difference. On a CPU, at one number of threads, equal runs have equal losses bit for bit.

    Where torch.distributed is initialised, gradients are averaged over its ranks; a checkpoint fits any number of them.

    Args:
        loader: preset `decision_transformer`.
        hyperparameters: of model and optimizer.
        device: `auto` (CUDA where there is one), `cpu`, `cuda` or `cuda:N`.

    Attributes:
        model: the `DecisionTransformerModel`.
        losses: float, one a step since step 0, also over resumed runs.

    Raises:
        InvalidArgumentError: another preset, or fewer windows in a batch than ranks.
        DeviceError: no such device here.
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
                f"batch_size {loader.batch_size} leaves some of {self._world_size} ranks without"
            )
        self.model = build_model(loader, self.hyperparameters).to(self.device).train()
        self._network: torch.nn.Module = self.model
        if self._world_size > 1:
            # The heads for states and returns take no part in the loss.
            self._network = DistributedDataParallel(self.model, find_unused_parameters=True)
        self.optimizer = torch.optim.AdamW(
            self.model.parameters(),
            lr=self.hyperparameters.learning_rate,
            weight_decay=self.hyperparameters.weight_decay,
        )
        self._loader_state = loader.state_dict()

    @property
    def step(self) -> int:
        """Steps done."""
        return len(self.losses)

    @property
    def num_parameters(self) -> int:
        return sum(parameter.numel() for parameter in self.model.parameters())

    def run(self, steps: int | None = None) -> Iterator[float]:
        """Trains from the current step, yielding each step's loss; may be left at any point and called again.

        Args:
            steps: train until so many are done in all; None until the loader ends.

        Raises:
            NonFiniteError: the loss is NaN or infinite; the weights are those before that step.
        """
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
            stream.close()  # type: ignore[attr-defined]  # a generator: ends its prefetch threads now

    def learning_rate(self, step: int) -> float:
        """Of step `step`: linear warm-up, then constant, as in the paper's code. There is no schedule state to keep."""
        return self.hyperparameters.learning_rate * min(1.0, (step + 1) / max(1, self.hyperparameters.warmup_steps))

    def _train_step(self, batch: Batch) -> float:
        inputs = {key: self._to_device(batch[key]) for key in MODEL_KEYS}
        for group in self.optimizer.param_groups:
            group["lr"] = self.learning_rate(self.step)
        with _seeded(self.device, self.hyperparameters.seed, self.step + 1, self._rank):
            predicted = self._network(**inputs, return_dict=True).action_preds
        loss = masked_action_loss(predicted, inputs["actions"], inputs["attention_mask"], self._world_size)
        shown = loss.detach()
        if self._world_size > 1:
            shown = shown.clone() / self._world_size
            torch.distributed.all_reduce(shown)
        value = shown.item()
        if not np.isfinite(value):
            raise NonFiniteError(
                f"the loss of step {self.step} is {value}",
                file=str(check_dataset(self.loader.dataset).path),
                hint="'gear-data inspect' says whether the data holds NaN; else lower the learning rate",
            )
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        clip_grad_norm_(self.model.parameters(), self.hyperparameters.max_grad_norm)
        self.optimizer.step()
        return float(value)

    def _to_device(self, tensor: torch.Tensor) -> torch.Tensor:
        """There, and float32 if it is of any float type: the weights are."""
        return tensor.to(self.device, torch.float32 if tensor.is_floating_point() else None, non_blocking=True)

    def save(self, path: Path) -> None:
        """Writes a checkpoint, whole or not at all: one safetensors file with the weights, AdamW's state and the
        losses, and as its metadata, in JSON, the hyperparameters and what the loader feeds and where it stands.

        Raises:
            StorageFullError: the disk is full; an earlier checkpoint of that name is still there.
        """
        tensors = {f"model/{name}": tensor for name, tensor in self.model.state_dict().items()}
        for name, parameter in self.model.named_parameters():
            for key, value in self.optimizer.state.get(parameter, {}).items():
                tensors[f"optimizer/{key}/{name}"] = value
        tensors[_LOSSES] = torch.tensor(self.losses, dtype=torch.float64)
        write_checkpoint(path, tensors, {"loader": self._loader_state, **self.spec()})

    def load(self, path: Path) -> None:
        """Goes on from a checkpoint; nothing in it is unpickled.

        Raises:
            ResumeError: no checkpoint there, or one that cannot be read.
            StateMismatchError: it was saved with another dataset, loader or hyperparameters; says which.
        """
        tensors, meta = read_checkpoint(path)
        self._check_identity(meta, path)
        self.loader.load_state_dict(meta["loader"])
        number = {name: i for i, (name, _) in enumerate(self.model.named_parameters())}
        state: dict[int, dict[str, torch.Tensor]] = {}
        weights = {}
        try:
            for key, tensor in tensors.items():
                part, _, rest = key.partition("/")
                if part == "model":
                    weights[rest] = tensor
                elif part == "optimizer":
                    kind, _, name = rest.partition("/")
                    state.setdefault(number[name], {})[kind] = tensor
            self.model.load_state_dict(weights)
        except (KeyError, RuntimeError) as error:
            raise ResumeError(
                f"the weights do not fit the model: {error}",
                file=str(path),
                hint="it may have been saved with another version of transformers",
            ) from error
        self.optimizer.load_state_dict({"state": state, "param_groups": self.optimizer.state_dict()["param_groups"]})
        self.losses = tensors[_LOSSES].tolist()
        self._loader_state = dict(meta["loader"])

    def spec(self) -> dict[str, Any]:
        """What must be equal for a run to go on as if it had not stopped, JSON-able: `feed` (the loader's arguments,
        with the mean and std it normalises by, but for its ranks) and `hyperparameters`."""
        feed = {key: value for key, value in self.loader.spec().items() if key not in ("rank", "world_size")}
        return {"feed": feed, "hyperparameters": asdict(self.hyperparameters)}

    def _check_identity(self, meta: Mapping[str, Any], path: Path) -> None:
        if meta["feed"].get("fingerprint") != self.loader.dataset.fingerprint:
            raise StateMismatchError(
                "the checkpoint is of another dataset", file=str(path), hint="train into another folder"
            )
        for part, mine in self.spec().items():
            for name, value in mine.items():
                if meta[part].get(name) != value:
                    saved = _short(meta[part].get(name))
                    raise StateMismatchError(
                        f"the checkpoint has another {name}: {saved}, and this run {_short(value)}",
                        file=str(path),
                        hint="resume with the arguments the run was started with, or train into another folder",
                    )


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


@contextmanager
def _seeded(device: torch.device, *key: int) -> Iterator[None]:
    """The device's default generator seeded by `key`, and afterwards as it was."""
    generator = torch.default_generator if device.type == "cpu" else torch.cuda.default_generators[device.index]
    before = generator.get_state()
    generator.manual_seed(int(np.random.SeedSequence(key).generate_state(1, np.uint64)[0]))
    try:
        yield
    finally:
        generator.set_state(before)
