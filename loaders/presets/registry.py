"""The presets: a name and a `BatchFormat` each. Add a preset to `PRESETS`.

Sources, read in 2026 (facts only; no code is copied):

- `decision_transformer`: the data collator of HuggingFace's "Train your first Decision Transformer" (2022).
- `corl`: `algorithms/offline/dt.py` of tinkoff-ai/CORL.
- `d3rlpy`: `dataset/trajectory_slicers.py`, `dataset/mini_batch.py` and `torch_utility.py` of takuseno/d3rlpy 2.8.
- `jat`: `jat/processing_jat.py` and `scripts/train_jat.py` of huggingface/jat.
- `lerobot`: `LeRobotDataset` of huggingface/lerobot with `delta_timestamps`.
- `gato`: Reed et al., "A Generalist Agent" (2022), sections 2.1 to 2.3 and appendix B; one sample at a time, padded on
  the left as in ManifoldRG/NEKO; vocabulary as in huggingface/jat's `gato`.
- `transitions`: `Batch` of ikostrikov/implicit_q_learning, `Dataset` of seohongpark/ogbench; n steps as in
  `MultiStepTransitionPicker` of takuseno/d3rlpy 2.8.
- `openpi`: `models/model.py`, `transforms.py` and `policies/` of Physical-Intelligence/openpi (commit 15a9616).
- `octo`: `data/dataset.py` and `data/traj_transforms.py` of octo-models/octo (commit 241fb35).
- `groot`: `GrootN17PackInputsStep` of huggingface/lerobot (commit 7427f31), and `Gr00tN1d7Processor` of
  NVIDIA/Isaac-GR00T (commit c5437fa).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gear_data.errors import InvalidArgumentError, unknown_name
from gear_data.loaders.presets.batch_format import BatchFormat, Tokens, Transitions, replace_fields
from gear_data.schema import Role

RAW = BatchFormat(name="raw", roles=None)

DECISION_TRANSFORMER = BatchFormat(
    name="decision_transformer",
    required_columns=("observations", "actions", "rewards", "returns_to_go"),
    keys={"observations": "states"},
    side="left",
    fill={"actions": -10.0},
    normalize_padding=True,
    std_epsilon=1e-6,
    return_scale=1e-3,
    dtype="float32",
    cast_integers=True,
    vectors=True,
    unsqueeze_last=("observations", "actions", "rewards", "returns_to_go"),
    mask_key="attention_mask",
    mask_dtype="float32",
)

CORL = BatchFormat(
    name="corl",
    required_columns=("observations", "actions", "returns_to_go"),
    keys={"observations": "states", "returns_to_go": "returns"},
    std_epsilon=1e-6,
    return_scale=1e-3,
    dtype="float32",
    cast_integers=True,
    vectors=True,
    unsqueeze_last=("observations", "actions"),
    mask_dtype="float64",
    timesteps_key="time_steps",
    timesteps_padding="extrapolate",
)

D3RLPY = BatchFormat(
    name="d3rlpy",
    required_columns=("observations", "actions", "rewards", "returns_to_go", "terminated"),
    keys={"terminated": "terminals"},
    side="left",
    dtype="float32",
    cast_integers=True,
    unsqueeze_last=("observations", "actions", "rewards", "returns_to_go", "terminated"),
    mask_key="masks",
    mask_dtype="float32",
    timesteps_origin=1,
)

JAT = BatchFormat(
    name="jat",
    required_columns=("actions", "rewards"),
    roles=(Role.OBSERVATION.value, Role.ACTION.value),
    source_names=True,
    previous_step_columns=("rewards",),
    padding="first",
    dtype="float32",
    unsqueeze_last=("observations", "observations.discrete"),
    mask_key="attention_mask",
    mask_dtype="int64",
    timesteps_key=None,
    loss_weight=1.0,
)

LEROBOT = BatchFormat(
    name="lerobot",
    required_columns=("actions",),
    roles=None,
    keys={"observations": "observation.state", "actions": "action", "rewards": "next.reward"},
    source_names=True,
    sequences=(Role.ACTION.value,),
    padding="edge",
    mask_key=None,
    mask_valid=False,
    column_mask="{key}_is_pad",
    camera_frames="float32",
    timesteps_key=None,
)

GATO = BatchFormat(
    name="gato",
    required_columns=("actions",),
    roles=(Role.OBSERVATION.value, Role.ACTION.value),
    side="left",
    mask_key="attention_mask",
    timesteps_key=None,
    tokens=Tokens(),
)

TRANSITIONS = BatchFormat(
    name="transitions",
    required_columns=("actions", "rewards", "terminated"),
    roles=(Role.OBSERVATION.value,),
    sequences=(),
    padding="edge",
    dtype="float32",
    mask_key=None,
    timesteps_key=None,
    transitions=Transitions(),
    context=1,
)

_OPENPI_CAMERAS = ("base_0_rgb", "left_wrist_0_rgb", "right_wrist_0_rgb")

OPENPI = BatchFormat(
    name="openpi",
    required_columns=("actions",),
    keys={
        "actions": "actions",
        "observations": "state",
        "observations.state": "state",
        **{f"observations.images.{name}": f"image.{name}" for name in _OPENPI_CAMERAS},
    },
    mapped=True,
    sequences=(Role.ACTION.value,),
    padding="edge",
    std_epsilon=1e-6,
    dtype="float32",
    unsqueeze_last=("actions", "observations", "observations.state"),
    mask_key=None,
    mask_valid=False,
    column_mask="{key}_is_pad",
    timesteps_key=None,
    context=50,
    facts={"task": "prompt"},
    widths={"state": 32, "actions": 32},
    cameras={f"image.{name}": 224 for name in _OPENPI_CAMERAS},
    camera_mask="image_mask.{name}",
    letterbox=True,
)

OCTO = BatchFormat(
    name="octo",
    required_columns=("actions",),
    keys={
        "actions": "action",
        "observations": "observation.proprio",
        "observations.state": "observation.proprio",
        "observations.images.primary": "observation.image_primary",
        "observations.images.wrist": "observation.image_wrist",
    },
    mapped=True,
    sequences=(Role.ACTION.value,),
    padding="edge",
    std_epsilon=1e-8,
    dtype="float32",
    unsqueeze_last=("actions", "observations", "observations.state"),
    mask_key=None,
    timesteps_key=None,
    context=4,
    facts={"task": "task.language_instruction"},
    cameras={"observation.image_primary": 256, "observation.image_wrist": 128},
    camera_mask="observation.pad_mask_dict.{name}",
    history=2,
    chunks=True,
    element_mask="action_pad_mask",
)

GROOT = BatchFormat(
    name="groot",
    required_columns=("actions",),
    keys={"actions": "action", "observations": "state", "observations.state": "state"},
    mapped=True,
    sequences=(Role.ACTION.value,),
    dtype="float32",
    unsqueeze_last=("actions", "observations", "observations.state"),
    mask_key=None,
    mask_valid=False,
    column_mask="{key}_is_pad",
    timesteps_key=None,
    context=40,
    facts={"task": "language"},
    widths={"state": 132, "action": 132},
    camera_key="video.{name}",
    history=1,
    element_mask="action_mask",
    clip=1.0,
)

#: Name -> format, for `preset=`.
PRESETS: dict[str, BatchFormat] = {
    batch_format.name: batch_format
    for batch_format in (RAW, DECISION_TRANSFORMER, CORL, D3RLPY, JAT, LEROBOT, GATO, TRANSITIONS, OPENPI, OCTO, GROOT)
}


def resolve_preset(preset: str | BatchFormat, options: Mapping[str, Any] | None = None) -> BatchFormat:
    """Returns the format of a name, with some fields replaced by options.

    An option that is a mapping replaces single entries of its field.

    Raises:
        UnknownNameError: no such preset or field; the message lists the known ones.
        InvalidArgumentError: `preset` or an option is of the wrong type, or out of its range.
    """
    if isinstance(preset, str):
        if preset not in PRESETS:
            raise unknown_name("preset", preset, PRESETS)
        preset = PRESETS[preset]
    if not isinstance(preset, BatchFormat):
        raise InvalidArgumentError(
            f"preset must be a name or a BatchFormat, not {preset!r}", hint=f"known names: {', '.join(PRESETS)}"
        )
    result: BatchFormat = replace_fields(
        preset, {} if options is None else options, f"option of preset '{preset.name}'"
    )
    return result
