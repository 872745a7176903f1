"""Advice that works: each error of the list is raised, and its advice is followed literally.

`tests/support/advice/` has the list. A row has a source, the error, and the advice: options of `gear-data convert` that
the hint names, or a change of the source that the hint asks for. To add an error, add a row. An advice without a row is
in `tests/support/advice/not_followed.py`, with the reason.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest

import gear_data
from tests.support.advice.arrays import ARRAYS
from tests.support.advice.files import FILES
from tests.support.advice.found import VALUE, Advices
from tests.support.advice.libraries import LIBRARIES
from tests.support.advice.limits import LIMITS
from tests.support.advice.mappings import MAPPINGS
from tests.support.advice.not_followed import NOT_FOLLOWED
from tests.support.advice.places import PLACES
from tests.support.advice.robots import ROBOTS
from tests.support.advice.rows import Array, lerobot, npz
from tests.support.advice.runs import RUNS
from tests.support.advice.stores import STORES
from tests.support.advice.tables import TABLES
from tests.support.advice.videos import VIDEOS

ROOT = Path(__file__).resolve().parents[2]
ADVICE = {**FILES, **ARRAYS, **PLACES, **TABLES, **MAPPINGS, **ROBOTS, **STORES, **LIBRARIES, **RUNS, **LIMITS}
HINTS: dict[str, str] = {}


@pytest.mark.parametrize("name", ADVICE)
def test_the_advice_works(name: str, tmp_path: Path) -> None:
    HINTS[name] = ADVICE[name].follow(tmp_path)


@pytest.mark.processes
@pytest.mark.parametrize("name", VIDEOS)
def test_the_advice_about_videos_works(name: str, tmp_path: Path) -> None:
    VIDEOS[name].follow(tmp_path)


@pytest.mark.processes
def test_every_advice_is_followed(tmp_path: Path) -> None:
    """Compares the advices in the code with the hints of the list."""
    for i, name in enumerate(ADVICE.keys() - HINTS.keys()):
        (tmp_path / str(i)).mkdir()
        HINTS[name] = ADVICE[name].follow(tmp_path / str(i))
    for i, name in enumerate(VIDEOS):
        (tmp_path / f"video{i}").mkdir()
        _, HINTS[name] = VIDEOS[name].raised(tmp_path / f"video{i}")
    found = Advices(ROOT, "gear_data/ingest").places()
    patterns = {text: re.compile(".*".join(map(re.escape, text.split(VALUE))), re.DOTALL) for text in found}
    left = {text for text, pattern in patterns.items() if not any(map(pattern.search, HINTS.values()))}
    listed = [text for texts in NOT_FOLLOWED.values() for text in texts]
    assert {text: found[text] for text in left - set(listed)} == {}, "write a row that follows the advice"
    assert set(listed) - left == set(), "a row follows it, or the code has it no more: take it out of NOT_FOLLOWED"
    assert len(listed) == len(set(listed))


PRETTY = (
    json.dumps({"task_index": 0, "task": "lift"}, indent=2)
    + "\n"
    + json.dumps({"task_index": 1, "task": "lay"}, indent=2)
)
ARRAY = json.dumps([{"task_index": 0, "task": "lift"}, {"task_index": 1, "task": "lay"}])


@pytest.mark.parametrize("text", [PRETTY, ARRAY, json.dumps(json.loads(ARRAY), indent=1), f"{ARRAY}\n\n"])
def test_hand_written_lists_of_lerobot_are_read(text: str, tmp_path: Path) -> None:
    source = lerobot(tasks_jsonl=text)(tmp_path)
    gear_data.convert(source, tmp_path / "d", progress=False)
    assert gear_data.open(tmp_path / "d").episodes["task"].to_list() == ["lift", "lay", "lift"]


@pytest.mark.parametrize(
    "starts",
    [np.array([0, 5, 9]), np.isin(np.arange(12), [0, 5, 9]), np.isin(np.arange(12), [0, 5, 9]).astype(np.uint8)],
)
def test_first_rows_of_episodes(starts: Array, tmp_path: Path) -> None:
    """Row numbers, or flags per row as in the expert files of Stable-Baselines2."""
    source = npz(obs=np.ones((12, 2)), actions=np.ones((12, 1)), episode_starts=starts, episode_returns=np.arange(3.0))
    gear_data.convert(source(tmp_path), tmp_path / "d", progress=False)
    ds = gear_data.open(tmp_path / "d")
    assert ds.episodes["length"].to_list() == [5, 4, 3]
    assert ds.episodes["episode_returns"].to_list() == [0, 1, 2]
    assert ds.schema.names[:2] == ("observations", "actions")
