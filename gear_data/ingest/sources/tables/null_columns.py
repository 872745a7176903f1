"""Columns of nothing but nulls: the type says that there is no value in them, and nothing about what there could be."""

from __future__ import annotations

import pyarrow as pa

from gear_data.ingest.findings.log import Finding, FindingLog
from gear_data.ingest.source import SourceOptions
from gear_data.ingest.sources.tables.to_numpy import leaf_type


def leave_out_null_columns(schema: pa.Schema, file: str, options: SourceOptions, findings: FindingLog) -> list[str]:
    """The names of the other columns, and of those that were asked for all the same."""
    asked = options.columns or ()
    empty = [field.name for field in schema if pa.types.is_null(leaf_type(field.type)) and field.name not in asked]
    if options.columns is None:
        for name in empty:
            message = "the column's type is null: it holds nothing; left out"
            findings.add(Finding("null-column", message, file=file, column=name))
    return [name for name in schema.names if name not in empty]
