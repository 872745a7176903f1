"""Blocks of episodes that were read from HDF5 files, and the facts in attributes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from gear_data.ingest.findings.log import Finding, FindingLog
from gear_data.ingest.sources.hdf5.episode_reader import GroupEpisode
from gear_data.schema import ColumnSpec
from gear_data.storage.episode_block import EpisodeBlock, Position


def block_of(
    episodes: Sequence[GroupEpisode],
    facts: Sequence[Mapping[str, Any]],
    files: Sequence[str],
    columns: Sequence[ColumnSpec],
    position: Position,
    rows_read: int,
) -> EpisodeBlock:
    """Joins episodes to one block.

    Args:
        episodes: the episodes.
        facts: the facts of each episode.
        files: the name of each episode's file.
        columns: the columns of the source.
        position: where the block starts in the source.
        rows_read: the number of episodes of the source in the block, with the ones that were left out.
    """
    fixed = [spec for spec in columns if not spec.variable_length]
    variable = [spec for spec in columns if spec.variable_length]
    fact_names = dict.fromkeys(key for fact in facts for key in fact)
    return EpisodeBlock(
        position=position,
        lengths=np.array([episode.steps for episode in episodes], np.int64),
        columns={spec.name: _concatenate([episode.columns[spec.name] for episode in episodes]) for spec in fixed},
        sources=list(files),
        rows=np.array([episode.number for episode in episodes], np.int64),
        has_final=np.full(len(episodes), any(spec.has_final for spec in columns)),
        finals={
            spec.name: _concatenate([episode.finals[spec.name] for episode in episodes])
            for spec in fixed
            if spec.has_final
        },
        metadata={key: [fact.get(key) for fact in facts] for key in fact_names},
        variable={
            spec.name: pa.concat_arrays([episode.variable[spec.name] for episode in episodes]) for spec in variable
        },
        variable_finals={
            spec.name: pa.concat_arrays([episode.variable_finals[spec.name] for episode in episodes])
            for spec in variable
            if spec.has_final
        },
        source_rows=rows_read,
    )


def typed_facts(
    found: Mapping[str, Any],
    unreadable: Sequence[str],
    types: Mapping[str, type],
    name: str,
    number: int,
    findings: FindingLog,
) -> dict[str, Any]:
    """Returns the facts of an episode, of the types of the first episode's facts.

    Facts that the episode lacks are None.

    Args:
        found: name of an attribute -> its value.
        unreadable: names of attributes that are not a number, a flag or a short text.
        types: name -> type in the first episode.
        name: the name of the file, for findings.
        number: the number of the episode, for findings.
        findings: receives a finding for each attribute that is left out.
    """
    facts: dict[str, Any] = {_fact_name(key): None for key in types}
    left_out = list(unreadable)
    for key, value in found.items():
        expected = types.get(key)
        if expected is float and type(value) is int:
            value = float(value)
        if type(value) is expected:
            facts[_fact_name(key)] = value
        else:
            left_out.append(key)
    for key in left_out:
        message = (
            "an attribute that is not a number or a short text, or that the first episodes lack or have with another "
            "type; left out"
        )
        findings.add(Finding("fact-left-out", message, 1, name, number, key))
    return facts


def _concatenate(arrays: list[Any]) -> Any:
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)


def _fact_name(attribute: str) -> str:
    return attribute.replace("/", ".")
