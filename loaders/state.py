"""The state of a loader: the next step, and what it depends on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gear_data.errors import StateMismatchError
from gear_data.loaders.shared_state import worker_place

_VERSION = 2


def make_state(step: int, identity: Mapping[str, Any], weights: Sequence[Any]) -> dict[str, Any]:
    """A state, JSON-able.

    Args:
        step: the next one.
        identity: what its meaning depends on.
        weights: changed weights of each dataset; None where none changed.
    """
    changed = list(weights) if any(saved is not None for saved in weights) else None
    return {"version": _VERSION, "step": step, **worker_place(), **identity, "weights": changed}


def check_state(state: Mapping[str, Any], identity: Mapping[str, Any]) -> tuple[int, bool]:
    """(step of a state, whether it is that of one DataLoader worker).

    Raises:
        StateMismatchError: it is of another version, another loader, or another worker.
    """
    if not isinstance(state, Mapping):
        raise StateMismatchError(f"a loader state is a mapping, not {state!r}")
    if state.get("version") != _VERSION:
        raise StateMismatchError(f"the loader state has version {state.get('version')!r}, not {_VERSION}")
    for name, value in identity.items():
        if state.get(name) != value:
            raise StateMismatchError(
                f"the loader state has another {name}: {state.get(name)!r}, this loader {value!r}",
                hint="resume with the dataset and arguments the state was saved with",
            )
    step = state.get("step")
    if type(step) is not int or step < 0:
        raise StateMismatchError(f"the loader state has step {step!r}")
    place = state.get("worker")
    if place is not None and place != worker_place().get("worker"):
        raise StateMismatchError(
            f"the loader state is of one DataLoader worker (number and count: {place!r})",
            hint="load the StatefulDataLoader's whole state, with as many workers as when it was saved",
        )
    return step, place is not None


def workers_know() -> StateMismatchError:
    """The error for the state of a loader that a DataLoader's workers iterated."""
    return StateMismatchError(
        "this loader was iterated by a DataLoader's workers, and does not know how far they came",
        hint="save the state of torchdata's StatefulDataLoader; or take this state before iterating, count "
        'batches, and save {**state, "step": n}',
    )
