"""Facts about a dataset: numbers, flags and short texts. Others are reported."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gear_data.ingest.findings.log import Finding


def dataset_facts(found: Mapping[str, Any], file: str) -> tuple[dict[str, Any], tuple[Finding, ...]]:
    """Returns the facts that a file states, and a finding for each of the others.

    Args:
        found: name -> value; None for a value that is no fact.
        file: the name of the file.
    """
    message = "a fact of the dataset that is not a number, a flag or a short text in UTF-8; left out"
    left_out = (
        Finding("fact-left-out", message, file=file, column=name) for name, value in found.items() if value is None
    )
    return {name: value for name, value in found.items() if value is not None}, tuple(left_out)
