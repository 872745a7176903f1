"""Trains one small transformer on many datasets, and compares it with a model of its size for each dataset.

The models clone behaviour by chunks: from an observation, a camera's frame and a text they predict the next actions.
Continuous actions are a regression, numbers of discrete actions a classification. A loader joins the datasets in each
batch, whatever their observations and actions are.

A DATASET is a folder or URL of a GEAR dataset. DATASET=ENV evaluates it in a Gymnasium environment, as a score: 0 is
the return of random actions, 1 that of the dataset's episodes. Other datasets are compared by the error of the actions
in episodes that were left out of training. Without DATASET, five datasets are recorded in OUT/data.

Writes OUT/results.json after each seed. On a CPU with other work, set OMP_NUM_THREADS=1.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt
import torch
from torch import nn
from torch.nn import functional

import gear_data
from gear_data import BatchOptions, Mixture, Rollout, SequenceLoader
from gear_data.common.progress import ProgressBar, progress_bar
from gear_data.demo.rollouts import swing_up
from gear_data.errors import DestinationExistsError, InvalidArgumentError
from gear_data.evaluation.episodes import make_environment
from gear_data.schema import Role

EXAMPLE = """example:
  python scripts/generalist.py --out runs/generalist --seeds 3
  python scripts/generalist.py hopper/=Hopper-v5 ant/ pong/ --out runs/own --steps 2000 --json"""

#: Actions that a model predicts at once, and how many of them an episode takes before the next prediction.
CHUNK, TAKEN = 4, 2
WIDTH, LAYERS, HEADS, PATCHES, WORDS, MAX_WORDS = 64, 2, 4, 4, 512, 12
LEARNING_RATE, WARM_UP = 2e-3, 50
HELD_OUT, HELD_OUT_BATCHES = 0.1, 8
#: The keys of continuous actions, of the numbers of discrete ones, and of vectors of floats and of integers.
ACTIONS, CHOICES, FLOATS, INTEGERS = "actions", "choices", "observations", "integers"
Array = npt.NDArray[Any]
Batch = dict[str, torch.Tensor]
Expert = Callable[[Any, Any], Any]  # (observation, environment) -> action


# The five tasks.


class Reach(gymnasium.Env[dict[str, Any], Array]):
    """A disc that goes to the corner that the task names. A camera sees the disc.

    Each of 12 steps moves the disc by at most 0.15 of the frame in each direction. The reward is minus its distance.
    """

    SIZE, STEPS, SPEED = 24, 12, 0.15

    def __init__(self) -> None:
        self.observation_space = gymnasium.spaces.Dict(
            image=gymnasium.spaces.Box(0, 255, (self.SIZE, self.SIZE, 3), np.uint8),
            task=gymnasium.spaces.Text(max_length=32),
        )
        self.action_space = gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[dict[str, Any], Any]:
        super().reset(seed=seed)
        self.corner = self.np_random.integers(0, 2, 2)
        self.target = 0.2 + 0.6 * self.corner
        self.place = self.np_random.uniform(0.0, 1.0, 2)
        self.elapsed = 0
        return self._observation(), {}

    def step(self, action: Array) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        self.place = np.clip(self.place + self.SPEED * np.clip(action, -1, 1), 0, 1)
        self.elapsed += 1
        distance = float(np.linalg.norm(self.target - self.place))
        return self._observation(), -distance, False, self.elapsed == self.STEPS, {}

    def _observation(self) -> dict[str, Any]:
        pixels = np.stack(np.meshgrid(*[np.arange(self.SIZE)] * 2, indexing="ij"), -1)
        bright = np.clip(3.5 - np.linalg.norm(pixels - self.place * (self.SIZE - 1), axis=-1), 0, 1)
        frame = (bright[..., None] * (255, 200, 60)).astype(np.uint8)
        row, column = ("upper", "lower")[self.corner[0]], ("left", "right")[self.corner[1]]
        return {"image": frame, "task": f"go to the {row} {column} corner"}


@dataclass(frozen=True)
class Example:
    """A task of which the script records a dataset.

    Attributes:
        environment: makes the environment.
        expert: chooses the actions that the dataset has.
        task: the text of its episodes; empty if observations have it.
        episodes: number of episodes.
    """

    environment: Callable[[], Any]
    expert: Expert
    task: str
    episodes: int


def reach_target(_: Any, env: Any) -> Array:
    way: Array = (env.unwrapped.target - env.unwrapped.place) / Reach.SPEED
    return way.clip(-1, 1).astype(np.float32)


EXAMPLES = {
    "pendulum": Example(
        lambda: gymnasium.make("Pendulum-v1"), lambda state, _: swing_up(state[None]), "swing the pendulum up", 40
    ),
    "cartpole": Example(
        lambda: gymnasium.make("CartPole-v1"),
        lambda state, _: int(state @ np.array([0.05, 0.1, 1.0, 0.5]) > 0),
        "keep the pole upright",
        16,
    ),
    "mountain-car": Example(
        lambda: gymnasium.make("MountainCarContinuous-v0"),
        lambda state, _: np.clip(200 * state[1:], -1, 1).astype(np.float32),
        "drive up the hill",
        40,
    ),
    "acrobot": Example(
        lambda: gymnasium.make("Acrobot-v1"), lambda state, _: 2 if state[4] < state[5] else 0, "swing the arm up", 60
    ),
    "reach": Example(Reach, reach_target, "", 600),
}
#: The chance that a step of a recorded episode takes a random action. The dataset has the expert's action all the same,
#: and so it shows how to come back from states that an expert does not reach (DART, arXiv 1703.09327).
NOISE = 0.2


def record(example: Example, path: Path, episodes: int) -> gear_data.Dataset:
    """Records episodes of an expert."""
    env, rng = example.environment(), np.random.default_rng(0)
    env.action_space.seed(0)

    def episode(seed: int) -> dict[str, Any]:
        observations, actions, rewards = [env.reset(seed=seed)[0]], [], []
        terminated = truncated = False
        while not (terminated or truncated):
            actions.append(example.expert(observations[-1], env))
            taken = env.action_space.sample() if rng.random() < NOISE else actions[-1]
            observation, reward, terminated, truncated, _ = env.step(taken)
            observations.append(observation)
            rewards.append(float(reward))
        facts = {"actions": np.array(actions), "rewards": rewards, "terminated": terminated, "task": example.task}
        if not isinstance(observations[0], Mapping):
            return facts | {"observations": np.stack(observations)}
        frames = np.stack([each["image"] for each in observations])
        return facts | {"observations.image": frames, "task": observations[0]["task"]}

    gear_data.convert([episode(seed) for seed in range(episodes)], path, progress=False)
    env.close()
    return gear_data.open(path)


# The feed.


@dataclass
class Part:
    """A dataset, and how a mixture takes it.

    Attributes:
        number: its number among all datasets.
        train, held_out: its episodes.
        columns: key of the batch -> the shape of a step.
        options: of the mixture's dataset.
        names: column of an observation -> key of the batch.
        choices: number of discrete actions; 0 if actions are continuous.
        environment: makes the environment; None: there is none.
        expert: chooses actions as good as the dataset's; None: the returns of the dataset's episodes count.
    """

    name: str
    number: int
    train: gear_data.Dataset
    held_out: gear_data.Dataset
    columns: dict[str, tuple[int, ...]]
    options: dict[str, Any]
    names: dict[str, str]
    choices: int
    task: str
    environment: Callable[[], Any] | None = None
    expert: Expert | None = None
    scale: tuple[float, float] = field(default=(0.0, 1.0))


def make_part(name: str, number: int, dataset: gear_data.Dataset) -> Part:
    """Returns a dataset with the keys that its columns have in batches.

    Raises:
        InvalidArgumentError: an observation or the actions are of a kind that the model does not take.
    """
    rename: dict[str, str] = {}
    stacked: dict[str, list[str]] = {FLOATS: [], INTEGERS: []}
    columns: dict[str, tuple[int, ...]] = {}
    schema = dataset.schema
    for column in [*schema.columns, *schema.videos]:
        shape, kind = column.shape, "s" if column.dtype == "string" else np.dtype(column.dtype).kind
        if column.role is Role.ACTION and kind in "iu" and shape == ():
            rename[column.name], columns[CHOICES] = CHOICES, ()
        elif column.role is Role.ACTION and kind == "f" and len(shape) == 1:
            rename[column.name], columns[ACTIONS] = ACTIONS, shape
        elif column.role is Role.OBSERVATION and column.dtype == "uint8" and len(shape) == 3:
            size = "x".join(map(str, shape))
            same = sum(key.startswith(f"image.{size}") for key in columns)
            rename[column.name] = key = f"image.{size}" + (f"-{same}" if same else "")
            columns[key] = shape
        elif column.role is Role.OBSERVATION and kind == "s":
            rename[column.name], columns["text"] = "text", ()
        elif column.role is Role.OBSERVATION and len(shape) < 2:
            stacked[FLOATS if kind == "f" else INTEGERS].append(column.name)
        elif column.role in (Role.ACTION, Role.OBSERVATION):
            raise InvalidArgumentError(
                f"the model takes no {column.role.value} of {column.dtype} {list(shape)}",
                column=column.name, hint="convert the dataset without the column: --columns",
            )  # fmt: skip
    stack = {}
    for key, found in stacked.items():
        if found:
            columns[key] = (sum(math.prod(schema[each].shape) for each in found),)
            if found != [key] or schema[key].shape == ():
                stack[key] = found
    actions = [column.name for column in schema.columns if column.role is Role.ACTION]
    if not actions:
        raise InvalidArgumentError(f"{name} has no actions")
    if len(actions) > 1:
        raise InvalidArgumentError(
            f"the model takes one column of actions, and {name} has {len(actions)}: {', '.join(actions)}",
            hint="convert the dataset with one of them: --columns",
        )
    if dataset.episodes["task"].null_count() == 0:
        columns["task"] = ()
    held_out = max(HELD_OUT, 1 / len(dataset))
    parts = dataset.split({"train": 1 - held_out, "held_out": held_out})
    discrete = next((old for old, new in rename.items() if new == CHOICES), None)
    rename = {old: new for old, new in rename.items() if old != new}
    choices = 0 if discrete is None else int(dataset.statistics[discrete].max[0]) + 1
    task = str(dataset.episodes["task"][0]) if "task" in columns else ""
    options: dict[str, Any] = {"embodiment": number, "rename": rename, "stack": stack}
    return Part(name, number, parts["train"], parts["held_out"], columns, options, rename, choices, task)


def tokenize(texts: Sequence[str]) -> dict[str, list[list[int]]]:
    """Returns a number for each word, from a hash. It stands for a tokenizer of HuggingFace."""
    ids = [[zlib.crc32(word.encode()) % WORDS for word in text.lower().split()[:MAX_WORDS]] for text in texts]
    return {"input_ids": ids, "attention_mask": [[1] * len(each) for each in ids]}


def make_loader(
    parts: Sequence[Part], like: Sequence[Part], rows: int, seed: int, *, held_out: Mapping[str, Any] | None = None
) -> SequenceLoader:
    """Returns a loader that joins datasets in each batch, with the shapes that batches of all datasets have.

    Args:
        parts: the datasets.
        like: all datasets.
        rows: of each dataset in a batch.
        seed: of the windows.
        held_out: the normalisation of the one dataset, of which the episodes that are left out are taken.
    """
    shapes = keys_of(like)
    keys = [key for key in shapes if any(key in part.columns for part in parts)]

    def component(part: Part) -> tuple[Any, ...]:
        if held_out is not None:
            return part.held_out, 1, part.options | {"normalize": held_out}
        own = [key for key in part.columns if key in (FLOATS, ACTIONS) or key.startswith("image")]
        return part.train, 1, part.options | {"normalize": dict.fromkeys(own, "mean-std")}

    return SequenceLoader(
        Mixture(
            [component(part) for part in parts],
            join=True,
            pad_to={key: shapes[key][0] for key in keys if key in (FLOATS, INTEGERS, ACTIONS)},
        ),
        batch_size=rows * len(parts),
        context=1,
        seed=seed,
        columns=keys,
        offsets={key: (0, CHUNK) for key in keys if key in (ACTIONS, CHOICES)},
        decoders={key: tokenize for key in keys if key in ("task", "text")},
        batch=BatchOptions(dtype="float32"),
        framework="torch",
    )


def keys_of(parts: Sequence[Part]) -> dict[str, tuple[int, ...]]:
    """Returns key of the batch -> the largest shape of a step. All datasets need a task, or batches have none."""
    shapes: dict[str, tuple[int, ...]] = {}
    for part in parts:
        for key, shape in part.columns.items():
            shapes[key] = max(shape, shapes.get(key, ()))
    if not all("task" in part.columns for part in parts):
        shapes.pop("task", None)
    return shapes


# The model.


class Generalist(nn.Module):
    """A transformer over the tokens of a step: embodiment, words, patches, vectors, and a query for each action.

    Args:
        shapes: key of the batch -> the shape of a step.
        embodiments: number of datasets.
        choices: the largest number of discrete actions.
    """

    def __init__(self, shapes: Mapping[str, tuple[int, ...]], embodiments: int, choices: int) -> None:
        super().__init__()
        self.embodiment = nn.Embedding(embodiments, WIDTH)
        self.words = nn.Embedding(WORDS, WIDTH)
        self.vectors = nn.ModuleDict(
            {key: nn.Linear(shapes[key][0], WIDTH) for key in (FLOATS, INTEGERS) if key in shapes}
        )
        # A name of a module has no dots.
        self.images = nn.ModuleDict(
            {key[6:]: Patches(*shape) for key, shape in shapes.items() if key.startswith("image")}
        )
        self.positions = nn.Parameter(torch.randn(MAX_WORDS, WIDTH) / WIDTH**0.5)
        self.queries = nn.Parameter(torch.randn(CHUNK, WIDTH) / WIDTH**0.5)
        layer = nn.TransformerEncoderLayer(
            WIDTH, HEADS, 2 * WIDTH, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
        )
        self.layers = nn.TransformerEncoder(layer, LAYERS, nn.LayerNorm(WIDTH), enable_nested_tensor=False)
        self.heads = nn.ModuleDict({ACTIONS: nn.Linear(WIDTH, max(1, *shapes.get(ACTIONS, (1,))))})
        self.heads[CHOICES] = nn.Linear(WIDTH, max(1, choices))

    def forward(self, batch: Batch) -> Batch:
        """Returns the predicted actions [B, CHUNK, A], and logits of choices [B, CHUNK, C]."""
        rows = len(batch["embodiment"])
        tokens = [self.embodiment(batch["embodiment"])[:, None], self.queries.expand(rows, -1, -1)]
        shown = [torch.ones(rows, 1 + CHUNK, dtype=torch.bool)]

        def add(key: str, found: torch.Tensor) -> None:
            tokens.append(found)
            present = batch.get(f"{key}_present", torch.ones(rows, dtype=torch.bool))
            shown.append(present[:, None].expand(found.shape[:2]))

        for key, embed in self.vectors.items():
            if key in batch:
                add(key, embed(batch[key].flatten(1).float())[:, None])
        for size, patches in self.images.items():
            if (key := f"image.{size}") in batch:
                add(key, patches(batch[key].flatten(0, 1)))
        for key in ("task", "text"):
            if f"{key}.input_ids" in batch:
                ids = batch[f"{key}.input_ids"].reshape(rows, -1)
                tokens.append(self.words(ids) + self.positions[: ids.shape[1]])
                shown.append(batch[f"{key}.attention_mask"].reshape(rows, -1) > 0)
        found = self.layers(torch.cat(tokens, 1), src_key_padding_mask=~torch.cat(shown, 1))[:, 1 : 1 + CHUNK]
        return {key: head(found) for key, head in self.heads.items()}


class Patches(nn.Module):
    """Tokens of the patches of a frame [B, H, W, C], at most PATCHES in each direction."""

    def __init__(self, height: int, width: int, channels: int) -> None:
        super().__init__()
        size = math.ceil(max(height, width) / PATCHES)
        self.border = (0, -width % size, 0, -height % size)
        self.embed = nn.Conv2d(channels, WIDTH, size, size)
        self.positions = nn.Parameter(
            torch.randn(math.ceil(height / size) * math.ceil(width / size), WIDTH) / WIDTH**0.5
        )

    def forward(self, frames: torch.Tensor) -> torch.Tensor:
        patches: torch.Tensor = self.embed(functional.pad(frames.permute(0, 3, 1, 2), self.border))
        return patches.flatten(2).transpose(1, 2) + self.positions


def losses(predicted: Batch, batch: Batch) -> torch.Tensor:
    """Returns the loss of each row [B]: squared errors of normalised actions, and cross entropy of choices."""
    total = torch.zeros(len(batch["embodiment"]))
    for error, real in errors(predicted, batch, functional.cross_entropy):
        total = total + (error * real).flatten(1).sum(1) / real.flatten(1).sum(1).clamp(min=1)
    return total


def errors(
    predicted: Batch, batch: Batch, of_choices: Callable[..., torch.Tensor]
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yields the error and the mask of continuous actions [B, CHUNK, A], and of choices [B, CHUNK]."""
    if ACTIONS in batch:
        real = batch["actions_mask"][..., None] & batch["actions_dim_mask"][:, None]
        yield (predicted[ACTIONS] - batch[ACTIONS]).square(), real
    if CHOICES in batch:
        yield of_choices(predicted[CHOICES].transpose(1, 2), batch[CHOICES], reduction="none"), batch["choices_mask"]


def train(model: Generalist, loader: SequenceLoader, steps: int, bar: ProgressBar) -> list[float]:
    """Returns the loss of each step."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, weight_decay=0.01, fused=True)
    found = []
    for step, batch in zip(range(steps), loader, strict=False):
        rate = min(1.0, (step + 1) / WARM_UP) * 0.5 * (1 + math.cos(math.pi * step / steps))
        for group in optimizer.param_groups:
            group["lr"] = rate * LEARNING_RATE
        loss = losses(model(batch), batch).mean()
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        found.append(float(loss.detach()))
        bar.update()
        bar.set_text(f"loss {found[-1]:.3f}")
    return found


# What the models learned.


class ChunkPolicy:
    """The policy of a model in an environment: it predicts CHUNK actions, and takes TAKEN of them."""

    def __init__(self, model: Generalist, part: Part, rollout: Rollout, with_task: bool) -> None:
        self._model, self._part, self._rollout, self._with_task = model, part, rollout, with_task
        self._planned: list[Any] = []
        self._task = part.task

    def reset(self, observation: Any) -> None:
        self._rollout.reset(self._columns(observation))
        self._planned = []
        if isinstance(observation, Mapping) and "task" in observation:
            self._task = observation["task"]

    @torch.no_grad()
    def act(self) -> Any:
        if not self._planned:
            batch = {key: torch.from_numpy(values) for key, values in self._rollout.inputs().items()}
            batch["embodiment"] = torch.tensor([self._part.number])
            if self._with_task:
                batch |= {f"task.{key}": torch.tensor(values) for key, values in tokenize([self._task]).items()}
            predicted = self._model(batch)
            if self._part.choices:
                self._planned = predicted[CHOICES][0, :TAKEN, : self._part.choices].argmax(-1).tolist()
            else:
                self._planned = [*self._rollout.actions(predicted[ACTIONS].numpy())[:TAKEN]]
        return self._planned.pop(0)

    def update(self, action: Any, reward: float, observation: Any) -> None:
        self._rollout.update(action, reward, self._columns(observation))

    def _columns(self, observation: Any) -> Any:
        """Returns an observation under the names that the batches have."""
        if not isinstance(observation, Mapping):
            return observation
        names = self._part.names
        return {names.get(f"observations.{key}", key): value for key, value in observation.items()}


def mean_return(policy: Any, env: Any, episodes: int) -> float:
    return float(gear_data.evaluate(policy, env, episodes=episodes, seed=10_000, progress=False).returns.mean())


def find_scale(part: Part, episodes: int) -> None:
    """Sets the returns that have the scores 0 and 1.

    Raises:
        InvalidArgumentError: there are none, or they are equal.
    """
    if part.environment is None:
        return
    env = part.environment()
    env.action_space.seed(1)
    random = mean_return(lambda _: env.action_space.sample(), env, episodes)
    expert = part.expert
    if expert is None:
        known = part.train.episodes["return"].drop_nulls()
        good = float(known.mean()) if len(known) else None  # type: ignore[arg-type]
    else:
        good = mean_return(lambda observation: expert(observation, env), env, episodes)
    env.close()
    if good is None or good == random:
        returns = "no returns" if good is None else f"the mean return {good:g}, as random actions have"
        raise InvalidArgumentError(
            f"{part.name} has no score: its episodes have {returns}", hint="give the dataset without =ENV"
        )
    part.scale = random, good


def measure(
    model: Generalist, part: Part, spec: Mapping[str, Any], like: Sequence[Part], episodes: int
) -> dict[str, Any]:
    """Returns what a model does on a dataset: the error of held-out actions, skill, return and score.

    The skill is None if a constant action has no error.

    Args:
        model: the model.
        part: the dataset.
        spec: how batches have the dataset, of the model's loader.
        like: all datasets.
        episodes: number of episodes in the environment.
    """
    model.eval()
    own = make_loader([part], like, 64, 0, held_out=spec["normalize"])
    total, constant, count = 0.0, 0.0, 0

    def wrong(logits: torch.Tensor, choices: torch.Tensor, reduction: str) -> torch.Tensor:
        return (logits.argmax(1) != choices).float()

    batches = [own.batch(step) for step in range(HELD_OUT_BATCHES)]
    usual = torch.cat([each[CHOICES][each["choices_mask"]] for each in batches]).mode().values if part.choices else None
    with torch.no_grad():
        for batch in batches:
            predicted = model(batch)
            ((error, real),) = errors(predicted, batch, wrong)
            other = batch[ACTIONS].square() if usual is None else (batch[CHOICES] != usual).float()
            total, constant = total + float((error * real).sum()), constant + float((other * real).sum())
            count += int(real.sum())
    found: dict[str, Any] = {"error": total / count, "constant_error": constant / count}
    found["skill"] = 1 - total / constant if constant else None
    if part.environment is not None:
        env = part.environment()
        policy = ChunkPolicy(model, part, Rollout.from_spec(spec), "task" in keys_of(like))
        found["return"] = mean_return(policy, env, episodes)
        found["score"] = (found["return"] - part.scale[0]) / (part.scale[1] - part.scale[0])
        env.close()
    return found


def check_environments(parts: Sequence[Part]) -> None:
    """Runs an untrained model for an episode in each environment. An unfit one would lose the training.

    Raises:
        InvalidArgumentError: an environment has other observations than its dataset.
    """
    shapes = keys_of(parts)
    model = Generalist(shapes, len(parts), max(part.choices for part in parts)).eval()
    spec = make_loader(parts, parts, 1, 0).spec()
    for part, own in zip(parts, spec.get("datasets", [spec]), strict=True):
        if part.environment is not None:
            env = part.environment()
            mean_return(ChunkPolicy(model, part, Rollout.from_spec(own), "task" in shapes), env, 1)
            env.close()


def run(parts: Sequence[Part], options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Trains and measures the models of each seed."""
    shapes, choices = keys_of(parts), max(part.choices for part in parts)
    with progress_bar(options.seeds * options.steps * (1 + len(parts)), "train", "step", None) as bar:
        for seed in range(options.seeds):
            result: dict[str, Any] = {"seed": seed, "generalist": {}, "single": {}}
            for kind, chosen in (("generalist", [*parts]), *(("single", [part]) for part in parts)):
                torch.manual_seed(seed)
                model = Generalist(shapes, len(parts), choices)
                loader = make_loader(chosen, parts, options.batch_size, seed)
                found = train(model, loader, options.steps, bar)
                ends = {"loss_start": float(np.mean(found[:10])), "loss_end": float(np.mean(found[-10:]))}
                spec = loader.spec()
                for part, own in zip(chosen, spec.get("datasets", [spec]), strict=True):
                    result[kind][part.name] = ends | measure(model, part, own, parts, options.episodes)
            yield result


def summary(parts: Sequence[Part], results: Sequence[dict[str, Any]], seconds: float) -> dict[str, Any]:
    """Returns the means over the seeds. `score` is the mean over the datasets that have an environment.

    A mean is None without a value in each seed, and a ratio to 0 is None.
    """

    def mean(kind: str, part: Part, key: str) -> float | None:
        values = [each[kind][part.name][key] for each in results]
        return None if None in values else float(np.mean(values))

    datasets: dict[str, dict[str, Any]] = {}
    for part in parts:
        keys = ("error", "skill", *(("return", "score") if part.environment is not None else ()))
        datasets[part.name] = {
            "episodes": len(part.train) + len(part.held_out),
            "steps": part.train.num_steps + part.held_out.num_steps,
            "constant_error": mean("single", part, "constant_error"),
            **({} if part.environment is None else {"random": part.scale[0], "expert": part.scale[1]}),
            **{kind: {key: mean(kind, part, key) for key in keys} for kind in ("generalist", "single")},
        }
    found: dict[str, Any] = {"seconds": seconds, "processor_seconds": time.process_time(), "datasets": datasets}
    for key in ("score", "skill"):
        having = [each for each in datasets.values() if each["single"].get(key) is not None]
        if having:
            one, many = (float(np.mean([each[kind][key] for each in having])) for kind in ("single", "generalist"))
            found[key] = {"generalist": many, "single": one, "ratio": many / one if one else None}
    return found | {"seeds": list(results)}


# The command.


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, epilog=EXAMPLE, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("datasets", nargs="*", metavar="DATASET", help="PATH or PATH=ENV; none: five are recorded")
    parser.add_argument("--out", type=Path, required=True, help="a new folder")
    parser.add_argument("--seeds", type=_positive, default=3, help="models of each kind, default 3")
    parser.add_argument("--steps", type=_positive, default=500, help="training steps of each model, default 500")
    parser.add_argument(
        "--batch-size", type=_positive, default=32, help="windows of each dataset in a batch, default 32"
    )
    parser.add_argument("--episodes", type=_positive, default=10, help="episodes of each evaluation, default 10")
    parser.add_argument("--recorded-episodes", type=_positive, help="of each recorded dataset, default 16 to 600")
    parser.add_argument("--json", action="store_true", help="print one JSON object, for scripts")
    return parser


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, not {number}")
    return number


def make_parts(options: argparse.Namespace) -> list[Part]:
    """Opens the datasets, or records them."""
    parts = []
    if not options.datasets:
        for number, (name, example) in enumerate(EXAMPLES.items()):
            episodes = options.recorded_episodes or example.episodes
            part = make_part(name, number, record(example, options.out / "data" / name, episodes))
            part.environment, part.expert = example.environment, example.expert
            parts.append(part)
    for number, text in enumerate(options.datasets):
        path, _, env_id = text.partition("=")
        part = make_part(os.path.basename(path.rstrip("/")) or path, number, gear_data.open(path))
        # Results have one place for each name: a dataset that is given twice, as with two environments, has two.
        names = [other.name for other in parts]
        if part.name in names:
            part.name = path if path not in names else f"{path} ({number})"
        if env_id:
            make_environment(env_id).close()
            part.environment = partial(make_environment, env_id)
        parts.append(part)
    return parts


def print_table(found: dict[str, Any]) -> None:
    print(f"{'dataset':14} {'':10} {'error':>7} {'skill':>6} {'return':>9} {'score':>6}")
    for name, each in found["datasets"].items():
        for kind in ("generalist", "single"):
            own = each[kind]
            score = f"{own['return']:9.1f} {own['score']:6.2f}" if "score" in own else ""
            skill = "none" if own["skill"] is None else f"{own['skill']:.2f}"
            print(f"{name:14} {kind:10} {own['error']:7.3f} {skill:>6} {score}")
    for key in ("score", "skill"):
        if key in found:
            ratio = "none" if found[key]["ratio"] is None else f"{found[key]['ratio']:.2f}"
            print("mean {}: {generalist:.3f}, single {single:.3f}, ratio {}".format(key, ratio, **found[key]))


def main() -> None:
    parser = make_parser()
    options = parser.parse_args()
    try:
        if options.out.exists():
            raise DestinationExistsError("the folder exists", file=str(options.out), hint="give a new folder")
        started = time.perf_counter()
        parts = make_parts(options)
        for part in parts:
            find_scale(part, options.episodes)
        check_environments(parts)
        results: list[dict[str, Any]] = []
        for result in run(parts, options):
            results.append(result)
            found = summary(parts, results, time.perf_counter() - started)
            options.out.mkdir(parents=True, exist_ok=True)
            (options.out / "results.json").write_text(json.dumps(found, indent=1) + "\n")
    except InvalidArgumentError as error:
        parser.error(str(error))
    except gear_data.GearError as error:
        parser.exit(1, f"{parser.prog}: {error}\n")
    if options.json:
        print(json.dumps(found))
    else:
        print_table(found)


if __name__ == "__main__":
    main()
