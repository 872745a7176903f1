"""LoaderConfig: the checked arguments of a SequenceLoader."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from gear_data.common.distributed import rank_and_world_size
from gear_data.dataset.dataset import Dataset
from gear_data.dataset.store import check_discount
from gear_data.errors import InvalidArgumentError
from gear_data.loaders.arguments import (
    Normalize,
    check_backend,
    check_dataset,
    check_dtype,
    check_goals,
    check_numbers,
    check_passes,
    check_range,
    check_rank,
    check_rank_rows,
    check_sm_budget,
)
from gear_data.loaders.decoding.augmentation import Augment, check_augment
from gear_data.loaders.frameworks.framework import Framework
from gear_data.loaders.frameworks.resolve import resolve_framework
from gear_data.loaders.misuse import check_group
from gear_data.loaders.mixture import Mixture, MixtureComponent
from gear_data.loaders.node_local import check_selection
from gear_data.loaders.presets.batch_format import BatchFormat
from gear_data.loaders.presets.offsets import ColumnSteps, Offsets, check_offsets
from gear_data.loaders.presets.registry import resolve_preset
from gear_data.loaders.video.arguments import Resize, VideoArguments, check_video
from gear_data.selection.goals import Goals
from gear_data.selection.samplers import Sampler
from gear_data.selection.schedule import CheckedSchedule
from gear_data.selection.windows import WindowRule
from gear_data.stacking import Stack, check_stack

if TYPE_CHECKING:
    import torch

    from gear_data.cluster.rendezvous import Membership
    from gear_data.loaders.builders.batch import Transform
    from gear_data.loaders.decoding.images import Decoder


@dataclass(frozen=True)
class LoaderConfig:
    """The arguments of a SequenceLoader, checked and resolved.

    `SequenceLoader` describes the attributes that this list does not name.

    Attributes:
        rule: the anchors and lengths of windows.
        half: float16 or bfloat16, to which float columns are rounded; None: float columns are not rounded.
        float_dtype: NumPy dtype of float columns before rounding; None: as the preset says.
        membership: this process in its run, with `decentralized` selection; else None.
        video: how cameras are decoded.
    """

    dataset: Dataset | Mixture
    batch_size: int
    rule: WindowRule
    preset: str | BatchFormat
    preset_options: Mapping[str, Any] | None
    sampler: str | Sampler
    seed: int
    columns: Sequence[str] | None
    stack: Stack
    offsets: ColumnSteps
    normalize: Normalize
    half: np.dtype[Any] | None
    float_dtype: str | None
    n_step: int | None
    discount: float
    window_ids: bool
    transform: Transform | None
    augment: Augment
    decoders: Mapping[str, Decoder]
    goals: Goals | None
    rank: int | None
    world_size: int | None
    membership: Membership | None
    framework: Framework
    backend: str
    sm_budget: float
    prefetch: int
    batches_at_once: int | None
    steps: int | None
    epochs: int | None
    passes: str
    video: VideoArguments

    @property
    def context(self) -> int:
        """The most steps of a window."""
        return self.rule.context

    @property
    def joined(self) -> bool:
        """Whether one batch has windows of several datasets."""
        return isinstance(self.dataset, Mixture) and self.dataset.join

    @property
    def proportions(self) -> tuple[CheckedSchedule, ...] | None:
        """The proportions of a mixture's datasets; None for one dataset."""
        return self.dataset.proportions if isinstance(self.dataset, Mixture) else None

    @property
    def datasets(self) -> tuple[MixtureComponent, ...]:
        """The datasets, each with its own options."""
        if isinstance(self.dataset, Mixture):
            return self.dataset.components
        return (MixtureComponent(self.dataset, 1.0, {}),)

    def process_rank(self, inherited: tuple[int, int]) -> tuple[int, int]:
        """Returns the rank of this process, and the number of ranks.

        inherited: the rank of the process that copied the loader.

        Raises:
            InvalidArgumentError: torchrun started several processes, and they have no process group.
        """
        if self.membership is not None:
            return self.membership.local_rank, self.membership.local_size
        if self.rank is not None and self.world_size is not None:
            return self.rank, self.world_size
        rank, world_size = rank_and_world_size(inherited) if self.framework.rank is None else self.framework.rank
        if world_size == 1:
            check_group()
        return rank, world_size

    def with_datasets(self, datasets: Sequence[Dataset]) -> LoaderConfig:
        """Returns the arguments with other datasets, in the same order: later generations."""
        dataset = self.dataset.with_datasets(datasets) if isinstance(self.dataset, Mixture) else datasets[0]
        return dataclasses.replace(self, dataset=dataset)

    @property
    def dtype_name(self) -> str | None:
        """The name of the dtype of float columns; None: as the preset says."""
        return self.float_dtype if self.half is None else self.half.name


def resolve_config(
    *,
    dataset: Dataset | Mixture,
    batch_size: int,
    context: int | None,
    preset: str | BatchFormat,
    preset_options: Mapping[str, Any] | None,
    sampler: str | Sampler,
    seed: int,
    columns: Sequence[str] | None,
    stack: Mapping[str, Sequence[str]] | None,
    offsets: Offsets | None,
    normalize: Normalize,
    dtype: npt.DTypeLike | torch.dtype | None,
    n_step: int | None,
    discount: float,
    window_ids: bool,
    transform: Transform | None,
    augment: Augment,
    decoders: Mapping[str, Decoder] | None,
    goals: Goals | None,
    rank: int | None,
    world_size: int | None,
    selection: str,
    framework: str | None,
    device: str | torch.device,
    sharding: Any,
    backend: str,
    sm_budget: float,
    pin_memory: bool | None,
    prefetch: int,
    batches_at_once: int | None,
    steps: int | None,
    epochs: int | None,
    passes: str,
    stride: int,
    anchor: str,
    short_windows: bool,
    decode_threads: int | None,
    video_cache: int,
    video_backend: str,
    resize: Resize | None,
) -> LoaderConfig:
    """Checks the arguments of a SequenceLoader, and resolves defaults.

    Raises:
        InvalidArgumentError, UnknownNameError, DeviceError: see `SequenceLoader`.
    """
    if not isinstance(dataset, Mixture):
        check_dataset(dataset)
    if context is None:
        context = resolve_preset(preset, preset_options).context
    check_numbers(batch_size, context, prefetch, seed, stride, steps, epochs, n_step)
    if batches_at_once is not None:
        check_range("batches_at_once", batches_at_once, 1)
    for name, value in (("short_windows", short_windows), ("window_ids", window_ids)):
        if not isinstance(value, bool):
            raise InvalidArgumentError(f"{name} is True or False, not {value!r}")
    if transform is not None and not callable(transform):
        raise InvalidArgumentError(f"transform must be callable, not {transform!r}")
    check_rank(rank, world_size)
    check_rank_rows(batch_size, world_size or 1)
    membership = check_selection(selection, dataset, rank, world_size)
    if sharding is not None and (rank is not None or membership is not None):
        raise InvalidArgumentError(
            "sharding= says which rows this process has, and so would "
            + ("rank=" if membership is None else "selection='decentralized'"),
            hint="leave one of them out",
        )
    half, float_dtype = check_dtype(dtype)
    # NumPy integers become Python's: the loader's state is JSON.
    return LoaderConfig(
        dataset=dataset,
        batch_size=int(batch_size),
        rule=WindowRule(int(context), int(stride), anchor, short_windows),
        preset=preset,
        preset_options=preset_options,
        sampler=sampler,
        seed=int(seed),
        columns=columns,
        stack=check_stack(stack),
        offsets=check_offsets(offsets),
        normalize=normalize,
        half=half,
        float_dtype=float_dtype,
        n_step=None if n_step is None else int(n_step),
        discount=check_discount(discount),
        window_ids=window_ids,
        transform=transform,
        augment=check_augment(augment),
        decoders={} if decoders is None else decoders,
        goals=check_goals(goals, anchor),
        rank=rank,
        world_size=world_size,
        membership=membership,
        framework=resolve_framework(
            framework,
            device=device,
            pin_memory=pin_memory,
            sharding=sharding,
            batch_size=int(batch_size),
            transformed=transform is not None,
        ),
        backend=check_backend(backend),
        sm_budget=check_sm_budget(sm_budget),
        prefetch=prefetch,
        batches_at_once=batches_at_once,
        steps=steps,
        epochs=epochs,
        passes=check_passes(passes),
        video=check_video(decode_threads, video_cache, video_backend, resize),
    )
