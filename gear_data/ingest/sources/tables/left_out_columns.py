"""Columns of a table that hold no data, and are left out.

They are columns of Arrow type null, and the index that pandas wrote beside the data.
"""

from __future__ import annotations

import re

import pyarrow as pa

from gear_data.ingest.findings.log import Finding, FindingLog
from gear_data.ingest.source import SourceOptions
from gear_data.ingest.sources.tables.to_numpy import leaf_type

#: An index without a name: in Parquet, and in CSV files, also in those that pandas read and wrote again.
_INDEX = re.compile(r"__index_level_\d+__|Unnamed: 0(\.\d+)?")


def leave_out_columns(schema: pa.Schema, file: str, options: SourceOptions, findings: FindingLog) -> list[str]:
    """Returns the names of the columns to read.

    A column that an option names is no index. Unless the user has chosen columns, each column that is left out makes a
    finding.
    """
    chosen = options.columns or ()
    named = {*chosen, *(options.rename or ()), *options.episodes.columns}
    left_out: dict[str, Finding] = {}
    for field in schema:
        if pa.types.is_null(leaf_type(field.type)) and field.name not in chosen:
            message = "the column's type is null, so it holds no values; left out"
            left_out[field.name] = Finding("null-column", message, file=file, column=field.name)
        elif _INDEX.fullmatch(field.name) and pa.types.is_integer(field.type) and field.name not in named:
            message = f"'{field.name}' is the row index that pandas wrote; left out. Name it with --columns to keep it"
            left_out[field.name] = Finding("index-left-out", message, file=file, column=field.name)
    if options.columns is None:
        findings.extend(left_out.values())
    return [name for name in schema.names if name not in left_out]
