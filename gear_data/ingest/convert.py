"""convert: from a source to a dataset of GEAR shards."""

from __future__ import annotations

import math
import os
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from gear_data.errors import (
    CorruptSourceError,
    DestinationExistsError,
    EmptySourceError,
    GearError,
    InvalidArgumentError,
    ResumeError,
)
from gear_data.ingest.derive import RETURNS_TO_GO, add_returns_to_go, check_finite, derived_columns
from gear_data.ingest.ends import complete_ends, end_columns
from gear_data.ingest.findings import Finding
from gear_data.ingest.formats import open_source
from gear_data.ingest.location import Location, locate
from gear_data.ingest.source import EpisodeSource, SourceOptions
from gear_data.progress import progress_bar
from gear_data.schema import ColumnSpec, Schema
from gear_data.storage.atomic import exchange
from gear_data.storage.block import END, EpisodeBlock, Position
from gear_data.storage.manifest import MANIFEST_NAME, Manifest
from gear_data.storage.writer import PROGRESS, DatasetWriter

MIN_SHARD_BYTES = 1 << 10


@dataclass(frozen=True)
class ConvertReport:
    """What a conversion did.

    Attributes:
        episodes, steps, shards: how many the dataset has.
        bytes: size of its shards and tables.
        seconds: wall time.
        warnings: the findings, one line each.
        format, reason: the source's format, and why it was taken for that.
        fingerprint: the dataset's.
    """

    episodes: int
    steps: int
    shards: int
    bytes: int
    seconds: float
    warnings: tuple[str, ...]
    format: str
    reason: str
    fingerprint: str

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "warnings": list(self.warnings)}


def convert(
    source: Any,
    destination: str | os.PathLike[str],
    *,
    format: str = "auto",
    split: str | None = None,
    columns: Sequence[str] | None = None,
    rename: Mapping[str, str] | None = None,
    shard_bytes: int = 512 << 20,
    on_bad_episode: Literal["error", "skip"] = "error",
    overwrite: bool = False,
    resume: bool = False,
    progress: bool | None = None,
    strict: bool = False,
) -> ConvertReport:
    """Converts a trajectory dataset into GEAR shards.

    Args:
        source: a path, an fsspec URL (`hf://datasets/...`), a hub id (`user/name`), or a `datasets.Dataset` or
            `IterableDataset`.
        destination: the dataset's folder; must not exist, or be empty.
        format: `auto`, or one of `gear_data.ingest.formats.known_formats()`.
        split: which split of the source, where it has several.
        columns: source or canonical names to keep; None keeps all. End flags are always kept.
        rename: source name -> canonical name, before the usual renaming.
        shard_bytes: size at which a shard is closed, in bytes of column data.
        on_bad_episode: raise at a malformed episode, or leave it out and report it.
        overwrite: replace a gear dataset at the destination, once the new one is whole.
        resume: go on with a half-done conversion of the same source and options, or start where there is none.
        progress: show a bar; None shows one on a terminal.
        strict: refuse NaN and Inf instead of counting them.

    Returns:
        What was done. The same facts are in the dataset's manifest.

    Raises:
        GearError: always one of its kinds, naming file, column and row. Nothing that `open` takes for a dataset is
            left behind; finished shards are, for `resume`.
    """
    _check_arguments(shard_bytes, on_bad_episode, overwrite, resume, columns)
    started = time.perf_counter()
    target = Path(destination)
    if target.is_symlink():
        target = target.resolve()
    folder = _prepare(target, overwrite, resume)
    location = locate(source, split)
    options = SourceOptions(
        columns=None if columns is None else tuple(columns), rename=rename, skip_bad=on_bad_episode == "skip"
    )
    opened, format_name, reason = open_source(location, format, options)
    identity = _identity(location, format_name, options, shard_bytes, strict)
    if resume and (folder / MANIFEST_NAME).exists():
        return _already_done(folder, identity, started)
    if overwrite and folder != target:
        shutil.rmtree(folder, ignore_errors=True)  # what an earlier, failed overwrite left
    schema = Schema(derived_columns(end_columns(opened.columns)))
    writer = DatasetWriter(folder, schema, shard_bytes, identity, resume=resume)
    try:
        provenance = {"format": format_name, "reason": reason, **identity}
        manifest = _run(opened, writer, location, provenance, progress, strict)
    except BaseException as error:
        writer.abandon()
        if folder != target:
            shutil.rmtree(folder, ignore_errors=True)  # the old dataset stays, and the next run is not a resumed one
        elif writer.finished_shards and isinstance(error, GearError):
            kept = f"{writer.finished_shards} finished shards are kept: --resume goes on from them"
            error.hint = f"{error.hint}\n  {kept}" if error.hint else kept
        raise
    if folder != target:
        exchange(folder, target)
        shutil.rmtree(folder, ignore_errors=True)  # now the old one
    return _report(manifest, started)


def _check_arguments(
    shard_bytes: int, on_bad_episode: str, overwrite: bool, resume: bool, columns: Sequence[str] | None
) -> None:
    if shard_bytes < MIN_SHARD_BYTES:
        raise InvalidArgumentError(f"shard_bytes must be at least {MIN_SHARD_BYTES}, not {shard_bytes}")
    if on_bad_episode not in ("error", "skip"):
        raise InvalidArgumentError(f"on_bad_episode is 'error' or 'skip', not {on_bad_episode!r}")
    if overwrite and resume:
        raise InvalidArgumentError("overwrite and resume exclude each other")
    if isinstance(columns, str):
        raise InvalidArgumentError("columns is a list of names, not a string")


def _prepare(target: Path, overwrite: bool, resume: bool) -> Path:
    """The folder to write in: the destination, or one beside it while it still holds what is to be replaced."""
    if not target.exists():
        return target
    if not target.is_dir():
        raise DestinationExistsError("the destination is a file", file=str(target))
    if not any(target.iterdir()):
        return target
    is_ours = (target / MANIFEST_NAME).exists() or (target / PROGRESS).exists()
    if resume and is_ours:
        return target
    if overwrite and is_ours and target.is_mount():
        raise DestinationExistsError(
            "a mount point cannot be replaced in one step", file=str(target), hint="convert into a folder inside it"
        )
    if overwrite and is_ours:
        return target.with_name(f".{target.name}.gear-new")
    if overwrite:
        raise DestinationExistsError(
            "the destination is not a gear dataset; only those are overwritten",
            file=str(target),
            hint="remove it yourself",
        )
    hint = "choose another destination, or --overwrite"
    if not (target / MANIFEST_NAME).exists() and is_ours:
        hint = "it is a half-done conversion: --resume goes on with it, --overwrite starts again"
    raise DestinationExistsError("the destination exists and is not empty", file=str(target), hint=hint)


def _identity(
    location: Location, format_name: str, options: SourceOptions, shard_bytes: int, strict: bool
) -> dict[str, Any]:
    """What must be the same for a resumed conversion, and what the manifest says of the source."""
    return {
        "source": location.name,
        "source_files": [[file.name, file.size, file.stamp] for file in location.files],
        "source_fingerprint": getattr(location.dataset, "_fingerprint", None),
        "options": {
            "format": format_name,
            "columns": None if options.columns is None else list(options.columns),
            "rename": dict(options.rename or {}),
            "shard_bytes": shard_bytes,
            "on_bad_episode": "skip" if options.skip_bad else "error",
            "strict": strict,
        },
    }


def _run(
    source: EpisodeSource,
    writer: DatasetWriter,
    location: Location,
    provenance: Mapping[str, Any],
    progress: bool | None,
    strict: bool,
) -> Manifest:
    point = writer.resume_point
    skip, start = 0, Position(0, 0)
    if point is not None:
        skip, start = point.skip, point.position
        source.findings.restore(list(point.state["findings"]))
        source.notes.update(point.state["notes"])
    has_rewards = any(column.name == "rewards" and column.shape == () for column in source.columns)
    if has_rewards and point is None and any(column.name == RETURNS_TO_GO for column in source.columns):
        message = "the source's own is replaced by that computed from its rewards; --rename keeps it under another name"
        source.findings.add(Finding("replaced-column", message, column=RETURNS_TO_GO))
    unit = "step" if source.rows_are_steps else "episode"
    with progress_bar(source.num_rows, "convert", unit, progress) as bar:
        for block, state in _blocks_with_state(source, start):
            ready = complete_ends(block, source.findings)
            check_finite(ready, source.findings, strict=strict, rows_are_steps=source.rows_are_steps)
            writer.append(add_returns_to_go(ready) if has_rewards else ready, state, skip)
            # A block of the resumed run may be cut shorter than the one that the position came from.
            skip = max(0, skip - len(block))
            bar.update(block.source_rows)
    if writer.num_episodes == 0:
        raise EmptySourceError("the source holds no episode", file=location.name)
    findings = source.findings.to_json()
    metadata = _json_able(dict(source.metadata))
    return writer.finish({"findings": findings, "notes": {}}, {**provenance, "metadata": metadata}, tuple(findings))


def _json_able(value: Any) -> Any:
    """A source's own facts as JSON can hold them: NaN, Inf and what it does not know as text."""
    if isinstance(value, Mapping):
        return {str(key): _json_able(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_json_able(item) for item in value]
    if value is None or isinstance(value, str | int) or (isinstance(value, float) and math.isfinite(value)):
        return value
    return str(value)


def _blocks_with_state(source: EpisodeSource, start: Position) -> Iterator[tuple[EpisodeBlock, dict[str, Any]]]:
    """Blocks, each with the findings as they were before it: what a run resumed at the block must start from."""
    if start == END:
        return
    blocks = source.blocks(start, END)
    while True:
        state = {"findings": source.findings.to_json(), "notes": dict(source.notes)}
        block = next(blocks, None)
        if block is None:
            return
        if not len(block):
            continue
        _check_block(block, source.columns)
        yield block, state


def _check_block(block: EpisodeBlock, columns: tuple[ColumnSpec, ...]) -> None:
    """That a block's arrays are what the schema says: from here on their bytes are written and hashed as they are."""
    steps = int(block.lengths.sum())
    for spec in columns:
        if spec.variable_length:
            array = block.variable[spec.name]
            if array.type != spec.arrow_type or len(array) != steps or array.null_count:
                raise _changed(block, spec, str(array.type))
            continue
        expected = {"columns": steps}
        if spec.has_final:
            expected["finals"] = int(block.has_final.sum())
        for part, count in expected.items():
            values = getattr(block, part)[spec.name]
            if values.dtype != spec.numpy_dtype or values.shape != (count, *spec.shape):
                raise _changed(block, spec, f"{values.dtype} {values.shape[1:]}")


def _changed(block: EpisodeBlock, spec: ColumnSpec, found: str) -> CorruptSourceError:
    return CorruptSourceError(
        f"holds {found} here, and {spec.dtype} {spec.shape} where it began",
        file=block.sources[0],
        column=spec.source or spec.name,
        row=int(block.rows[0]),
        hint="bring the column to one type and shape first",
    )


def _already_done(folder: Path, identity: Mapping[str, Any], started: float) -> ConvertReport:
    manifest = Manifest.load(folder)
    for name, value in identity.items():
        if manifest.provenance.get(name) != value:
            raise ResumeError(
                f"the finished dataset has another {name}", file=str(folder), hint="use --overwrite to convert anew"
            )
    shutil.rmtree(folder / PROGRESS, ignore_errors=True)
    return _report(manifest, started)


def _report(manifest: Manifest, started: float) -> ConvertReport:
    return ConvertReport(
        episodes=manifest.episodes,
        steps=manifest.steps,
        shards=len(manifest.shards),
        bytes=sum(entry.bytes for entry in manifest.files),
        seconds=time.perf_counter() - started,
        warnings=tuple(str(Finding(**finding)) for finding in manifest.findings),
        format=manifest.provenance["format"],
        reason=manifest.provenance["reason"],
        fingerprint=manifest.fingerprint,
    )
