"""Writes samples of WebDataset. Not a test."""

from __future__ import annotations

import io
import json
import os
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np


def write_samples(path: Path, samples: Sequence[dict[str, Any]]) -> Path:
    """Writes a tar file of numbered samples.

    A sample is suffix -> value: bytes, an array if the suffix ends in npy, otherwise JSON. The zeros at the end are as
    few as the format allows.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w") as archive:
        for i, sample in enumerate(samples):
            for suffix, value in sample.items():
                sink = io.BytesIO()
                if suffix.endswith("npy"):
                    np.save(sink, value)
                else:
                    sink.write(value if isinstance(value, bytes) else json.dumps(value).encode())
                member = tarfile.TarInfo(f"{i:06d}.{suffix}")
                member.size = sink.tell()
                archive.addfile(member, io.BytesIO(sink.getvalue()))
        end = archive.offset + 2 * tarfile.BLOCKSIZE
    os.truncate(path, end)
    return path
