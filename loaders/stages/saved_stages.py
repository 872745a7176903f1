"""The stages of a loader's state."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gear_data.common.typed_json import check_json
from gear_data.errors import StateMismatchError
from gear_data.loaders.passes.state import load_weights
from gear_data.loaders.stages.stage import StageRecord
from gear_data.loaders.stages.timeline import Stages


def load_stages(stages: Stages, state: Mapping[str, Any], step: int) -> None:
    """Continues with the generations and the weights of a checked state.

    Args:
        stages: the loader's stages.
        state: the state.
        step: its step.

    Raises:
        StateMismatchError: the state is malformed, or of another loader.
        GenerationGoneError: episodes that are needed are gone.
    """
    if "stages" in state:
        stages.load(check_json(state["stages"], list[StageRecord], error=StateMismatchError, file="loader state"), step)
    elif stages.grows:
        stages.load([_before_growth(state)], step)
    else:
        load_weights(state, [component.selector for component in stages.newest.components])


def _before_growth(state: Mapping[str, Any]) -> StageRecord:
    """Returns the only stage of a state that was saved before the datasets grew."""
    fingerprints = str(state.get("fingerprint")).split("+")
    count = len(fingerprints)
    weights = [
        None if updates is None else {"units": "", "initial": None, "first_version": 0, "updates": updates}
        for updates in state.get("weights") or [None] * count
    ]
    last_ids = check_json(state.get("last_ids", [-1] * count), list[int], error=StateMismatchError, file="loader state")
    return StageRecord(0, [0] * count, fingerprints, last_ids, state.get("selection"), [None] * count, weights)
