"""Arrays of steps in memory, such as D4RL's `env.get_dataset()`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from gear_data.errors import BadEpisodeError, UnknownFormatError, UnsupportedColumnError
from gear_data.ingest.findings.log import Finding, FindingLog
from gear_data.ingest.ideas.dataset_facts import dataset_facts
from gear_data.ingest.location import SourceFile
from gear_data.ingest.pipeline.episode_values import flatten
from gear_data.ingest.source import SourceOptions
from gear_data.ingest.sources.arrays.layouts import open_flat
from gear_data.ingest.sources.arrays.numpy_files import StoredArray
from gear_data.ingest.sources.arrays.source import ArraySource
from gear_data.ingest.sources.hdf5.attributes import plain_value

#: The arrays by which D4RL's data is known.
_D4RL = frozenset({"observations", "actions", "rewards", "terminals"})
_D4RL_METADATA = "metadata/"


def open_arrays(values: Mapping[str, Any], name: str, options: SourceOptions) -> ArraySource:
    """Opens arrays of steps in memory, as the same arrays in an `.npz` file.

    D4RL's are read as D4RL's files: a step of both flags is terminal, and `metadata/...` are facts about the source.

    Args:
        values: name -> array [N, ...]; nested mappings become dotted names.
        name: the name of the source, for messages.
        options: the user's options.

    Raises:
        UnknownFormatError: nothing says where episodes end.
        BadEpisodeError: the arrays have different lengths, or are ragged.
        UnsupportedColumnError: an array has a dtype that no column has.
    """
    arrays = {key: _as_array(value, key) for key, value in flatten(values).items() if value is not None}
    findings = FindingLog()
    metadata: dict[str, Any] = {}
    if arrays.keys() >= _D4RL:
        names = [key for key in arrays if key.startswith(_D4RL_METADATA)]
        found = {key.removeprefix(_D4RL_METADATA): plain_value(arrays.pop(key)) for key in names}
        metadata, left_out = dataset_facts(found, name)
        findings.extend(left_out)
        if "timeouts" in arrays:
            arrays["timeouts"] = _without_terminals(arrays, name, findings)
    stored = {
        key: StoredArray(SourceFile("", name, array.nbytes), array.dtype, array.shape, member=key, values=array)
        for key, array in arrays.items()
    }
    size = sum(array.nbytes for array in arrays.values())
    try:
        source = open_flat([(name, size, lambda: stored)], options, seekable=True)
    except UnknownFormatError as error:
        error.hint = f"{error.hint}; if all rows are one episode, put the mapping into a list"
        raise
    source.findings, source.metadata = findings, metadata
    return source


def _as_array(value: Any, key: str) -> npt.NDArray[Any]:
    try:
        array = np.asarray(value)
    except (ValueError, TypeError, RuntimeError) as error:  # ragged lists; tensors that NumPy cannot hold
        raise BadEpisodeError(
            f"cannot be converted to an array: {error}",
            column=key,
            hint="give an array with a row per step, or one mapping per episode in a list",
        ) from error
    if array.dtype.hasobject:
        raise UnsupportedColumnError(
            "is an array of Python objects, and a column holds numbers, booleans or text",
            column=key,
            hint="convert it to one type, or leave it out of the mapping",
        )
    return array


def _without_terminals(arrays: Mapping[str, npt.NDArray[Any]], name: str, findings: FindingLog) -> npt.NDArray[Any]:
    """Returns D4RL's `timeouts` without the steps that are terminal, too."""
    terminals, timeouts = arrays["terminals"].astype(np.bool_), arrays["timeouts"].astype(np.bool_)
    if terminals.shape != timeouts.shape or not (both := terminals & timeouts).any():
        return arrays["timeouts"]
    message = "terminals and timeouts are both set; read as terminated, not truncated"
    findings.add(Finding("both-flags", message, int(both.sum()), name, int(np.argmax(both))))
    return timeouts & ~both
