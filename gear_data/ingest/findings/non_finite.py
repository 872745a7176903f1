"""The check for NaN and Inf in episodes."""

from __future__ import annotations

import numpy as np

from gear_data.errors import NonFiniteError
from gear_data.ingest.findings.log import Finding, FindingLog, place_of
from gear_data.ingest.pipeline.derived_columns import RETURNS_TO_GO
from gear_data.storage.episode_block import EpisodeBlock

_STRICT_HINT = "repair the source, or convert without --strict to keep such values"


def check_finite(block: EpisodeBlock, findings: FindingLog, *, strict: bool, rows_are_steps: bool) -> None:
    """Counts NaN and Inf in float columns and final observations. The values are kept.

    Raises:
        NonFiniteError: there is such a value, and `strict` is set.
    """
    for name, values in block.columns.items():
        if values.dtype.kind != "f" or name == RETURNS_TO_GO:
            continue
        finite = np.isfinite(values)
        if finite.all():
            continue
        steps = np.flatnonzero(~finite.reshape(len(values), -1).all(axis=1))
        episode, step = block.locate(steps[0])
        file, row = place_of(block, episode, step * rows_are_steps)
        first_place = "" if rows_are_steps else f", first at step {step} of its episode"
        if strict:
            raise NonFiniteError(f"holds NaN or Inf{first_place}", file=file, column=name, row=row, hint=_STRICT_HINT)
        message = f"NaN or Inf{first_place}; kept"
        findings.add(Finding("non-finite", message, int((~finite).sum()), file, row, name))
    for name, values in block.finals.items():
        if values.dtype.kind == "f" and not np.isfinite(values).all():
            bad = np.flatnonzero(~np.isfinite(values).reshape(len(values), -1).all(axis=1))
            file, row = place_of(block, np.flatnonzero(block.has_final)[bad[0]])
            if strict:
                raise NonFiniteError(
                    "a final observation holds NaN or Inf", file=file, column=name, row=row, hint=_STRICT_HINT
                )
            message = "NaN or Inf in final observations; kept"
            findings.add(Finding("non-finite-final", message, len(bad), file, row, name))
