"""Checks that need all episodes of a dataset: repeated episodes, and totals that the source declares."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from gear_data.ingest.findings.log import Finding, FindingLog


def check_dataset(
    findings: FindingLog,
    metadata: Mapping[str, Any],
    contents: Sequence[bytes],
    steps: int,
    place_of: Callable[[int], tuple[str, int]],
) -> None:
    """Adds what shows when all episodes are known: those that hold byte for byte what an earlier one holds
    (`duplicate-episode`), and totals that the source declares and does not have (`metadata-disagrees`).

    Args:
        metadata: what the source says of itself.
        contents: every episode's content hash, 16 bytes, in order.
        steps: of all episodes.
        place_of: the file of an episode and its row there, by its number.
    """
    repeated, original = _repeated(contents)
    if len(repeated):
        first = int(repeated[0])
        message = f"episodes hold the same steps as earlier ones, first episode {first} as episode {original}; kept"
        findings.add(Finding("duplicate-episode", message, len(repeated), *place_of(first)))
    known = {(finding.code, finding.column) for finding in findings}
    if any(code == "bad-episode" for code, _ in known):
        return  # of course fewer are left
    for name, count in (("total_episodes", len(contents)), ("total_steps", steps), ("total_frames", steps)):
        declared = metadata.get(name)
        if isinstance(declared, int) and declared != count and ("metadata-disagrees", name) not in known:
            message = f"the source declares {declared:,}, it has {count:,}; what it has is converted"
            findings.add(Finding("metadata-disagrees", message, column=name))


def _repeated(contents: Sequence[bytes]) -> tuple[npt.NDArray[np.int64], int]:
    """The numbers of the episodes that were there before, and which the first of them repeats."""
    codes = pa.array(contents, pa.binary(16)).dictionary_encode().indices.to_numpy()
    # Codes are given in the order of first appearance: what is new is larger than all before.
    highest = np.maximum.accumulate(codes) if len(codes) else codes
    repeated = np.flatnonzero(codes[1:] <= highest[:-1]) + 1
    original = int(np.argmax(codes == codes[repeated[0]])) if len(repeated) else -1
    return repeated, original
