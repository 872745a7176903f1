"""Quantile files: quantiles of a column, stored beside the sidecars of a dataset.

    DATASET/sidecars/quantiles/KEY.json

KEY is a hash of everything that the quantiles depend on. Of a dataset that grows, the generation precedes it. The files
may be deleted.
"""

from __future__ import annotations

import json
import logging
from pathlib import Path

import msgspec
import numpy as np

from gear_data.common.regular_files import JSON_BYTES, read_regular
from gear_data.common.signed_text import sign, text_checksum
from gear_data.common.typed_json import parse_json, resolved
from gear_data.errors import GearError, ManifestError
from gear_data.storage.atomic import typed_write_errors
from gear_data.storage.manifest import Manifest
from gear_data.storage.quantiles.exact import Float64Array
from gear_data.storage.writing.file_store import LocalFileStore, put_single_text

#: The folder of quantiles, in the folder of sidecars.
QUANTILES = "quantiles"

_log = logging.getLogger(__name__)


@resolved
class _QuantileRecord(msgspec.Struct, frozen=True):
    """Contents of a file. Null is NaN, of an element without finite values."""

    checksum: str
    quantiles: list[list[float | None]]


def quantiles_file(manifest: Manifest, key: str) -> str:
    """Returns the name of a file of quantiles. Of a dataset that grows, it begins with the generation."""
    return f"{key}.json" if manifest.growth is None else f"{manifest.generation:06d}-{key}.json"


def load_quantiles(path: Path, shape: tuple[int, int]) -> Float64Array | None:
    """Loads quantiles, float64 of a shape.

    Returns None if the file is missing or damaged.
    """
    try:
        text = read_regular(path, JSON_BYTES).decode()
        record = parse_json(text, _QuantileRecord, error=ManifestError, file=str(path))
        if text_checksum(text, record.checksum) != record.checksum:
            return None
        rows = [[np.nan if value is None else value for value in row] for row in record.quantiles]
        values = np.array(rows, np.float64)
    except (OSError, GearError, ValueError):
        return None
    return values if values.shape == shape else None


def save_quantiles(path: Path, quantiles: Float64Array) -> None:
    """Stores quantiles, if the folder can be written."""
    rows = [[value if np.isfinite(value) else None for value in row] for row in quantiles.tolist()]
    try:
        with typed_write_errors(path.parent):
            path.parent.mkdir(parents=True, exist_ok=True)
            text = sign(json.dumps({"checksum": "", "quantiles": rows}))
            put_single_text(LocalFileStore(path.parent), path.name, text)
    except GearError as error:
        _log.info("quantiles will be computed again: %s", error)
