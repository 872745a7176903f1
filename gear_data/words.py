"""The fixed words that arguments of public functions take, each defined once.

Type checkers and editors read the types; `typing.get_args` gives the words to checks and to the command line. The
module imports nothing else, so the command line loads no reader for its help.
"""

from __future__ import annotations

from typing import Literal

#: Formats of sources: `convert(format=...)`.
SourceFormat = Literal[
    "auto",
    "act",
    "calvin",
    "d3rlpy",
    "d4rl",
    "dqn-replay",
    "episode-rows",
    "in-memory",
    "journal",
    "lerobot",
    "minari",
    "minari-arrow",
    "npz",
    "numpy",
    "ogbench",
    "rlds",
    "robomimic",
    "stable-baselines3",
    "step-rows",
    "torchrl",
    "tree",
    "vd4rl",
    "zarr",
]
#: What becomes of video files: `VideoStorage(mode=...)`.
VideoMode = Literal["keep", "link", "frames", "jpeg"]
#: The unit of quantised depth: metres or millimetres: `VideoStorage(depth_unit=...)`.
DepthUnit = Literal["mm", "m"]
#: What becomes of steps that only reset an environment: `EpisodeBoundaries(reset_steps=...)`.
ResetSteps = Literal["drop", "keep"]
#: What becomes of a malformed episode: `convert(on_bad_episode=...)`.
OnBadEpisode = Literal["error", "skip"]
#: Where tasks run: `convert(engine=...)`.
EngineName = Literal["local", "ray"]
#: Formats of exported datasets: `export(format=...)`.
ExportFormat = Literal["parquet", "d4rl", "minari", "lerobot", "npz"]
#: The codecs that LeRobot writes: `export(video_codec=...)`.
ExportCodec = Literal["av1", "h264"]
#: Formats of files of batches: `export_batches(format=...)`.
BatchFileFormat = Literal["safetensors", "npz", "parquet"]
#: When a finished episode outlives a loss of power: `Writer(durability=...)`.
Durability = Literal["episode", "flush", "os"]
#: Codecs of recorded frames: `Camera(codec=...)`.
CameraCodec = Literal["h264", "av1", "mpeg4"]
#: Batch formats: `SequenceLoader(preset=...)`.
PresetName = Literal[
    "raw", "decision_transformer", "corl", "d3rlpy", "jat", "lerobot", "gato", "transitions", "openpi", "octo", "groot"
]
#: The samplers that need no arguments: `SequenceLoader(sampler=...)`.
SamplerName = Literal["uniform", "shuffle", "fifo"]
#: Statistics of the dataset by which columns are normalised: `SequenceLoader(normalize=...)`.
Normalization = Literal["all", "quantiles", "minmax"]
#: By which statistics a mixture's datasets are normalised: `Mixture(statistics=...)`.
StatisticsOf = Literal["dataset", "embodiment"]
#: How passes follow each other: `SequenceLoader(passes=...)`.
Passes = Literal["continue", "repeat"]
#: Frameworks of batches: `SequenceLoader(framework=...)`.
FrameworkName = Literal["torch", "numpy", "jax"]
#: The place of the anchor step in its window: `WindowOptions(anchor=...)`.
Anchor = Literal["start", "end", "random"]
#: Who selects windows: `WindowOptions(selection=...)`.
Selection = Literal["centralized", "decentralized"]
#: The processor that collects batches: `ExecutionOptions(backend=...)`.
Processor = Literal["auto", "cpu", "cuda"]
#: The value at a time without a step: `Seconds(fill=...)`.
Fill = Literal["hold", "interpolate"]
#: What is equally likely, or has a weight: `Uniform(by=...)`.
By = Literal["step", "episode"]
#: The steps of a window that satisfy a condition: `Dataset.filter_steps(mode=...)`.
StepMode = Literal["first", "all"]
#: What a row of a table is: `Dataset.to_polars(rows=...)`.
Rows = Literal["steps", "episodes"]
#: The axis of an image's channels: `RandomShift(channels=...)`.
Channels = Literal["first", "last"]
#: How differences to a column are normalised: `RelativeStatistics.normalization(mode=...)`.
Scaling = Literal["mean-std", "quantiles", "minmax"]
#: What a new column is: `Dataset.with_column(role=...)`.
NewRole = Literal["observation", "action", "reward", "info", "extra"]
#: The memory of a part of a dataset: `ResidencyPlan.bytes(tier)`.
Tier = Literal["device", "pinned", "disk"]
#: Where the bytes of columns are: `open(residency=...)`.
Residency = Literal["mmap", "host", "pinned", "device"]
#: What becomes of a damaged shard: `open(on_bad_shard=...)`.
OnBadShard = Literal["error", "skip"]
#: What started the run whose nodes share a dataset: `open(cluster=...)`.
ClusterName = Literal["torchrun"]
#: How the steps of other nodes are read: `open(transport=...)`.
TransportName = Literal["auto", "verbs", "flight"]
