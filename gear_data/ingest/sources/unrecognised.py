"""Errors for sources that no format recognises, with hints about what to do."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterable, Mapping

import pyarrow as pa

from gear_data.errors import UnknownFormatError
from gear_data.ingest.location import Location, SourceFile
from gear_data.ingest.pipeline.names import canonical_name
from gear_data.ingest.source import DATA_SUFFIXES, Format
from gear_data.ingest.sources.mixed_files import PICKLES, mixed_files_error
from gear_data.ingest.sources.tables.open import is_dataset, is_unfinished_conversion, open_tables
from gear_data.ingest.sources.tree.containers import containers
from gear_data.ingest.sources.tree.suggest import unclear
from gear_data.ingest.table_files import TAR, table_kinds

#: Words in the usual names of episode columns, and in the usual names of other columns.
_EPISODE_WORDS = ("episode", "traj", "run", "rollout", "demo", "id")
_WORDS = {"observations": ("obs", "state"), "actions": ("act",), "rewards": ("rew",)}

#: Text near the beginning of a pickled replay buffer: the module of its class.
_SB3_MODULE, _HEAD_BYTES = b"stable_baselines3.common.buffers", 4096
#: The user runs these lines; they save the arrays of `save_replay_buffer`'s pickle.
_SB3_SCRIPT = """\
import pickle
import numpy as np
with open({path!r}, "rb") as file:
    buffer = pickle.load(file)
arrays = dict(pos=buffer.pos, full=buffer.full)
for name in ("observations", "next_observations", "actions", "rewards", "dones", "timeouts"):
    value = getattr(buffer, name, None)
    if isinstance(value, dict):
        arrays.update({{f"{{name}}.{{key}}": part for key, part in value.items()}})
    elif value is not None:
        arrays[name] = value
np.savez({archive!r}, **arrays)"""

#: Suffixes -> hint, for sources that hold only files of these kinds.
_ADVICE = {
    (".zip", ".tar", ".tgz", ".gz", ".bz2", ".xz", ".zst", ".7z"): "unpack it first",
    (".mcap", ".bag", ".db3"): (
        "recordings of ROS are not read: their topics have different rates, and only you know which one a step is. "
        "Decode the file (packages mcap-ros2-support, rosbags), resample the topics to one rate, and pass the episodes "
        "to gear_data.convert: [{'observations': ..., 'actions': ...}, ...]. Or convert it to a LeRobot dataset with "
        "the tools of the robot, and give its folder"
    ),
    (".pkl", ".pickle", ".pt", ".pth", ".joblib"): (
        "pickles are never loaded: if you trust the file, load it yourself and pass the episodes to gear_data.convert"
    ),
}


def unrecognised(location: Location, formats: Mapping[str, Format]) -> UnknownFormatError:
    """Returns the error for a source that no format recognises.

    Args:
        location: the source.
        formats: the formats that it may have, by name.
    """
    if is_dataset(location):
        return UnknownFormatError(
            "is already a gear dataset",
            hint="inspect it with 'gear-data inspect', or write it in another format with 'gear-data export'",
        )
    if is_unfinished_conversion(location):
        return UnknownFormatError(
            "is an unfinished conversion, not a source",
            hint=f"resume it: gear-data convert SRC {shlex.quote(location.name)} --resume",
        )
    if location.folder and not location.files:
        return UnknownFormatError(
            "holds no files (hidden files are ignored)",
            hint="give the folder that holds the data; rename files whose names begin with '.'",
        )
    for file in location.with_suffix(*PICKLES):
        if (hint := _stable_baselines3_hint(file)) is not None:
            return UnknownFormatError("is a pickled replay buffer; pickles are never loaded", file=file.name, hint=hint)
    tables = open_tables(location)
    for suffixes, advice in _ADVICE.items() if tables is None else ():
        if (files := location.with_suffix(*suffixes)) and not location.with_suffix(*DATA_SUFFIXES):
            return UnknownFormatError(f"the format is not recognised; it holds {files[0].name}", hint=advice)
    if (mixed := mixed_files_error(formats.values(), location)) is not None:
        return mixed
    if trees := containers(location):
        return unclear(trees, location.name, location.rename)
    hint = f"name the format with --format: {', '.join(formats)}"
    if tables is not None:
        contents = "its columns are " + ", ".join(f"{field.name}: {field.type}" for field in tables.schema)
        hint = (
            "if a row is a step, name the column of episode ids with --episode-column, the column of step numbers with "
            "--step-column, or the column that is true at the last steps with --end-column "
            "(episodes=EpisodeBoundaries(...)), or --file-is-episode, if each file is an episode; give columns their "
            f"usual names (observations, actions, rewards, terminated, truncated) with --rename SOURCE=NAME"
            f"{_example(tables.schema)}; or {hint}"
        )
        if TAR in table_kinds(location.files):
            hint = f"if it is not a WebDataset, unpack it; {hint}"
    else:
        contents = "its files are " + (", ".join(file.name for file in location.files[:10]) or "none")
        if text := [file for files in table_kinds(location.files, requested=True).values() for file in files]:
            hint = (
                f"{text[0].name} may hold the data, or facts about the other files: if it is the data, give that file, "
                f"or the folder with --format step-rows or --format episode-rows; otherwise {hint}"
            )
    return UnknownFormatError(f"the format is not recognised; {contents}", hint=hint)


def _stable_baselines3_hint(file: SourceFile) -> str | None:
    """Returns how to save the arrays of a pickled replay buffer.

    Returns None if the file is not a replay buffer of Stable-Baselines3. Only the first bytes are read, and
    nothing is unpickled.
    """
    with file.open() as stream:
        if _SB3_MODULE not in stream.read(_HEAD_BYTES):
            return None
    archive = f"{os.path.splitext(file.path)[0]}.npz"
    script = _SB3_SCRIPT.format(path=file.path, archive=archive)
    return f"if you trust the file, save its arrays, and convert {os.path.basename(archive)}:\n\n{script}\n"


def _example(schema: pa.Schema) -> str:
    """Returns example options for columns whose names look like usual names.

    Returns an empty text if there is no such column.
    """
    ids = [field.name for field in schema if pa.types.is_integer(field.type) or pa.types.is_string(field.type)]
    flags = [f"--episode-column {shlex.quote(name)}" for name in ids if _has_word(name, _EPISODE_WORDS)][:1]
    known = {canonical_name(name) for name in schema.names}
    for usual, words in _WORDS.items():
        candidates = [name for name in schema.names if _has_word(name, words)]
        if usual not in known and candidates:
            flags.append(f"--rename {shlex.quote(f'{candidates[0]}={usual}')}")
    return f", for example {' '.join(flags)}" if flags else ""


def _has_word(name: str, words: Iterable[str]) -> bool:
    return any(word in name.lower() for word in words)
