"""gear-data: trajectory datasets as padded sequence batches for offline RL.

    gear_data.convert("hf_dataset/", "dataset/")
    ds = gear_data.open("dataset/")
    for batch in gear_data.SequenceLoader(ds, batch_size=256, context=20, preset="decision_transformer"):
        ...

Names are loaded lazily: `import gear_data` imports neither torch nor Numba.
"""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any

if sys.platform == "win32":
    raise ImportError(
        "gear-data runs on Linux, and without clusters, GPUs and shared memory on macOS. It does not run on Windows, "
        "which lacks the file locks and memory maps that it needs. Use it in WSL 2 (wsl --install)"
    )

from gear_data.version import VERSION

if TYPE_CHECKING:
    from gear_data import errors
    from gear_data.cluster.placement import Placement
    from gear_data.dataset.cameras.video_frames import VideoFrames
    from gear_data.dataset.dataset import Dataset
    from gear_data.dataset.episode import Episode
    from gear_data.dataset.open import open_dataset as open
    from gear_data.dataset.relative.statistics import relative_statistics
    from gear_data.errors import GearError
    from gear_data.evaluation.episodes import Evaluation, evaluate
    from gear_data.evaluation.normalizer import Normalizer
    from gear_data.evaluation.rollout import Rollout
    from gear_data.examples.files import example
    from gear_data.exports.batches import export_batches
    from gear_data.exports.registry import export
    from gear_data.hub.pull import PullReport, pull
    from gear_data.hub.push import PushReport, push
    from gear_data.ingest.convert import ConvertReport, convert
    from gear_data.ingest.convert_options import ConvertOptions
    from gear_data.ingest.episode_boundaries import EpisodeBoundaries
    from gear_data.ingest.lint import LintReport, lint
    from gear_data.ingest.merge import merge
    from gear_data.ingest.merging.linked_dataset import MergeReport
    from gear_data.ingest.repair import RepairReport, repair
    from gear_data.ingest.saving.save import SaveReport
    from gear_data.ingest.table_options import TableOptions
    from gear_data.ingest.videos.storage_options import VideoStorage
    from gear_data.loaders.arguments.options import (
        BatchOptions,
        ExecutionOptions,
        ReturnOptions,
        VideoOptions,
        WindowOptions,
    )
    from gear_data.loaders.arguments.pack import Pack
    from gear_data.loaders.decoding.augmentation import RandomCrop, RandomShift
    from gear_data.loaders.decoding.pixel_changes import ColorJitter, RandomResizedCrop, RandomRotation
    from gear_data.loaders.frameworks.map_datasets import EpisodeDataset, WindowDataset
    from gear_data.loaders.frameworks.values import nested_batch
    from gear_data.loaders.mixture import Mixture
    from gear_data.loaders.presets.batch_format import BatchFormat
    from gear_data.loaders.presets.seconds import Seconds
    from gear_data.loaders.sequence_loader import SequenceLoader
    from gear_data.loaders.tuning.report import TuneReport
    from gear_data.loaders.tuning.tune import tune
    from gear_data.recording.cameras.camera import Camera
    from gear_data.recording.rate_limit.batches import rate_limited
    from gear_data.recording.rate_limit.limit import RateLimit
    from gear_data.recording.record import record
    from gear_data.recording.writer import Writer
    from gear_data.relative import Relative
    from gear_data.reports.report import DatasetReport, report
    from gear_data.residency.plan import ResidencyPlan
    from gear_data.schema import ColumnSpec, Schema
    from gear_data.selection.goals import Goals
    from gear_data.selection.samplers import Fifo, Sampler, Shuffle, TopK, Uniform, Weighted
    from gear_data.storage.verify import verify

__version__ = VERSION

#: Public name -> (module, name in that module).
_PUBLIC = {
    "BatchFormat": ("gear_data.loaders.presets.batch_format", "BatchFormat"),
    "BatchOptions": ("gear_data.loaders.arguments.options", "BatchOptions"),
    "Camera": ("gear_data.recording.cameras.camera", "Camera"),
    "ColorJitter": ("gear_data.loaders.decoding.pixel_changes", "ColorJitter"),
    "ColumnSpec": ("gear_data.schema", "ColumnSpec"),
    "ConvertOptions": ("gear_data.ingest.convert_options", "ConvertOptions"),
    "ConvertReport": ("gear_data.ingest.convert", "ConvertReport"),
    "Dataset": ("gear_data.dataset.dataset", "Dataset"),
    "DatasetReport": ("gear_data.reports.report", "DatasetReport"),
    "Episode": ("gear_data.dataset.episode", "Episode"),
    "EpisodeBoundaries": ("gear_data.ingest.episode_boundaries", "EpisodeBoundaries"),
    "EpisodeDataset": ("gear_data.loaders.frameworks.map_datasets", "EpisodeDataset"),
    "Evaluation": ("gear_data.evaluation.episodes", "Evaluation"),
    "ExecutionOptions": ("gear_data.loaders.arguments.options", "ExecutionOptions"),
    "Fifo": ("gear_data.selection.samplers", "Fifo"),
    "GearError": ("gear_data.errors", "GearError"),
    "Goals": ("gear_data.selection.goals", "Goals"),
    "LintReport": ("gear_data.ingest.lint", "LintReport"),
    "MergeReport": ("gear_data.ingest.merging.linked_dataset", "MergeReport"),
    "Mixture": ("gear_data.loaders.mixture", "Mixture"),
    "Normalizer": ("gear_data.evaluation.normalizer", "Normalizer"),
    "Pack": ("gear_data.loaders.arguments.pack", "Pack"),
    "Placement": ("gear_data.cluster.placement", "Placement"),
    "PullReport": ("gear_data.hub.pull", "PullReport"),
    "PushReport": ("gear_data.hub.push", "PushReport"),
    "RandomCrop": ("gear_data.loaders.decoding.augmentation", "RandomCrop"),
    "RandomResizedCrop": ("gear_data.loaders.decoding.pixel_changes", "RandomResizedCrop"),
    "RandomRotation": ("gear_data.loaders.decoding.pixel_changes", "RandomRotation"),
    "RandomShift": ("gear_data.loaders.decoding.augmentation", "RandomShift"),
    "RateLimit": ("gear_data.recording.rate_limit.limit", "RateLimit"),
    "Relative": ("gear_data.relative", "Relative"),
    "RepairReport": ("gear_data.ingest.repair", "RepairReport"),
    "ResidencyPlan": ("gear_data.residency.plan", "ResidencyPlan"),
    "ReturnOptions": ("gear_data.loaders.arguments.options", "ReturnOptions"),
    "Rollout": ("gear_data.evaluation.rollout", "Rollout"),
    "Sampler": ("gear_data.selection.samplers", "Sampler"),
    "SaveReport": ("gear_data.ingest.saving.save", "SaveReport"),
    "Schema": ("gear_data.schema", "Schema"),
    "Seconds": ("gear_data.loaders.presets.seconds", "Seconds"),
    "SequenceLoader": ("gear_data.loaders.sequence_loader", "SequenceLoader"),
    "Shuffle": ("gear_data.selection.samplers", "Shuffle"),
    "TableOptions": ("gear_data.ingest.table_options", "TableOptions"),
    "TopK": ("gear_data.selection.samplers", "TopK"),
    "TuneReport": ("gear_data.loaders.tuning.report", "TuneReport"),
    "Uniform": ("gear_data.selection.samplers", "Uniform"),
    "VideoFrames": ("gear_data.dataset.cameras.video_frames", "VideoFrames"),
    "VideoOptions": ("gear_data.loaders.arguments.options", "VideoOptions"),
    "VideoStorage": ("gear_data.ingest.videos.storage_options", "VideoStorage"),
    "Weighted": ("gear_data.selection.samplers", "Weighted"),
    "WindowDataset": ("gear_data.loaders.frameworks.map_datasets", "WindowDataset"),
    "WindowOptions": ("gear_data.loaders.arguments.options", "WindowOptions"),
    "Writer": ("gear_data.recording.writer", "Writer"),
    "convert": ("gear_data.ingest.convert", "convert"),
    "evaluate": ("gear_data.evaluation.episodes", "evaluate"),
    "example": ("gear_data.examples.files", "example"),
    "export": ("gear_data.exports.registry", "export"),
    "export_batches": ("gear_data.exports.batches", "export_batches"),
    "lint": ("gear_data.ingest.lint", "lint"),
    "merge": ("gear_data.ingest.merge", "merge"),
    "nested_batch": ("gear_data.loaders.frameworks.values", "nested_batch"),
    "open": ("gear_data.dataset.open", "open_dataset"),
    "pull": ("gear_data.hub.pull", "pull"),
    "push": ("gear_data.hub.push", "push"),
    "rate_limited": ("gear_data.recording.rate_limit.batches", "rate_limited"),
    "record": ("gear_data.recording.record", "record"),
    "relative_statistics": ("gear_data.dataset.relative.statistics", "relative_statistics"),
    "repair": ("gear_data.ingest.repair", "repair"),
    "report": ("gear_data.reports.report", "report"),
    "tune": ("gear_data.loaders.tuning.tune", "tune"),
    "verify": ("gear_data.storage.verify", "verify"),
}

__all__ = [
    "ColumnSpec",
    "BatchFormat",
    "BatchOptions",
    "Camera",
    "ColorJitter",
    "ConvertOptions",
    "ConvertReport",
    "Dataset",
    "DatasetReport",
    "Episode",
    "EpisodeBoundaries",
    "EpisodeDataset",
    "Evaluation",
    "ExecutionOptions",
    "Fifo",
    "GearError",
    "Goals",
    "LintReport",
    "MergeReport",
    "Mixture",
    "Normalizer",
    "Pack",
    "Placement",
    "PullReport",
    "PushReport",
    "RandomCrop",
    "RandomResizedCrop",
    "RandomRotation",
    "RandomShift",
    "RateLimit",
    "Relative",
    "RepairReport",
    "ResidencyPlan",
    "ReturnOptions",
    "Rollout",
    "Sampler",
    "SaveReport",
    "Schema",
    "Seconds",
    "SequenceLoader",
    "Shuffle",
    "TableOptions",
    "TopK",
    "TuneReport",
    "Uniform",
    "VideoFrames",
    "VideoOptions",
    "VideoStorage",
    "Weighted",
    "WindowDataset",
    "WindowOptions",
    "Writer",
    "convert",
    "errors",
    "evaluate",
    "example",
    "export",
    "export_batches",
    "lint",
    "merge",
    "nested_batch",
    "open",
    "pull",
    "push",
    "rate_limited",
    "record",
    "relative_statistics",
    "repair",
    "report",
    "tune",
    "verify",
]


def __getattr__(name: str) -> Any:
    if name == "errors":
        return importlib.import_module("gear_data.errors")
    if name not in _PUBLIC:
        # With `obj`, Python names the closest attribute.
        message = f"module 'gear_data' has no attribute '{name}'"
        raise AttributeError(message, name=name, obj=sys.modules[__name__])
    module, attribute = _PUBLIC[name]
    value = getattr(importlib.import_module(module), attribute)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
