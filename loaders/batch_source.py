"""BatchSource: the batches of any step, and of a pass."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from gear_data.collection.buffers import IDLE_BUFFERS
from gear_data.loaders.arguments.checks import check_rank_rows, warn_of_empty_batches
from gear_data.loaders.arguments.config import LoaderConfig
from gear_data.loaders.batch_iterator import Group
from gear_data.loaders.builders.backend import BuilderFactory, resolve_backend
from gear_data.loaders.builders.batch import Batch, BatchBuilder, RankRows
from gear_data.loaders.builders.postprocess import (
    PostprocessConfig,
    Postprocessor,
    check_shapes_of_tokens,
    make_augmenter,
)
from gear_data.loaders.component import LoaderComponent
from gear_data.loaders.frameworks.workers import get_worker_info
from gear_data.loaders.node_local import max_rows
from gear_data.loaders.video.readers import CameraReaders
from gear_data.loaders.window_source import WindowSource

if TYPE_CHECKING:
    from gear_data.loaders.video.camera_collector import LookAhead


class BatchSource:
    """Builds the batches of a loader, in this process.

    Args:
        config: the arguments of the loader.
        components: its datasets.
        source: samples its windows.
        builders: of another generation of the datasets; None: chosen here.

    Raises:
        GearError: the images cannot be augmented so; see `Augmenter`. Or the tokens cannot be sharded.
    """

    def __init__(
        self,
        config: LoaderConfig,
        components: Sequence[LoaderComponent],
        source: WindowSource,
        builders: BuilderFactory | None = None,
    ) -> None:
        self._config, self._components, self._source = config, components, source
        self._postprocess = PostprocessConfig(
            config.batch.half,
            dict(config.decoders),
            config.transform,
            config.seed,
            config.rule.context,
            config.resolved_framework,
            config.batch.augment,
        )
        check_shapes_of_tokens(components, self._postprocess)
        for component in components:
            make_augmenter(component, self._postprocess)  # raises, before the first batch
        if builders is None:
            chosen = resolve_backend(config.execution.backend, components, self._postprocess, config.batch_size)
            builders = BuilderFactory(chosen, config.resolved_framework, config.execution.sm_budget, config.joined)
        self.builders = builders
        self._readers = CameraReaders(components, config.video)
        # The builder for `batch`, with the rows and the kind of process that it is for.
        self._random_access: tuple[tuple[RankRows, bool], BatchBuilder] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_random_access": None}

    def most_rows(self, rows: RankRows) -> int:
        """Returns the most windows of a batch of a rank."""
        return -(-max_rows(self._components[0].selector, rows.batch_size) // rows.world_size)

    def group(self, rows: RankRows) -> int:
        """Returns the number of batches that an iteration builds in one call.

        Raises:
            InvalidArgumentError: some ranks would get empty batches.
        """
        check_rank_rows(rows.batch_size, rows.world_size)
        warn_of_empty_batches(rows.layout.last_rows, rows.world_size)
        if not self._config.prefetch:
            return 1
        batch_bytes = self.most_rows(rows) * max(component.row_bytes for component in self._components)
        return self._config.execution.batches_at_once or self._group().size(batch_bytes)

    def _group(self) -> Group:
        # An update of weights, or of a dataset, has no effect on batches that were started.
        updated = any(each.dataset.generation or each.has_own_weights for each in self._components)
        if self.builders.backend == "cuda" and not updated:
            return Group.DEVICE
        remote = self._config.membership is None and any(each.dataset.is_remote for each in self._components)
        return Group.REMOTE if remote else Group.CPU

    def builder(self, rows: RankRows, group: int) -> BatchBuilder:
        """Returns the builder of an iteration.

        Args:
            rows: the rows of this rank.
            group: the most batches of one call.
        """
        prefetch = self._config.prefetch
        ahead = None
        if prefetch and any(component.cameras for component in self._components):
            from gear_data.loaders.video.camera_collector import LookAhead

            worker = get_worker_info()
            ahead = LookAhead(self._source, rows, 1 if worker is None else worker.num_workers, prefetch)
        # Enough for the batches that are ready and in progress. With fewer, the builder would wait for the device.
        # Larger groups are collected together.
        return self._builder(rows, group, IDLE_BUFFERS + prefetch + 4 * min(group, 4), ahead)

    def batch(self, rows: RankRows, step: int) -> Batch:
        """Returns this rank's rows of one step's batch.

        Threads may call this at the same time.
        """
        key = rows, get_worker_info() is not None
        if self._random_access is None or self._random_access[0] != key:
            self._random_access = key, self._builder(rows, 1, IDLE_BUFFERS)
        (built,) = self._random_access[1].build([step])
        return built.batch if built.deliver is None else built.deliver(built.batch)

    def _builder(self, rows: RankRows, max_batches: int, most: int, ahead: LookAhead | None = None) -> BatchBuilder:
        in_worker, config = get_worker_info() is not None, self._postprocess
        if in_worker:
            config = replace(config, framework=config.framework.in_worker())
        return self.builders.make(
            self._components, self._source, rows, Postprocessor(self._components, config),
            max_rows=self.most_rows(rows), max_batches=max_batches, in_worker=in_worker, most=most,
            readers=self._readers, ahead=ahead,
        )  # fmt: skip
