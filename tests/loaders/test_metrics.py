"""Metrics of a loader, against arithmetic on its windows."""

from __future__ import annotations

import itertools

import pytest

from gear_data import SequenceLoader
from gear_data.loaders.builders.batch import BuiltBatch
from gear_data.loaders.metrics import Meter
from tests.support.feed import reference as ref

ROW_BYTES = {"observations": 16, "actions": 12, "rewards": 4, "terminated": 1, "truncated": 1, "returns_to_go": 4}
# decision_transformer: states, actions, rewards, returns_to_go float32; timesteps int64; attention_mask float32.
PRESET_BYTES = {"raw": sum(ROW_BYTES.values()) + 8 + 1, "decision_transformer": 16 + 12 + 4 + 4 + 8 + 4}


def totals(metrics):
    """(padded, valid) bytes, which the rates were made from."""
    return tuple(round(metrics[f"{kind}_bytes_per_s"] * metrics["seconds"]) for kind in ("padded", "valid"))


@pytest.mark.parametrize("preset", PRESET_BYTES)
@pytest.mark.parametrize("prefetch", [0, 3])
def test_counts_and_bytes(dataset, preset, prefetch):
    loader = SequenceLoader(dataset, batch_size=10, context=20, preset=preset, prefetch=prefetch)
    iterator = iter(loader)
    for _ in range(7):
        next(iterator)
    iterator.close()
    metrics = loader.metrics()
    steps = sum(length for step in range(7) for _, _, length in ref.as_windows(loader.windows(step)))
    padded, valid = 7 * 10 * 20 * PRESET_BYTES[preset], steps * PRESET_BYTES[preset]
    assert (metrics["batches"], metrics["windows"]) == (7, 70)
    assert totals(metrics) == (padded, valid)
    assert metrics["pad_fraction"] == pytest.approx(1 - valid / padded)
    assert 0 < metrics["pad_fraction"] < 1
    assert metrics["windows_per_s"] * metrics["seconds"] == pytest.approx(70)
    assert 0 <= metrics["wait_fraction"] <= 1


def test_offsets_count_their_own_steps(dataset, episodes):
    loader = SequenceLoader(
        dataset, batch_size=32, context=4, columns=["actions"], offsets={"actions": (-2, 6)}, steps=1
    )
    assert len(list(loader)) == 1
    windows = ref.as_windows(loader.windows(0))
    inside = int(ref.valid_places([len(e["actions"]) for e in episodes], windows, -2, 6).sum())
    in_context = sum(length for _, _, length in windows)
    assert totals(loader.metrics()) == (32 * 8 * (12 + 1) + 32 * 4 * (8 + 1), inside * (12 + 1) + in_context * (8 + 1))


def test_a_rank_counts_its_own_rows(dataset):
    counts = []
    for rank in range(3):
        loader = SequenceLoader(dataset, batch_size=10, context=5, rank=rank, world_size=3, steps=4)
        assert len(list(loader)) == 4
        counts.append(loader.metrics()["windows"])
    assert counts == [12, 12, 16]


def test_counts_go_on_over_several_iterations(dataset):
    loader = SequenceLoader(dataset, batch_size=10, context=5, steps=3)
    assert loader.metrics() == dict.fromkeys(loader.metrics(), 0)
    assert [len(list(loader)), len(list(loader))] == [3, 3]
    assert (loader.metrics()["batches"], loader.metrics()["windows"]) == (6, 60)


def test_the_short_last_batch_counts_only_its_rows(dataset):
    loader = SequenceLoader(dataset, batch_size=50, context=5, sampler="shuffle", epochs=1)
    assert len(list(itertools.islice(loader, 5))) == 3
    assert loader.metrics()["windows"] == dataset.num_steps == 138


def test_time_is_split_between_waiting_and_the_rest(monkeypatch):
    clock = iter([100.0, 103.0, 110.0])
    monkeypatch.setattr("gear_data.loaders.metrics.time.perf_counter", lambda: next(clock))
    meter = Meter()
    meter.start()
    meter.add(BuiltBatch({}, 4, 1000, 600, None), waited=1.0)
    meter.add(BuiltBatch({}, 4, 1000, 800, None), waited=4.0)
    assert meter.result() == {
        "batches": 2,
        "windows": 8,
        "seconds": 10.0,
        "windows_per_s": 0.8,
        "padded_bytes_per_s": 200.0,
        "valid_bytes_per_s": 140.0,
        "pad_fraction": pytest.approx(0.3),
        "wait_fraction": 0.5,
    }


class Known:
    """A count that a device has returned, maybe before its batch is counted."""

    def __init__(self, number, known):
        self.number, self.known = number, known

    def wait(self):
        return self.number


def test_bytes_that_a_device_counts_are_added_once():
    meter = Meter(1)
    meter.start()
    # The thread that builds may wait for a count before the consumer gets the batch.
    for number, known in ((3, True), (5, False), (7, True), (11, True)):
        meter.add(BuiltBatch({}, 1, 20, Known(number, known)), 0.0)
    metrics = meter.result()
    assert totals(metrics) == (80, 26)
    assert totals(meter.result())[1] == 26
