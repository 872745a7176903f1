"""Contender Flashbax: an item buffer on the CPU, sampled by a compiled function."""

# mypy: disable-error-code="import-not-found, import-untyped"

from __future__ import annotations

import argparse
from typing import Any

import flashbax
import jax
from harness import Feed, load_steps, main, transitions_of, versions_of


def build(args: argparse.Namespace) -> Feed:
    arrays = transitions_of(load_steps(args.data))
    count = len(arrays["rewards"])
    buffer = flashbax.make_item_buffer(
        max_length=count, min_length=1, sample_batch_size=args.batch_size, add_sequences=True
    )
    state = buffer.init({name: array[0] for name, array in arrays.items()})
    state = jax.jit(buffer.add, donate_argnums=0)(state, arrays)
    sample = jax.jit(buffer.sample)
    keys = iter(())

    def next_batch() -> dict[str, Any]:
        nonlocal keys
        key = next(keys, None)
        if key is None:
            # Splitting a key for each batch would cost more than the batch.
            keys = iter(jax.random.split(jax.random.key(args.seed), 4096))
            key = next(keys)
        batch: dict[str, Any] = jax.block_until_ready(sample(state, key).experience)
        return batch

    return Feed(
        next_batch=next_batch,
        windows=args.batch_size,
        notes="make_item_buffer, jitted sample; keys split ahead; jax arrays on the CPU, ready",
        versions=versions_of("flashbax", "jax", "numpy"),
    )


if __name__ == "__main__":
    main(build, "Feed rate of Flashbax's item buffer; --data is a folder of steps.")
