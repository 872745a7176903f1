"""Postprocessor: the work on a batch's arrays after collection."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from gear_data.common.cancellation import call_user_function
from gear_data.error_text import shown
from gear_data.errors import InvalidArgumentError
from gear_data.loaders.builders.batch import Batch, Transform
from gear_data.loaders.builders.token_parts import DatasetPart, row_numbers
from gear_data.loaders.component import LoaderComponent
from gear_data.loaders.decoding.augmentation import Augment
from gear_data.loaders.decoding.augmenter import Augmenter, ImageForm
from gear_data.loaders.decoding.images import Decoder
from gear_data.loaders.decoding.variable import VariableColumns
from gear_data.loaders.frameworks.framework import Framework
from gear_data.loaders.frameworks.values import map_arrays
from gear_data.loaders.presets.choices import choose_arrays
from gear_data.loaders.presets.gato.tokens import BatchRows, GatoPostprocess, joined
from gear_data.selection.windows import Windows


@dataclass(frozen=True)
class PostprocessConfig:
    """The arguments of a loader that change arrays after collection.

    Attributes:
        half: half precision of float columns; None leaves them.
        decoders: column of text or bytes -> decoder.
        transform: called as transform(batch, rng) with a generator keyed by (seed, step).
        seed: seed of the loader.
        context: steps of a sequence.
        framework: the framework of the batch.
        augment: augmentations of images; None: there are none.
    """

    half: np.dtype[Any] | None
    decoders: dict[str, Decoder]
    transform: Transform | None
    seed: int
    context: int
    framework: Framework
    augment: Augment = None

    @property
    def needs_one_shape(self) -> bool:
        """Whether arrays must have one shape in all processes, and no `transform` can give it to them."""
        return self.framework.spans_processes and self.transform is None


class Postprocessor:
    """Turns collected arrays into the batch of a framework.

    Decodes columns, and applies the preset's postprocessing, augmentations and `transform`. It also applies half
    precision to batches that a preset postprocesses.

    Args:
        components: the loader's datasets.
    """

    def __init__(self, components: Sequence[LoaderComponent], config: PostprocessConfig) -> None:
        self._components = components
        self._config = config
        self._variable = VariableColumns(
            components, config.context, config.decoders, config.seed, one_shape=config.needs_one_shape
        )
        self._convert, self._place = config.framework.convert, config.framework.place
        self._augmenters = [make_augmenter(component, config) for component in components]
        self._changes_arrays = config.augment is not None or any(
            component.variable or component.facts or component.choices or component.postprocess or component.clipped
            for component in components
        )
        #: Whether `__call__` returns a batch of the framework's arrays unchanged, so that a builder can skip the call.
        self.only_converts = config.transform is None and not self._changes_arrays
        #: Whether nothing reads the arrays of cameras, so that a builder can make them after the call.
        self.leaves_cameras = (
            config.transform is None
            and config.augment is None
            and not any(component.postprocess for component in components)
            and not any(choice.arrays for component in components for choice in component.choices)
        )
        #: Seed of the loader.
        self.seed = config.seed

    def __call__(self, step: int, windows: Windows, batch: Batch, parts: Sequence[DatasetPart] | None = None) -> Batch:
        """Returns the batch of a step.

        `batch` was collected from `windows`, and may be changed in place. `parts` are arrays of datasets whose tokens
        are joined, if it has some.
        """
        if self._changes_arrays:
            batch = self._changed(step, windows, batch) if parts is None else self._joined(step, windows, batch, parts)
            augmenter = self._augmenters[windows.dataset]
            if augmenter is not None:
                augmenter(step, windows.row, batch)
        if self._convert is not None:
            batch = self._convert(batch)
        if self._config.transform is not None:
            rng = np.random.Generator(np.random.Philox(key=np.array([self._config.seed, step], np.uint64)))
            batch = call_user_function(self._config.transform, batch, rng)
            if batch is None:
                raise InvalidArgumentError(
                    f"the transform {_name(self._config.transform)} returned None, not a batch",
                    hint="end it with 'return batch', also if it changes the batch in place",
                )
        return batch if self._place is None else self._place(batch)

    def _joined(self, step: int, windows: Windows, batch: Batch, parts: Sequence[DatasetPart]) -> Batch:
        """Returns the batch of a step, whose tokens are of several datasets.

        Args:
            step: the step.
            windows: all windows.
            batch: the arrays of all windows.
            parts: the arrays of each dataset, which may be changed in place.
        """
        encoded, batch = [], dict(batch)
        for part in parts:
            component = self._components[part.number]
            self._variable.add_columns(part.windows, part.arrays)
            own = token_postprocess(component).encoded(part.arrays, BatchRows(self.seed, step, part.numbers))
            encoded.append(({key: value for key, value in own.items() if key not in batch}, part.rows))
        batch |= joined(encoded, sum(len(part.rows) for part in parts))
        self._variable.add_facts(step, windows, batch)
        every = [token_postprocess(component) for component in self._components]
        widths = [each.width for each in every if each.width is not None]
        arrange = replace(every[0], width=max(widths) if len(widths) == len(every) else None)
        return self._rounded(self._components[0], arrange.arranged(batch))

    def _changed(self, step: int, windows: Windows, batch: Batch) -> Batch:
        """Decodes columns, and applies the preset's postprocessing."""
        component = self._components[windows.dataset]
        _clip(self._components, windows, batch)
        if component.variable or component.facts or component.choices:
            self._variable.add(step, windows, batch)
        if component.choices:
            choose_arrays(component.choices, component.hidden, self.seed, step, windows, batch)
        if component.postprocess is None:
            return batch
        batch = component.postprocess(batch, BatchRows(self.seed, step, row_numbers(windows)))
        return self._rounded(component, batch)

    def _rounded(self, component: LoaderComponent, batch: Batch) -> Batch:
        """Rounds floats of a batch that a preset has postprocessed to half precision."""
        half = self._config.half
        if half is None:
            return batch

        def rounded(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
            with np.errstate(over="ignore"):  # a large value becomes infinite, as in every framework
                return array.astype(half)

        # The collector rounds the batches of other presets. This preset's postprocessing needs float32.
        floats = component.float_keys()
        return {key: map_arrays(value, np.ndarray, rounded) if key in floats else value for key, value in batch.items()}


def _clip(components: Sequence[LoaderComponent], windows: Windows, batch: Batch) -> None:
    """Clips the arrays of each dataset that its preset clips."""
    source = windows.source
    for number in [source] if isinstance(source, int) else np.unique(source).tolist():
        limit = components[number].batch_format.clip
        for key in components[number].clipped:
            rows = slice(None) if isinstance(source, int) else source == number
            batch[key][rows] = np.minimum(np.maximum(batch[key][rows], -limit), limit)


def token_postprocess(component: LoaderComponent) -> GatoPostprocess:
    """Returns what makes tokens of a dataset's batches."""
    if not isinstance(component.postprocess, GatoPostprocess):
        raise TypeError(f"preset '{component.batch_format.name}' makes no tokens")
    return component.postprocess


def check_shapes_of_tokens(components: Sequence[LoaderComponent], config: PostprocessConfig) -> None:
    """Checks that all processes have tokens of one shape, where one array has the rows of several.

    Raises:
        InvalidArgumentError: the number of tokens or patches of a process depends on its rows.
    """
    if not config.needs_one_shape:
        return
    for component in components:
        tokens = component.batch_format.tokens
        # Lists are refused where they are sharded.
        if tokens is not None and not tokens.ragged and (tokens.patch or token_postprocess(component).width is None):
            raise InvalidArgumentError(
                "the number of patches, or of tokens with text, depends on the rows of a process, and device= makes "
                "one array of the rows of all processes",
                hint="give device='cpu', and place the arrays of each process yourself; or leave text and patch out of "
                "preset_options={'tokens': ...}; or let transform= give them one shape",
            )


def make_augmenter(component: LoaderComponent, config: PostprocessConfig) -> Augmenter | None:
    """Returns what augments the batches of a dataset; None: nothing does.

    Raises:
        GearError: an augmentation that the images do not allow; see `Augmenter`.
    """
    if config.augment is None:
        return None
    images: dict[str, ImageForm] = {
        output.key: (output.array_dtype, output.shape)
        for output in (*component.outputs, *component.task_goals)
        if output.column and len(output.shape) == 3
    }
    for choice in component.choices:
        drawn = [images[key] for key in choice.arrays.get(choice.key, ()) if key in images]
        images |= {choice.key: drawn[0]} if drawn else {}
    images = {key: form for key, form in images.items() if key not in component.hidden | component.tokenized}
    if component.goals is not None and len(component.goals.output.shape) == 3:
        output = component.goals.output
        images |= dict.fromkeys(component.goals.sampler.goals.keys, (output.array_dtype, output.shape))
    decoded = [key for column, key in component.variable.items() if column in config.decoders]
    images |= {key: None for key in decoded if key not in component.tokenized}
    images |= {choice.key: None for choice in component.choices if choice.key in config.decoders}
    return Augmenter(config.augment, images, config.seed)


def _name(transform: Transform) -> str:
    """Returns the name of a function, or the text of another callable."""
    return getattr(transform, "__qualname__", None) or shown(transform)
