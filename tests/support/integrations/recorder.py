"""Recorder of training batches: inputs of a first layer, or rows of a JAX array."""

from __future__ import annotations

import os
import sys
import time
from typing import Any

import numpy as np

#: Width of the observations of `training_runs.DATA`. No other layer of an example has this input.
WIDTH = 7


def start(path: str, kill_at: int | None, arrivals: int) -> None:
    """Appends each training input to a file, in this process.

    Args:
        path: the file; `read` reads the file.
        kill_at: number of the input, counted in this process from 0, after which the process waits to be killed.
        arrivals: descriptor to which a byte is written then.
    """
    import torch
    from torch.nn.modules.module import register_module_forward_pre_hook

    count = 0
    file = open(path, "wb", buffering=0)  # noqa: SIM115

    def record(inputs: np.ndarray) -> None:
        nonlocal count
        np.save(file, inputs)
        if count == kill_at:
            os.write(arrivals, b"x")
            time.sleep(600)
        count += 1

    def record_module(module: Any, inputs: tuple[Any, ...]) -> None:
        if isinstance(module, torch.nn.Linear) and module.in_features == WIDTH and torch.is_grad_enabled():
            record(inputs[0].detach().float().cpu().numpy())

    register_module_forward_pre_hook(record_module)
    if jax := sys.modules.get("jax"):
        make = jax.make_array_from_process_local_data

        def make_and_record(sharding: Any, rows: np.ndarray) -> Any:
            if rows.shape[-1] == WIDTH:
                record(rows)
            return make(sharding, rows)

        jax.make_array_from_process_local_data = make_and_record


def read(path: str) -> list[np.ndarray]:
    """Returns the recorded inputs: float32 [rows, context, WIDTH]."""
    found = []
    with open(path, "rb") as file:
        while file.peek(1):
            found.append(np.load(file))
    return found
