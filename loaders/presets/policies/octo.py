"""Octo's batches: the arrays that are no columns, and a chunk of actions for each step of the history.

As `chunk_act_obs` of octo-models/octo (commit 241fb35, `data/traj_transforms.py`).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from gear_data.collection.output import MASK, TIMESTEPS, Output
from gear_data.errors import InvalidArgumentError
from gear_data.kernels import cpu
from gear_data.loaders.presets.batch_format import BatchFormat
from gear_data.loaders.presets.batch_request import BatchRequest
from gear_data.loaders.presets.gato.tokens import BatchRows
from gear_data.loaders.presets.unlike import constant

#: Keys of Octo's batches.
_PADS, _COMPLETED, _ACTION = "observation.timestep_pad_mask", "observation.task_completed", "action"
_TEXT, _TEXT_MASK = "task.language_instruction", "task.pad_mask_dict.language_instruction"


#: Key of the goals' steps; also names what is drawn.
GOAL_STEPS = "task.timestep"
#: The last step of each row's episode, until `octo_batch` takes it out of the batch.
LAST_STEPS = "task.last_timestep"


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


def task_goals(batch_format: BatchFormat, outputs: Sequence[Output]) -> tuple[Output, ...]:
    """Returns the outputs of Octo's goals: the observations of a batch, at a step of their own.

    As `uniform` of octo-models/octo (commit 241fb35, `data/utils/goal_relabeling.py`).
    """
    if not batch_format.goals:
        return ()
    found = [
        replace(
            output, key=output.key.replace("observation.", "task.", 1), first=0, width=1, squeeze_time=True,
            steps=None, within_window=False,
        )
        for output in outputs
        if output.key == "observation.timestep" or (_is_observation(output) and output.source != MASK)
    ]  # fmt: skip
    absent = {output.key for output in outputs if output.absent}
    names = [output.key.removeprefix("task.") for output in found]
    return (
        *found,
        *(
            constant(f"task.pad_mask_dict.{name}", np.array(f"observation.{name}" not in absent, np.bool_))
            for name in names
        ),
    )


def _is_observation(output: Output) -> bool:
    parts = output.key.split(".")
    return parts[0] == "observation" and len(parts) == 2 and (output.column or output.camera is not None)


def octo_postprocess(
    batch_format: BatchFormat, request: BatchRequest
) -> Callable[[dict[str, Any], BatchRows], dict[str, Any]]:
    """Returns the function that makes Octo's chunks; see `octo_batch`.

    Raises InvalidArgumentError if the batches have no actions.
    """
    keys = batch_format.keys
    named = {key for name, key in keys.items() if name in request.schema} | {*request.chosen}
    actions = _ACTION if _ACTION in named else keys.get("actions", "actions")
    if not actions:
        raise InvalidArgumentError(
            f"preset '{batch_format.name}' makes chunks of the actions, and the option keys leaves them out",
            column="actions",
            hint=f"give preset_options={{'keys': {{'actions': '{_ACTION}'}}}}",
        )
    return functools.partial(
        octo_batch,
        history=batch_format.history,
        horizon=request.context,
        keep_image_prob=batch_format.keep_image_prob,
        actions=actions,
        element_mask=batch_format.element_mask,
    )


def octo_batch(
    batch: dict[str, Any], rows: BatchRows, *, history: int, horizon: int, keep_image_prob: float, actions: str,
    element_mask: str,
) -> dict[str, Any]:  # fmt: skip
    """Makes a chunk of actions for each step of the history.

    As `chunk_act_obs` of octo-models/octo (commit 241fb35, `data/traj_transforms.py`): a step of the history before the
    episode has the chunk of the first step. `task_completed` is true two steps later than the goal's step; without goal
    images, than the last step.

    Args:
        batch: key -> array; the actions [B, history + horizon - 1, A], whose first step is the history's.
        rows: the rows of the batch.
        history: steps of observations.
        horizon: actions of a chunk.
        keep_image_prob, element_mask: see `BatchFormat`.
        actions: the key of the actions.
    """
    texts, last_steps = batch.get(_TEXT), batch.pop(LAST_STEPS, None)
    if isinstance(texts, list):
        batch[_TEXT_MASK] = np.array([bool(text) for text in texts], np.bool_)
        if last_steps is not None:
            # Before the chunks, as in Octo: it changes the goals' steps.
            _keep_one(batch, rows, keep_image_prob, last_steps)
    places = np.arange(history)[:, None] + np.arange(horizon)
    before = (~batch[_PADS]).sum(1)
    # A step of the history before the episode has the chunk of the first step in the episode.
    chunk = np.maximum(np.arange(history), before[:, None])
    batch[actions] = batch[actions][np.arange(len(before))[:, None, None], places[chunk]]
    # Steps before the episode are not behind it.
    completed = batch[_COMPLETED][:, places] & (places >= history)
    if GOAL_STEPS in batch:
        ahead = batch[GOAL_STEPS].astype(np.int64) - batch["observation.timestep"][:, -1]
        completed = ahead[:, None, None] - (places - (history + 1)) <= 0
    batch[_COMPLETED] = completed
    if element_mask:
        batch[element_mask] = batch[element_mask][:, None, None, :] & ~completed[..., None]
    return batch


def _keep_one(batch: dict[str, Any], rows: BatchRows, keep_image_prob: float, last_steps: np.ndarray[Any, Any]) -> None:
    """Empties the goal images or the text of each row with a text.

    Without goal images, the goal is the last step of the episode.

    As `delete_task_conditioning` of octo-models/octo (commit 241fb35, `data/utils/task_augmentation.py`).
    """
    random = cpu.random
    seed = np.uint64(random.word64(np.uint64(rows.seed), random.DOMAIN_CHOICE, rows.step, 0, 1))
    words = np.empty(int(rows.numbers.max(initial=-1)) + 1, np.int64)
    random.draw_words(seed, random.DOMAIN_CHOICE, rows.step, words)
    drawn = (words.view(np.uint64)[rows.numbers] >> np.uint64(11)).astype(np.float64) / (1 << 53)
    keeps = (drawn < keep_image_prob) | ~batch[_TEXT_MASK]
    batch[_TEXT] = ["" if keep else text for keep, text in zip(keeps.tolist(), batch[_TEXT], strict=True)]
    batch[_TEXT_MASK] &= ~keeps
    batch[GOAL_STEPS][~keeps] = last_steps[~keeps]
    for key in [key for key in batch if key.startswith("task.image_")]:
        batch[key][~keeps] = 0
        batch[key.replace("task.", "task.pad_mask_dict.", 1)] &= keeps
