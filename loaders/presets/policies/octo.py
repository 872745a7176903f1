"""Octo's batches: the arrays that are no columns, and a chunk of actions for each step of the history.

As `chunk_act_obs` of octo-models/octo (commit 241fb35, `data/traj_transforms.py`).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from gear_data.collection.output import MASK, TIMESTEPS, Output
from gear_data.loaders.presets.batch_format import BatchFormat
from gear_data.loaders.presets.batch_request import BatchRequest

#: Keys of Octo's batches.
_PADS, _COMPLETED, _ACTION_PADS = (
    "observation.timestep_pad_mask", "observation.task_completed", "action_pad_mask",
)  # fmt: skip
_TEXT, _TEXT_MASK = "task.language_instruction", "task.pad_mask_dict.language_instruction"


def constant(key: str, values: np.ndarray[Any, Any]) -> Output:
    """Returns the output of one value for all rows of a dataset."""
    return Output(
        key, MASK, str(values.dtype), values.shape, 0, 1, column=False, valid=values, fill=values, squeeze_time=True
    )


def octo_outputs(request: BatchRequest, outputs: Sequence[Output], steps: Mapping[str, Any]) -> list[Output]:
    """Returns Octo's outputs that are no columns; `octo_batch` needs them."""
    own: dict[str, Any] = {"column": False}
    first, width = steps["first"], steps["width"]
    observed = [o.key for o in outputs if o.key.startswith("observation.") and o.column and o.camera is None]
    masks = [key.replace("observation.", "observation.pad_mask_dict.", 1) for key in observed if "image_" not in key]
    return [
        Output("observation.timestep", TIMESTEPS, "int32", (), **own, **steps),
        Output(_PADS, MASK, "bool", (), valid=1, fill=0, **own, **steps),
        # The steps before the ones of the chunks.
        Output(
            _COMPLETED, MASK, "bool", (), first - 1, width + request.context - 1, within_window=False, valid=0, fill=1,
            **own,
        ),
        *(constant(key, np.ones(width, np.bool_)) for key in (*masks, "observation.pad_mask_dict.timestep")),
    ]  # fmt: skip


def octo_postprocess(
    batch_format: BatchFormat, request: BatchRequest
) -> Callable[[dict[str, Any], object], dict[str, Any]]:
    """Returns the function that makes Octo's chunks; see `octo_batch`."""
    return functools.partial(octo_batch, history=batch_format.history, horizon=request.context)


def octo_batch(batch: dict[str, Any], rows: object, *, history: int, horizon: int) -> dict[str, Any]:
    """Makes a chunk of actions for each step of the history.

    As `chunk_act_obs` of octo-models/octo (commit 241fb35, `data/traj_transforms.py`): a step of the history before the
    episode has the chunk of the first step. `task_completed` is true two steps later than the last step.

    Args:
        batch: key -> array; `action` [B, history + horizon - 1, A], whose first step is the history's.
        rows: not used.
        history: steps of observations.
        horizon: actions of a chunk.
    """
    places = np.arange(history)[:, None] + np.arange(horizon)
    before = (~batch[_PADS]).sum(1)
    # A step of the history before the episode has the chunk of the first step in the episode.
    chunk = np.maximum(np.arange(history), before[:, None])
    rows = np.arange(len(before))[:, None, None]
    batch["action"] = batch["action"][rows, places[chunk]]
    # Steps before the episode are not behind it.
    completed = batch[_COMPLETED][:, places] & (places >= history)
    batch[_COMPLETED] = completed
    batch[_ACTION_PADS] = batch[_ACTION_PADS][:, None, None, :] & ~completed[..., None]
    texts = batch.get(_TEXT)
    if isinstance(texts, list):
        batch[_TEXT_MASK] = np.array([bool(text) for text in texts], np.bool_)
    return batch
