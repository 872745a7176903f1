"""The framework of a loader's batches, by its name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gear_data.common.extras import import_extra
from gear_data.errors import InvalidArgumentError, unknown_name
from gear_data.loaders.frameworks.framework import Framework
from gear_data.loaders.frameworks.iterable import TORCH_IS_INSTALLED

if TYPE_CHECKING:
    import torch

#: The known frameworks; see `SequenceLoader`.
FRAMEWORKS = ("torch", "numpy", "jax")


def resolve_framework(
    framework: str | None, *, device: str | torch.device, pin_memory: bool | None, sharding: Any, batch_size: int,
    transformed: bool,
) -> Framework:  # fmt: skip
    """Returns the framework of a loader's batches.

    Args:
        framework: a name; None is torch where torch is installed, else NumPy.
        device, pin_memory: for torch.
        sharding, batch_size, transformed: for JAX, see `jax_framework`.

    Raises:
        UnknownNameError: no such framework.
        MissingExtraError: the framework is not installed.
        InvalidArgumentError: an argument of another framework, or a sharding that does not fit.
        DeviceError: see `torch_framework`.
    """
    name = ("torch" if TORCH_IS_INSTALLED else "numpy") if framework is None else framework
    if name not in FRAMEWORKS:
        raise unknown_name("framework", name, FRAMEWORKS)
    if sharding is not None and name != "jax":
        raise InvalidArgumentError(
            f"sharding= is for framework='jax', and the batches are of {name}", hint="give framework='jax' too"
        )
    if name == "torch":
        import_extra("torch", "torch")
        from gear_data.loaders.frameworks.torch_tensors import torch_framework

        return torch_framework(device, pin_memory)
    if str(device) != "cpu" or pin_memory:
        given = "pin_memory=True" if str(device) == "cpu" else f"device={str(device)!r}"
        raise InvalidArgumentError(
            f"{given} is for framework='torch', and the batches are of {name}",
            hint="leave it out; sharding= says where JAX's arrays are" if name == "jax" else "leave it out",
        )
    if name == "numpy":
        return Framework("numpy")
    import_extra("jax", "jax")
    from gear_data.loaders.frameworks.jax_arrays import jax_framework

    return jax_framework(sharding, batch_size, transformed=transformed)
