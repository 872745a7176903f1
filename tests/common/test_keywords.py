"""Refused keywords: the closest name, and the new place of a moved argument."""

from __future__ import annotations

from typing import Never

import pytest

from gear_data.common.keywords import refuse_keywords
from gear_data.errors import UnknownArgumentError


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


def test_a_moved_keyword_names_its_new_place() -> None:
    with pytest.raises(UnknownArgumentError) as caught:
        feed(window=3)  # type: ignore[arg-type]
    assert str(caught.value) == "feed has no argument 'window'\n  give windows=WindowOptions(length=...)"
