"""LoaderConfig: the checked arguments of a SequenceLoader."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from gear_data.common.distributed import rank_and_world_size
from gear_data.common.keywords import check_range
from gear_data.dataset.dataset import Dataset
from gear_data.errors import InvalidArgumentError
from gear_data.loaders.arguments.checks import (
    check_dataset,
    check_end,
    check_goals,
    check_rank,
    check_rank_rows,
    check_word,
)
from gear_data.loaders.arguments.options import (
    BatchOptions,
    ExecutionOptions,
    ReturnOptions,
    VideoOptions,
    WindowOptions,
    check_groups,
    given_fields,
)
from gear_data.loaders.arguments.pack import Pack, check_pack
from gear_data.loaders.frameworks.framework import Framework
from gear_data.loaders.frameworks.resolve import Device, resolve_framework
from gear_data.loaders.misuse import check_group
from gear_data.loaders.mixture import Mixture, MixtureComponent
from gear_data.loaders.node_local import check_selection
from gear_data.loaders.normalization import Normalize
from gear_data.loaders.presets.batch_format import BatchFormat
from gear_data.loaders.presets.choices import Choose, check_choose
from gear_data.loaders.presets.offsets import CheckedOffsets, Offsets, check_offsets
from gear_data.loaders.presets.registry import resolve_preset
from gear_data.loaders.presets.unlike import PadTo
from gear_data.loaders.video.resize import Resize, check_resize
from gear_data.relative import Relatives, check_relative
from gear_data.selection.goals import Goals
from gear_data.selection.samplers import AnySampler
from gear_data.selection.schedule import CheckedSchedule
from gear_data.selection.windows import WindowRule
from gear_data.words import FrameworkName, Passes, PresetName, SamplerName

if TYPE_CHECKING:
    from gear_data.cluster.rendezvous import Membership
    from gear_data.loaders.builders.batch import Transform
    from gear_data.loaders.decoding.images import Decoder


@dataclass(frozen=True, kw_only=True)
class LoaderConfig:
    """The arguments of a SequenceLoader, which describes them, checked.

    Attributes:
        rename: column of the dataset -> its name in batches; an option of a mixture's datasets.
        embodiment: number of the embodiment; an option of a mixture's datasets.
        fps: steps per second; an option of a mixture's datasets.
        rule: the anchors and lengths of windows; its `context` is never None.
        checked_offsets: `offsets`, checked.
        packing: `pack`, checked.
        membership: this process in its run, with `decentralized` selection; else None.
        resolved_framework: the framework of the batches, with its device.

    Raises:
        InvalidArgumentError, UnknownNameError, DeviceError: see `SequenceLoader`.
    """

    dataset: Dataset | Mixture
    batch_size: int
    context: int | None
    preset: PresetName | BatchFormat
    sampler: SamplerName | AnySampler
    seed: int
    columns: Sequence[str] | None
    offsets: Offsets | None
    choose: Choose
    normalize: Normalize
    relative: Relatives
    goals: Goals | None
    decoders: Mapping[str, Decoder]
    resize: Resize | None
    transform: Transform | None
    pack: Pack | int | None
    steps: int | None
    epochs: int | None
    passes: Passes
    rank: int | None
    world_size: int | None
    framework: FrameworkName | None
    device: Device
    prefetch: int
    windows: WindowOptions
    returns: ReturnOptions
    batch: BatchOptions
    video: VideoOptions
    execution: ExecutionOptions
    rename: Mapping[str, str] = field(default_factory=dict)
    embodiment: int | None = None
    fps: float | None = None
    rule: WindowRule = field(init=False)
    checked_offsets: CheckedOffsets = field(init=False)
    packing: Pack | None = field(init=False)
    membership: Membership | None = field(init=False)
    resolved_framework: Framework = field(init=False)

    def __post_init__(self) -> None:
        if not isinstance(self.dataset, Mixture):
            check_dataset(self.dataset)
        check_groups(vars(self))
        check_range("batch_size", self.batch_size, 1)
        packing = check_pack(self.pack, self.batch_size)
        if packing is not None:
            self._check_packing()
        context = self.batch_format.context if self.context is None else self.context
        check_range("context", context, 1)
        check_range("prefetch", self.prefetch, 0)
        check_range("seed", self.seed, 0, (1 << 64) - 1)
        check_end(self.steps, self.epochs)
        check_word("passes", self.passes, Passes)
        if self.transform is not None and not callable(self.transform):
            raise InvalidArgumentError(f"transform must be callable, not {self.transform!r}")
        check_rank(self.rank, self.world_size)
        check_rank_rows(self.batch_size, self.world_size or 1)
        check_goals(self.goals, self.windows.anchor)
        membership = check_selection(self.windows.selection, self.dataset, self.rank, self.world_size)
        framework = resolve_framework(
            self.framework,
            device=self.device,
            pin_memory=self.execution.pin_memory,
            batch_size=int(self.batch_size),
            transformed=self.transform is not None,
        )
        if framework.sharded and (self.rank is not None or membership is not None):
            raise InvalidArgumentError(
                "the sharding of device= says which rows this process has, and so would "
                + ("rank=" if membership is None else "selection='decentralized'"),
                hint="leave one of them out",
            )
        if framework.sharded and packing is not None:
            raise InvalidArgumentError(
                "the number of windows in packed rows differs by batch, and device= shards arrays of batch_size rows",
                hint="give device='cpu', and place the arrays of rows yourself; or leave pack out",
            )
        # NumPy integers become Python's: the loader's state is JSON.
        optional = {name: getattr(self, name) for name in ("steps", "epochs", "rank", "world_size")}
        self._set(
            **{name: None if value is None else int(value) for name, value in optional.items()},
            batch_size=int(self.batch_size),
            seed=int(self.seed),
            prefetch=int(self.prefetch),
            resize=check_resize(self.resize),
            rule=self.windows.rule(int(context))
            if packing is None or self.context is not None
            else WindowRule(packing.length, packing.length),
            packing=packing,
            checked_offsets=check_offsets(self.offsets),
            choose=check_choose(self.choose),
            relative=check_relative(self.relative),
            membership=membership,
            resolved_framework=framework,
        )

    def _check_packing(self) -> None:
        """Raises InvalidArgumentError if other arguments do not go with `pack`."""
        given = {"goals": self.goals, "BatchOptions(augment=...)": self.batch.augment}
        unfit = next((name for name, value in given.items() if value is not None), None)
        if unfit is None and self.windows.selection != "centralized":
            unfit = "WindowOptions(selection='decentralized')"
        if unfit is not None:
            raise InvalidArgumentError(
                f"{unfit} is for batches with one window in a row, and pack= puts several into one",
                hint="leave one of the two out",
            )
        if self.context is None and self.windows != WindowOptions():
            raise InvalidArgumentError(
                "without context, pack= packs whole episodes, and WindowOptions say which windows of an episode are "
                f"drawn: {given_fields(self.windows)}",
                hint="give context=, the most steps of a window, or leave WindowOptions out",
            )

    def _set(self, **values: Any) -> None:
        for name, value in values.items():
            object.__setattr__(self, name, value)

    @property
    def joined(self) -> bool:
        """Whether one batch has windows of several datasets."""
        return isinstance(self.dataset, Mixture) and self.dataset.join

    @property
    def shared_statistics(self) -> bool:
        """Whether datasets of one embodiment are normalised by statistics of all of them."""
        return isinstance(self.dataset, Mixture) and self.dataset.statistics == "embodiment"

    @property
    def pad_to(self) -> PadTo | None:
        """How columns of unlike shape are padded; None: they are not."""
        return self.dataset.pad_to if isinstance(self.dataset, Mixture) else None

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

    @property
    def batch_format(self) -> BatchFormat:
        """The preset, with its options."""
        return resolve_preset(self.preset, self.batch.preset_options)

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
        of_framework = self.resolved_framework.rank
        rank, world_size = rank_and_world_size(inherited) if of_framework is None else of_framework
        if world_size == 1:
            check_group()
        return rank, world_size

    def with_datasets(self, datasets: Sequence[Dataset]) -> LoaderConfig:
        """Returns the arguments with other datasets, in the same order: later generations."""
        dataset = self.dataset.with_datasets(datasets) if isinstance(self.dataset, Mixture) else datasets[0]
        return dataclasses.replace(self, dataset=dataset)

    def with_options(self, options: Mapping[str, Any], seed: int) -> LoaderConfig:
        """Returns the arguments for one dataset of a mixture.

        Args:
            options: the arguments that this dataset replaces; see `Mixture`.
            seed: the seed of the dataset.
        """
        replaced = dict(options)
        own = {name: replaced.pop(name) for name in ("preset_options", "stack") if name in replaced}
        if own:
            replaced["batch"] = dataclasses.replace(self.batch, **own)
        return dataclasses.replace(self, seed=seed, **replaced)
