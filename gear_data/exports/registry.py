"""Export of datasets and views: the public `export`, and the table of formats.

To add a format, write a module with its exporter, and list it in `EXPORTERS`.
"""

from __future__ import annotations

import math
import os
from typing import Any, Never

import numpy as np

from gear_data.common.keywords import refuse_keywords_of
from gear_data.dataset.dataset import Dataset
from gear_data.error_text import shown
from gear_data.errors import InvalidArgumentError, UnsupportedColumnError, unknown_name
from gear_data.exports.d4rl import export_d4rl
from gear_data.exports.destination import FILE_SUFFIXES, export_target
from gear_data.exports.exporter import Exporter, ExportOptions, ExportReport
from gear_data.exports.lerobot.exporter import export_lerobot
from gear_data.exports.lerobot.videos.codecs import check_codec
from gear_data.exports.minari import export_minari
from gear_data.exports.npz import export_npz
from gear_data.exports.parquet import export_parquet
from gear_data.words import ExportCodec, ExportFormat

#: Name -> exporter, as `format=` takes them.
EXPORTERS: dict[ExportFormat, Exporter] = {
    "parquet": export_parquet,
    "d4rl": export_d4rl,
    "minari": export_minari,
    "lerobot": export_lerobot,
    "npz": export_npz,
}


def export(
    dataset: Dataset,
    destination: str | os.PathLike[str],
    format: ExportFormat = "parquet",
    *,
    fps: float | None = None,
    videos: bool = False,
    video_codec: ExportCodec | None = None,
    overwrite: bool = False,
    progress: bool | None = None,
    **unknown: Never,
) -> ExportReport:
    """Writes the episodes of a dataset or view in another format.

    Derived columns (return-to-go) are left out. Converting the result again gives a dataset with an equal fingerprint.
    If the format cannot hold some of the data, the export raises an error and leaves no files.

    Args:
        dataset: dataset or view. Whole episodes are exported.
        destination: a folder that does not exist or is empty. `parquet`, `d4rl` and `npz` also take the name of one
            file that ends in .parquet, .hdf5 or .npz. For `minari` the name must be NAME-vN. Other endings are
            refused, unless the folder exists or a slash ends its name.
        format: `parquet`: a row per episode, as `datasets.load_dataset("parquet", ...)` reads it; `d4rl`: HDF5; `npz`;
            `minari`: as `minari.load_dataset` reads it; `lerobot`: v3.0.
        fps: steps per second, only for `lerobot`. None takes the value of the dataset's source.
        videos: only for `lerobot`: write columns of uint8 frames [H, W, 3] as videos, without their final
            observations. Encoding changes the frames a little. Cameras become videos in any case.
        video_codec: only for `lerobot`: encode all videos as `av1` or `h264`, with LeRobot's settings. None: copy the
            files of cameras whose episodes are all exported, and the packets of other episodes that begin with a key
            frame, in files without B frames. Encode other episodes as `av1`.
        overwrite: replace an export at the destination, once the new one is complete. Files that are no export, and
            folders to which files were added, are refused.
        progress: show a bar; None shows one only on a terminal.

    Raises:
        UnknownArgumentError: there is no argument of a name.
        UnknownNameError: the format or the codec does not exist.
        InvalidArgumentError: `dataset` or `destination` has the wrong type; the view filters steps; `fps`, `videos` or
            `video_codec` is given for another format; `fps` is missing for `lerobot`; the format does not allow this
            destination; the codec does not take frames of this size.
        MissingColumnError: the format needs a column that the dataset lacks.
        UnsupportedColumnError: the format cannot hold a column, a camera, the final observations or the end flags.
        CorruptShardError: a video is damaged.
        MissingExtraError: videos are encoded, and PyAV is not installed.
        DestinationExistsError: the destination is not empty and, with `overwrite`, no export.
        StorageFullError: the disk is full.
        UnwritableError: the system refuses the write.
    """
    refuse_keywords_of(export, unknown)
    if not isinstance(dataset, Dataset):
        raise InvalidArgumentError(
            f"export takes a Dataset, not {shown(dataset)}", hint="open it with gear_data.open(path)"
        )
    if format not in EXPORTERS:
        raise unknown_name("export format", format, EXPORTERS)
    target = export_target(destination, format, FILE_SUFFIXES.get(format, ()))
    if dataset.step_mask is not None:
        raise InvalidArgumentError(
            "the view has a step filter, but export writes whole episodes",
            hint="export ds.all_steps(), or export batches of it (export_batches, --batches)",
        )
    if fps is not None and (format != "lerobot" or not _is_rate(fps)):
        raise InvalidArgumentError(
            f"fps={fps!r} is not allowed for the format {format}",
            hint="give fps only for lerobot, as a positive number",
        )
    _check_videos(dataset, format, videos, video_codec)
    rate = None if fps is None else float(fps)
    return EXPORTERS[format](dataset, target, ExportOptions(progress, rate, videos, video_codec, overwrite))


def _is_rate(value: Any) -> bool:
    return isinstance(value, int | float | np.number) and not isinstance(value, bool) and bool(0 < value < math.inf)


def _check_videos(dataset: Dataset, format: str, videos: bool, codec: str | None) -> None:
    """Checks the arguments about videos, and that the format can hold cameras."""
    if format == "lerobot":
        if codec is not None:
            check_codec(codec)
        return
    if videos or codec is not None:
        raise InvalidArgumentError(
            f"videos={videos!r}, video_codec={codec!r}: the format {format} has no videos",
            hint="leave them out, or export with format='lerobot' (--format lerobot)",
        )
    if dataset.schema.videos:
        cameras = ", ".join(spec.name for spec in dataset.schema.videos)
        raise UnsupportedColumnError(
            f"the format {format} cannot hold video; the cameras are {cameras}",
            column=dataset.schema.videos[0].name,
            hint="export with format='lerobot'; or convert again, without the cameras (--columns) or with their frames "
            "as a column (--videos frames)",
        )
