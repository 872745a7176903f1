"""Columns of Arrow type null, which hold no values and so cannot be read."""

from __future__ import annotations

import pyarrow as pa

from gear_data.ingest.findings.log import Finding, FindingLog
from gear_data.ingest.source import SourceOptions
from gear_data.ingest.sources.tables.to_numpy import leaf_type


def leave_out_null_columns(schema: pa.Schema, file: str, options: SourceOptions, findings: FindingLog) -> list[str]:
    """Returns the names of the columns to read.

    Null columns are left out, unless `options.columns` names them.

    Adds a finding for each column that is left out, if the user has not chosen columns.
    """
    requested = options.columns or ()
    left_out = [
        field.name for field in schema if pa.types.is_null(leaf_type(field.type)) and field.name not in requested
    ]
    if options.columns is None:
        for name in left_out:
            message = "the column's type is null, so it holds no values; left out"
            findings.add(Finding("null-column", message, file=file, column=name))
    return [name for name in schema.names if name not in left_out]
