"""Values of a batch: arrays of any framework, and lists."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from gear_data.collection.output import BFLOAT16
from gear_data.errors import InvalidArgumentError


def as_numpy(value: Any) -> npt.NDArray[Any] | None:
    """Returns an array of any framework as a NumPy array; None for anything else.

    A tensor on another device is copied.
    """
    array: npt.NDArray[Any]
    if isinstance(value, np.ndarray):
        return value
    # A value of torch or JAX means that the process has imported it.
    torch, jax = sys.modules.get("torch"), sys.modules.get("jax")
    if torch is not None and isinstance(value, torch.Tensor):
        tensor = value.detach().cpu()
        half = tensor.dtype == torch.bfloat16
        array = tensor.view(torch.uint16).numpy().view(BFLOAT16) if half else tensor.numpy()
        return array
    if jax is not None and isinstance(value, jax.Array):
        array = np.asarray(value)
        return array
    return None


def in_numpy(value: Any) -> Any:
    """Returns a value of a batch whose arrays are of NumPy."""
    if isinstance(value, list):
        return [in_numpy(each) for each in value]
    array = as_numpy(value)
    return value if array is None else array


def map_arrays(value: Any, kind: type, change: Callable[[Any], Any]) -> Any:
    """Applies `change` to every array of a kind in a value of a batch.

    Lists of text stay unchanged.
    """
    if isinstance(value, kind):
        return change(value)
    return [map_arrays(each, kind, change) for each in value] if isinstance(value, list) else value


def nested_batch(batch: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a batch whose keys with dots are dictionaries in dictionaries, without a copy of its arrays.

    `{"image.base": x, "image.wrist": y, "state": z}` becomes `{"image": {"base": x, "wrist": y}, "state": z}`.

    Args:
        batch: key -> value.

    Raises:
        InvalidArgumentError: a key is also the beginning of another one, such as `task` and `task.input_ids`.
    """
    tree: dict[str, Any] = {}
    parents: dict[str, dict[str, Any]] = {"": tree}
    for key, value in batch.items():
        names = key.split(".")
        for depth in range(1, len(names)):
            above, own = ".".join(names[: depth - 1]), ".".join(names[:depth])
            if own not in parents:
                if own in batch:
                    raise InvalidArgumentError(
                        f"the batch has '{own}' and '{key}', which cannot be in one dictionary",
                        column=own,
                        hint="take one of them out of the batch first: batch.pop(...)",
                    )
                parents[own] = parents[above].setdefault(names[depth - 1], {})
        parents[key.rpartition(".")[0]][names[-1]] = value
    return tree
