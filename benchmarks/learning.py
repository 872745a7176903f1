"""Measures what policies learn from batches, in the environment.

Two policies are trained, each with several seeds, and run for some episodes:

- bc: behaviour cloning of the episodes with the highest returns: a network of two layers, one step a sample.
- dt: a Decision Transformer, for several targets. Every model is trained for the same number of steps, without dropout,
  and with a learning rate that falls to zero (a half cosine). --runs names what differs:
  - published: batches of the published loop (peers/dt_numpy.py);
  - gear-data: batches of gear-data, drawn from the same distribution;
  - dropout: batches of gear-data, but the paper's dropout of 0.1 and its constant learning rate;
  - end: batches of gear-data whose windows end at a drawn step (`anchor="end"`). The published windows begin at a drawn
    step. So an episode's first step, with which every evaluation begins, is in one window of (mean length of an
    episode); with `anchor="end"` it is in `context` times as many.

--env needs its simulator: for Hopper, pip install "gymnasium[mujoco]". --quick shows that all parts run; its figures
mean nothing.
"""

# mypy: disable-error-code="import-untyped"

from __future__ import annotations

import argparse
import itertools
import math
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt
import torch
from common import describe_machine, figure, format_table, machine_facts, parse_with_quick, progress, write_json

import gear_data
from gear_data.demo.model import MODEL_KEYS, Hyperparameters, build_model, masked_action_loss
from gear_data.loaders.arguments.checks import check_dataset

sys.path.insert(0, str(Path(__file__).resolve().parent / "peers"))

import dt_numpy
from harness import Steps

Array = npt.NDArray[Any]
Batches = Iterator[dict[str, torch.Tensor]]
#: Takes the inputs of several episodes, and returns their actions [episodes, ...].
Act = Callable[[list[dict[str, Array]]], torch.Tensor]

CONTEXT, BATCH = 20, 64
#: Settings of behaviour cloning.
BC_BATCH, BC_WIDTH, BC_RATE, BC_BEST = 256, 256, 1e-3, 10
#: Half the paper's width, and ten times its learning rate: its runs have twenty times as many steps.
HYPERPARAMETERS = Hyperparameters(hidden_size=64, dropout=0.0, learning_rate=1e-3, warmup_steps=300)
FULL = {"seeds": 3, "episodes": 10, "bc_steps": 20_000, "dt_steps": 5_000}
QUICK = {"seeds": 1, "episodes": 2, "bc_steps": 20, "dt_steps": 5}


@dataclass(frozen=True)
class Run:
    """How a Decision Transformer is trained.

    Attributes:
        batches: (dataset, seed) -> batches.
        settings: model and optimizer.
        constant: whether the learning rate stays as it is after the warm-up.
    """

    batches: Callable[[gear_data.Dataset, int], Batches]
    settings: Hyperparameters = HYPERPARAMETERS
    constant: bool = False


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--source", type=Path, required=True, help="rollouts, as gear-data convert takes them")
    parser.add_argument("--env", default="Hopper-v5", help="id of the environment of the rollouts")
    parser.add_argument(
        "--targets", type=float, nargs="+", default=[500, 1000, 1500, 2000, 2500, 3000, 3300], help="returns to ask for"
    )
    parser.add_argument("--seeds", type=int, default=FULL["seeds"], help="number of models of each kind")
    parser.add_argument("--episodes", type=int, default=FULL["episodes"], help="episodes of each model and target")
    parser.add_argument("--bc-steps", type=int, default=FULL["bc_steps"], help="training steps of behaviour cloning")
    parser.add_argument("--dt-steps", type=int, default=FULL["dt_steps"], help="training steps of the transformers")
    parser.add_argument("--only", choices=("bc", "dt"), help="train this policy only")
    parser.add_argument("--runs", nargs="+", choices=RUNS, default=list(RUNS), help="Decision Transformers to train")
    parser.add_argument("--quick", action="store_true", help="tiny runs, to see that all parts work")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures to this file too")
    return parser


def half_cosine(done: float) -> float:
    """Returns the learning rate's share when a part `done` of the steps is done; from 1 to 0."""
    return 0.5 * (1 + math.cos(math.pi * done))


def set_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    for group in optimizer.param_groups:
        group["lr"] = rate


def train_bc(dataset: gear_data.Dataset, seed: int, steps: int) -> tuple[torch.nn.Module, gear_data.Normalizer]:
    """Trains on the BC_BEST percent of episodes with the highest returns."""
    threshold = float(np.percentile(dataset.episodes["return"].to_numpy(), 100 - BC_BEST))
    best = dataset.filter(f"return >= {threshold!r}")
    loader = gear_data.SequenceLoader(
        best, BC_BATCH, context=1, seed=seed, normalize="observations", columns=["observations", "actions"], steps=steps
    )
    torch.manual_seed(seed)
    widths = [dataset.schema["observations"].size, BC_WIDTH, BC_WIDTH]
    hidden = [each for sizes in itertools.pairwise(widths) for each in (torch.nn.Linear(*sizes), torch.nn.ReLU())]
    model = torch.nn.Sequential(*hidden, torch.nn.Linear(BC_WIDTH, dataset.schema["actions"].size))
    optimizer = torch.optim.Adam(model.parameters(), lr=BC_RATE)
    for step, batch in enumerate(loader):
        set_rate(optimizer, BC_RATE * half_cosine(step / steps))
        predicted = model(batch["observations"][:, 0].float())
        loss = (predicted - batch["actions"][:, 0]).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model.eval(), loader.normalizer


def gear_batches(dataset: gear_data.Dataset, seed: int, anchor: str) -> gear_data.SequenceLoader:
    return gear_data.SequenceLoader(
        dataset,
        BATCH,
        context=CONTEXT,
        preset="decision_transformer",
        seed=seed,
        normalize=True,
        windows=gear_data.WindowOptions(anchor=anchor),
    )


def published_batches(dataset: gear_data.Dataset, seed: int) -> Batches:
    """Yields batches of the published loop, with the model's keys."""
    episodes = [dataset[i] for i in range(len(dataset))]
    columns = {
        name: np.concatenate([episode[name].reshape(episode.length, -1) for episode in episodes]).astype(np.float32)
        for name in ("observations", "actions", "rewards", "returns_to_go")
    }
    lengths = dataset.lengths
    starts = np.cumsum(lengths) - lengths
    timesteps = np.concatenate([np.arange(length) for length in lengths])
    steps = Steps(columns, timesteps, lengths, starts, np.zeros(len(lengths), np.bool_))
    loader = dt_numpy.Loader(steps, BATCH, CONTEXT, seed, sum_returns=False)
    while True:
        batch = loader.next_batch()
        yield {"states": batch["observations"], "attention_mask": batch["mask"], **batch}


RUNS: Mapping[str, Run] = {
    "published": Run(published_batches),
    "gear-data": Run(lambda dataset, seed: iter(gear_batches(dataset, seed, "start"))),
    "dropout": Run(
        lambda dataset, seed: iter(gear_batches(dataset, seed, "start")), replace(HYPERPARAMETERS, dropout=0.1), True
    ),
    "end": Run(lambda dataset, seed: iter(gear_batches(dataset, seed, "end"))),
}


def train_dt(loader: gear_data.SequenceLoader, run: Run, seed: int, steps: int) -> Any:
    """Trains a model for batches like the loader's."""
    settings = replace(run.settings, seed=seed)
    torch.manual_seed(seed)
    model = build_model(loader, settings).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=settings.learning_rate, weight_decay=settings.weight_decay)
    for step, batch in zip(range(steps), run.batches(check_dataset(loader.dataset), seed), strict=False):
        share = min(1.0, (step + 1) / settings.warmup_steps) * (1.0 if run.constant else half_cosine(step / steps))
        set_rate(optimizer, settings.learning_rate * share)
        inputs = {key: batch[key] for key in MODEL_KEYS}
        predicted = model(**inputs).action_preds
        loss = masked_action_loss(predicted, inputs["actions"], inputs["attention_mask"])
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), settings.max_grad_norm)
        optimizer.step()
        if step % 100 == 0:
            progress(f"step {step} of {steps}")
    progress("")
    return model.eval()


def returns_of(env_id: str, episodes: int, rollouts: list[gear_data.Rollout], act: Act) -> Array:
    """Runs one episode for each rollout, all at the same time.

    Returns:
        float64 [episodes], the returns.
    """
    environments = [gymnasium.make(env_id) for _ in range(episodes)]
    totals = np.zeros(episodes)
    for seed, (env, rollout) in enumerate(zip(environments, rollouts, strict=True)):
        rollout.reset(env.reset(seed=seed)[0])
    running = list(range(episodes))
    while running:
        actions = act([rollouts[i].inputs() for i in running]).numpy()
        ended = set()
        for i, predicted in zip(running, actions, strict=True):
            action = rollouts[i].action(predicted)
            observation, reward, terminated, truncated, _ = environments[i].step(action)
            totals[i] += float(reward)
            if terminated or truncated:
                ended.add(i)
            else:
                rollouts[i].update(action, float(reward), observation)
        running = [i for i in running if i not in ended]
    for env in environments:
        env.close()
    return totals


def joined(inputs: list[dict[str, Array]]) -> dict[str, torch.Tensor]:
    return {key: torch.from_numpy(np.concatenate([each[key] for each in inputs])) for key in inputs[0]}


@torch.no_grad()
def measure_bc(dataset: gear_data.Dataset, args: argparse.Namespace) -> dict[str, Any]:
    spec = gear_data.SequenceLoader(
        dataset, BC_BATCH, context=1, columns=["observations", "actions"], normalize=None
    ).spec()
    every, seconds = [], []
    for seed in range(args.seeds):
        started = time.perf_counter()
        with torch.enable_grad():
            model, normalizer = train_bc(dataset, seed, args.bc_steps)
        seconds.append(time.perf_counter() - started)

        def act(inputs: list[dict[str, Array]], model: Any = model, normalizer: Any = normalizer) -> torch.Tensor:
            observations = normalizer.normalize("observations", joined(inputs)["observations"][:, 0].numpy())
            return model(torch.from_numpy(observations).float()).clamp(-1, 1)

        rollouts = [gear_data.Rollout.from_spec(spec) for _ in range(args.episodes)]
        every.append(returns_of(args.env, args.episodes, rollouts, act))
    return {"returns": [each.tolist() for each in every], "seconds": seconds}


def measure_dt(dataset: gear_data.Dataset, args: argparse.Namespace) -> dict[str, Any]:
    """Returns the run -> target -> returns of each seed."""
    record: dict[str, Any] = {}
    for name in args.runs:
        results: dict[str, list[list[float]]] = {str(target): [] for target in args.targets}
        seconds = []
        for seed in range(args.seeds):
            loader = gear_batches(dataset, seed, "start")
            started = time.perf_counter()
            model = train_dt(loader, RUNS[name], seed, args.dt_steps)
            seconds.append(time.perf_counter() - started)

            @torch.no_grad()
            def act(inputs: list[dict[str, Array]], model: Any = model) -> torch.Tensor:
                return model(**{key: value for key, value in joined(inputs).items() if key in MODEL_KEYS}).action_preds

            for target in args.targets:
                progress(f"{name}, seed {seed}, target {target}")
                rollouts = [gear_data.Rollout.from_spec(loader.spec(), target=target) for _ in range(args.episodes)]
                results[str(target)].append(returns_of(args.env, args.episodes, rollouts, act).tolist())
        record[name] = {"returns": results, "seconds": seconds}
    progress("")
    return record


def print_report(record: Mapping[str, Any]) -> None:
    if "bc" in record:
        means = [np.mean(each) for each in record["bc"]["returns"]]
        print(f"Behaviour cloning of the best {BC_BEST} %, mean return of each seed: {', '.join(map(figure, means))}")
        print(f"Seconds of training: {', '.join(map(figure, record['bc']['seconds']))}")
    if "dt" in record:
        names = list(record["dt"])
        rows = []
        for target in next(iter(record["dt"].values()))["returns"]:
            cells = []
            for name in names:
                means = np.mean(record["dt"][name]["returns"][target], axis=1)
                cells.append(f"{figure(means.mean())} ({figure(means.min())} to {figure(means.max())})")
            rows.append([target, *cells])
        print("Decision Transformer: mean return over all seeds (lowest and highest seed)")
        print(format_table(["target", *names], rows))
        for name in names:
            print(f"Seconds of training, {name}: {', '.join(map(figure, record['dt'][name]['seconds']))}")


def main(arguments: list[str] | None = None) -> None:
    args = parse_with_quick(make_parser(), arguments, QUICK)
    torch.set_num_threads(1)
    print(describe_machine(machine_facts()))
    with tempfile.TemporaryDirectory(prefix="gear-learning-") as scratch:
        gear_data.convert(args.source, Path(scratch) / "dataset", progress=False)
        dataset = gear_data.open(Path(scratch) / "dataset")
        returns = dataset.episodes["return"].to_numpy()
        print(f"{len(dataset)} episodes, returns {figure(returns.min())} to {figure(returns.max())}")
        record: dict[str, Any] = {}
        if args.only != "dt":
            record["bc"] = measure_bc(dataset, args)
        if args.only != "bc":
            record["dt"] = measure_dt(dataset, args)
    print_report(record)
    if args.json:
        write_json(args.json, {"machine": machine_facts(), **record})


if __name__ == "__main__":
    main()
