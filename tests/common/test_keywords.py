"""Refused keywords: the closest name, and the new place of a moved argument."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable
from typing import Any, Never

import pytest

import gear_data
from gear_data.common.keywords import refuse_keywords, refuse_keywords_of
from gear_data.errors import UnknownArgumentError


def _is_given(kind: object) -> bool:
    """Whether a public name is a dataclass that a user makes, not a result or a part of a dataset."""
    made_here = ("Report", "Evaluation", "Plan", "Schema", "Spec", "Placement", "Episode", "Frames")
    return (
        isinstance(kind, type)
        and dataclasses.is_dataclass(kind)
        and bool(dataclasses.fields(kind))
        and not kind.__name__.endswith(made_here)
    )


def feed(context: int = 1, **unknown: Never) -> int:
    refuse_keywords("feed", unknown, ("context",), {"window": "windows=WindowOptions(length=...)"})
    return context


def test_known_keywords_pass() -> None:
    assert feed(context=3) == 3


def test_an_unknown_keyword_names_the_closest_argument() -> None:
    with pytest.raises(UnknownArgumentError) as caught:
        feed(contxt=3)  # type: ignore[arg-type]
    assert str(caught.value) == "feed has no argument 'contxt'\n  did you mean 'context'? known: context"
    assert isinstance(caught.value, TypeError)


@pytest.mark.parametrize("name", [name for name in gear_data.__all__ if _is_given(getattr(gear_data, name))])
def test_values_that_a_user_makes_name_the_closest_field(name: str) -> None:
    kind = getattr(gear_data, name)
    field = next(iter(inspect.signature(kind).parameters))
    with pytest.raises(UnknownArgumentError) as caught:
        kind(**{f"{field}x": 2})
    assert str(caught.value).startswith(f"{name} has no argument '{field}x'\n  did you mean '{field}'")


def test_a_moved_keyword_names_its_new_place() -> None:
    with pytest.raises(UnknownArgumentError) as caught:
        feed(window=3)  # type: ignore[arg-type]
    assert str(caught.value) == "feed has no argument 'window'\n  give windows=WindowOptions(length=...)"


class Recorder:
    def __init__(self, path: str, *, schema: int = 0, **unknown: Never) -> None:
        refuse_keywords_of(Recorder, unknown)


def test_the_known_names_are_those_of_the_signature() -> None:
    with pytest.raises(UnknownArgumentError) as caught:
        Recorder("x", shema=1)  # type: ignore[arg-type]
    assert str(caught.value) == "Recorder has no argument 'shema'\n  did you mean 'schema'? known: path, schema"


@pytest.mark.parametrize(
    ("function", "positional", "wrong", "meant"),
    [
        (gear_data.convert, 2, "overwrit", "overwrite"),
        (gear_data.lint, 1, "colums", "columns"),
        (gear_data.merge, 2, "resum", "resume"),
        (gear_data.repair, 2, "progres", "progress"),
        (gear_data.verify, 1, "deeper", "deep"),
        (gear_data.export, 2, "video_codecs", "video_codec"),
        (gear_data.export_batches, 2, "batch", "batches"),
        (gear_data.push, 2, "privat", "private"),
        (gear_data.pull, 2, "revison", "revision"),
        (gear_data.record, 2, "camera", "cameras"),
        (gear_data.Writer, 1, "durabilty", "durability"),
        (gear_data.report, 1, "frame", "frames"),
        (gear_data.evaluate, 2, "episode", "episodes"),
        (gear_data.relative_statistics, 4, "enginee", "engine"),
        (gear_data.rate_limited, 3, "sorce", "source"),
        (gear_data.Dataset.filter_steps, 2, "mod", "mode"),
        (gear_data.Dataset.split, 2, "stratifiy", "stratify"),
        (gear_data.Dataset.quantiles, 2, "probability", "probabilities"),
        (gear_data.SequenceLoader.update_weights, 3, "step", "steps"),
        (gear_data.Rollout, 1, "targets", "target"),
        (gear_data.Rollout.from_spec, 1, "targets", "target"),
        (gear_data.Normalizer.denormalize, 3, "relative", "relative_to"),
        (gear_data.EpisodeDataset, 1, "colums", "columns"),
        (gear_data.Dataset.to_torch_dataset, 1, "colums", "columns"),
        (gear_data.Writer.discard, 1, "envid", "env_id"),
        (gear_data.Writer.end_episode, 1, "terminatd", "terminated"),
    ],
)
def test_public_functions_suggest_an_argument(
    function: Callable[..., Any], positional: int, wrong: str, meant: str
) -> None:
    more = {"batches": 1} if function is gear_data.export_batches else {}
    with pytest.raises(UnknownArgumentError, match=f"has no argument '{wrong}'\n  did you mean '{meant}'\\?"):
        function(*[None] * positional, **more, **{wrong: 1})


@pytest.mark.parametrize("function", [gear_data.convert, gear_data.lint])
@pytest.mark.parametrize(
    ("moved", "hint"),
    [
        ("episode_column", "give episodes=gear_data.EpisodeBoundaries(episode_column=...)"),
        ("step_column", "give episodes=gear_data.EpisodeBoundaries(step_column=...)"),
        ("end_column", "give episodes=gear_data.EpisodeBoundaries(end_column=...)"),
        ("max_episode_steps", "give episodes=gear_data.EpisodeBoundaries(max_episode_steps=...)"),
        ("depth_unit", "give videos=gear_data.VideoStorage(depth_unit=...)"),
        ("fill_null", "give tables=gear_data.TableOptions(fill_null=...)"),
        ("video_columns", "give videos=gear_data.VideoStorage(cameras=...)"),
        ("video_size", "give videos=gear_data.VideoStorage(mode=..., size=...)"),
    ],
)
def test_moved_arguments_name_their_group(function: Callable[..., Any], moved: str, hint: str) -> None:
    with pytest.raises(UnknownArgumentError) as caught:
        function(*["source", "destination"][: 2 if function is gear_data.convert else 1], **{moved: "x"})
    assert caught.value.hint == hint
