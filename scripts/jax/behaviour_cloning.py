"""Clones behaviour with Flax and Optax, on all devices, and resumes exactly.

python scripts/jax/behaviour_cloning.py hopper/ --out runs/bc --steps 1000
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
from flax import serialization

import gear_data


class Policy(nn.Module):
    actions: int

    @nn.compact
    def __call__(self, observations: jax.Array) -> jax.Array:
        hidden = observations
        for _ in range(2):
            hidden = nn.relu(nn.Dense(256)(hidden))
        return nn.Dense(self.actions)(hidden)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dataset")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--batch-size", type=int, default=256, help="of all devices together")
    parser.add_argument("--save-every", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()

    ds = gear_data.open(options.dataset)
    mesh = jax.sharding.Mesh(jax.devices(), "data")
    loader = gear_data.SequenceLoader(
        ds,
        batch_size=options.batch_size,
        preset="transitions",
        normalize=True,
        seed=options.seed,
        framework="jax",
        device=jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("data")),
    )
    policy = Policy(ds.schema["actions"].shape[0])
    optimizer = optax.adam(3e-4)
    weights = policy.init(jax.random.key(options.seed), jnp.zeros((1, *ds.schema["observations"].shape)))
    training: dict[str, Any] = {"weights": weights, "optimizer": optimizer.init(weights)}

    @jax.jit
    def train_step(training: dict[str, Any], batch: dict[str, jax.Array]) -> tuple[dict[str, Any], jax.Array]:
        def loss_of(weights: Any) -> jax.Array:
            return jnp.square(policy.apply(weights, batch["observations"]) - batch["actions"]).mean()

        loss, gradients = jax.value_and_grad(loss_of)(training["weights"])
        updates, state = optimizer.update(gradients, training["optimizer"])
        return {"weights": optax.apply_updates(training["weights"], updates), "optimizer": state}, loss

    checkpoint = options.out / "checkpoint.msgpack"
    if checkpoint.exists():
        saved = serialization.msgpack_restore(checkpoint.read_bytes())
        loader.load_state_dict(json.loads(saved["loader"]))
        training = serialization.from_state_dict(training, saved["training"])
    first = loader.state_dict()["step"] + 1
    for step, batch in zip(range(first, options.steps + 1), loader, strict=False):
        training, loss = train_step(training, batch)
        if step % options.save_every == 0 or step == options.steps:
            print(f"step {step}: loss {loss:.4f}")
            if jax.process_index() == 0:
                options.out.mkdir(parents=True, exist_ok=True)
                state = json.dumps(loader.state_dict())
                saved = {"loader": state, "training": serialization.to_state_dict(training)}
                new = checkpoint.with_suffix(".new")
                new.write_bytes(serialization.msgpack_serialize(jax.device_get(saved)))
                new.replace(checkpoint)


if __name__ == "__main__":
    main()
