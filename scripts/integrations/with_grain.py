"""Clones behaviour with JAX and Grain, and continues from the last checkpoint.

python scripts/integrations/with_grain.py hopper/ --out runs/bc --steps 1000
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path

import grain
import jax
import jax.numpy as jnp
import numpy as np

import gear_data


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("dataset")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--save-every", type=int, default=100)
    options = parser.parse_args()
    if "WORLD_SIZE" in (env := os.environ):
        address = env["MASTER_ADDR"] + ":" + env["MASTER_PORT"]
        jax.distributed.initialize(address, int(env["WORLD_SIZE"]), int(env["RANK"]))
    ds = gear_data.open(options.dataset)
    source = gear_data.SequenceLoader(ds, batch_size=60, context=20, steps=options.steps).as_grain_source()
    few = grain.ReadOptions(num_threads=1, prefetch_buffer_size=4)  # Grain's default keeps 500 batches
    batches = iter(grain.MapDataset.source(source).to_iter_dataset(few))
    mesh = jax.sharding.Mesh(jax.devices(), "data")
    rows = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("data"))
    weight = np.zeros((*ds.schema["observations"].shape, *ds.schema["actions"].shape), np.float32)

    @jax.value_and_grad
    def loss_of(weight: jax.Array, batch: dict[str, jax.Array]) -> jax.Array:
        error = jnp.square(batch["observations"] @ weight - batch["actions"]).mean(-1)
        return (error * batch["mask"]).sum() / batch["mask"].sum()

    options.out.mkdir(parents=True, exist_ok=True)
    if (latest := options.out / "latest.npz").exists():
        weight, state = np.load(latest).values()
        batches.set_state(json.loads(str(state)))
    for local in batches:
        batch = {key: jax.make_array_from_process_local_data(rows, local[key]) for key in local}
        loss, gradient = jax.jit(loss_of)(weight, batch)
        weight -= 1e-3 * np.asarray(gradient)  # the same in every process
        if (step := batches.get_state()["next_index"]) % options.save_every == 0 and jax.process_index() == 0:
            np.savez(options.out / "new.npz", weight=weight, batches=json.dumps(batches.get_state()))
            (options.out / "new.npz").replace(latest)
            print(f"step {step}: loss {loss:.3f}")


if __name__ == "__main__":
    main()
