"""benchmarks/writer.py runs with all its options, and its steps, rates and targets are what they say."""

from __future__ import annotations

import argparse
import itertools
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from recording import contenders, report

from tests.support.benchmarks.commands import BENCHMARKS
from tests.support.benchmarks.results import Result, rows_of

#: Contenders that the tests have: this interpreter has TorchRL, Flashbax and Minari.
RAN = {each.name for each in contenders.RECORDERS if each.contender.environment not in ("reverb", "lerobot")}


@pytest.fixture
def harness(monkeypatch: pytest.MonkeyPatch) -> Any:
    """peers/writer_harness.py, as the contenders import it."""
    monkeypatch.syspath_prepend(str(BENCHMARKS / "peers"))
    before = set(sys.modules)
    import writer_harness

    yield writer_harness
    for name in {"harness", "writer_harness", "gear_writer"} & set(sys.modules) - before:
        del sys.modules[name]


@pytest.mark.nightly
def test_recorders_are_raced(run: Any) -> None:
    result: Result = run("recorders")
    assert result.status == 0, result.errors
    assert [each["shape"] for each in result.record["insertion"]] == ["hopper", "frames"]
    for found in result.record["insertion"]:
        rows = {row["name"]: row for row in found["contenders"]}
        assert {name for name, row in rows.items() if "failure" not in row} == RAN, rows
        # The tests have no network.
        assert "not installable" in rows["lerobot"]["failure"]
        for name in RAN:
            (measured,) = rows[name]["rounds"]
            for each in measured.values():
                assert each["steps"] > 0 and each["seconds"] > 0 and each["finish_seconds"] > 0
                assert each["finished_steps"] > each["steps"]
                assert each["median_us"] <= each["p99_us"] <= each["max_us"]
            assert measured["batches"]["steps"] % 4 == 0
        assert rows["gear-episode"]["power_fails"] == "all that ended"
    sampled = {row["name"]: row for row in result.record["sampling"]}
    assert {name for name, row in sampled.items() if "failure" not in row} == {
        "gear-os", "gear-journal", "gear-thread", "gear-inline", "torchrl", "flashbax",
    }  # fmt: skip
    for row in sampled.values():
        for measured in row["rounds"]:
            # TorchRL draws the steps of the windows one by one.
            shape = [5120, 11] if row["name"] == "torchrl" else [256, 20, 11]
            assert measured["beside"]["delivers"]["observations"][0] == shape
            assert measured["alone"]["batches_per_s"] > 0
            assert 0 < measured["writer"]["steps_per_s"] < 20_000
    targets = {each["what"]: each for each in result.record["targets"]}
    assert len(targets) == len(result.record["targets"]) == 9
    assert [each["value"] for each in targets.values() if "Reverb" in each["what"]] == [None] * 6
    assert sum(each.get("least") is not None or each.get("most") is not None for each in targets.values()) == 4
    assert len(rows_of(result.printed, "contender")) == len(contenders.RECORDERS)
    assert "us a step" in result.printed and "not measured" in result.printed


def test_some_recorders_are_raced(run: Any) -> None:
    result: Result = run("some recorders")
    assert result.status == 0, result.errors
    rows = {row["name"]: row for row in result.record["insertion"][0]["contenders"]}
    assert rows.keys() == {"gear-os", "gear-episode", "lerobot"}
    assert rows["lerobot"]["failure"] == "not installed (run with --install)"
    assert len(rows["gear-os"]["rounds"]) == 2
    assert result.record["settings"] == {
        "seconds": 0.02, "rounds": 2, "environments": 2, "fill": 2000, "rate": 1000, "seed": 1,
    }  # fmt: skip


def test_unknown_recorders_are_refused() -> None:
    with pytest.raises(SystemExit, match="unknown recorders acme; known: gear-os"):
        contenders.chosen("acme,minari")
    assert [each.name for each in contenders.chosen("minari")] == ["gear-os", "minari"]


def inserted(name: str, steps: int, seconds: float) -> dict[str, Any]:
    """Returns a row of a contender that finishes as many steps in another second."""
    batches = {"steps": steps, "seconds": seconds, "finish_seconds": 1.0, "finished_steps": steps}
    return {"name": name, "rounds": [{"batches": batches}]}


def test_targets_are_judged() -> None:
    rows = [inserted("gear-os", 600_000, 2.0), inserted("reverb", 50_000, 1.0), inserted("reverb-process", 75_000, 1.0)]
    ours = [*rows, inserted("reverb-together", 600_000, 1.0), {"name": "reverb-trajectory", "failure": "gone"}]
    separate, together, per_step, finished = report.judge_insertion("hopper", ours)
    assert report.verdict(separate).endswith("one environment: 4.00 (target at least 5: missed)")
    assert report.verdict(together).endswith("together: 0.50")
    assert report.verdict(per_step).endswith("us a step: 3.33 (target below 5: met)")
    # 600,000 steps in 3 s, and 75,000 in 2.
    assert report.verdict(finished).endswith("to that Reverb: 5.33")
    *rest, finished = report.judge_insertion("frames", ours)
    assert report.verdict(finished).endswith("to that Reverb: 5.33 (target at least 1.2: met)")
    assert all("target" not in report.verdict(each) for each in rest)
    assert report.verdict(report.judge_insertion("hopper", rows[:1])[0]).endswith("not measured")


def test_the_finish_counts() -> None:
    record = {"steps": 1000, "seconds": 2.0, "finish_seconds": 3.0, "finished_steps": 3000}
    assert report.steps_per_second(record) == 500
    # 2 ms to insert a step, and 1 ms to finish it.
    assert report.with_finish(record) == pytest.approx(1000 / 3)


def test_sampling_is_judged_by_rounds() -> None:
    rounds = [{"alone": {"batches_per_s": a}, "beside": {"batches_per_s": b}} for a, b in ((10, 9), (40, 20), (10, 8))]
    (found,) = report.judge_sampling([{"name": "gear-os", "rounds": rounds}], 100_000)
    assert report.verdict(found).endswith("beside a writer at 100,000 steps/s: 0.80 (target at least 0.85: missed)")


@pytest.mark.parametrize(("shape", "observation", "length"), [("hopper", (11,), 1000), ("frames", (84, 84), 200)])
def test_steps_are_endless_episodes(harness: Any, shape: str, observation: tuple[int, ...], length: int) -> None:
    steps = list(itertools.islice(harness.endless_steps(shape, 4, 0), 2 * length))
    for environment in range(4):
        ends = [number for number, (_, ended) in enumerate(steps) if environment in ended]
        assert len(ends) == 2 and ends[1] - ends[0] == length
        assert [number for number, (step, _) in enumerate(steps) if step["truncated"][environment]] == ends
    assert steps[0][0]["observations"].shape == (4, *observation)
    assert len({ended for _, ended in steps if ended}) == 4  # not all at the same step
    step, _ = next(harness.endless_steps(shape, 0, 0))
    assert step["observations"].shape == observation and step["terminated"] is False


class Collected:
    """Collects steps."""

    def __init__(self) -> None:
        self.rows = self.settled = self.finished = 0

    def append(self, step: Any, ends: tuple[int, ...]) -> None:
        self.rows += len(step["rewards"])

    def settle(self) -> None:
        self.settled += 1

    def finish(self) -> None:
        self.finished += 1


def task(harness: Any, folder: Path, environments: int) -> Any:
    options = argparse.Namespace(seed=0, durability="os", prefetch=0, publish_every=1.0, server=False)
    return harness.Task("hopper", environments, folder, options)


def test_all_appended_steps_are_counted(harness: Any, tmp_path: Path) -> None:
    recorder = Collected()
    found = harness.insert(recorder, task(harness, tmp_path, 4), 0.01)
    assert found["finished_steps"] == recorder.rows > found["steps"] > 0
    assert (recorder.settled, recorder.finished) == (1, 1)


def test_a_paced_writer_keeps_its_rate(harness: Any, tmp_path: Path) -> None:
    recorder = Collected()
    writer = harness.PacedWriter(recorder, task(harness, tmp_path, 4), 1000.0)
    writer.begin()
    warm = recorder.rows
    assert warm >= 1000  # until the first episode of 4 ended
    found = writer.stop() if recorder.rows - warm > 40 else (writer.join(0.2), writer.stop())[1]
    assert 0 < found["steps_per_s"] < 2000


def test_a_writer_that_fails_is_reported(harness: Any, tmp_path: Path) -> None:
    recorder = Collected()
    recorder.append = None  # type: ignore[assignment, method-assign]
    writer = harness.PacedWriter(recorder, task(harness, tmp_path, 4), 1000.0)
    writer.begin()
    with pytest.raises(TypeError):
        writer.stop()


@pytest.mark.parametrize("environments", [0, 3])
def test_gear_data_records_the_steps(harness: Any, tmp_path: Path, environments: int) -> None:
    import gear_writer

    import gear_data

    recorder = gear_writer.GearRecorder(task(harness, tmp_path, environments))
    steps = list(itertools.islice(harness.endless_steps("hopper", environments, 0), 1500))
    for step, ends in steps:
        recorder.append(step, ends)
    recorder.finish()
    ds = gear_data.open(tmp_path / "dataset")
    rows = max(1, environments)
    assert ds.num_steps == 1500 * rows
    rewards = np.array([step["rewards"] for step, _ in steps]).reshape(1500, rows)
    episodes = []
    for environment in range(rows):
        ends = [number + 1 for number, (_, ended) in enumerate(steps) if environment in ended]
        episodes += [rewards[a:b, environment] for a, b in itertools.pairwise([0, *ends, 1500])]
    found = sorted(ds[number]["rewards"].tolist() for number in range(len(ds)))
    assert found == sorted(each.tolist() for each in episodes)


def test_the_loader_takes_new_generations(harness: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import gear_writer

    import gear_data

    monkeypatch.setattr(gear_writer, "REFRESH_SECONDS", 0.0)
    begun = task(harness, tmp_path, 4)
    recorder = gear_writer.GearRecorder(begun)
    for step, ends in itertools.islice(harness.endless_steps("hopper", 4, 0), 1000):
        recorder.append(step, ends)
    recording = gear_writer.build(begun.options)
    draw = recording.sample(recorder)
    assert float(draw()["rewards"].max()) < 10
    with gear_data.Writer(recording.store_of(recorder)) as writer:
        for _ in range(1000):
            writer.append(
                observations=np.zeros(11, np.float32), actions=np.zeros(3, np.float32), rewards=np.float32(99)
            )
        writer.end_episode(truncated=True)
    assert any(float(draw()["rewards"].max()) == 99 for _ in range(50))
