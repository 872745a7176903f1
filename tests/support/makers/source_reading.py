"""Reads a source as a conversion does, without writing a dataset. Not a test."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from gear_data.ingest.engine.spec import ConversionSpec
from gear_data.ingest.pipeline.prepare import prepared_blocks, stored_schema
from gear_data.ingest.several.parts import plain_source
from gear_data.ingest.source import SourceOptions
from gear_data.schema import Schema
from gear_data.storage.episode_block import BEGIN, END, EpisodeBlock


@dataclass
class SourceReading:
    """The episodes that a conversion would store.

    Attributes:
        format: the format of the source.
        schema: the columns.
        episodes: name of a column -> the values of the steps, for each episode.
        finals: name of a column -> the final observation, for each episode; None if there is none.
        facts: name -> value, for each episode.
        codes: the codes of the findings.
    """

    format: str
    schema: Schema
    episodes: list[dict[str, Any]] = field(default_factory=list)
    finals: list[dict[str, Any] | None] = field(default_factory=list)
    facts: list[dict[str, Any]] = field(default_factory=list)
    codes: set[str] = field(default_factory=set)

    @property
    def lengths(self) -> list[int]:
        return [len(episode["terminated"]) for episode in self.episodes]

    def flag(self, name: str) -> list[bool]:
        """Returns whether an end flag is set at the last step of each episode, and at no other step."""
        assert not any(episode[name][:-1].any() for episode in self.episodes)
        return [bool(episode[name][-1]) for episode in self.episodes]


def read_source(source: Any, **options: Any) -> SourceReading:
    """Reads a source with options of `convert`. Raises its errors."""
    chosen = SourceOptions(**options).with_stacked_parts()
    opened, format, _ = ConversionSpec(plain_source(source), None, "auto", chosen, keep_encoded=False).open()
    reading = SourceReading(format, stored_schema(opened))
    opened.units()
    for block, _ in prepared_blocks(opened, BEGIN, END, strict=False):
        for episode, final, facts in _episodes(block):
            reading.episodes.append(episode)
            reading.finals.append(final)
            reading.facts.append(facts)
    reading.codes = {finding.code for finding in opened.findings}
    return reading


def _episodes(block: EpisodeBlock) -> Iterator[tuple[dict[str, Any], dict[str, Any] | None, dict[str, Any]]]:
    rows = np.cumsum(block.has_final) - 1
    for i, (start, stop) in enumerate(zip(block.offsets[:-1].tolist(), block.offsets[1:].tolist(), strict=True)):
        steps = {name: values[start:stop] for name, values in block.columns.items()}
        episode = {name: each if name in block.arrays else each.to_pylist() for name, each in steps.items()}
        final = {name: values[rows[i]] for name, values in block.finals.items()} if block.has_final[i] else None
        yield episode, final, {name: values[i] for name, values in block.metadata.items()}
