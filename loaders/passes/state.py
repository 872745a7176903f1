"""The state of a loader: the next step, and what its meaning depends on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gear_data.errors import StateMismatchError
from gear_data.loaders.passes.layout import PassLayout
from gear_data.loaders.passes.shared_passes import worker_place
from gear_data.selection.samplers import Selector, WeightedSelector

#: Of a state without and with stages.
_VERSION, _GROWING_VERSION = 3, 4
#: What a state has for each stage instead.
_OF_STAGES = ("fingerprint", "selection")


@dataclass(frozen=True)
class SavedStep:
    """The position of a loader.

    Attributes:
        step: the next step; of a DataLoader's worker, the worker's own next step, which may be after the pass.
        number: of the step's pass.
        own: whether the position belongs to one DataLoader worker.
    """

    step: int
    number: int
    own: bool


def make_state(
    saved: SavedStep, layout: PassLayout, identity: Mapping[str, Any], selectors: Sequence[Selector],
    stages: list[dict[str, Any]] | None, last_ids: list[int],
) -> dict[str, Any]:  # fmt: skip
    """Returns the state of a loader, JSON-able.

    Args:
        saved: the position.
        layout: the steps of each pass.
        identity: everything that the meaning of a step depends on, such as the seed; see `SequenceLoader`.
        selectors: of the loader's datasets; their changed weights are part of the state.
        stages: the generations of a dataset that grows, with their weights; else None.
        last_ids: the id of each dataset's last episode. The datasets may grow after the state was saved.
    """
    place = {**worker_place(), "worker_pass": saved.number} if saved.own else {}
    position = {"step": saved.step, **place, "pass": layout.identity()}
    if stages is not None:
        return {"version": _GROWING_VERSION, **position, **identity, "stages": stages}
    weights = [each.state() if isinstance(each, WeightedSelector) else None for each in selectors]
    changed = weights if any(saved is not None for saved in weights) else None
    return {"version": _VERSION, **position, **identity, "weights": changed, "last_ids": last_ids}


def load_weights(state: Mapping[str, Any], selectors: Sequence[Selector]) -> None:
    """Gives the selectors of a loader's datasets the weights of a checked state."""
    weights = state.get("weights") or [None] * len(selectors)
    for selector, saved in zip(selectors, weights, strict=True):
        if isinstance(selector, WeightedSelector):
            selector.load(saved)


def check_state(
    state: Mapping[str, Any], layout: PassLayout, identity: Mapping[str, Any], *, grows: bool = False
) -> SavedStep:
    """Checks a state against this loader.

    Args:
        state: the result of `make_state`, maybe of another process.
        layout: the steps of each pass of this loader.
        identity: this loader's identity, see `make_state`.
        grows: whether the loader's datasets grow. Then, and with a state of such datasets, the datasets and their
            windows are not compared.

    Returns:
        The position.

    Raises:
        StateMismatchError: the state is of another version, another loader or another worker.
    """
    if not isinstance(state, Mapping):
        raise StateMismatchError(f"a loader state must be a mapping, not {state!r}")
    if state.get("version") not in (_VERSION, _GROWING_VERSION) or ("stages" in state) != (
        state["version"] == _GROWING_VERSION
    ):
        raise StateMismatchError(
            f"the loader state has version {state.get('version')!r}, not {_VERSION}: another gear-data saved it",
            hint='for a state of version 2, make the loader and load {**loader.state_dict(), "step": state["step"]}, '
            "if no weights were updated",
        )
    # An identity names packed rows and transitions only if there are some.
    for name, value in {"pack": None, "missing_next": None, **identity}.items():
        if name in _OF_STAGES and (grows or "stages" in state):
            continue
        if state.get(name) != value:
            raise StateMismatchError(
                f"the loader state has another {name}: {state.get(name)!r}, this loader {value!r}",
                hint="resume with the dataset and the arguments with which the state was saved",
            )
    step, place = state.get("step"), state.get("worker")
    if type(step) is not int or step < 0:
        raise StateMismatchError(f"the loader state has step {step!r}, not an integer of at least 0")
    if place is not None and place != worker_place().get("worker"):
        raise StateMismatchError(
            f"the loader state belongs to one DataLoader worker (number and count: {place!r})",
            hint="load the StatefulDataLoader's whole state, with as many workers as when it was saved",
        )
    _check_passes(state, step, layout)
    number = layout.number(step) if place is None else state.get("worker_pass")
    if type(number) is not int or number < 0:
        raise StateMismatchError(f"the loader state has worker_pass {number!r}, not an integer of at least 0")
    return SavedStep(step, number, place is not None)


def _check_passes(state: Mapping[str, Any], step: int, layout: PassLayout) -> None:
    """Raises StateMismatchError if the step has other windows in this loader's passes."""
    saved = state.get("pass", ())
    if saved is not None and not (
        isinstance(saved, list | tuple) and len(saved) == 2 and all(type(n) is int and n > 0 for n in saved)
    ):
        raise StateMismatchError(f"the loader state has pass {saved!r}, not [batches, windows] or None")
    batches, windows = saved or (None, None)
    before = PassLayout(layout.batch_size, batches, windows, False).first_slot(step)
    if before != layout.first_slot(step):
        raise StateMismatchError(
            f"the loader state has {before} windows before step {step}, this loader {layout.first_slot(step)}: its "
            f"passes have [batches, windows] {layout.identity()}, the state's {saved}",
            hint="resume with the epochs= or steps= with which the state was saved",
        )
    if layout.repeat and "worker" not in state and layout.batches is not None and step > layout.batches:
        raise StateMismatchError(
            f"the loader state has step {step}, but every pass has the steps 0 to {layout.batches - 1}",
            hint="resume with passes='continue', or with the steps= with which the state was saved",
        )


def position_unknown() -> StateMismatchError:
    """Returns the error for a state when DataLoader workers iterated."""
    return StateMismatchError(
        "a DataLoader's workers iterated this loader, and it does not know their position",
        hint="save the state of torchdata's StatefulDataLoader; or take this state before iterating, count "
        'batches, and save {**state, "step": n}',
    )
