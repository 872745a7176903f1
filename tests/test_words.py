"""The fixed words of arguments are the names of what the arguments choose."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, get_args, get_type_hints

import pytest

import gear_data
from gear_data import words
from gear_data.exports.batches import BATCH_WRITERS
from gear_data.exports.registry import EXPORTERS
from gear_data.ingest.sources.registry import known_formats
from gear_data.video.encoding.encoder import ENCODERS


def test_words_are_the_names_that_exist() -> None:
    assert {*get_args(words.SourceFormat)} == {"auto", *known_formats()}
    assert {*get_args(words.ExportFormat)} == EXPORTERS.keys()
    assert {*get_args(words.BatchFileFormat)} == BATCH_WRITERS.keys()
    assert {*get_args(words.CameraCodec)} == ENCODERS.keys()


@pytest.mark.parametrize(
    ("function", "argument", "type_"),
    [
        (gear_data.convert, "format", words.SourceFormat),
        (gear_data.convert, "on_bad_episode", words.OnBadEpisode),
        (gear_data.convert, "engine", words.EngineName),
        (gear_data.lint, "format", words.SourceFormat),
        (gear_data.VideoStorage, "mode", words.VideoMode),
        (gear_data.export, "format", words.ExportFormat),
        (gear_data.Writer.__init__, "durability", words.Durability),
        (gear_data.record, "durability", words.Durability),
        (gear_data.Camera, "codec", words.CameraCodec),
        (gear_data.SequenceLoader.from_config, "residency", words.Residency | None),
        (gear_data.ResidencyPlan.bytes, "tier", words.Tier),
    ],
)
def test_an_editor_can_complete_the_words(function: Callable[..., Any], argument: str, type_: object) -> None:
    assert get_type_hints(function)[argument] == type_
