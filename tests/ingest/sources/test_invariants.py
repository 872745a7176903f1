"""Tests that every source format must pass.

`tests/support/source_makers.py` writes a small source of each format.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gear_data
from gear_data.errors import FindingError, GearError, ResumeError, StorageFullError
from gear_data.ingest.engine.spec import ConversionSpec
from gear_data.ingest.source import SourceOptions
from gear_data.ingest.sources.registry import known_formats
from gear_data.storage.writing.shard_writer import ShardWriter
from tests.support.source_makers import MAKERS

_IN_MEMORY = "in-memory"
#: Maker -> format, if they have different names.
_FORMATS = {
    "images": "episode-rows",
    "episode-rows-arrow": "episode-rows",
    "episode-rows-json": "episode-rows",
    "episode-rows-tar": "episode-rows",
    "step-rows-csv": "step-rows",
    "step-rows-tar": "step-rows",
    "step-rows-json": "step-rows",
    "step-rows-lance": "step-rows",
    "step-rows-saved": "step-rows",
    "d4rl-no-timeouts": "d4rl",
    "lerobot-v2.1": "lerobot",
    "lerobot-v3": "lerobot",
    "npz-imitation": "npz",
    "npz-files": "npz",
    "numpy-folders": "numpy",
    "tree-archives": "tree",
    "tree-ends": "tree",
    "tree-zarr": "tree",
    "robomimic-isaac-lab": "robomimic",
    "robomimic-libero": "robomimic",
}
#: Sources in which nothing terminates.
_TRUNCATED = ("ogbench", "robomimic-isaac-lab")
_NEEDS = {"torchrl": "tensordict", "rlds": "tensorflow_datasets", "step-rows-lance": "lance"}
#: Formats of the second tier, as the folder of their other tests is.
_SECOND_TIER = ("rlds",)
#: Small sizes of units and blocks, so that there are many.
_SIZES = {"UNIT_BYTES": 1, "_BLOCK_BYTES": 600, "_BATCH_BYTES": 600, "_CHUNK_BYTES": 600}
_OPTIONS: dict[str, Any] = {"shard_bytes": 1024, "jobs": 1, "progress": False}

CASES = (_IN_MEMORY, *(name for name in MAKERS if name != "gear"))


def _write(name: str, folder: Path, rollouts: Sequence[Any]) -> Any:
    """Writes a source with these rollouts: a folder, or a list."""
    if name == _IN_MEMORY:
        return [dict(rollout.columns) for rollout in rollouts]
    MAKERS[name](folder, rollouts)
    return folder


@dataclass(frozen=True)
class FormatCase:
    """A source, its rollouts, and the dataset and report of its conversion.

    The conversion used small blocks and one task.
    """

    name: str
    source: Any
    rollouts: Sequence[Any]
    dataset: Path
    report: gear_data.ConvertReport

    @property
    def format(self) -> str:
        return _FORMATS.get(self.name, self.name)

    @property
    def findings(self) -> list[dict[str, Any]]:
        return list(gear_data.open(self.dataset).manifest.findings)

    def convert(self, destination: Path, **options: Any) -> gear_data.ConvertReport:
        return gear_data.convert(self.source, destination, **_OPTIONS, **options)


def _shrink(patch: pytest.MonkeyPatch, *names: str) -> None:
    for module_name, module in list(sys.modules.items()):
        for name in names:
            if module_name.startswith("gear_data.ingest.") and hasattr(module, name):
                patch.setattr(module, name, _SIZES[name])


@pytest.fixture(scope="module", autouse=True)
def small_blocks() -> Any:
    known_formats()  # imports them all
    with pytest.MonkeyPatch.context() as patch:
        _shrink(patch, "_BLOCK_BYTES", "_BATCH_BYTES", "_CHUNK_BYTES")
        yield


@pytest.fixture
def small_units(monkeypatch: pytest.MonkeyPatch) -> None:
    _shrink(monkeypatch, "UNIT_BYTES")


_PARAMETERS = [pytest.param(each, marks=[pytest.mark.processes] * (each in _SECOND_TIER)) for each in CASES]


@pytest.fixture(scope="module", params=_PARAMETERS)
def case(request: pytest.FixtureRequest, sources: Any, tmp_path_factory: pytest.TempPathFactory) -> FormatCase:
    name = request.param
    if name in _NEEDS:
        pytest.importorskip(_NEEDS[name])
    folder = tmp_path_factory.mktemp("case")
    rollouts = sources.make_rollouts(10, seed=5, max_length=9)
    if name in _TRUNCATED:
        rollouts = [r.with_columns(truncated=r.ends, terminated=np.zeros(len(r), np.bool_)) for r in rollouts]
    if name == "dqn-replay":  # everything terminates
        rollouts = [r.with_columns(terminated=r.ends, truncated=np.zeros(len(r), np.bool_)) for r in rollouts]
    if name == "step-rows-csv":  # a field is one number, and pandas rounds the last of many digits
        first = [{k: np.round(r.columns[k][:, 0] * 8) / 8 for k in ("observations", "actions")} for r in rollouts]
        rollouts = [
            r.with_columns(**columns, rewards=np.round(r.columns["rewards"] * 8) / 8)
            for r, columns in zip(rollouts, first, strict=True)
        ]
    source = _write(name, folder / "source", rollouts)
    report = gear_data.convert(source, folder / "dataset", **_OPTIONS)
    return FormatCase(name, source, rollouts, folder / "dataset", report)


def test_no_format_is_left_out() -> None:
    assert {_FORMATS.get(name, name) for name in CASES} == known_formats().keys()


def test_every_episode_is_what_was_written(case: FormatCase) -> None:
    ds = gear_data.open(case.dataset)
    copies, rest = divmod(ds.num_episodes, len(case.rollouts))  # some makers write the rollouts to two files
    assert (copies in (1, 2), rest) == (True, 0)
    assert case.report.shards > 1
    shape = case.rollouts[0].columns["observations"].shape[1:]
    states = next(spec.name for spec in ds.schema if spec.name.startswith("observations") and spec.shape == shape)
    for i in range(ds.num_episodes):
        episode, final = ds.episode(i), ds.final(i)
        rollout = case.rollouts[i % len(case.rollouts)]
        if case.name == "rlds":  # the writer of RLDS shuffles
            rollout = next(r for r in case.rollouts if np.array_equal(r.columns["rewards"], episode["rewards"]))
        for name, values in rollout.columns.items():
            np.testing.assert_array_equal(episode[states if name == "observations" else name], values, f"{i} {name}")
        assert (final is not None) == ds.schema[states].has_final
        if final is not None:
            np.testing.assert_array_equal(final[states], rollout.final)


def test_it_is_recognised_and_lint_agrees(case: FormatCase) -> None:
    assert case.report.format == case.format
    report = gear_data.lint(case.source, progress=False)
    assert (report.format, report.episodes, report.steps) == (
        case.format,
        case.report.episodes,
        case.report.steps,
    )
    assert [finding.to_json() for finding in report.findings] == case.findings


@pytest.mark.usefixtures("small_units")
def test_units_are_the_whole(case: FormatCase, sources: Any) -> None:
    spec = ConversionSpec(case.source, None, "auto", SourceOptions(), False, False, 1024)
    assert sources.check_units(lambda: spec.open()[0]) >= 1


@pytest.mark.usefixtures("small_units")
def test_many_tasks_make_what_one_makes_also_stopped_in_a_task(case: FormatCase, sources: Any, tmp_path: Path) -> None:
    report = case.convert(tmp_path / "d")
    assert report.fingerprint == case.report.fingerprint
    findings = gear_data.open(tmp_path / "d").manifest.findings
    assert sorted(map(str, findings)) == sorted(map(str, case.findings))
    assert gear_data.verify(tmp_path / "d").ok
    # The first shard and the last one are stopped at with one task, below.
    _stopped(case, tmp_path / "stopped", report.shards // 2)
    case.convert(tmp_path / "stopped", resume=True)
    assert sources.folder_contents(tmp_path / "stopped") == sources.folder_contents(tmp_path / "d")


def _stop_at(patch: pytest.MonkeyPatch, shard: int) -> None:
    """Makes writing of a shard fail, counted over all tasks."""
    write_shard = ShardWriter._write_shard
    written = 0

    def write(writer: ShardWriter) -> Any:
        nonlocal written
        if written == shard:
            raise StorageFullError("no space left on the device")
        written += 1
        return write_shard(writer)

    patch.setattr(ShardWriter, "_write_shard", write)


def _stopped(case: FormatCase, destination: Path, shard: int, *, resume: bool = False) -> Path:
    with pytest.MonkeyPatch.context() as patch:
        _stop_at(patch, shard)
        with pytest.raises(StorageFullError):
            case.convert(destination, resume=resume)
    return destination


def test_stopped_at_a_shard_it_resumes_to_the_same_bytes(case: FormatCase, sources: Any, tmp_path: Path) -> None:
    middle = case.report.shards // 2
    _stopped(case, tmp_path / "d", 0)
    _stopped(case, tmp_path / "d", middle, resume=True)
    _stopped(case, tmp_path / "d", case.report.shards - 1 - middle, resume=True)
    case.convert(tmp_path / "d", resume=True)
    assert sources.folder_contents(tmp_path / "d") == sources.folder_contents(case.dataset)


def test_another_source_is_not_resumed(case: FormatCase, tmp_path: Path) -> None:
    if case.name == _IN_MEMORY:
        pytest.skip("episodes in memory have no size")
    source = _write(case.name, tmp_path / "source", case.rollouts)
    mine = FormatCase(case.name, source, case.rollouts, case.dataset, case.report)
    path = _stopped(mine, tmp_path / "d", 1)
    largest = _largest(source)
    largest.write_bytes(largest.read_bytes() + b"\0")
    with pytest.raises(GearError) as error:
        mine.convert(path, resume=True)
    # A file that is too long may also be refused as damaged.
    assert isinstance(error.value, ResumeError) or error.value.file
    assert not (path / "manifest.json").exists()


def test_strict_refuses_exactly_what_has_findings(case: FormatCase, sources: Any, tmp_path: Path) -> None:
    def check(source: Any, name: str) -> int:
        found = gear_data.lint(source, progress=False).findings
        if found:
            with pytest.raises(FindingError) as error:
                gear_data.convert(source, tmp_path / name, strict=True, **_OPTIONS)
            assert any(finding.code in str(error.value) for finding in found)
            assert not (tmp_path / name / "manifest.json").exists()
        else:
            gear_data.convert(source, tmp_path / name, strict=True, **_OPTIONS)
        return len(found)

    assert check(case.source, "flawed")  # the first episode has one step
    plain = [rollout for rollout in case.rollouts if len(rollout) > 1]
    check(_write(case.name, tmp_path / "source", plain), "plain")


def _largest(folder: Path) -> Path:
    return max((path for path in folder.rglob("*") if path.is_file()), key=lambda path: path.stat().st_size)


@pytest.mark.parametrize("part", [0.5, 0.95])
def test_a_file_cut_off_is_a_typed_error(part: float, case: FormatCase, tmp_path: Path) -> None:
    if case.name == _IN_MEMORY:
        pytest.skip("episodes in memory have no file")
    source = _write(case.name, tmp_path / "source", case.rollouts)
    largest = _largest(source)
    largest.write_bytes(largest.read_bytes()[: int(part * largest.stat().st_size)])
    if case.name == "journal":  # the process that wrote it died: the episodes before are whole
        report = gear_data.convert(source, tmp_path / "dataset", **_OPTIONS)
        assert report.episodes < len(case.rollouts)
        assert any(warning.startswith(("journal-torn", "journal-damaged")) for warning in report.warnings)
        return
    with pytest.raises(GearError):
        gear_data.convert(source, tmp_path / "d", on_bad_episode="skip", **_OPTIONS)
    assert not (tmp_path / "d" / "manifest.json").exists()
