"""Tests two conversions to one URL, where no lock ends with its holder.

The second conversion runs inside a step of the first. An edited claim stands for a holder on another machine.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import gear_data
from gear_data.errors import DestinationExistsError, ResumeError
from gear_data.ingest import convert as convert_module
from gear_data.ingest import destination as destination_module
from gear_data.storage.remote.object_store import ObjectStore
from gear_data.storage.writing.progress_files import LOCK

_KINDS = pytest.mark.parametrize("kind", ["memory", "s3"])


@pytest.fixture
def url(kind: str, request: pytest.FixtureRequest) -> str:
    return str(request.getfixturevalue(f"{kind}_url"))


@pytest.fixture
def two(sources: Any, tmp_path: Path) -> list[Path]:
    """Returns two sources."""
    return [
        sources.write_episodes(tmp_path / f"{seed}.parquet", sources.make_rollouts(12, seed=seed)) for seed in (1, 2)
    ]


@pytest.fixture
def during(monkeypatch: pytest.MonkeyPatch) -> Callable[[Any, str, Callable[[], None]], None]:
    """Makes the next call of a function run another function first."""

    def install(module: Any, name: str, other: Callable[[], None]) -> None:
        original = getattr(module, name)

        def both(*arguments: Any, **options: Any) -> Any:
            monkeypatch.setattr(module, name, original)
            other()
            return original(*arguments, **options)

        monkeypatch.setattr(module, name, both)

    return install


def _is_whole(url: str, source: Path, tmp_path: Path) -> None:
    expected = gear_data.convert(source, tmp_path / "expected")
    assert gear_data.open(url).manifest.fingerprint == expected.fingerprint
    assert gear_data.verify(url).ok
    assert not [file for file in ObjectStore(url).files() if file.startswith(".progress")]


@_KINDS
def test_a_conversion_before_the_claim_of_another(url: str, two: list[Path], during: Any, tmp_path: Path) -> None:
    during(convert_module, "locked_target", lambda: gear_data.convert(two[1], url))
    with pytest.raises(DestinationExistsError):
        gear_data.convert(two[0], url)
    _is_whole(url, two[1], tmp_path)


@_KINDS
@pytest.mark.parametrize("place", [(destination_module, "choose_target"), (convert_module, "dataset_card")])
def test_a_second_conversion_is_refused(url: str, place: Any, two: list[Path], during: Any, tmp_path: Path) -> None:
    def second() -> None:
        with pytest.raises(DestinationExistsError) as error:
            gear_data.convert(two[1], url)
        assert place[1] != "choose_target" or f"process {os.getpid()} on {os.uname().nodename}" in str(error.value)

    during(*place, second)
    gear_data.convert(two[0], url)
    _is_whole(url, two[0], tmp_path)


@_KINDS
def test_one_of_two_claims_at_the_same_moment_wins(
    url: str, kind: str, two: list[Path], during: Any, tmp_path: Path
) -> None:
    """Both found no claim. The store lets only one of them create it."""
    during(ObjectStore, "create", lambda: gear_data.convert(two[1], f"{url}/"))
    with pytest.raises(DestinationExistsError):
        gear_data.convert(two[0], url)
    _is_whole(url, two[1], tmp_path)


@pytest.mark.parametrize("kind", ["memory"])
def test_the_claim_of_a_killed_process(url: str, two: list[Path], tmp_path: Path) -> None:
    ended = subprocess.Popen(["true"])
    ended.wait()
    claim = {"pid": ended.pid, "host": os.uname().nodename, "since": "yesterday"}
    store = ObjectStore(url)
    store.create(LOCK, json.dumps(claim))
    gear_data.convert(two[0], url)
    _is_whole(url, two[0], tmp_path)


@pytest.mark.parametrize("kind", ["memory"])
def test_the_claim_of_a_killed_process_with_the_number_of_this_one(url: str, two: list[Path], tmp_path: Path) -> None:
    """As in a container that was restarted. It waited for itself."""
    claim = {"pid": os.getpid(), "host": os.uname().nodename, "since": "yesterday", "token": "of the killed one"}
    ObjectStore(url).create(LOCK, json.dumps(claim))
    with pytest.raises(DestinationExistsError, match=r"resume=True\) takes its place"):
        gear_data.convert(two[0], url)
    gear_data.convert(two[0], url, resume=True)
    _is_whole(url, two[0], tmp_path)


@pytest.mark.parametrize("kind", ["memory"])
def test_the_claim_of_another_machine(url: str, two: list[Path], tmp_path: Path) -> None:
    store = ObjectStore(url)
    store.create(LOCK, json.dumps({"pid": 1, "host": "elsewhere", "since": "yesterday"}))
    with pytest.raises(
        DestinationExistsError, match=r"process 1 on elsewhere since yesterday(.|\n)*--resume \(resume=True\) takes"
    ):
        gear_data.convert(two[0], url)
    gear_data.convert(two[0], url, resume=True)
    _is_whole(url, two[0], tmp_path)


@pytest.mark.parametrize("kind", ["memory"])
def test_a_conversion_whose_claim_was_taken_over(url: str, two: list[Path], during: Any, tmp_path: Path) -> None:
    store = ObjectStore(url)

    def second() -> None:
        claim = {**json.loads(store.read(LOCK)), "host": "elsewhere"}
        store.remove(LOCK)
        store.create(LOCK, json.dumps(claim))
        with pytest.raises(ResumeError):
            gear_data.convert(two[1], url, resume=True)
        gear_data.convert(two[0], url, resume=True)

    during(convert_module, "dataset_card", second)
    with pytest.raises(DestinationExistsError, match="took over"):
        gear_data.convert(two[0], url)
    _is_whole(url, two[0], tmp_path)
