"""The schema that a dataset of recorded episodes gets, known before the first episode."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

import numpy as np
import pyarrow as pa

from gear_data.common.private_folder import scratch_folder
from gear_data.errors import GearError, UnsupportedColumnError
from gear_data.ingest.engine.spec import ConversionSpec
from gear_data.ingest.pipeline.prepare import prepared_blocks, stored_schema
from gear_data.ingest.source import SourceOptions
from gear_data.schema import ColumnSpec, Schema
from gear_data.storage.episode_block import BEGIN, END
from gear_data.storage.journal.frames import framed
from gear_data.storage.journal.record import RecordedEpisode, RecordedVideo, describe_columns, to_batch
from gear_data.storage.journal.writing import END as END_MARK
from gear_data.storage.journal.writing import SUFFIX, describe_cameras, stream_start

_ID = b"0" * 16


@lru_cache(maxsize=16)  # a publication asks for each journal
def recorded_schema(columns: tuple[ColumnSpec, ...], cameras: tuple[ColumnSpec, ...], dataset: str) -> Schema:
    """Returns the schema of a dataset of episodes with these columns.

    It converts a journal of one step, so that its checks are those of a conversion.

    Args:
        columns, cameras: of the episodes.
        dataset: its place, for errors.

    Raises:
        GearError: no dataset can have these columns.
    """
    values = {
        column.name: pa.array([b"" if column.dtype == "binary" else ""], column.arrow_type)
        if column.variable_length
        else np.zeros((1, *column.shape), column.numpy_dtype)
        for column in columns
    }
    videos = {camera.name: RecordedVideo("videos/none", 0, "") for camera in cameras}
    try:
        with scratch_folder() as folder:
            batch, facts = to_batch(RecordedEpisode(values, True, False, videos=videos), columns)
            texts = describe_columns(columns), describe_cameras(cameras), facts
            record = framed(batch, _ID, 0, texts)
            Path(folder, f"columns{SUFFIX}").write_bytes(stream_start(columns, cameras, _ID) + record + END_MARK)
            source, _, _ = ConversionSpec(str(folder), None, "journal", SourceOptions(), keep_encoded=False).open()
            for _ in prepared_blocks(source, BEGIN, END, strict=False):
                pass
            return stored_schema(source)
    except GearError as error:
        error.file, error.row = dataset, None
        error.hint = "give the column another name, or other values"
        raise
    except UnicodeEncodeError as error:
        raise UnsupportedColumnError(
            "a name is not UTF-8", file=dataset, hint="give the column another name"
        ) from error
