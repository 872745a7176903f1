"""Checks that need all episodes: repeated episodes, and declared totals."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from gear_data.ingest.findings.log import Finding, FindingLog

#: The code of episodes that repeat an earlier one.
DUPLICATE = "duplicate-episode"
#: Findings that the checks of episodes find again.
FOUND_AGAIN = (
    DUPLICATE, "both-flags", "end-flag-inside", "non-finite", "non-finite-final", "observation-jump",
    "one-step-episode",
)  # fmt: skip


def lasting_findings(findings: Iterable[Mapping[str, Any]], *more: str) -> Iterator[Finding]:
    """Yields the findings of a manifest that reading the dataset does not find again, as it does `more` codes."""
    yield from (Finding(**each) for each in findings if each["code"] not in {*FOUND_AGAIN, *more})


def check_dataset(
    findings: FindingLog,
    metadata: Mapping[str, Any],
    contents: bytes,
    steps: int,
    source_of: Callable[[int], tuple[str, int | None]],
) -> None:
    """Adds findings about the whole dataset.

    The findings are episodes with the same bytes as an earlier episode (`duplicate-episode`), and totals that the
    source declares but does not have (`metadata-disagrees`).

    Args:
        findings: the log to add to.
        metadata: the source's own metadata.
        contents: the content hash of every episode, 16 bytes each, in order.
        steps: the number of steps of all episodes.
        source_of: returns the source file of an episode and its row there (None if unknown), given its index.
    """
    repeated, original = _repeated(contents)
    if len(repeated):
        first = int(repeated[0])
        message = f"episodes hold the same steps as earlier ones, first episode {first} as episode {original}; kept"
        findings.add(Finding(DUPLICATE, message, len(repeated), *source_of(first)))
    known = {(finding.code, finding.column) for finding in findings}
    if any(code == "bad-episode" for code, _ in known):
        return  # the totals differ because bad episodes are left out
    for name, count in (("total_episodes", len(contents) // 16), ("total_steps", steps), ("total_frames", steps)):
        declared = metadata.get(name)
        if isinstance(declared, int) and declared != count and ("metadata-disagrees", name) not in known:
            message = f"the source declares {declared:,} and has {count:,}; all {count:,} are converted"
            findings.add(Finding("metadata-disagrees", message, column=name))


def _repeated(contents: bytes) -> tuple[npt.NDArray[np.int64], int]:
    """Finds repeated episodes.

    Returns:
        The indices of episodes that repeat an earlier one, and the index that the first of them repeats.
    """
    hashes = pa.Array.from_buffers(pa.binary(16), len(contents) // 16, [None, pa.py_buffer(contents)])
    codes = hashes.dictionary_encode().indices.to_numpy()
    # Codes count up in the order of first appearance: a new content has a code larger than all before.
    highest = np.maximum.accumulate(codes) if len(codes) else codes
    repeated = np.flatnonzero(codes[1:] <= highest[:-1]) + 1
    original = int(np.argmax(codes == codes[repeated[0]])) if len(repeated) else -1
    return repeated, original
