"""SequenceLoader: padded sequence batches, as a torch IterableDataset."""

from __future__ import annotations

import copy
import os
from collections.abc import Mapping, Sequence
from functools import partial
from multiprocessing.context import get_spawning_popen
from typing import TYPE_CHECKING, Any, Never

import numpy as np
import numpy.typing as npt

from gear_data.common.distributed import is_distributed
from gear_data.common.fork_lock import fork_safe_lock
from gear_data.common.keywords import refuse_keywords_of, suggest_keywords
from gear_data.dataset.dataset import Dataset
from gear_data.evaluation.normalizer import Normalizer, shared_normalizer
from gear_data.loaders.arguments.checks import warn_of_padding
from gear_data.loaders.arguments.config import LoaderConfig
from gear_data.loaders.arguments.options import (
    MOVED,
    BatchOptions,
    ExecutionOptions,
    ReturnOptions,
    VideoOptions,
    WindowOptions,
)
from gear_data.loaders.arguments.pack import Pack
from gear_data.loaders.batch_iterator import BatchIterator
from gear_data.loaders.builders.batch import Batch, RankRows, Transform
from gear_data.loaders.component import episode_ids
from gear_data.loaders.decoding.images import Decoder
from gear_data.loaders.frameworks.iterable import LoaderBase
from gear_data.loaders.frameworks.resolve import Device
from gear_data.loaders.frameworks.workers import get_worker_info
from gear_data.loaders.grain_source import GrainSource
from gear_data.loaders.loader_spec import loader_identity, loader_spec
from gear_data.loaders.metrics import Meter, weight_metrics
from gear_data.loaders.misuse import check_consumer, check_dataloader_options, check_sampler
from gear_data.loaders.mixture import Mixture
from gear_data.loaders.normalization import Normalize
from gear_data.loaders.passes.progress import Progress
from gear_data.loaders.passes.shared_passes import SharedPasses
from gear_data.loaders.passes.state import check_state, make_state
from gear_data.loaders.presets.batch_format import BatchFormat
from gear_data.loaders.presets.choices import Choose
from gear_data.loaders.presets.offsets import Offsets
from gear_data.loaders.stages.builders import make_iterator
from gear_data.loaders.stages.generations import same_generations
from gear_data.loaders.stages.refreshing import refresh
from gear_data.loaders.stages.saved_stages import load_stages
from gear_data.loaders.stages.stage import first_stage, last_id
from gear_data.loaders.stages.timeline import Stages
from gear_data.loaders.video.resize import Resize
from gear_data.loaders.weight_updates import apply_update, check_updatable
from gear_data.loaders.window_source import window_table
from gear_data.relative import Relatives
from gear_data.selection.goals import Goals
from gear_data.selection.samplers import AnySampler
from gear_data.words import FrameworkName, Passes, PresetName, Residency, SamplerName

if TYPE_CHECKING:
    from torch.utils.data import DataLoader


@suggest_keywords
class SequenceLoader(LoaderBase):
    """Padded sequence batches of a dataset.

    The batches are the same for any number of ranks and workers, and for any prefetch depth.

    Every `for batch in loader` is one pass. Steps are numbered over all passes: pass p of n batches has the steps p * n
    to (p + 1) * n - 1. With `shuffle`, `fifo` and `epochs=e`, pass p has the epochs p * e to (p + 1) * e - 1. A pass
    that is left early (`break`) is over: the next `for` begins the next pass. Without an end, the next `for` goes on
    after the last batch that was taken. The first pass after `load_state_dict` starts at the state's step.

    Inside a `DataLoader(loader, batch_size=None, num_workers=n)`, worker k builds every n-th step, starting with the
    k-th. The DataLoader puts them in order.

    Args:
        dataset: the dataset, or a `Mixture` of datasets.
        batch_size: windows of a global batch; with `pack`, rows. Rank r of w gets the rows [r * B // w, (r + 1) * B //
            w).
        context: the most steps of a window; the length of padded sequences. None: 20, and 1 with `transitions`. With
            `pack`, None: a window is a whole episode.
        preset: names, padding and dtypes of the batch: a name of `PRESETS`, or a `BatchFormat`.
        sampler: `uniform` (a window starts at a step drawn from all steps), `shuffle` (every step once an epoch),
            `fifo`, or an instance: `Uniform`, `Weighted`, `TopK`, `Fifo`, `Shuffle`, or your own `Sampler`.
        seed: 0 to 2^64 - 1.
        columns: with `raw`, the columns of the batch; with other presets, columns to add. None: all, or none added.
            `next_X` is column X of the next step, and for the last step the final observation. A fact of the episodes,
            such as `task`, gives a list of B texts, or an array [B]; `facts.X` is fact X if there is a column X.
        choose: key of the batch -> columns or facts, of which each window has one: another instruction each time, with
            `{"instruction": ["language_instruction", "language_instruction_2"]}`. Of a fact that is a list, one item.
            The draw is a function of the seed, the step and the row. Decoders name the key.
        offsets: column -> its own steps relative to the window's first step: a tuple (first, last), `last` excluded, or
            a list of steps, or their times: `Seconds`. Each has its own position, and a mask `COLUMN_mask`. Other
            columns have `context` steps.
        normalize: by the dataset's mean and standard deviation: `all` (float observations and actions, images and
            cameras), True (float observations), one column or several. `quantiles` (float observations, the 1st and
            99th percentile to -1 and 1) or `minmax` (to -1 to 1). Or column -> (mean, std), `mean-std`, `quantiles`,
            `minmax` or, of images, `imagenet`. None: nothing is normalised.
        relative: column -> a column, whose value at the window's first step is subtracted from each step:
            `{"actions": "observations.state"}`; or `Relative`, also for some elements only, and for differences between
            neighbouring steps. `normalize` then takes statistics of the differences.
        goals: adds goals to each window; see `Goals`.
        decoders: column or fact of text or bytes -> decoder; see `gear_data.loaders.decoding.images`.
        resize: (H, W) of all cameras, or a mapping of cameras to (H, W). (H, W, "letterbox") keeps the proportions,
            between black bars. Cameras that it does not name are as in the files, or as the preset says.
        transform: called as transform(batch, rng) with a NumPy generator keyed by (seed, step); returns the batch.
        pack: steps of a row that is filled with whole windows, or a `Pack`; with the preset `gato`, tokens. Batches
            have the keys `cu_seqlens`, `max_seqlen`, `position_ids` and `segment_ids`. None: each window is a row.
        steps: number of batches of a pass; None: no end.
        epochs: a pass has as many batches as this many epochs, each over all windows. With `shuffle` and `fifo` the
            last batch may have fewer rows, and some ranks none of them.
        passes: `continue`: each pass follows the pass before. `repeat`: each has the same batches, for validation.
        rank, world_size: None reads torch.distributed, or JAX's processes, if they are initialised, else 0 of 1. All
            ranks make the loader then, and begin with the generations that rank 0 opened.
        framework: framework of the batch's arrays. `torch`: tensors. `numpy`: arrays. `jax`: `jax.Array`, with 32-bit
            numbers unless JAX has 64-bit ones. None: `torch` where torch is installed, else `numpy`.
        device: device of the tensors. With `jax`, the sharding of the leading axis, such as `NamedSharding(mesh,
            PartitionSpec("data"))`: arrays are of the global batch. `cpu` gives JAX's arrays of this process's rows,
            on JAX's default device.
        prefetch: number of batches that are kept ready, built in a thread or started on a GPU; 0 builds each batch when
            it is taken. So does any number while a loop only takes batches, and a thread does not make it faster.
        windows: which windows are drawn, see `WindowOptions`: `stride`, `anchor`, `short`, `selection`.
        returns: sums of rewards, see `ReturnOptions`: `n_step`, `discount`.
        batch: changes of the preset's arrays, see `BatchOptions`: `dtype`, `preset_options`, `stack`, `augment`,
            `window_ids`.
        video: how cameras are decoded, see `VideoOptions`: `threads`, `cache_bytes`, `backend`.
        execution: where batches are built, see `ExecutionOptions`: `backend`, `sm_budget`, `pin_memory`,
            `batches_at_once`.

    Raises:
        UnknownNameError: no such preset, sampler, column or fact; the message lists the known ones.
        UnknownArgumentError: no such argument; the message names its place in a group, or the closest name.
        InvalidArgumentError: an argument out of its range.
        MissingColumnError: the preset needs a column that the dataset lacks.
        DeviceError: this machine does not have the device.
    """

    def __init__(
        self, dataset: Dataset | Mixture, batch_size: int = 256, *,
        context: int | None = None, preset: PresetName | BatchFormat = "raw",
        sampler: SamplerName | AnySampler = "uniform", seed: int = 0,
        columns: Sequence[str] | None = None, choose: Choose | None = None, offsets: Offsets | None = None,
        normalize: Normalize = None, relative: Relatives | None = None,
        goals: Goals | None = None, decoders: Mapping[str, Decoder] | None = None, resize: Resize | None = None,
        transform: Transform | None = None, pack: int | Pack | None = None,
        steps: int | None = None, epochs: int | None = None, passes: Passes = "continue",
        rank: int | None = None, world_size: int | None = None,
        framework: FrameworkName | None = None, device: Device = "cpu", prefetch: int = 2,
        windows: WindowOptions = WindowOptions(), returns: ReturnOptions = ReturnOptions(),
        batch: BatchOptions = BatchOptions(), video: VideoOptions = VideoOptions(),
        execution: ExecutionOptions = ExecutionOptions(),
        **unknown: Never,
    ) -> None:  # fmt: skip
        super().__init__()
        refuse_keywords_of(SequenceLoader, unknown, MOVED)
        config = LoaderConfig(
            dataset=dataset, batch_size=batch_size, context=context, preset=preset, sampler=sampler, seed=seed,
            columns=columns, choose={} if choose is None else choose, offsets=offsets, normalize=normalize,
            relative={} if relative is None else relative, goals=goals, resize=resize,
            decoders={} if decoders is None else decoders, transform=transform, pack=pack, steps=steps, epochs=epochs,
            passes=passes, rank=rank, world_size=world_size,
            framework=framework, device=device, prefetch=prefetch, windows=windows, returns=returns, batch=batch,
            video=video, execution=execution,
        )  # fmt: skip
        self.batch_size, self.context, self.seed = config.batch_size, config.rule.context, config.seed
        together = rank is None and get_worker_info() is None and is_distributed()
        if together:
            # Ranks open a dataset that grows at different moments.
            opened = [each.dataset for each in config.datasets]
            if (agreed := same_generations(opened)) != opened:
                config = config.with_datasets(agreed)
        if config.context is not None and config.packing is None:
            warn_of_padding(config.rule.context, [each.dataset for each in config.datasets])
        stage, self._layout = first_stage(config, ask_rank_zero=together)
        self.preset = stage.components[0].batch_format.name
        self._stages = Stages(stage)
        self._shared = SharedPasses()
        self._progress = Progress(self._layout, self._shared)
        self._num_workers = 0  # of `dataloader`, unless its caller says
        # In a copy, the rank of the process that copied the loader: a spawned worker has no process group.
        self._inherited_rank = (0, 1)
        self._meter = Meter(len(stage.components))
        # Held while an iterator starts a batch, and while weights or the generation change.
        self._starting = fork_safe_lock()
        # Held by `update_weights` and `refresh`.
        self._changing = fork_safe_lock()

    @classmethod
    def from_config(
        cls, dataset: Dataset | Mixture, path: str | os.PathLike[str], *, residency: Residency | None = None,
        num_workers: int | None = None, **arguments: Any,
    ) -> SequenceLoader:  # fmt: skip
        """Makes a loader with the arguments in a file of `gear_data.tune`.

        Opens the dataset again, if the file has another residency or number of RDMA queue pairs.

        Args:
            dataset: a dataset with the columns of the tuned one.
            path: the file.
            residency: replaces the file's residency; `dataset.residency` keeps the dataset as it is.
            num_workers: default of `dataloader`; None: as in the file.
            **arguments: other arguments of `SequenceLoader`. They replace those of the file.

        Raises:
            LoaderConfigError: the file is malformed, of a newer gear-data, for a dataset with other columns, or was
                tuned with an argument that a file cannot hold, and which is missing here.
        """
        from gear_data.loaders.tuning.config_file import read_config

        saved = read_config(path, dataset, arguments)
        loader = cls(saved.open(dataset, residency), **{**saved.setting.applied_to(saved.arguments), **arguments})
        loader._num_workers = saved.setting.num_workers or 0 if num_workers is None else num_workers
        return loader

    def __len__(self) -> int:
        """Returns the number of batches of a pass; raises TypeError if there is no end."""
        check_sampler()
        if self._layout.batches is None:
            raise TypeError("this loader has no end; give steps= or epochs=")
        return self._layout.batches

    def __bool__(self) -> bool:
        # Without this, `bool(loader)` would call `__len__`, which raises TypeError for a loader without end.
        return True

    def __repr__(self) -> str:
        config, stage = self._config, self._stages.newest
        samplers = dict.fromkeys(each.sampler for each in stage.components)
        batches = "no end" if self._layout.batches is None else f"{self._layout.batches:,} batches a pass"
        return (
            f"SequenceLoader({config.dataset!r}, batch_size={self.batch_size}, context={self.context}, "
            f"preset={self.preset!r}, sampler={'/'.join(samplers)!r}, seed={self.seed}, {batches}, "
            f"next step {self._progress.next_step:,})"
        )

    def __getstate__(self) -> dict[str, Any]:
        if get_spawning_popen() is not None:
            check_consumer(self, self._progress.resumes)  # a spawned worker does not have the frames of this process
        own = {
            "_inherited_rank": self._config.process_rank(self._inherited_rank),
            "_meter": Meter(len(self._stages.newest.components)),
            "_shared": copy.copy(self._progress.shared()),
            "_starting": None,
            "_changing": None,
        }
        return {**self.__dict__, **own}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _starting=fork_safe_lock(), _changing=fork_safe_lock())
        self._progress = self._progress.copy(self._shared)

    @property
    def _config(self) -> LoaderConfig:
        return self._stages.newest.config

    @property
    def dataset(self) -> Dataset | Mixture:
        """The dataset or mixture; after `refresh`, of the newest generation."""
        return self._config.dataset

    @property
    def local_batch_size(self) -> int:
        """This rank's rows of a full batch; with `decentralized` selection, the most rows."""
        rows = self._rows()
        if self._config.membership is not None:
            return self._stages.newest.batches.most_rows(rows)
        first, last = rows.bounds(0, self.batch_size)
        return last - first

    def _rows(self) -> RankRows:
        return RankRows(self._layout, *self._config.process_rank(self._inherited_rank))

    def windows(self, step: int) -> dict[str, npt.NDArray[np.int64]]:
        """Returns the windows of a step's global batch.

        Steps are numbered over all passes. With `decentralized` selection, it returns the windows of this node.

        Returns:
            int64 [B] each: `dataset` (0, or its number in a mixture), `episode_id`, `start` (first step in the episode)
            and `length` (valid steps). With goals, also `KEY_episode_id` and `KEY_step` for each key of goals. With
            `pack`, int64 [n] for n windows, and also `row`, the row that has the window, and `place`, its first step
            in the row.

        Raises:
            InvalidArgumentError: no pass has this step, or its weights are no longer kept.
        """
        step = self._layout.check_step(step)
        # Without replacement, a short batch is the beginning of a full one: so sample a full one.
        stage = self._stages.at(step)
        windows = stage.source.sample(step, self.batch_size).of_rows(0, self._layout.rows(step))
        keys = () if self._config.goals is None else self._config.goals.keys
        return window_table(windows, keys, partial(episode_ids, stage.components))

    def __iter__(self) -> BatchIterator:
        check_consumer(self, self._progress.resumes)
        return make_iterator(
            self._stages, self._rows(), self._progress, self._meter, self._starting, self._config.prefetch
        )

    def batch(self, step: int) -> Batch:
        """Returns this rank's rows of one step's batch, as an iteration returns them.

        Steps are numbered over all passes. They may be in any order, and threads may call this at the same time. The
        iteration goes on where it was.

        Raises:
            InvalidArgumentError: no pass has this step, or its weights are no longer kept.
        """
        step = self._layout.check_step(step)
        return self._stages.at(step).batches.batch(self._rows(), step)

    def as_grain_source(self) -> GrainSource:
        """Returns the batches by step as NumPy arrays, for Grain.

        Raises:
            InvalidArgumentError: the batches are not in the CPU's memory.
        """
        return GrainSource(self, self._config.resolved_framework, self.spec())

    def dataloader(self, num_workers: int | None = None, **options: Any) -> DataLoader[Batch]:
        """Returns a torch DataLoader of this loader's batches.

        Args:
            num_workers: number of worker processes that build batches. With 0, a thread prefetches. None: as
                `from_config` says, else 0.
            **options: other arguments of `torch.utils.data.DataLoader`.

        Raises:
            InvalidArgumentError: the batches are not of torch, or an option would change them.
        """
        check_dataloader_options(self._config.resolved_framework, options)
        from torch.utils.data import DataLoader

        workers = self._num_workers if num_workers is None else num_workers
        return DataLoader(self, batch_size=None, num_workers=workers, **options)

    def update_weights(
        self, episode_ids: Sequence[int] | npt.NDArray[np.int64], values: Sequence[float] | npt.NDArray[np.float64], *,
        steps: Sequence[int] | npt.NDArray[np.int64] | None = None, from_step: int | None = None, dataset: int = 0,
    ) -> int:  # fmt: skip
        """Changes the weights of some episodes or steps, with `sampler=Weighted(...)`.

        The new weights hold from a step after every batch that is already built. So no existing batch changes.

        Earlier steps keep their weights. But the loader keeps the weights of the last 1,024 steps only (of earlier
        generations, of 64 steps), and refuses batches that need older weights, as with passes="repeat".

        Of a dataset that grows, ids of episodes that have left it are ignored.

        If torch.distributed is initialised, every rank calls this with its own updates. All ranks apply all updates, in
        the order of the ranks, from the same step on.

        Args:
            episode_ids: int [n]. Of an episode (or step) that occurs twice, the last value counts.
            values: float [n], finite and not negative.
            steps: int [n], the anchor steps in these episodes, if the sampler has one weight a step.
            from_step: the first step with these weights. None: as soon as possible.
            dataset: number of the dataset in a mixture.

        Returns:
            The first step with these weights. `batch["weights_version"]`, int64 [B], is the number of updates that held
            when the window was sampled.

        Raises:
            InvalidArgumentError: another sampler, an episode or step that is not in the dataset, a value that cannot be
                a weight, a `from_step` too early, or DataLoader workers build the batches. No weight changes then.
        """
        check_updatable(self._stages.newest.components, dataset, self._progress)
        update = episode_ids, values, steps
        # Prefetch threads start no batch until the update is in place.
        with self._changing, self._starting:
            return apply_update(self._stages, dataset, update, from_step, self._progress)

    def refresh(self, from_step: int | None = None) -> int:
        """Takes the newest generation of a dataset that grows; of a mixture, of each dataset.

        The new episodes are drawn from a step after every batch that is already built. So no existing batch changes.
        From this step on, the batches are those of a new loader of the new generation: `normalize` uses its statistics,
        and the sampler its episodes. Weights that were given as an array or updated stay with their episodes; new
        episodes get the largest of them.

        The state has the generation of every step, so a run replays bit for bit. An earlier generation is let go 64
        steps after its last batch. Then a batch of its steps needs all of its episodes on disk, and weights that were
        not given as an array or updated.

        If torch.distributed is initialised, every rank calls this. All ranks take the generation that rank 0 finds,
        from the same step on. A loader with `rank=` does not know the other ranks: give `from_step`, and the same
        generation on disk.

        Args:
            from_step: the first step of the new generation. None: as soon as possible.

        Returns:
            The first step of the newest generation; if there is no newer one, of the present one.

        Raises:
            InvalidArgumentError: `shuffle`, `fifo`, `epochs=`, passes="repeat" or selection="decentralized", which have
                no place for new episodes; a `from_step` too early; or DataLoader workers build the batches.
            DatasetReplacedError: the dataset was replaced.
            GearError: see `Dataset.refresh`. After an error the loader is as before.
        """
        with self._changing:
            return refresh(self._stages, self._progress, self._starting, from_step)

    def set_epoch(self, epoch: int) -> None:
        """Makes the next pass be pass `epoch`, counted from 0.

        Frameworks call this before each pass; without a call, each pass follows the pass before. If passes have no end,
        or repeat, nothing changes. The first pass after `load_state_dict` stays at the state's step, whatever the
        number; later numbers count from there. A call inside its pass changes nothing.

        Raises:
            InvalidArgumentError: `epoch` is not an integer of at least 0.
        """
        self._progress.set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """Returns the state of the loader: the next step, changed weights, and generations.

        It also names all that the meaning of the step depends on, such as the seed. It is JSON-able, and valid for any
        number of ranks and workers. A state that torchdata's StatefulDataLoader saves inside a DataLoader's worker has
        the worker's own next step; only that worker loads it.

        Raises:
            StateMismatchError: a DataLoader's workers iterated last; only the DataLoader knows their position.
        """
        saved, stages = self._progress.saved_step(), self._stages
        selectors = [component.selector for component in stages.newest.components]
        records = stages.saved(saved.step) if stages.grows else None
        last_ids = [last_id(each.dataset) for each in self._config.datasets]
        return make_state(saved, self._layout, self._identity(), selectors, records, last_ids)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Makes the next pass start at the state's step.

        The pass ends where it would have ended. A state at the end of a pass starts the next pass. A loader of any
        generation of a dataset takes a state of the dataset: it goes back to the state's generations.

        Raises:
            GenerationGoneError: the dataset no longer has all episodes of a generation that is needed.
            StateMismatchError: the state has another dataset, sampler, seed, batch size, context, length of passes that
                matters for the step, or worker.
        """
        saved = check_state(state, self._layout, self._identity(), grows=self._stages.grows)
        load_stages(self._stages, state, saved.step)
        self._progress.load(saved)

    def _identity(self) -> dict[str, Any]:
        stage = self._stages.newest
        return loader_identity(stage.config, stage.components, stage.source)

    def spec(self) -> dict[str, Any]:
        """Returns every argument that determines the contents of batches, JSON-able.

        The result is enough to make the batches again, except for code (`transform` and decoders) and for weights, of
        which it has a hash. Of a dataset that grows, it has the generations, and describes the last one.
        """
        stage = self._stages.newest
        spec = loader_spec(stage.config, stage.components, stage.source, self._rows())
        return {**spec, **({"generations": self._stages.spec()} if self._stages.grows else {})}

    @property
    def normalizer(self) -> Normalizer:
        """The maps of columns to batches and back, for a policy; those of the next batch.

        Raises:
            InvalidArgumentError: datasets of a mixture have different maps of a column; `Normalizer.from_spec` gives
                the maps of one.
        """
        stage = self._stages.at(self._progress.next_step)
        return shared_normalizer([component.outputs for component in stage.components])

    def metrics(self) -> dict[str, Any]:
        """Returns counts and rates since the loader was made.

        `gear_data.loaders.metrics.Meter.result` describes them. With a `Weighted` sampler, the result also has
        `effective_sample_size` and `raised_weights`; for a mixture these are lists.
        """
        return {**self._meter.result(), **weight_metrics([each.selector for each in self._stages.newest.components])}
