"""Samplers, one module each.

To add a sampler, write a module with a frozen dataclass that implements `BuiltInSampler`, and list it in `KINDS`
and `SAMPLERS`. Its `bind` returns a `Selector`: `WindowSelector` if a `WindowSampler` draws every slot, `OrderSelector`
if the sampler goes through the anchors in an order, or one of its own. A sampler that stays outside of gear-data
implements `Sampler`.
"""

from __future__ import annotations

from typing import Any

from gear_data.errors import InvalidArgumentError, unknown_name
from gear_data.selection.samplers.custom import CustomSampler
from gear_data.selection.samplers.fifo_shuffle import Fifo, Shuffle
from gear_data.selection.samplers.sampler import AnySampler, BuiltInSampler, Candidates, Sampler, Selector
from gear_data.selection.samplers.topk import TopK
from gear_data.selection.samplers.uniform import Uniform
from gear_data.selection.samplers.weighted import Weighted
from gear_data.selection.samplers.weighted_selector import WeightedSelector

__all__ = [
    "KINDS",
    "SAMPLERS",
    "AnySampler",
    "BuiltInSampler",
    "Candidates",
    "Fifo",
    "Sampler",
    "Selector",
    "Shuffle",
    "TopK",
    "Uniform",
    "Weighted",
    "WeightedSelector",
    "as_sampler",
]

#: Name -> class. A file of a mixture has the name and the fields of a sampler.
KINDS: dict[str, type[Any]] = {kind.name: kind for kind in (Uniform, Shuffle, Fifo, Weighted, TopK)}
#: Name -> sampler, for `sampler="uniform"`. `weighted` and `topk` need an expression, so they have no default.
SAMPLERS: dict[str, BuiltInSampler | None] = {
    "uniform": Uniform(),
    "shuffle": Shuffle(),
    "fifo": Fifo(),
    "weighted": None,
    "topk": None,
}
#: Name of a sampler without a default -> how to make one.
_EXAMPLES = {"weighted": "Weighted(pl.col('return') + 1)", "topk": "TopK(pl.col('return'), k=100)"}


def as_sampler(sampler: str | AnySampler) -> BuiltInSampler:
    """Returns the sampler with a name, or the given sampler; of a user's sampler, the `CustomSampler`.

    Raises:
        UnknownNameError: unknown name; the message lists the samplers.
        InvalidArgumentError: the named sampler needs arguments, or the argument is not a sampler.
    """
    if not isinstance(sampler, str):
        # A class has the attributes of its instances.
        if isinstance(sampler, type) or not isinstance(sampler, BuiltInSampler | Sampler):
            raise InvalidArgumentError(
                f"sampler must be a name or a sampler, not {sampler!r}",
                hint=f"names: {', '.join(SAMPLERS)}; your own sampler has name and draw, as gear_data.Sampler says",
            )
        return sampler if isinstance(sampler, BuiltInSampler) else CustomSampler(sampler)
    if sampler not in SAMPLERS:
        raise unknown_name("sampler", sampler, SAMPLERS)
    default = SAMPLERS[sampler]
    if default is None:
        raise InvalidArgumentError(
            f"sampler '{sampler}' needs arguments", hint=f"give an instance: {_EXAMPLES[sampler]}"
        )
    return default
