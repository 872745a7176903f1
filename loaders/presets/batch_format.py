"""BatchFormat: the keys, dtypes, shapes and padding of a batch, as a value.

Published loaders differ in many details; each detail is a field. `registry` holds the presets.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from gear_data.collection.output import Padding
from gear_data.common.keywords import check_range, suggest_fields
from gear_data.errors import InvalidArgumentError, unknown_name
from gear_data.schema import Role

Side = Literal["left", "right"]
Contents = Literal["fill", "first", "edge"]
TimestepsPadding = Literal["fill", "extrapolate"]
FloatDtype = Literal["float32", "float64"]
MaskDtype = Literal["bool", "uint8", "int32", "int64", "float32", "float64"]
TimestepsDtype = Literal["int32", "int64", "float32", "float64"]
CameraFrames = Literal["uint8", "uint8_chw", "float32"]
FormatGoals = Literal["", "uniform"]
_WORDS = {
    **dict.fromkeys(
        ("Side", "Contents", "TimestepsPadding", "MaskDtype", "TimestepsDtype", "CameraFrames", "FormatGoals"), "str"
    ),
    "FloatDtype | None": "str | None",
}
#: Fields that specifications of earlier versions lack. Their defaults are empty.
_LATER = (
    "facts", "mapped", "widths", "cameras", "camera_mask", "camera_key", "history", "chunks", "element_mask", "clip",
    "letterbox", "goals", "keep_image_prob",
)  # fmt: skip
#: The same for fields of `Tokens`.
_LATER_OF_TOKENS = ("text", "text_first", "patch", "channels", "image", "positions", "sample")
_CHOICES: dict[str, tuple[object, ...]] = {
    "side": get_args(Side),
    "padding": get_args(Contents),
    "dtype": (None, *get_args(FloatDtype)),
    "mask_dtype": get_args(MaskDtype),
    "timesteps_dtype": get_args(TimestepsDtype),
    "timesteps_padding": get_args(TimestepsPadding),
    "camera_frames": get_args(CameraFrames),
    "goals": get_args(FormatGoals),
}


@dataclass(frozen=True)
class Tokens:
    """The vocabulary and form of Gato's tokens.

    See `gear_data.loaders.presets.gato`.

    Attributes:
        bins: number of uniform bins for continuous values. Discrete values are 0 to bins - 1.
        mu, max_value: parameters of the mu-law sign(x) log(|x| mu + 1) / log(max_value mu + 1), clipped to [-1, 1].
        companded: roles whose continuous values go through the mu-law. Values of other roles are only clipped to
            [-1, 1].
        first: token of the first bin. A discrete value is its own token.
        separator: token between observations and actions.
        ragged: True gives lists of B samples without padding, each of its own length. False gives padded tensors.
        padding: token of padding, if not ragged.
        text: whether texts of observations are tokens, by the decoders of their columns. False: they stay beside.
        text_first: is added to the ids of texts.
        patch: side of the patches of images, in pixels; 16 in the paper. 0: images stay beside the tokens.
        channels: channels of a patch; those that an image lacks are zeros.
        image: token of a patch.
        positions: numbers of the positions of patches, for rows and for columns.
        sample: whether the position of a patch is drawn from its interval, as in training. False: it is the rounded
            mean, as in evaluation.

    Raises:
        InvalidArgumentError: fewer than 2 bins, `mu` or `max_value` is not positive, or a field of texts and patches is
            out of its range.
    """

    bins: int = 1024
    mu: float = 100.0
    max_value: float = 256.0
    companded: tuple[str, ...] = (Role.OBSERVATION.value, Role.ACTION.value)
    first: int = 32000
    separator: int = 33024
    ragged: bool = True
    padding: int = 0
    text: bool = False
    text_first: int = 0
    patch: int = 0
    channels: int = 3
    image: int = 33025
    positions: int = 128
    sample: bool = True

    def __post_init__(self) -> None:
        for name, least in (("text_first", 0), ("patch", 0), ("channels", 1), ("image", 0), ("positions", 1)):
            check_range(f"tokens: {name}", getattr(self, name), least)
        if self.bins < 2 or not self.mu > 0 or not self.max_value > 0:
            raise InvalidArgumentError(f"tokens need 2 bins or more, mu > 0 and max_value > 0, not {self}")


@dataclass(frozen=True)
class Transitions:
    """How batches of transitions treat a last step without a next observation.

    That is the last step of an episode that was cut off, if no final observation is stored.

    Attributes:
        missing_next: `drop`: no batch has the step. `mark`: batches have the step, with zeros in `next_observations`,
            and with a mask `next_observations_mask`.

    Raises:
        InvalidArgumentError: another `missing_next`.
    """

    missing_next: str = "drop"

    def __post_init__(self) -> None:
        if self.missing_next not in ("drop", "mark"):
            raise InvalidArgumentError(f"missing_next must be 'drop' or 'mark', not {self.missing_next!r}")


@suggest_fields
@dataclass(frozen=True)
class BatchFormat:
    """The keys of a batch, and the contents of each key. B windows, K = context.

    The format's own columns are named in `required_columns` and `roles`. A requested column beyond them keeps
    its dtype and its name. Its padding is on the same side, and is zero (or as `padding` says).

    Attributes:
        name: name in messages and records.
        required_columns: columns that every dataset must have; first in the batch.
        roles: roles (`gear_data.schema.Role`) whose columns all belong to the format, too. None: all columns of the
            dataset belong to it, and the loader's `columns` selects columns instead of adding them.
        keys: column -> key in the batch.
        source_names: True gives columns without an entry in `keys` the names that they had in the source.
        sequences: roles whose columns are sequences. Columns of other roles have only the window's first step,
            [B, *shape], unless the request gives them offsets. None: all columns are sequences.
        previous_step_columns: columns in which each step has the value of the step before; the first step of an episode
            has zero.
        side: side of the padding: `left` or `right`. Columns with offsets have each step at its own position.
        padding: contents of the padding: `fill`, the `first` valid step, or the nearest valid step (`edge`).
        fill: column -> number in padding; 0 for other columns.
        normalize_padding: True normalises `fill` like a value. False leaves it as it is.
        std_epsilon: added to the standard deviation before dividing by it.
        return_scale: factor of `returns_to_go`, after normalising.
        dtype: dtype of the format's own float columns; None keeps their dtypes.
        cast_integers: whether the format's own columns of integers and booleans get `dtype` too.
        vectors: True refuses own columns with more than one axis in a step (images).
        camera_frames: `uint8`: frames of cameras are uint8 [H, W, 3]. `uint8_chw`: they are uint8 [3, H, W]. `float32`:
            they are [3, H, W] from 0 to 1, in `dtype` if it is not None.
        unsqueeze_last: columns whose scalar steps become [B, K, 1].
        mask_key: key of the mask [B, K] of valid steps. None: there is no such key, and each sequence has its own mask.
        mask_dtype: dtype of `mask_key`. Masks of single columns are bool.
        mask_valid: value of masks at valid steps; padding has the other value.
        column_mask: name of a single column's mask; `{column}` and `{key}` stand for the column's names.
        timesteps_key: key of the step numbers [B, K]; None: there is no such key.
        timesteps_dtype: dtype of the step numbers.
        timesteps_origin: number of an episode's first step.
        timesteps_padding: `fill` (zeros), or `extrapolate`: the count continues.
        loss_weight: if not None, `loss_weight` float32 [B, K] has this number, also in padding.
        tokens: if not None, observations and actions become tokens. `sequences` must be None.
        transitions: if not None, each row is a transition: see `gear_data.loaders.presets.transitions`. `sequences`
            must be empty.
        context: steps of a window, unless the loader's `context` says it.
        facts: fact -> its key in the batch. A fact that no episode has is left out, and so is one whose key is empty.
        mapped: whether the columns of `keys` that the dataset has are the format's own. An empty key leaves a column
            out. See `gear_data.loaders.presets.policies.outputs`.
        widths: key -> elements. The column has zeros behind its own elements, after normalising.
        cameras: key -> height and width. Without a camera of this key, the batch has black frames of this size.
        camera_mask: key of a mask of `cameras`, bool, false for black frames; `{name}` stands for the last part of the
            camera's key. Empty: there is none.
        camera_key: key of cameras that `keys` does not name; `{name}` stands for the last part of the column's name.
        history: steps of observations, up to the window's first step, with an axis; 0: as `sequences` says.
        chunks: whether actions are Octo's chunks, one for each step of the history.
        element_mask: key of a mask of the actions' elements, float32 [B, K, elements], 1 at the dataset's own elements
            of valid steps. With `chunks` it is bool. Empty: there is none.
        clip: normalised actions, and observations that are normalised by `minmax` or `quantiles`, are clipped to
            [-clip, clip]. 0: they are not.
        letterbox: whether frames of `cameras` have the size of the black ones and keep their proportions, between black
            bars, unless the loader's `resize` gives their size.
        goals: `uniform`: with `chunks`, batches have the observations of a step that is drawn from the window's own to
            the episode's last, as the task's goals. Empty: there are none.
        keep_image_prob: with `goals`, the probability that a row with a text keeps its goal images, and not the text.

    Raises:
        InvalidArgumentError: a field has a value that is not allowed.
        UnknownNameError: an unknown role.
    """

    name: str
    required_columns: tuple[str, ...] = ()
    roles: tuple[str, ...] | None = ()
    keys: Mapping[str, str] = field(default_factory=dict)
    source_names: bool = False
    sequences: tuple[str, ...] | None = None
    previous_step_columns: tuple[str, ...] = ()
    side: Side = "right"
    padding: Contents = "fill"
    fill: Mapping[str, float] = field(default_factory=dict)
    normalize_padding: bool = False
    std_epsilon: float = 0.0
    return_scale: float = 1.0
    dtype: FloatDtype | None = None
    cast_integers: bool = False
    vectors: bool = False
    camera_frames: CameraFrames = "uint8"
    unsqueeze_last: tuple[str, ...] = ()
    mask_key: str | None = "mask"
    mask_dtype: MaskDtype = "bool"
    mask_valid: bool = True
    column_mask: str = "{column}_mask"
    timesteps_key: str | None = "timesteps"
    timesteps_dtype: TimestepsDtype = "int64"
    timesteps_origin: int = 0
    timesteps_padding: TimestepsPadding = "fill"
    loss_weight: float | None = None
    tokens: Tokens | None = None
    transitions: Transitions | None = None
    context: int = 20
    facts: Mapping[str, str] = field(default_factory=dict)
    mapped: bool = False
    widths: Mapping[str, int] = field(default_factory=dict)
    cameras: Mapping[str, int] = field(default_factory=dict)
    camera_mask: str = ""
    camera_key: str = ""
    history: int = 0
    chunks: bool = False
    element_mask: str = ""
    clip: float = 0.0
    letterbox: bool = False
    goals: FormatGoals = ""
    keep_image_prob: float = 0.5

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
        if not (math.isfinite(self.clip) and self.clip >= 0):
            raise InvalidArgumentError(f"preset '{self.name}': clip must be at least 0, not {self.clip!r}")
        if not 0 <= self.keep_image_prob <= 1:
            raise InvalidArgumentError(
                f"preset '{self.name}': keep_image_prob must be from 0 to 1, not {self.keep_image_prob!r}"
            )
        if self.goals and not self.chunks:
            raise InvalidArgumentError(
                f"preset '{self.name}' has no task with goals, and goals are {self.goals!r}",
                hint="give the loader goals=gear_data.Goals(...)",
            )
        if self.tokens is not None and self.sequences is not None:
            raise InvalidArgumentError(
                f"preset '{self.name}': tokens are of all steps of a window, and sequences are {self.sequences!r}",
                hint="leave sequences out, or give tokens=None",
            )
        if self.transitions is not None and self.sequences != ():
            raise InvalidArgumentError(f"preset '{self.name}': transitions have no sequences, not {self.sequences!r}")
        if self.history < 0 or (self.chunks and not self.history):
            raise InvalidArgumentError(
                f"preset '{self.name}': history must be at least {int(self.chunks)}, not {self.history!r}"
            )
        for name in ("widths", "cameras"):
            for key, size in getattr(self, name).items():
                if size < 1:
                    raise InvalidArgumentError(
                        f"preset '{self.name}': {name} must be at least 1, not {size!r} of '{key}'"
                    )
        roles = [role.value for role in Role]
        for name in ("roles", "sequences"):
            for role in getattr(self, name) or ():
                if role not in roles:
                    raise unknown_name("role", role, roles)

    @property
    def pad_left(self) -> bool:
        """Whether padding is on the left."""
        return self.side == "left"

    @property
    def column_padding(self) -> Padding:
        """The contents of padding in columns."""
        return Padding(self.padding)

    def first_step_only(self, role: Role) -> bool:
        """Returns whether columns of a role have only the window's first step.

        It applies to columns without offsets.
        """
        return self.sequences is not None and role.value not in self.sequences

    def mask_of(self, column: str, key: str) -> str:
        """Returns the key of a single column's mask.

        Args:
            column: the column.
            key: its key in the batch.
        """
        return self.column_mask.replace("{column}", column).replace("{key}", key)

    def to_json(self) -> dict[str, Any]:
        """Returns the fields as types of JSON; later ones only if they are not the default."""
        # Tuples become lists, as in a JSON file.
        plain: dict[str, Any] = json.loads(json.dumps(dataclasses.asdict(self)))
        if self.tokens is not None:
            for name in _LATER_OF_TOKENS:
                if plain["tokens"][name] == getattr(Tokens, name):
                    del plain["tokens"][name]
        usual = BatchFormat(self.name)
        return {name: value for name, value in plain.items() if name not in _LATER or value != _plain(usual, name)}


def _plain(batch_format: BatchFormat, name: str) -> Any:
    """Returns a field as types of JSON."""
    value = getattr(batch_format, name)
    return dict(value) if isinstance(value, Mapping) else value


def replace_fields(value: Any, options: Mapping[str, Any], label: str) -> Any:
    """Returns a dataclass with some fields replaced.

    Each option must have the type of its field.
    """
    if not isinstance(options, Mapping):
        raise InvalidArgumentError(f"{label}: options must be a mapping of names to values, not {options!r}")
    # `__post_init__` compares a word with the choices.
    known = {item.name: _WORDS.get(str(item.type), str(item.type)) for item in dataclasses.fields(value)}
    changes = {}
    for name, new in options.items():
        if name not in known:
            raise unknown_name(label, name, known)
        old, annotation = getattr(value, name), known[name]
        if dataclasses.is_dataclass(old) and new is not None and not dataclasses.is_dataclass(new):
            new = replace_fields(old, new, f"{label}: {name}")
        changes[name] = _checked(annotation, new, old, f"{label} '{name}'")
    return dataclasses.replace(value, **changes)


def _checked(annotation: str, new: Any, old: Any, label: str) -> Any:
    """Returns `new` in the form of a field with this annotation."""
    types = annotation.split(" | ")
    if new is None and "None" in types:
        return None
    match types[0]:
        case "Mapping[str, float]" if isinstance(new, Mapping) and all(map(_is_number, new.values())):
            return {**old, **{name: float(number) for name, number in new.items()}}
        case "Mapping[str, str]" if isinstance(new, Mapping) and all(isinstance(key, str) for key in new.values()):
            return {**old, **new}
        case "Mapping[str, int]" if isinstance(new, Mapping) and all(type(size) is int for size in new.values()):
            return {**old, **new}
        case "tuple[str, ...]" if isinstance(new, list | tuple) and all(isinstance(name, str) for name in new):
            return tuple(new)
        case "float" if _is_number(new):
            return float(new)
        case "int" | "str" | "bool" | "Tokens" | "Transitions" as name if type(new).__name__ == name:
            return new
    raise InvalidArgumentError(f"{label} must be {annotation}, not {new!r}")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
