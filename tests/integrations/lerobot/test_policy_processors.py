"""Batches of presets against LeRobot's own dataset, and its processors of GR00T and pi0, without their models.

A processor that loads a tokenizer is left out.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import default_collate

import gear_data
from gear_data import BatchOptions, Relative, SequenceLoader
from tests.integrations.lerobot.conftest import Recorded
from tests.support.cameras.filmed import FPS

_REASON = "LeRobot 0.6 is not installed: make test-lerobot installs it in an environment of its own"
pytest.importorskip("lerobot.lerobot_types", reason=_REASON, exc_type=ImportError)
FRONT, WRIST, STATE = "observation.images.front", "observation.images.wrist", "observation.state"
ROWS, HORIZON, STEPS = 7, 9, 3


@pytest.fixture(scope="module")
def ours(recorded: Recorded, tmp_path_factory: pytest.TempPathFactory) -> gear_data.Dataset:
    path = tmp_path_factory.mktemp("ours") / "dataset"
    gear_data.convert(recorded.root, path, progress=False)
    return gear_data.open(path)


@pytest.fixture
def theirs(recorded: Recorded) -> Any:
    from lerobot.datasets.lerobot_dataset import LeRobotDataset

    deltas = {"action": [step / FPS for step in range(HORIZON)]}
    return LeRobotDataset("gear/recorded", root=recorded.root, delta_timestamps=deltas)


def loader_of(dataset: gear_data.Dataset, preset: str, options: dict[str, Any], **more: Any) -> SequenceLoader:
    batch = BatchOptions(preset_options=options)
    return SequenceLoader(dataset, ROWS, preset=preset, context=HORIZON, seed=3, prefetch=0, batch=batch, **more)


def items_of(loader: SequenceLoader, step: int, theirs: Any, recorded: Recorded) -> dict[str, Any]:
    """Returns LeRobot's batch of the windows of a step."""
    windows = loader.windows(step)
    pairs = zip(windows["episode_id"].tolist(), windows["start"].tolist(), strict=True)
    found: dict[str, Any] = default_collate([theirs[recorded.first[episode] + start] for episode, start in pairs])
    return found


def transition_of(items: dict[str, Any]) -> dict[Any, Any]:
    from lerobot.lerobot_types import TransitionKey

    observation = {key: value.clone() for key, value in items.items() if key.startswith("observation.")}
    return {
        TransitionKey.OBSERVATION: observation,
        TransitionKey.ACTION: items["action"].clone(),
        TransitionKey.COMPLEMENTARY_DATA: {"task": items["task"], "action_is_pad": items["action_is_pad"]},
    }


def equal(found: torch.Tensor, expected: torch.Tensor) -> None:
    assert found.dtype == expected.dtype and found.shape == expected.shape
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def state_column(dataset: gear_data.Dataset) -> str:
    return "observations" if "observations" in dataset.schema else "observations.state"


def test_lerobot(ours: gear_data.Dataset, theirs: Any, recorded: Recorded) -> None:
    loader = loader_of(ours, "lerobot", {"facts": {"task": "task"}})
    padded = 0
    for step in range(STEPS):
        batch, items = loader.batch(step), items_of(loader, step, theirs, recorded)
        for key in (STATE, "action", "action_is_pad", FRONT, WRIST):
            assert batch[key].dtype == items[key].dtype and torch.equal(batch[key], items[key]), key
        assert batch["task"] == items["task"]
        padded += int(items["action_is_pad"].sum())
    assert padded


@pytest.mark.parametrize("normalized", [False, True])
def test_groot(ours: gear_data.Dataset, theirs: Any, recorded: Recorded, normalized: bool) -> None:
    from lerobot.lerobot_types import TransitionKey
    from lerobot.policies.groot.processor_groot import GrootN17PackInputsStep

    stats = {key: {"min": recorded.rows[key].min(0), "max": recorded.rows[key].max(0)} for key in (STATE, "action")}
    normalize = {state_column(ours): "minmax", "actions": "minmax"} if normalized else None
    loader = loader_of(ours, "groot", {}, normalize=normalize)
    for step in range(STEPS):
        batch, items = loader.batch(step), items_of(loader, step, theirs, recorded)
        for camera in ("front", "wrist"):  # of unlike sizes, which the step does not stack
            pack = GrootN17PackInputsStep(
                action_horizon=HORIZON, valid_action_horizon=HORIZON, formalize_language=False, stats=stats,
                normalize_min_max=normalized, video_modality_keys=[camera],
            )  # fmt: skip
            packed = pack(transition_of(items))
            observation, rest = (packed[key] for key in (TransitionKey.OBSERVATION, TransitionKey.COMPLEMENTARY_DATA))
            equal(batch["state"], observation["state"])
            equal(batch["action"], packed[TransitionKey.ACTION])
            equal(batch["action_mask"], rest["action_mask"])
            assert batch["language"] == rest["language"]
            frames = torch.from_numpy(observation["video"][:, :, 0])
            assert frames.dtype == batch[f"video.{camera}"].dtype and frames.shape == batch[f"video.{camera}"].shape
            # The step rounds frames of floats down.
            assert (frames.int() - batch[f"video.{camera}"].int()).abs().max() <= 1


@pytest.mark.parametrize("relative", [False, True])
def test_pi0(ours: gear_data.Dataset, theirs: Any, recorded: Recorded, relative: bool) -> None:
    from lerobot.configs import FeatureType, PolicyFeature
    from lerobot.lerobot_types import TransitionKey
    from lerobot.policies.pi0.configuration_pi0 import PI0Config
    from lerobot.policies.pi0.modeling_pi0 import PI0Policy, pad_vector
    from lerobot.processor import RelativeActionsProcessorStep, make_default_policy_processor_steps

    right = "observation.images.right"
    widths = {key: recorded.rows[key].shape[1] for key in (STATE, "action")}
    seen = {key: PolicyFeature(FeatureType.VISUAL, (3, 48, 64)) for key in (FRONT, WRIST, right)}
    config = PI0Config(
        chunk_size=HORIZON, n_action_steps=HORIZON, device="cpu",
        input_features={STATE: PolicyFeature(FeatureType.STATE, (widths[STATE],)), **seen},
        output_features={"action": PolicyFeature(FeatureType.ACTION, (widths["action"],))},
    )  # fmt: skip
    numbers = {key: (np.arange(width) / 4, np.arange(width) + 0.5) for key, width in widths.items()}
    stats = {key: {"mean": mean, "std": std} for key, (mean, std) in numbers.items()}
    names = [f"joint_{number}" for number in range(widths["action"] - 1)]
    subtract = RelativeActionsProcessorStep(
        enabled=relative, exclude_joints=["gripper"], action_names=[*names, "gripper"]
    )
    normalizer = make_default_policy_processor_steps(config, stats).normalize
    keys = {"front": "base_0_rgb", "wrist": "left_wrist_0_rgb"}
    columns = {camera: next(name for name in ours.schema.names if name.endswith(camera)) for camera in keys}
    state = state_column(ours)
    loader = loader_of(
        ours, "openpi", {"keys": {columns[camera]: f"image.{key}" for camera, key in keys.items()}},
        normalize={state: numbers[STATE], "actions": numbers["action"]},
        relative={"actions": Relative(state, absolute=[widths["action"] - 1])} if relative else {},
    )  # fmt: skip
    for step in range(STEPS):
        batch, items = loader.batch(step), items_of(loader, step, theirs, recorded)
        found = normalizer(subtract(transition_of(items)))
        equal(batch["state"], pad_vector(found[TransitionKey.OBSERVATION][STATE], config.max_state_dim))
        equal(batch["actions"], pad_vector(found[TransitionKey.ACTION], config.max_action_dim))
        assert torch.equal(batch["actions_is_pad"], items["action_is_pad"])
        assert batch["prompt"] == items["task"]
        policy: Any = SimpleNamespace(config=config, parameters=lambda: iter([torch.zeros(1)]))
        images, masks = PI0Policy._preprocess_images(policy, items)
        for key, image, mask in zip((*keys.values(), "right_wrist_0_rgb"), images, masks, strict=True):
            own = batch[f"image.{key}"]
            assert own.dtype == torch.uint8 and torch.equal(batch[f"image_mask.{key}"], mask)
            scaled = own.permute(0, 3, 1, 2) / 255 * 2 - 1
            assert scaled.shape == image.shape
            # Pillow rounds after each of two passes.
            torch.testing.assert_close(scaled, image, rtol=0, atol=3 / 255)
