"""Trains Implicit Q-Learning (arXiv 2110.06169) with Flax and Optax.

python scripts/jax/iql.py hopper/ --steps 1000
"""

from __future__ import annotations

import argparse
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax

import gear_data

DISCOUNT, EXPECTILE, TEMPERATURE, TARGET_RATE = 0.99, 0.7, 3.0, 0.005
Batch = dict[str, jax.Array]


class MLP(nn.Module):
    outputs: int

    @nn.compact
    def __call__(self, *inputs: jax.Array) -> jax.Array:
        hidden = jnp.concatenate(inputs, -1)
        for _ in range(2):
            hidden = nn.relu(nn.Dense(256)(hidden))
        return nn.Dense(self.outputs)(hidden)


def losses(weights: Any, target: Any, nets: dict[str, nn.Module], batch: Batch) -> tuple[jax.Array, dict[str, Any]]:
    """Returns the sum of the losses, and the loss of each network."""
    observations, actions = batch["observations"], batch["actions"]

    def value(of: jax.Array) -> jax.Array:
        return nets["value"].apply(weights["value"], of).squeeze(-1)

    # A transition's critic is the smaller of two.
    advantage = nets["critic"].apply(target, observations, actions).min(-1) - value(observations)
    value_loss = (jnp.where(advantage > 0, EXPECTILE, 1 - EXPECTILE) * jnp.square(advantage)).mean()

    goal = batch["rewards"] + DISCOUNT * batch["masks"] * jax.lax.stop_gradient(value(batch["next_observations"]))
    critics = nets["critic"].apply(weights["critic"], observations, actions)
    critic_loss = jnp.square(critics - goal[:, None]).mean()

    weight = jnp.minimum(jnp.exp(jax.lax.stop_gradient(advantage) * TEMPERATURE), 100.0)
    error = jnp.square(nets["policy"].apply(weights["policy"], observations) - actions).sum(-1)
    policy_loss = (weight * error).mean()
    each = {"value": value_loss, "critic": critic_loss, "policy": policy_loss}
    return value_loss + critic_loss + policy_loss, each


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dataset")
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--log-every", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()

    ds = gear_data.open(options.dataset)
    loader = gear_data.SequenceLoader(
        ds,
        batch_size=options.batch_size,
        preset="transitions",
        normalize=True,
        seed=options.seed,
        framework="jax",
        steps=options.steps,
    )
    observation, action = (jnp.zeros((1, *ds.schema[name].shape)) for name in ("observations", "actions"))
    nets = {"value": MLP(1), "critic": MLP(2), "policy": MLP(action.shape[-1])}
    inputs = {"value": (observation,), "critic": (observation, action), "policy": (observation,)}
    keys = jax.random.split(jax.random.key(options.seed), len(nets))
    weights = {name: net.init(key, *inputs[name]) for key, (name, net) in zip(keys, nets.items(), strict=True)}
    optimizer = optax.adam(3e-4)
    state, target = optimizer.init(weights), weights["critic"]

    @jax.jit
    def train_step(weights: Any, state: Any, target: Any, batch: Batch) -> tuple[Any, Any, Any, dict[str, jax.Array]]:
        gradients, each = jax.grad(losses, has_aux=True)(weights, target, nets, batch)
        updates, state = optimizer.update(gradients, state)
        weights = optax.apply_updates(weights, updates)
        return weights, state, optax.incremental_update(weights["critic"], target, TARGET_RATE), each

    for step, batch in enumerate(loader, 1):
        weights, state, target, each = train_step(weights, state, target, batch)
        if step % options.log_every == 0 or step == options.steps:
            print(f"step {step}: " + ", ".join(f"{name} loss {loss:.4f}" for name, loss in each.items()))


if __name__ == "__main__":
    main()
