"""Facts of a dataset: counts, columns, cameras, ranges, fingerprint, source and findings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from gear_data.dataset.dataset import Dataset
from gear_data.schema import ColumnSpec


def summarize(dataset: Dataset, *, folders: bool = True) -> dict[str, Any]:
    """Returns counts, columns, cameras, ranges, fingerprint and source, JSON-able.

    `return` is the range of the finite returns; null if there are none. `bytes` counts no video files.

    Args:
        dataset: the dataset or view.
        folders: name local sources with their folders.
    """
    manifest = dataset.manifest if folders else dataset.manifest.without_folders()
    return {
        "episodes": dataset.num_episodes,
        "steps": dataset.num_steps,
        "columns": {spec.name: _column(spec) for spec in dataset.schema},
        "cameras": {spec.name: _camera(dataset, spec) for spec in dataset.schema.videos},
        "return": _range(finite_returns(dataset)),
        "length": _range(dataset.lengths.astype(np.float64)),
        "fingerprint": dataset.fingerprint,
        "source": manifest.provenance.get("source"),
        "format": manifest.provenance.get("format"),
        "generation": dataset.generation,
        "shards": len(dataset.manifest.shards),
        "bytes": sum(entry.bytes for entry in dataset.manifest.files),
        "findings": [dict(finding) for finding in manifest.findings],
    }


def _column(spec: ColumnSpec) -> dict[str, Any]:
    names = {"element_names": list(spec.element_names)} if spec.element_names else {}
    return {"dtype": spec.dtype, "shape": list(spec.shape), **names}


def finite_returns(dataset: Dataset) -> npt.NDArray[np.float64]:
    """Returns the finite returns of the episodes, float64 [k]."""
    returns: npt.NDArray[np.float64] = dataset.episode_table.column("return").to_numpy()
    return returns[np.isfinite(returns)]


def _camera(dataset: Dataset, spec: ColumnSpec) -> dict[str, Any]:
    """Returns frame size, frames per second, codecs, and the files of the episodes."""
    videos = dataset.store.videos
    files = videos.segments[spec.name].file
    numbers = np.unique(files if dataset.view.rows is None else files[dataset.view.rows])
    found = videos.index.files.take(numbers)
    sample = None if dataset.view.rows is not None else dataset.statistics.get(spec.name)
    return {
        "shape": list(spec.shape),
        "fps": None if spec.video is None else spec.video.fps,
        "codecs": sorted(set(found.column("codec").to_pylist())),
        "frames": dataset.num_steps,
        "files": len(found),
        "bytes": int(found.column("bytes").to_numpy().sum()),
        "statistics": None if sample is None else sample.to_json(),
    }


def _range(values: npt.NDArray[np.float64]) -> dict[str, float] | None:
    if not len(values):
        return None
    # A sum of large float64 would be infinite.
    mean = float(values.mean(dtype=np.longdouble))
    return {"min": float(values.min()), "mean": mean, "max": float(values.max())}


def provenance(dataset: Dataset) -> dict[str, Any]:
    """Returns the facts of the source that are short enough to read, name -> text or number.

    Local sources are named without their folders. Options stand under `options.NAME`, and the source's own metadata
    under `metadata.NAME`.
    """
    found: dict[str, Any] = {}
    for name, value in dataset.manifest.without_folders().provenance.items():
        if name in ("options", "metadata") and isinstance(value, Mapping):
            found |= {f"{name}.{key}": _readable(each) for key, each in value.items()}
        elif name not in ("tasks", "source_files", "videos"):
            found[name] = _readable(value)
    return {name: value for name, value in found.items() if value not in (None, "", "[]", "{}")}


def _readable(value: Any) -> str | int | float | None:
    """Returns a value as it is, or as text of at most 300 characters."""
    if value is None or (isinstance(value, int | float) and not isinstance(value, bool) and np.isfinite(value)):
        return value
    text = str(value)
    return text if len(text) <= 300 else text[:299] + "…"
