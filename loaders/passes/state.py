"""The state of a loader: the next step, and what its meaning depends on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gear_data.errors import StateMismatchError
from gear_data.loaders.passes.shared_state import worker_place
from gear_data.selection.samplers import Selector, WeightedSelector

_VERSION = 2


def make_state(step: int, identity: Mapping[str, Any], selectors: Sequence[Selector]) -> dict[str, Any]:
    """Returns the state of a loader, JSON-able.

    Args:
        step: the next step.
        identity: everything that the meaning of a step depends on, such as the seed; see `SequenceLoader`.
        selectors: of the loader's datasets; their changed weights are part of the state.
    """
    weights = [each.state() if isinstance(each, WeightedSelector) else None for each in selectors]
    changed = weights if any(saved is not None for saved in weights) else None
    return {"version": _VERSION, "step": step, **worker_place(), **identity, "weights": changed}


def load_weights(state: Mapping[str, Any], selectors: Sequence[Selector]) -> None:
    """Gives the selectors of a loader's datasets the weights of a checked state."""
    weights = state.get("weights") or [None] * len(selectors)
    for selector, saved in zip(selectors, weights, strict=True):
        if isinstance(selector, WeightedSelector):
            selector.load(saved)


def check_state(state: Mapping[str, Any], identity: Mapping[str, Any]) -> tuple[int, bool]:
    """Checks a state against this loader.

    Args:
        state: the result of `make_state`, maybe of another process.
        identity: this loader's identity, see `make_state`.

    Returns:
        The step of the state, and whether the state belongs to one DataLoader worker.

    Raises:
        StateMismatchError: the state is of another version, another loader or another worker.
    """
    if not isinstance(state, Mapping):
        raise StateMismatchError(f"a loader state must be a mapping, not {state!r}")
    if state.get("version") != _VERSION:
        raise StateMismatchError(f"the loader state has version {state.get('version')!r}, not {_VERSION}")
    for name, value in identity.items():
        if state.get(name) != value:
            raise StateMismatchError(
                f"the loader state has another {name}: {state.get(name)!r}, this loader {value!r}",
                hint="resume with the dataset and the arguments with which the state was saved",
            )
    step = state.get("step")
    if type(step) is not int or step < 0:
        raise StateMismatchError(f"the loader state has step {step!r}, not an integer of at least 0")
    place = state.get("worker")
    if place is not None and place != worker_place().get("worker"):
        raise StateMismatchError(
            f"the loader state belongs to one DataLoader worker (number and count: {place!r})",
            hint="load the StatefulDataLoader's whole state, with as many workers as when it was saved",
        )
    return step, place is not None


def position_unknown() -> StateMismatchError:
    """Returns the error for a state when DataLoader workers iterated."""
    return StateMismatchError(
        "a DataLoader's workers iterated this loader, and it does not know their position",
        hint="save the state of torchdata's StatefulDataLoader; or take this state before iterating, count "
        'batches, and save {**state, "step": n}',
    )
