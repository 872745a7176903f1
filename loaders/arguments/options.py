"""Groups of a SequenceLoader's arguments: frozen values that check themselves.

A new option is a field here, with its check in `__post_init__` and one line of the docstring. Code that needs the
option reads it from `LoaderConfig`, which has the groups as they were given.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np

from gear_data.common.environment import usable_cores
from gear_data.common.keywords import check_group, check_range, suggest_fields
from gear_data.errors import InvalidArgumentError
from gear_data.loaders.arguments.checks import Dtype, check_bool, check_dtype, check_word
from gear_data.loaders.decoding.augmentation import Augment, check_augment
from gear_data.loaders.frameworks.workers import get_worker_info
from gear_data.selection.windows import WindowRule
from gear_data.stacking import PartsOfStack, check_parts
from gear_data.storage.sidecar import check_discount
from gear_data.video.decoding.options import CACHE_BYTES, Backend, DecodeOptions
from gear_data.words import Anchor, Processor, Selection


@suggest_fields
@dataclass(frozen=True, kw_only=True)
class WindowOptions:
    """Which windows of episodes a loader draws from.

    Attributes:
        stride: only every stride-th step of an episode is the anchor of a window.
        anchor: position of the anchor in its window. `start`: the window starts there. `end`: it ends there. `random`:
            the anchor is anywhere in it.
        short: whether a window may have fewer steps than `context` at the end (or start) of an episode.
        selection: for a dataset opened with `cluster`. `centralized`: all ranks sample the same global batch. With
            `decentralized` each node samples only its own shards; the windows then depend on the placement.

    Raises:
        InvalidArgumentError, UnknownNameError: a field out of its range.
    """

    stride: int = 1
    anchor: Anchor = "start"
    short: bool = True
    selection: Selection = "centralized"

    def __post_init__(self) -> None:
        check_range("stride", self.stride, 1)
        check_bool("short", self.short)
        check_word("selection", self.selection, Selection)
        self.rule(1)

    def rule(self, context: int) -> WindowRule:
        """Returns the rule that cuts windows of at most `context` steps.

        Raises:
            UnknownNameError: no such anchor.
        """
        return WindowRule(context, int(self.stride), self.anchor, self.short)


@suggest_fields
@dataclass(frozen=True, kw_only=True)
class ReturnOptions:
    """How rewards are summed.

    Attributes:
        n_step: adds `n_step_returns`, the discounted sum of this many rewards, up to the episode's end. With the preset
            `transitions`, the sum is `rewards`, and the next observation is this many steps ahead.
        discount: discount of `n_step` and `returns_to_go`, 0 to 1.

    Raises:
        InvalidArgumentError: a field out of its range.
    """

    n_step: int | None = None
    discount: float = 1.0

    def __post_init__(self) -> None:
        if self.n_step is not None:
            check_range("n_step", self.n_step, 1)
            object.__setattr__(self, "n_step", int(self.n_step))  # NumPy integers are not JSON
        object.__setattr__(self, "discount", check_discount(self.discount))


@suggest_fields
@dataclass(frozen=True, kw_only=True)
class BatchOptions:
    """How the arrays of a batch differ from those of its preset.

    Attributes:
        dtype: dtype of float columns: float32, float64, float16 or bfloat16, by name or as a framework's dtype. None:
            the preset's. Masks keep their dtype.
        preset_options: fields of the preset to change, for example {"side": "right"}; see `BatchFormat`.
        stack: new column -> the columns of numbers that it is made of, as in `convert`: presets find `observations` in
            `{"observations": ["position", "velocity"]}`. The batches are those of a dataset that was converted so. A
            part may be a mapping: `{"column": "action", "elements": (6, 7), "scale": -1, "offset": 1}` is elements 6 to
            7 (excluded) of `action`, as scale * value + offset. Statistics are of these values.
        augment: augmentations of all images, or a mapping of keys of the batch to theirs: `RandomShift`, `RandomCrop`,
            `RandomResizedCrop`, `RandomRotation`, `ColorJitter`, or a list of them in the order in which they are
            applied. After decoders and before `transform`. None: images stay as they are.
        window_ids: adds `episode_id` and `start`, the window's first step in its episode, int64 [B].

    Raises:
        InvalidArgumentError, UnknownNameError: a field out of its range.
    """

    dtype: Dtype = None
    preset_options: Mapping[str, Any] | None = None
    stack: PartsOfStack = field(default_factory=dict)
    augment: Augment = None
    window_ids: bool = False

    def __post_init__(self) -> None:
        check_dtype(self.dtype)
        check_bool("window_ids", self.window_ids)
        object.__setattr__(self, "stack", check_parts(self.stack))
        object.__setattr__(self, "augment", check_augment(self.augment))

    @property
    def half(self) -> np.dtype[Any] | None:
        """float16 or bfloat16, to which float columns are rounded; None: they are not rounded."""
        return check_dtype(self.dtype)[0]

    @property
    def float_dtype(self) -> str | None:
        """NumPy dtype of float columns before rounding; None: as the preset says."""
        return check_dtype(self.dtype)[1]

    @property
    def dtype_name(self) -> str | None:
        """The name of the dtype of float columns; None: as the preset says."""
        return self.float_dtype if self.half is None else self.half.name


@suggest_fields
@dataclass(frozen=True, kw_only=True)
class VideoOptions:
    """How cameras are decoded.

    Attributes:
        threads: threads of a process that decode. None: its cores, divided by the number of DataLoader workers.
        cache_bytes: bytes of decoded frames that a process keeps.
        backend: `pyav`, `torchcodec`, `auto` (`pyav`), or `nvdec`: a GPU decodes, through torchcodec, which has not run
            on a GPU yet.

    Raises:
        InvalidArgumentError, UnknownNameError: a field out of its range.
    """

    threads: int | None = None
    cache_bytes: int = CACHE_BYTES
    backend: Backend = "auto"

    def __post_init__(self) -> None:
        if self.threads is not None:
            check_range("threads", self.threads, 1)
        check_range("cache_bytes", self.cache_bytes, 0)
        DecodeOptions(self.threads, self.backend, None, self.cache_bytes)

    def decoding(self, size: tuple[int, int] | None) -> DecodeOptions:
        """Returns the options of a reader in this process.

        size: (H, W) of the frames; None: as in the file.
        """
        threads = self.threads
        if threads is None:
            worker = get_worker_info()
            threads = max(1, usable_cores() // (1 if worker is None else worker.num_workers))
        return DecodeOptions(int(threads), self.backend, size, int(self.cache_bytes))


@suggest_fields
@dataclass(frozen=True, kw_only=True)
class ExecutionOptions:
    """Where and in what portions batches are built. The batches do not depend on it.

    Attributes:
        backend: the processor that collects batches. `cpu` collects in this machine's memory and copies to the device.
            `cuda` collects with kernels of the device, which read the columns in place. `auto` takes the backend that
            is expected to be faster. Kernels need a dataset with residency `pinned` or `device`, or a placed dataset;
            of other datasets, the CPU gathers the rows for them. The CPU decodes cameras, and makes tokens, packed
            rows, augmented images, batches for `transform`, and steps that other machines send by Arrow Flight.
        sm_budget: the share of a GPU's multiprocessors for this loader's kernels, above 0 and at most 1.
        pin_memory: whether batches are copied to a GPU through pinned memory. None: if `device` is a GPU.
        batches_at_once: batches that are built ahead in one call. None: up to 4 small ones; 8 if other nodes send them;
            16 if a GPU collects them.

    Raises:
        InvalidArgumentError, UnknownNameError: a field out of its range.
    """

    backend: Processor = "auto"
    sm_budget: float = 1.0
    pin_memory: bool | None = None
    batches_at_once: int | None = None

    def __post_init__(self) -> None:
        check_word("backend", self.backend, Processor)
        if self.pin_memory is not None:
            check_bool("pin_memory", self.pin_memory)
        if self.batches_at_once is not None:
            check_range("batches_at_once", self.batches_at_once, 1)
        if not isinstance(self.sm_budget, int | float) or not 0 < self.sm_budget <= 1:
            raise InvalidArgumentError(f"sm_budget is {self.sm_budget!r}; it must be above 0 and at most 1")


#: Argument of a SequenceLoader -> the class of its value.
GROUPS: dict[str, type[Any]] = {
    "windows": WindowOptions,
    "returns": ReturnOptions,
    "batch": BatchOptions,
    "video": VideoOptions,
    "execution": ExecutionOptions,
}
#: Name that was an argument of SequenceLoader, or may be taken for one -> what to give.
MOVED = {
    **{
        each.name: f"{group}=gear_data.{kind.__name__}({each.name}=...)"
        for group, kind in GROUPS.items()
        if group != "video"
        for each in fields(kind)
    },
    "short_windows": "windows=gear_data.WindowOptions(short=...)",
    "decode_threads": "video=gear_data.VideoOptions(threads=...)",
    "video_cache": "video=gear_data.VideoOptions(cache_bytes=...)",
    "video_backend": "video=gear_data.VideoOptions(backend=...)",
    "sharding": "device=..., which takes a jax.sharding.Sharding",
    # Names of other libraries.
    **dict.fromkeys(("seq_len", "seq_length", "sequence_length", "chunk_size", "horizon"), "context=..."),
    "shuffle": "sampler='shuffle'",
    "num_workers": "prefetch=..., or loader.dataloader(num_workers=...)",
    "delta_timestamps": "offsets={'actions': gear_data.Seconds([...])}",
    "gamma": "returns=gear_data.ReturnOptions(discount=...)",
    "weights": "sampler=gear_data.Weighted(...)",
}


def given_fields(group: Any) -> dict[str, Any]:
    """Returns field -> value of the fields of a group that are not the default."""
    default = type(group)()
    values = {each.name: getattr(group, each.name) for each in fields(group)}
    return {name: value for name, value in values.items() if value != getattr(default, name)}


def check_groups(given: Mapping[str, Any]) -> None:
    """Raises InvalidArgumentError unless each group is a value of its class."""
    for name, kind in GROUPS.items():
        check_group(name, given[name], kind)
