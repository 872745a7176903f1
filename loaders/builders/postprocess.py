"""Postprocessor: the work on a batch's tensors after collection."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from gear_data.error_text import shown
from gear_data.errors import InvalidArgumentError
from gear_data.loaders.builders.batch import Batch, Transform
from gear_data.loaders.builders.transfer import map_tensors
from gear_data.loaders.component import LoaderComponent
from gear_data.loaders.decoding.images import Decoder
from gear_data.loaders.decoding.variable import VariableColumns
from gear_data.selection.windows import Windows


@dataclass(frozen=True)
class PostprocessConfig:
    """The arguments of a loader that change tensors after collection.

    Attributes:
        half: half precision of float columns; None leaves them.
        decoders: column of text or bytes -> decoder.
        transform: called as transform(batch, rng) with a generator keyed by (seed, step).
        seed: seed of the loader.
        context: steps of a sequence.
    """

    half: torch.dtype | None
    decoders: dict[str, Decoder]
    transform: Transform | None
    seed: int
    context: int


class Postprocessor:
    """Decodes columns, and applies the preset's postprocessing and `transform`.

    It also applies half precision to batches that a preset postprocesses.

    Args:
        components: the loader's datasets.
    """

    def __init__(self, components: Sequence[LoaderComponent], config: PostprocessConfig) -> None:
        self._components = components
        self._config = config
        self._variable = VariableColumns(components, config.context, config.decoders)
        #: Whether `__call__` returns every batch unchanged, so that the builder can skip the call.
        self.is_identity = config.transform is None and not any(
            component.variable or component.postprocess for component in components
        )

    def __call__(self, step: int, windows: Windows, batch: Batch) -> Batch:
        """Returns the postprocessed batch of a step.

        `batch` was collected from `windows`, and may be changed in place.
        """
        config = self._config
        component = self._components[windows.source if isinstance(windows.source, int) else 0]
        if component.variable:
            self._variable.add(batch, windows)
        if component.postprocess is not None:
            batch = component.postprocess(batch)
            if config.half is not None:
                # The collector rounds the batches of other presets. This preset's postprocessing needs float32.
                cast = functools.partial(torch.Tensor.to, dtype=config.half)
                floats = component.float_keys()
                batch = {key: map_tensors(value, cast) if key in floats else value for key, value in batch.items()}
        if config.transform is not None:
            rng = np.random.Generator(np.random.Philox(key=np.array([config.seed, step], np.uint64)))
            transformed = config.transform(batch, rng)
            if transformed is None:
                raise InvalidArgumentError(
                    f"the transform {_name(config.transform)} returned None, not a batch",
                    hint="end it with 'return batch', also if it changes the batch in place",
                )
            batch = transformed
        return batch


def _name(transform: Transform) -> str:
    """Returns the name of a function, or the text of another callable."""
    return getattr(transform, "__qualname__", None) or shown(transform)
