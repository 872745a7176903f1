"""Batches of policies as plain loops over episodes, one sample at a time, written from the policies' own code.

They share no code with the package. Each names its source.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

Array = npt.NDArray[Any]
Episodes = Sequence[Mapping[str, Array]]
#: (episode, first step) of each row.
Rows = Sequence[tuple[int, int]]
#: Column -> its mean and deviation.
Statistics = Mapping[str, tuple[Array, Array]]


def _stacked(samples: Sequence[Any]) -> Any:
    if isinstance(samples[0], Mapping):
        return {key: _stacked([sample[key] for sample in samples]) for key in samples[0]}
    return np.stack(samples)


def _pad_to_dim(values: Array, width: int) -> Array:
    return np.pad(values, [(0, 0)] * (values.ndim - 1) + [(0, width - values.shape[-1])])


def resize_with_pad(image: Array, height: int, width: int) -> Array:
    """Resizes as `_resize_with_pad_pil` of openpi, `openpi_client/image_tools.py`."""
    pixels = Image.fromarray(image)
    if pixels.size == (width, height):
        return image
    ratio = max(pixels.size[0] / width, pixels.size[1] / height)
    size = int(pixels.size[0] / ratio), int(pixels.size[1] / ratio)
    whole = Image.new("RGB", (width, height), 0)
    left, top = int((width - size[0]) / 2), int((height - size[1]) / 2)
    whole.paste(pixels.resize(size, Image.Resampling.BILINEAR), (left, top))
    return np.asarray(whole)


def openpi(
    episodes: Episodes, rows: Rows, *, horizon: int, width: int, statistics: Statistics, cameras: Mapping[str, str],
    delta_mask: Sequence[bool] | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Batches of Physical-Intelligence/openpi, commit 15a9616.

    The rows that `LeRobotDataset` gives for `delta_timestamps` of the actions, then `DeltaActions`, `Normalize` and
    `PadStatesAndActions` of `transforms.py`; images as in `policies/libero_policy.py`: an absent one is black and
    masked; then `ResizeImages(224, 224)`.
    """
    samples = []
    for episode, start in rows:
        data = episodes[episode]
        last = len(data["actions"]) - 1
        actions = np.stack([data["actions"][min(start + k, last)] for k in range(horizon)]).astype(np.float64)
        state = data["observations"][start].astype(np.float64)
        if delta_mask is not None:
            mask = np.asarray(delta_mask)
            dims = mask.shape[-1]
            actions[..., :dims] -= np.expand_dims(np.where(mask, state[..., :dims], 0), axis=-2)
        normalised = {}
        for key, values, name in (("state", state, "observations"), ("actions", actions, "actions")):
            mean, std = statistics[name]
            normalised[key] = _pad_to_dim((values - mean) / (std + 1e-6), width).astype(np.float32)
        image = {name: resize_with_pad(data[column][start], 224, 224) for name, column in cameras.items()}
        image_mask = dict.fromkeys(image, np.True_)
        for name in ("base_0_rgb", "left_wrist_0_rgb", "right_wrist_0_rgb"):
            if name not in image:
                image[name], image_mask[name] = np.zeros((224, 224, 3), np.uint8), np.False_
        samples.append({**normalised, "image": image, "image_mask": image_mask})
    result: dict[str, Any] = _stacked(samples)
    return result


def octo(
    episodes: Episodes, rows: Rows, *, window_size: int, action_horizon: int, statistics: Statistics,
    images: Mapping[str, str], goals: Sequence[int] | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Batches of octo-models/octo, commit 241fb35, with the goal of each row at a step, or without goals.

    `restructure` of `data/dataset.py`, `normalize_action_and_proprio` of `data/utils/data_utils.py`, then
    `add_pad_mask_dict`, `pad_actions_and_proprio`, `uniform` of `data/utils/goal_relabeling.py` and `chunk_act_obs` of
    `data/traj_transforms.py`, for whole trajectories.
    """

    def chunked(data: Mapping[str, Array], goal: int | None) -> dict[str, Any]:
        traj_len = len(data["actions"])
        (action_mean, action_std), (mean, std) = statistics["actions"], statistics["observations"]
        action = ((data["actions"] - action_mean) / (action_std + 1e-8)).astype(np.float32)
        observation: dict[str, Any] = {name: data[column] for name, column in images.items()}
        observation["proprio"] = ((data["observations"][:traj_len] - mean) / (std + 1e-8)).astype(np.float32)
        observation["timestep"] = np.arange(traj_len, dtype=np.int32)
        pad_mask_dict = {key: np.ones(traj_len, np.bool_) for key in observation}
        task = {}
        if goal is not None:
            task = {key: np.repeat(values[goal : goal + 1], traj_len, 0) for key, values in observation.items()}
            task["pad_mask_dict"] = dict(pad_mask_dict)
        action_pad_mask = np.ones_like(action, np.bool_)
        history_indices = np.arange(traj_len)[:, None] + np.arange(-window_size + 1, 1)
        timestep_pad_mask = history_indices >= 0
        history_indices = np.maximum(history_indices, 0)
        observation = {key: values[history_indices] for key, values in observation.items()}
        observation["pad_mask_dict"] = {key: values[history_indices] for key, values in pad_mask_dict.items()}
        observation["timestep_pad_mask"] = timestep_pad_mask
        chunk_indices = np.minimum(np.arange(traj_len)[:, None] + np.arange(action_horizon), traj_len - 1)
        action = action[chunk_indices][history_indices]
        t, w, h = np.meshgrid(np.arange(traj_len), np.arange(window_size), np.arange(action_horizon), indexing="ij")
        goal_timestep = np.full(traj_len, traj_len - 1 if goal is None else goal)
        relative_goal_timestep = goal_timestep[:, None, None] - (t - (window_size + 1) + w + h)
        observation["task_completed"] = relative_goal_timestep <= 0
        action_pad_mask = np.logical_and(
            action_pad_mask[:, None, None, :], np.logical_not(observation["task_completed"])[:, :, :, None]
        )
        tree = {"observation": observation, "action": action, "action_pad_mask": action_pad_mask}
        return tree if goal is None else {**tree, "task": task}

    def frame(tree: Any, step: int) -> Any:
        return {k: frame(v, step) for k, v in tree.items()} if isinstance(tree, Mapping) else tree[step]

    drawn: Sequence[int | None] = [None] * len(rows) if goals is None else goals
    result: dict[str, Any] = _stacked(
        [frame(chunked(episodes[episode], goal), start) for (episode, start), goal in zip(rows, drawn, strict=True)]
    )
    return result


def groot(episodes: Episodes, rows: Rows, *, horizon: int, width: int, cameras: Mapping[str, str]) -> dict[str, Any]:
    """Batches of `GrootN17PackInputsStep` of huggingface/lerobot, commit 7427f31, without its normalisation.

    `policies/groot/processor_groot.py`: the state gets an axis and zeros; actions of padding are zero, and so is their
    mask. `video` has an array for each camera, which the step stacks.
    """
    samples = []
    for episode, start in rows:
        data = episodes[episode]
        total = len(data["actions"])
        inside = np.array([start + k < total for k in range(horizon)])
        action = np.stack([data["actions"][min(start + k, total - 1)] for k in range(horizon)]).astype(np.float32)
        mask = np.zeros((horizon, width), np.float32)
        mask[:, : action.shape[-1]] = inside[:, None]
        samples.append(
            {
                "state": _pad_to_dim(data["observations"][start].astype(np.float32), width)[None],
                "action": _pad_to_dim(action, width) * inside[:, None].astype(np.float32),
                "action_mask": mask,
                "video": {name: data[column][start][None] for name, column in cameras.items()},
            }
        )
    result: dict[str, Any] = _stacked(samples)
    return result
