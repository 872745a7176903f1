"""Rollout: the inputs of a trained sequence model while an episode runs.

A model in an environment needs the last steps as its training batches had them: normalised, scaled, padded on the same
side with the same values, with masks and timesteps. `loader.spec()` records all of this.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Never

import numpy as np
import numpy.typing as npt

from gear_data.collection.listed_steps import interpolated, step_numbers, valid_steps
from gear_data.collection.output import CHANNELS_FIRST, MASK, Output, Padding, pixel_values
from gear_data.common.keywords import refuse_keywords_of, suggest_keywords
from gear_data.error_text import shown
from gear_data.errors import InvalidArgumentError
from gear_data.evaluation.normalizer import AffineMap, normalizer_of, spec_outputs
from gear_data.storage.sidecar import check_discount

_OF_STEPS = _ACTIONS, _REWARDS, _RETURN_TO_GO = "actions", "rewards", "returns_to_go"
#: They are 0 while an episode runs.
_FLAGS = ("terminated", "truncated")

#: One observation, or column -> its value. `observations.camera` may also be given as `camera`.
Observation = npt.ArrayLike | Mapping[str, npt.ArrayLike]


@suggest_keywords
class Rollout:
    """The running episode, as a window of a batch that ends at the current step.

    If batches have only the first step of observations, as with `lerobot`, the window begins at the current step: the
    actions are to predict.

    The action and the reward of the current step are not known yet, so their elements are 0. Arrays that have later
    steps, such as `next_observations` and ranges of actions to predict, are left out.

    Args:
        outputs: the arrays of the training batches.
        target: the return-to-go at the first step, in units of the environment's rewards. It is needed if the batches
            have returns-to-go.
        discount: the discount of the batches' returns-to-go.

    Raises:
        InvalidArgumentError: there is no target, `target` or `discount` is no such number, or the batches have columns
            with offsets and windows of several steps.
    """

    def __init__(self, outputs: Sequence[Output], *, target: float | None = None, discount: float = 1.0) -> None:
        if not isinstance(outputs, Sequence) or not all(isinstance(each, Output) for each in outputs):
            raise InvalidArgumentError(
                f"a rollout takes the outputs of a loader's batches, not {shown(outputs)}",
                hint="gear_data.Rollout.from_spec(loader.spec())",
            )
        if any(not o.within_window for o in outputs) and any(o.within_window and o.width > 1 for o in outputs):
            raise InvalidArgumentError(
                "the batches have columns with offsets, and windows of several steps",
                hint="train with context=1, and with offsets for the columns of several steps: {'actions': (0, 16)}",
            )
        # Whether arrays of the window's steps begin with the current step.
        self._ahead = any(o.squeeze_time and o.column and o.source not in _OF_STEPS for o in outputs)
        self._outputs = [o for o in outputs if _is_known(o) and not (self._ahead and o.within_window and o.width > 1)]
        self._action_output = next((each for each in outputs if each.column and each.source == _ACTIONS), None)
        self._action_map = normalizer_of(outputs).columns.get(_ACTIONS)
        self._discount = check_discount(discount)
        if any(each.source == _RETURN_TO_GO and each.column for each in self._outputs):
            if target is None:
                raise InvalidArgumentError(
                    "the batches have returns_to_go, so the rollout needs a target", hint="target=3000"
                )
            if not self._discount:
                raise InvalidArgumentError(
                    "the batches have returns_to_go with a discount of 0, and no target says those of later steps",
                    hint="train with a discount above 0",
                )
        self._target = _as_target(target)
        self._length = max((each.span.width - _last_offset(each) for each in self._outputs), default=1)
        # Column -> the shape of a step.
        self._columns = {o.source: o.without_zeros.shape for o in self._outputs if o.column and not o.absent}
        action = self._action_output
        for output in self._outputs if action is None else (*self._outputs, action):
            if output.relative is not None:
                self._columns.setdefault(output.relative.source, (output.relative.size,))
                if output.relative.delta:
                    self._columns.setdefault(output.source, output.without_zeros.shape)
        self._observations = [name for name in self._columns if name not in (*_OF_STEPS, *_FLAGS)]
        # Key of an array -> what the preset clips it to.
        self._limits: dict[str, float] = {}
        self._history: dict[str, list[npt.NDArray[Any]]] = {}
        self._step = -1
        self._return_to_go = self._target

    @staticmethod
    def from_spec(spec: Mapping[str, Any], *, target: float | None = None, **unknown: Never) -> Rollout:
        """Returns a rollout for a model that was trained on a loader's batches.

        Args:
            spec: what `SequenceLoader.spec` returned, maybe read from JSON; of a mixture, one of `spec["datasets"]`.
            target: the return-to-go at the first step.

        Raises:
            InvalidArgumentError: as for `Rollout`; or it is no spec, of a mixture, has tokens, or draws
                arrays by `choose`.
        """
        refuse_keywords_of(Rollout.from_spec, unknown)
        outputs = spec_outputs(spec, "Rollout")
        for made in ("tokens", "chunks"):
            if spec["batch_format"].get(made):
                raise InvalidArgumentError(
                    f"preset '{spec['batch_format']['name']}' makes {made}, which a rollout does not"
                )
        columns = {output.source for output in outputs if output.column}
        for key, names in spec.get("choose", {}).items():
            if not columns.isdisjoint(names):
                raise InvalidArgumentError(
                    f"choose= draws the key '{key}' among {', '.join(names)}, and a rollout draws nothing",
                    column=key,
                    hint="give Rollout.from_spec({**spec, 'choose': {}}): its inputs have the keys of these columns, "
                    f"of which you give the model one as '{key}'",
                )
        discount = spec.get("returns_to_go_discount", spec.get("discount", 1.0))
        rollout = Rollout(outputs, target=target, discount=discount)
        rollout._limits = dict.fromkeys(spec.get("clipped", ()), float(spec["batch_format"].get("clip", 0.0)))
        return rollout

    def reset(self, observation: Observation) -> None:
        """Begins an episode.

        Args:
            observation: the environment's first observation.

        Raises:
            InvalidArgumentError: a column is missing, or has another shape.
        """
        self._history = {name: [] for name in self._columns}
        self._step, self._return_to_go = -1, self._target
        self._begin_step(observation)

    def update(self, action: npt.ArrayLike, reward: float, observation: Observation) -> None:
        """Ends a step, and begins the next one.

        Args:
            action: the action that the environment took, as the environment has it.
            reward: the reward of the step.
            observation: the observation after the step.

        Raises:
            InvalidArgumentError: the episode has not begun, or a value has another shape.
        """
        self._check_begun()
        for name, value in ((_ACTIONS, action), (_REWARDS, reward)):
            if name in self._columns:
                self._history[name][-1] = self._value(name, value)
        if self._discount:
            self._return_to_go = (self._return_to_go - float(reward)) / self._discount
        self._begin_step(observation)

    def inputs(self) -> dict[str, npt.NDArray[Any]]:
        """Returns a batch of one window, [1, ...] for each key.

        Keys, dtypes and padding are as in training batches. Half precisions are float32.

        Raises:
            InvalidArgumentError: the episode has not begun.
        """
        self._check_begun()
        inputs = {output.key: self._array(output)[None] for output in self._outputs}
        clipped = {key: np.clip(inputs[key], -limit, limit) for key, limit in self._limits.items() if key in inputs}
        return {**inputs, **clipped}

    def action(self, predicted: npt.ArrayLike) -> npt.NDArray[Any]:
        """Returns the current step's action from a model's predictions.

        Args:
            predicted: [1, K, A], [K, A] or [A]: actions as the batches have them.

        Returns:
            [A]; it is not normalised or relative any more, and has no zeros behind the elements of the dataset.
        """
        action: npt.NDArray[Any] = self.actions(predicted)[0]
        return action

    def actions(self, predicted: npt.ArrayLike) -> npt.NDArray[Any]:
        """Returns the actions of the current step and of the predicted steps after it, [n, A]: see `action`.

        Relative actions are relative to the state at the first step of the present window. So take all actions that the
        environment shall run before `update`.

        Raises:
            InvalidArgumentError: the batches have `actions`, and the dataset of the rollout has none; or the prediction
                has more or fewer steps or elements than the batches.
        """
        self._check_begun()
        array = np.asarray(predicted)
        output, known = self._action_output, self._action_map
        if output is not None and output.absent:
            raise InvalidArgumentError(
                "the rollout's dataset has no column of this name, and other datasets have one",
                column=_ACTIONS,
                hint="take the actions from the prediction under the name that `rename` gave them",
            )
        if output is not None:
            _check_elements(array, output)
        steps = array.reshape(-1, *(array.shape[-1:] if output is None else output.shape))
        position = len(steps) - 1 if output is None or len(steps) == 1 else self._position(output)
        if output is not None and not position < len(steps) <= output.width:
            raise InvalidArgumentError(
                f"the prediction has {len(steps)} steps, and not the {output.width} of a window of the batches",
                column=_ACTIONS,
                hint="give the actions of all steps of one window, or the action of the current step",
            )
        if output is not None and output.within_window and not self._ahead:
            steps = steps[: position + 1]  # padding follows
        own = steps[position:] if output is None or output.real is None else steps[position:, ..., : output.real]
        if output is None or known is None:
            return own
        if known.relative is None:
            return known.restored(own, np.zeros(1), _ACTIONS)
        first = known.reference(self._window_first(known.relative.source, output), _ACTIONS)
        if known.mean.ndim > 1 or known.relative.delta:
            position = self._position(output)
            if known.relative.delta and position > self._place(output).start:
                before = self._history[_ACTIONS][-2].ravel()
                first = np.where(np.array(known.relative.elements) >= 0, before, 0.0)
            if known.mean.ndim > 1:
                mean, scale = (each[position : position + len(own)] for each in (known.mean, known.scale))
                known = AffineMap(mean, scale, known.relative)
        return known.restored(own, first, _ACTIONS)

    def _position(self, output: Output) -> int:
        """Returns the position of the current step in an array of actions."""
        if not output.within_window:
            return _current_step(output)
        return 0 if self._ahead else self._place(output).stop - 1

    def _window_first(self, name: str, output: Output) -> npt.NDArray[Any]:
        """Returns the value of a column at the first step of the window to which an array belongs."""
        place = self._place(output)
        steps = 1 if self._ahead or not output.within_window else place.stop - place.start
        return self._history[name][-steps].ravel()

    def _begin_step(self, observation: Observation) -> None:
        self._step += 1
        for name, values in self._history.items():
            if name == _RETURN_TO_GO:
                values.append(np.asarray(self._return_to_go))
            elif name in self._observations:
                values.append(self._value(name, _observed(observation, name, self._observations)))
            else:
                values.append(_UNKNOWN)
            # One more than a window, for arrays of the step before.
            del values[: -self._length - 1]

    def _value(self, name: str, value: npt.ArrayLike) -> npt.NDArray[Any]:
        """Returns a value as the dataset has it, after a check of its size."""
        # A copy: an environment may give the same array again, with other values.
        array, shape = np.asarray(value).copy(), self._columns[name]
        if array.size != np.prod(shape, dtype=np.int64):
            raise InvalidArgumentError(
                f"the value has the shape {array.shape}, and the training data had {shape}", column=name
            )
        return array

    def _check_begun(self) -> None:
        if self._step < 0:
            raise InvalidArgumentError("the episode has not begun", hint="call reset with the first observation")

    def _place(self, output: Output) -> slice:
        """Returns the valid steps of an array without the axis of windows."""
        valid = min(max(0, self._step + 1 + _last_offset(output)), output.width)
        if output.pad_left or not output.within_window:
            return slice(output.width - valid, output.width)
        return slice(0, valid)

    def _array(self, output: Output) -> npt.NDArray[Any]:
        """Returns an array of a batch without the axis of windows."""
        if output.weights is not None:
            span = self._array(output.span)
            valid = self._array(output.span_mask) if output.column else valid_steps(span, output)
            (between,) = interpolated(span[np.newaxis], valid[np.newaxis], step_numbers(output))
            return np.asarray(between)
        if output.steps is not None:
            return self._array(output.span)[list(output.places)]
        if output.absent:
            return np.full(output.array_shape, output.valid, output.dtype)
        if output.real is not None:
            wide = np.zeros(output.array_shape, output.dtype)
            wide[..., : output.real] = self._array(output.without_zeros)
            return wide
        place = self._place(output)
        valid = place.stop - place.start
        array = np.empty((output.width, *output.shape), output.dtype)
        array[:] = output.fill
        if not output.column:
            if output.source == MASK:
                array[place] = output.valid
            else:
                last = self._step + _last_offset(output)
                numbers = output.origin + last - (place.stop - 1) + np.arange(output.width)
                inside = slice(None) if output.padding is Padding.EXTRAPOLATE else place
                array[inside] = numbers[inside]
        else:
            history = self._history[output.source]
            # With shift=-1 each step has the value of the step before, and the first step has `fill`.
            last = max(0, len(history) + output.shift + _last_offset(output))
            values = history[max(0, last - valid) : last]
            if output.relative is not None:
                values = self._differences(output, values)
            for position, value in enumerate(values, place.stop - len(values)):
                array[position] = _mapped(output, value, position)
            if output.padding in (Padding.EDGE, Padding.FIRST) and values:
                array[: place.start] = array[place.start]
                array[place.stop :] = array[place.stop - 1 if output.padding is Padding.EDGE else place.start]
        return array[0] if output.squeeze_time else array

    def _differences(self, output: Output, values: list[npt.NDArray[Any]]) -> list[npt.NDArray[Any]]:
        """Returns the values of steps of a relative column, minus what they are relative to."""
        own = [value for value in values if value is not _UNKNOWN]
        known = normalizer_of([output]).columns[output.source]
        if not own or known.relative is None:
            return values
        first = known.reference(self._window_first(known.relative.source, output), output.source)
        # The step that is not known yet is the last one.
        stacked = np.stack([value.ravel() for value in own])
        return [*known.subtracted(stacked, first), *values[len(own) :]]


#: A value that is not known yet.
_UNKNOWN = np.empty(0)


def _as_target(target: Any) -> float:
    """Returns the argument `target` as a float; 0 without one."""
    try:
        return 0.0 if target is None else float(target)
    except (TypeError, ValueError) as error:
        raise InvalidArgumentError(f"target must be a number, not {shown(target)}", hint="target=3000") from error


def _mapped(output: Output, value: npt.NDArray[Any], position: int) -> npt.NDArray[Any]:
    """Returns one step of a column as a batch has it, at a position of the array."""
    if value is _UNKNOWN:
        return np.zeros(output.shape)
    if output.camera == CHANNELS_FIRST:
        channels, height, width = output.shape
        if value.dtype != np.uint8:
            raise InvalidArgumentError(
                f"the frame is an array of {value.dtype}", column=output.source, hint="give uint8 [height, width, 3]"
            )
        frame: npt.NDArray[Any] = pixel_values(output)[np.arange(channels), value.reshape(height, width, channels)]
        return frame.transpose(2, 0, 1)
    array = value.reshape(output.shape)
    if output.mean is None or output.scale is None:
        return array
    mean, scale = output.mean, output.scale
    if output.relative is not None:
        mean, scale = mean[position], scale[position]
    mapped: npt.NDArray[Any] = (array - mean) * scale
    return mapped.reshape(output.shape)  # a scalar's mean has one axis


def _last_offset(output: Output) -> int:
    """Returns the last step of an array, relative to the current step.

    An array of a window ends with the current step. Another array has its own range around the window's only step.
    """
    return 0 if output.within_window else output.span.first + output.span.width - 1


def _current_step(output: Output) -> int:
    """Returns the position of the current step in an array with offsets."""
    steps = range(output.first, output.first + output.width) if output.steps is None else output.steps
    places = list(zip(steps, output.weights or (0.0,) * len(steps), strict=True))
    if (0, 0.0) not in places:
        raise InvalidArgumentError(
            f"the actions of a batch have the offsets {list(steps)}, without the current step",
            column=output.source,
            hint="give the action of one step: [A]",
        )
    return places.index((0, 0.0))


def _check_elements(predicted: npt.NDArray[Any], output: Output) -> None:
    """Raises InvalidArgumentError if a prediction has other elements than the actions of the batches."""
    size, axes = math.prod(output.shape), len(output.shape)
    if size > 1 and predicted.shape[-axes:] != output.shape and predicted.shape[-1:] != (size,):
        raise InvalidArgumentError(
            f"the prediction has the shape {predicted.shape}, and an action of the batches {output.shape}",
            column=_ACTIONS,
            hint="give the actions as the batches have them, with the zeros behind the elements of the dataset",
        )


def _is_known(output: Output) -> bool:
    """Returns whether all steps of an array are known while an episode runs."""
    later = output.next_state is not None or output.discounts is not None
    return not later and output.shift <= 0 and _last_offset(output) <= 0


def _observed(observation: Observation, name: str, names: Sequence[str]) -> npt.ArrayLike:
    """Returns the value of one column of an observation.

    Args:
        observation: the observation.
        name: the column.
        names: all columns of observations.

    Raises:
        InvalidArgumentError: the observation does not have the column.
    """
    if not isinstance(observation, Mapping):
        if len(names) == 1:
            return observation
        raise InvalidArgumentError(
            f"the batches have {len(names)} columns of observations: {', '.join(names)}",
            hint="give a mapping of column to value",
        )
    for key in (name, name.partition(".")[2]):
        if key in observation:
            return observation[key]
    raise InvalidArgumentError(
        "the observation does not have this column", column=name, hint=f"it has: {', '.join(map(str, observation))}"
    )
