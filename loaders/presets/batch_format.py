"""Batch conventions as values: every way in which published loaders differ is a field of one frozen dataclass.

Sources, read in 2026 (facts only; no code is taken over): `decision_transformer`: the data collator of HuggingFace's
"Train your first Decision Transformer" (2022). `corl`: `algorithms/offline/dt.py` of tinkoff-ai/CORL. `d3rlpy`:
`dataset/trajectory_slicers.py`, `dataset/mini_batch.py` and `torch_utility.py` of takuseno/d3rlpy 2.8. `jat`:
`jat/processing_jat.py` and `scripts/train_jat.py` of huggingface/jat. `lerobot`: `LeRobotDataset` of
huggingface/lerobot with `delta_timestamps`. `gato`: Reed et al., "A Generalist Agent" (2022), sections 2.1 to 2.3 and
appendix B; a sample at a time and padded on the left as in ManifoldRG/NEKO, vocabulary as in huggingface/jat's `gato`.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from gear_data.collection.output import Padding
from gear_data.errors import InvalidArgumentError, unknown_name
from gear_data.schema import Role

_FLOATS = ("float32", "float64")
_CHOICES: dict[str, tuple[object, ...]] = {
    "side": ("left", "right"),
    "padding": ("fill", "first", "edge"),
    "dtype": (None, *_FLOATS),
    "mask_dtype": ("bool", "uint8", "int32", "int64", *_FLOATS),
    "timesteps_dtype": ("int32", "int64", *_FLOATS),
    "timesteps_padding": ("fill", "extrapolate"),
}


@dataclass(frozen=True)
class Tokens:
    """How a batch becomes Gato's tokens; see `gear_data.loaders.presets.gato`.

    Attributes:
        bins: uniform bins of continuous values; discrete values are 0 to bins - 1.
        mu, max_value: of the mu-law sign(x) log(|x| mu + 1) / log(max_value mu + 1), which is cut off to [-1, 1].
        companded: roles whose continuous values go through the mu-law; the others are cut off to [-1, 1] as they are.
        first: the token of the first bin. Discrete values are tokens themselves.
        separator: the token between observations and actions.
        ragged: True: lists of B, each sample of its own length, without padding. False: tensors, padded.
        padding: the token of padding, where not ragged.
    """

    bins: int = 1024
    mu: float = 100.0
    max_value: float = 256.0
    companded: tuple[str, ...] = (Role.OBSERVATION.value, Role.ACTION.value)
    first: int = 32000
    separator: int = 33024
    ragged: bool = True
    padding: int = 0

    def __post_init__(self) -> None:
        if self.bins < 2 or not self.mu > 0 or not self.max_value > 0:
            raise InvalidArgumentError(f"tokens need 2 bins or more, mu > 0 and max_value > 0, not {self}")


@dataclass(frozen=True)
class BatchFormat:
    """A batch convention: what the keys are, and what stands where. B windows, K = context.

    Its own columns are those that `required_columns` and `roles` name. A column that a request adds is in its own
    dtype, under its own name, on the same side, padded with zeros (or as `padding` says).

    Attributes:
        name: for messages and records.
        required_columns: columns without which there is no such batch; first in the batch.
        roles: every column of these roles belongs to it too (see `gear_data.schema.Role`). None: every column of the
            dataset does, and a request's `columns` chooses among them instead of adding to them.
        keys: column -> its key in the batch.
        source_names: columns that `keys` leaves out go by the names they had in the source.
        sequences: roles whose columns are sequences; the others are the window's first step alone, [B, *shape], unless
            the request gives them offsets. None: all are.
        previous_step_columns: columns of which each step has the value of the step before it, and an
            episode's first step zero.
        side: where padding stands: `left` or `right`. Columns with offsets have each step at its own place.
        padding: what it holds: `fill`, the `first` valid step, or the nearest (`edge`).
        fill: column -> number in padding, 0 where not named.
        normalize_padding: whether `fill` is normalised as a valid value is; else the batch holds it as it is.
        std_epsilon: added to the standard deviation in normalising.
        return_scale: factor of `returns_to_go`, after normalising.
        dtype: of its own float columns; None leaves them as they are.
        cast_integers: whether its own columns of integers and booleans get `dtype` too.
        vectors: whether its own columns of more than one axis a step (images) are refused.
        unsqueeze_last: columns of which a scalar a step becomes [B, K, 1].
        mask_key: [B, K], which steps are valid; None: there is no such key, and each sequence has a mask of its own.
        mask_dtype: of `mask_key`. Masks of single columns are bool.
        mask_valid: what masks hold at valid steps; padding has the other.
        column_mask: name of a single column's mask; `{column}` and `{key}` stand for its names.
        timesteps_key: [B, K], numbers of the steps; None: there is no such key.
        timesteps_dtype: of it.
        timesteps_origin: number of an episode's first step.
        timesteps_padding: `fill` (zeros), or `extrapolate`: counting goes on.
        loss_weight: where not None, `loss_weight` float32 [B, K] is this number, in padding too.
        tokens: where not None, observations and actions become tokens.
    """

    name: str
    required_columns: tuple[str, ...] = ()
    roles: tuple[str, ...] | None = ()
    keys: Mapping[str, str] = field(default_factory=dict)
    source_names: bool = False
    sequences: tuple[str, ...] | None = None
    previous_step_columns: tuple[str, ...] = ()
    side: str = "right"
    padding: str = "fill"
    fill: Mapping[str, float] = field(default_factory=dict)
    normalize_padding: bool = False
    std_epsilon: float = 0.0
    return_scale: float = 1.0
    dtype: str | None = None
    cast_integers: bool = False
    vectors: bool = False
    unsqueeze_last: tuple[str, ...] = ()
    mask_key: str | None = "mask"
    mask_dtype: str = "bool"
    mask_valid: bool = True
    column_mask: str = "{column}_mask"
    timesteps_key: str | None = "timesteps"
    timesteps_dtype: str = "int64"
    timesteps_origin: int = 0
    timesteps_padding: str = "fill"
    loss_weight: float | None = None
    tokens: Tokens | None = None

    def __post_init__(self) -> None:
        for name, known in _CHOICES.items():
            if getattr(self, name) not in known:
                choices = ", ".join(repr(choice) for choice in known)
                raise InvalidArgumentError(
                    f"preset '{self.name}': {name} must be one of {choices}, not {getattr(self, name)!r}"
                )
        for name in ("std_epsilon", "return_scale", "loss_weight"):
            value = getattr(self, name)
            if value is not None and not math.isfinite(value):
                raise InvalidArgumentError(f"preset '{self.name}': {name} must be a finite number, not {value!r}")
        roles = [role.value for role in Role]
        for name in ("roles", "sequences"):
            for role in getattr(self, name) or ():
                if role not in roles:
                    raise unknown_name("role", role, roles)

    @property
    def pad_left(self) -> bool:
        return self.side == "left"

    @property
    def pads_with(self) -> Padding:
        return Padding(self.padding)

    def first_step_only(self, role: Role) -> bool:
        """Whether columns of a role are the window's first step alone, unless they have offsets."""
        return self.sequences is not None and role.value not in self.sequences

    def to_json(self) -> dict[str, Any]:
        """Every field, of JSON's types."""
        # Tuples become lists, as they would on the way through a file.
        plain: dict[str, Any] = json.loads(json.dumps(dataclasses.asdict(self)))
        return plain


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

#: Name -> format, as `preset=` takes them.
PRESETS: dict[str, BatchFormat] = {
    batch_format.name: batch_format for batch_format in (RAW, DECISION_TRANSFORMER, CORL, D3RLPY, JAT, LEROBOT, GATO)
}


def resolve_preset(preset: str | BatchFormat, options: Mapping[str, Any] | None = None) -> BatchFormat:
    """The convention of a name, with options laid over it. Those that are mappings are laid over entry by entry.

    Raises:
        UnknownNameError: no such preset or field; lists those there are.
        InvalidArgumentError: `preset` or an option is of the wrong kind, or out of its range.
    """
    if isinstance(preset, str):
        if preset not in PRESETS:
            raise unknown_name("preset", preset, PRESETS)
        preset = PRESETS[preset]
    if not isinstance(preset, BatchFormat):
        raise InvalidArgumentError(
            f"preset is a name or a BatchFormat, not {preset!r}", hint=f"known: {', '.join(PRESETS)}"
        )
    result: BatchFormat = _changed(preset, {} if options is None else options, f"option of preset '{preset.name}'")
    return result


def _changed(value: Any, options: Mapping[str, Any], what: str) -> Any:
    """A dataclass with some fields changed; each has to be of the kind that the field is of."""
    if not isinstance(options, Mapping):
        raise InvalidArgumentError(f"{what}: a mapping of names to values is wanted, not {options!r}")
    known = {item.name: str(item.type) for item in dataclasses.fields(value)}
    changes = {}
    for name, given in options.items():
        if name not in known:
            raise unknown_name(what, name, known)
        old, kind = getattr(value, name), known[name]
        if dataclasses.is_dataclass(old) and given is not None and not dataclasses.is_dataclass(given):
            given = _changed(old, given, f"{what}: {name}")
        changes[name] = _of_kind(kind, given, old, f"{what} '{name}'")
    return dataclasses.replace(value, **changes)


def _of_kind(kind: str, given: Any, old: Any, what: str) -> Any:
    """`given` as a field declared as `kind` (its annotation) holds it."""
    kinds = kind.split(" | ")
    if given is None and "None" in kinds:
        return None
    match kinds[0]:
        case "Mapping[str, float]" if isinstance(given, Mapping) and all(map(_is_number, given.values())):
            return {**old, **{name: float(number) for name, number in given.items()}}
        case "Mapping[str, str]" if isinstance(given, Mapping) and all(isinstance(key, str) for key in given.values()):
            return {**old, **given}
        case "tuple[str, ...]" if isinstance(given, list | tuple) and all(isinstance(name, str) for name in given):
            return tuple(given)
        case "float" if _is_number(given):
            return float(given)
        case "int" | "str" | "bool" | "Tokens" as name if type(given).__name__ == name:
            return given
    raise InvalidArgumentError(f"{what} must be {kind}, not {given!r}")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
