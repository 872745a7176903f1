"""The framework of a loader's batches, by its name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias, get_args

from gear_data.common.extras import import_extra
from gear_data.error_text import shown
from gear_data.errors import InvalidArgumentError, unknown_name
from gear_data.loaders.frameworks.framework import Framework
from gear_data.loaders.frameworks.iterable import TORCH_IS_INSTALLED
from gear_data.words import FrameworkName

if TYPE_CHECKING:
    import torch
    from jax.sharding import Sharding

#: Place of a batch: torch's device, or the sharding of JAX's arrays.
Device: TypeAlias = "str | torch.device | Sharding"
FRAMEWORKS: tuple[FrameworkName, ...] = get_args(FrameworkName)


def resolve_framework(
    framework: str | None, *, device: Any, pin_memory: bool | None, batch_size: int, transformed: bool
) -> Framework:  # fmt: skip
    """Returns the framework of a loader's batches.

    Args:
        framework: a name; None is torch where torch is installed, else NumPy.
        device: a device of torch, or a sharding of JAX.
        pin_memory: for torch.
        batch_size, transformed: for JAX, see `jax_framework`.

    Raises:
        UnknownNameError: no such framework.
        MissingExtraError: the framework is not installed.
        InvalidArgumentError: an argument of another framework, or a sharding that does not fit.
        DeviceError: see `torch_framework`.
    """
    name = ("torch" if TORCH_IS_INSTALLED else "numpy") if framework is None else framework
    if name not in FRAMEWORKS:
        raise unknown_name("framework", name, FRAMEWORKS)
    if name == "torch":
        import_extra("torch", "torch")
        from gear_data.loaders.frameworks.torch_tensors import torch_framework

        return torch_framework(device, pin_memory)
    on_cpu = str(device) == "cpu"
    if pin_memory or (not on_cpu and (name == "numpy" or isinstance(device, str))):
        given = "pin_memory=True" if pin_memory else f"device={shown(device)}"
        raise InvalidArgumentError(
            f"{given} is for framework='torch', and the batches are of {name}",
            hint="leave it out; with framework='jax', device= takes a jax.sharding.Sharding",
        )
    if name == "numpy":
        return Framework("numpy")
    import_extra("jax", "jax")
    from gear_data.loaders.frameworks.jax_arrays import jax_framework

    return jax_framework(None if on_cpu else device, batch_size, transformed=transformed)
