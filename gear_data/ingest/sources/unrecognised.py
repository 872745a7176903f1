"""What to say of a source that no format recognises: what it is instead, or what was seen and what would help."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterable

import pyarrow as pa

from gear_data.errors import UnknownFormatError
from gear_data.ingest.location import Location
from gear_data.ingest.pipeline.names import canonical_name
from gear_data.ingest.source import DATA_SUFFIXES
from gear_data.ingest.sources.tables.open_tables import open_tables
from gear_data.storage.manifest import MANIFEST_NAME
from gear_data.storage.writing.progress_files import PROGRESS

#: What names of columns have in them, as a rule, that tell episodes apart; and those of the usual columns.
_EPISODE_WORDS = ("episode", "traj", "run", "rollout", "demo", "id")
_WORDS = {"observations": ("obs", "state"), "actions": ("act",), "rewards": ("rew",)}

#: What to do with files of other kinds, where there are no others.
_ADVICE = {
    (".zip", ".tar", ".tgz", ".gz", ".bz2", ".xz", ".zst", ".7z"): "unpack it first",
    (".pkl", ".pickle", ".pt", ".pth", ".joblib"): (
        "pickles are never loaded: load it yourself, where you trust it, and give gear_data.convert the episodes"
    ),
    (".csv", ".tsv", ".jsonl"): "write it as Parquet first, or give gear_data.convert a datasets.Dataset of it",
}


def unrecognised(location: Location, formats: Iterable[str]) -> UnknownFormatError:
    """The error for a source that none of these formats recognises."""
    if location.file(MANIFEST_NAME) and location.file("episodes.arrow"):
        return UnknownFormatError(
            "is a gear dataset already",
            file=location.name,
            hint="look at it with 'gear-data inspect', write it in another format with 'gear-data export'",
        )
    if os.path.isdir(os.path.join(location.name, PROGRESS)):
        return UnknownFormatError(
            "is a half-done conversion, not a source",
            file=location.name,
            hint=f"go on with it: gear-data convert SRC {shlex.quote(location.name)} --resume",
        )
    if location.folder and not location.files:
        return UnknownFormatError("holds no files (hidden ones are passed over)", file=location.name)
    for suffixes, advice in _ADVICE.items():
        if (found := location.with_suffix(*suffixes)) and not location.with_suffix(*DATA_SUFFIXES):
            return UnknownFormatError(
                f"the format is not recognised; it has {found[0].name}", file=location.name, hint=advice
            )
    tables = open_tables(location)
    hint = f"name the format with --format: {', '.join(formats)}"
    if tables is not None:
        seen = "its columns are " + ", ".join(f"{field.name}: {field.type}" for field in tables.schema)
        hint = (
            "where a row is a step, say which column tells episodes apart with --episode-column, which numbers their "
            "steps with --step-column, or which is true at their ends with --end-column; give columns their usual "
            f"names (observations, actions, rewards, terminated, truncated) with --rename SOURCE=NAME"
            f"{_example(tables.schema)}; or {hint}"
        )
    else:
        seen = "its files are " + (", ".join(file.name for file in location.files[:10]) or "none")
    return UnknownFormatError(f"the format is not recognised; {seen}", file=location.name, hint=hint)


def _example(schema: pa.Schema) -> str:
    """The options with names of columns that may be meant; nothing where none looks like it."""
    ids = [field.name for field in schema if pa.types.is_integer(field.type) or pa.types.is_string(field.type)]
    flags = [f"--episode-column {shlex.quote(name)}" for name in ids if _has_word(name, _EPISODE_WORDS)][:1]
    known = {canonical_name(name) for name in schema.names}
    for usual, words in _WORDS.items():
        likely = [name for name in schema.names if _has_word(name, words)]
        if usual not in known and likely:
            flags.append(f"--rename {shlex.quote(f'{likely[0]}={usual}')}")
    return f", perhaps {' '.join(flags)}" if flags else ""


def _has_word(name: str, words: Iterable[str]) -> bool:
    return any(word in name.lower() for word in words)
