"""Trains SAC offline, then online with half of each batch from either dataset (RLPD, arXiv 2302.02948).

Records mediocre episodes of Pendulum-v1 into OUT/offline, and the episodes of the policy into OUT/live, which grows
during training. Prints mean returns, beside those of a policy that trains as long on the offline dataset alone.

python scripts/offline_to_online.py runs/pendulum
"""

from __future__ import annotations

import argparse
import copy
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch
from torch import nn
from torch.nn import functional

import gear_data

ENVIRONMENT, EPISODE_STEPS, TORQUE = "Pendulum-v1", 200, 2.0
DISCOUNT, TARGET_RATE, LEARNING_RATE, HIDDEN, REWARD_SCALE = 0.99, 0.01, 1e-3, 64, 0.1
Batch = dict[str, torch.Tensor]
Policy = Callable[[np.ndarray], np.ndarray]


def mlp(inputs: int, outputs: int) -> nn.Sequential:
    """Returns a network with layer normalisation, which keeps critics from values far outside the data."""
    first, second = ((nn.Linear(size, HIDDEN), nn.LayerNorm(HIDDEN), nn.ReLU()) for size in (inputs, HIDDEN))
    return nn.Sequential(*first, *second, nn.Linear(HIDDEN, outputs))


class SAC:
    """Soft actor-critic (arXiv 1801.01290) with two critics and a learned temperature."""

    def __init__(self) -> None:
        self.actor = mlp(3, 2)
        self.critics = nn.ModuleList([mlp(4, 1), mlp(4, 1)])
        self.targets = copy.deepcopy(self.critics).requires_grad_(False)
        self.log_temperature = torch.zeros((), requires_grad=True)
        parameters = [*self.actor.parameters()], [*self.critics.parameters()], [self.log_temperature]
        self.optimizers = [torch.optim.Adam(each, lr=LEARNING_RATE, fused=True) for each in parameters]

    def sample(self, observations: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns actions, -1 to 1 [B, 1], and their log-probabilities [B]."""
        mean, log_std = self.actor(observations).chunk(2, -1)
        normal = torch.distributions.Normal(mean, log_std.clamp(-5, 2).exp())
        raw = normal.rsample()
        log_slope = 2 * (np.log(2) - raw - functional.softplus(-2 * raw))  # of tanh
        return raw.tanh(), (normal.log_prob(raw) - log_slope).sum(-1)

    def update(self, batch: Batch) -> None:
        states, actions = batch["observations"], batch["actions"] / TORQUE
        temperature = self.log_temperature.exp().detach()
        with torch.no_grad():
            next_actions, log_probabilities = self.sample(batch["next_observations"])
            next_values = self.values(self.targets, batch["next_observations"], next_actions).amin(0)
            next_values -= temperature * log_probabilities
            goals = REWARD_SCALE * batch["rewards"] + DISCOUNT * batch["masks"] * next_values
        self.step(1, (self.values(self.critics, states, actions) - goals).square().mean(1).sum())

        actions, log_probabilities = self.sample(states)
        values = self.values(self.critics, states, actions).amin(0)
        self.step(0, (temperature * log_probabilities - values).mean())
        self.step(2, -self.log_temperature * (log_probabilities.detach().mean() - 1.0))
        with torch.no_grad():
            for target, critic in zip(self.targets.parameters(), self.critics.parameters(), strict=True):
                target.lerp_(critic, TARGET_RATE)

    def train(self, batches: Iterator[Batch], updates: int) -> None:
        for batch in islice(batches, updates):
            self.update(batch)

    def values(self, critics: nn.ModuleList, states: torch.Tensor, actions: torch.Tensor) -> torch.Tensor:
        """Returns the values of two critics [2, B]."""
        return torch.stack([critic(torch.cat([states, actions], -1)).squeeze(-1) for critic in critics])

    def step(self, which: int, loss: torch.Tensor) -> None:
        self.optimizers[which].zero_grad()
        loss.backward()
        self.optimizers[which].step()

    def explore(self, observation: np.ndarray) -> np.ndarray:
        with torch.no_grad():
            return TORQUE * self.sample(torch.from_numpy(observation))[0].numpy()

    def act(self, observation: np.ndarray) -> np.ndarray:
        with torch.no_grad():
            return TORQUE * self.actor(torch.from_numpy(observation))[:1].tanh().numpy()


def record_episode(env: gymnasium.Env[Any, Any], writer: gear_data.Writer, policy: Policy, seed: int) -> None:
    observation, _ = env.reset(seed=seed)
    terminated = truncated = False
    while not (terminated or truncated):
        action = policy(observation).astype(np.float32)
        following, reward, terminated, truncated, _ = env.step(action)
        writer.append(observations=observation, actions=action, rewards=float(reward))
        observation = following
    writer.end_episode(terminated=terminated, truncated=truncated, final=observation)


def mediocre(random: np.random.Generator) -> Policy:
    """Returns a noisy policy with at most a third of the torque. It swings the pendulum, and never holds it."""
    return lambda state: np.clip(0.7 * np.sign(state[2:]) + random.normal(0, 0.5, 1), -0.7, 0.7)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, help="a new folder")
    parser.add_argument("--offline-episodes", type=int, default=5)
    parser.add_argument("--offline-updates", type=int, default=1000)
    parser.add_argument("--online-episodes", type=int, default=10)
    parser.add_argument("--updates", type=int, default=EPISODE_STEPS, help="after each online episode")
    parser.add_argument("--evaluation-episodes", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    if options.out.exists():
        parser.error(f"{options.out} exists; give a new folder")
    torch.manual_seed(options.seed)

    def loader_of(data: gear_data.Dataset | gear_data.Mixture) -> gear_data.SequenceLoader:
        # Without prefetching, a refresh holds from the next batch on: the same in each run.
        return gear_data.SequenceLoader(data, batch_size=128, preset="transitions", seed=options.seed, prefetch=0)

    def report(name: str, policy: Policy) -> None:
        found = gear_data.evaluate(
            policy, ENVIRONMENT, episodes=options.evaluation_episodes, seed=10_000, progress=False
        )
        print(f"{name}: {found.returns.mean():.0f}", flush=True)

    env = gymnasium.make(ENVIRONMENT)
    recorded = mediocre(np.random.default_rng(options.seed))
    with gear_data.Writer(options.out / "offline") as writer:
        for episode in range(options.offline_episodes):
            record_episode(env, writer, recorded, options.seed + episode)
    offline = gear_data.open(options.out / "offline")
    report("policy of the offline dataset", recorded)

    agent = SAC()
    batches = iter(loader_of(offline))
    agent.train(batches, options.offline_updates)
    report("offline", agent.act)
    alone = copy.deepcopy(agent)
    alone.train(batches, options.online_episodes * options.updates)
    report("offline, with as many updates as online", alone.act)

    with gear_data.Writer(options.out / "live") as writer:
        for episode in range(options.online_episodes):
            record_episode(env, writer, agent.explore, options.seed + 1000 + episode)
            writer.seal()
            if episode == 0:
                live = gear_data.open(options.out / "live")
                loader = loader_of(gear_data.Mixture([(offline, 0.5), (live, 0.5)], join=True))
                batches = iter(loader)
            else:
                loader.refresh()
            agent.train(batches, options.updates)
    report("offline to online", agent.act)


if __name__ == "__main__":
    main()
