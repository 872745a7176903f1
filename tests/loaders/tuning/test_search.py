"""The search, on made-up machines without a clock."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from gear_data.errors import DeviceMemoryError, HostMemoryError
from gear_data.loaders.tuning.search import FINAL_ROUNDS, FINALISTS, Measurements, Outcome, search
from gear_data.loaders.tuning.setting import Setting

SETTINGS = [
    Setting(residency=residency, num_workers=workers, prefetch=prefetch, batches_at_once=group)
    for residency in ("host", "mmap")
    for workers, prefetch, group in [
        *((0, 0, None), (0, 1, 1), (0, 2, 1), (0, 4, 4), (0, 8, 4), (0, 8, 8)),
        *((workers, 0, None) for workers in (1, 2, 4, 8)),
    ]
]
INLINE = Setting(residency="mmap", num_workers=0, prefetch=0)


class Machine:
    """A machine on which a setting has a known cost, and time passes only while something is measured.

    Args:
        cost: setting -> seconds of a step.
        bare: seconds of a step without loading.
        noise: relative noise of a run.
    """

    def __init__(self, cost: Callable[[Setting], float], bare: float = 0.0, noise: float = 0.0, seed: int = 0) -> None:
        self._cost, self._bare, self._noise = cost, bare, noise
        self._random = np.random.default_rng(seed)
        self.now = 0.0
        self.runs: list[tuple[Setting, float]] = []

    def measure(self, setting: Setting, seconds: float) -> float:
        # Workers take a while to start.
        self.now += seconds + (0.1 if setting.num_workers else 0.01)
        self.runs.append((setting, seconds))
        return self._noisy(self._cost(setting))

    def bare(self, seconds: float) -> float:
        self.now += seconds
        return self._noisy(self._bare)

    def _noisy(self, value: float) -> float:
        # Other processes only make a run slower.
        return value * (1 + abs(self._random.normal(0, self._noise)))

    def search(self, settings: list[Setting] = SETTINGS, seconds: float = 60.0) -> Outcome:
        return search(settings, Measurements(self.measure, self.bare, lambda: seconds - self.now))


def loaded(step: float, batch: float, cores: int = 8) -> Callable[[Setting], float]:
    """Returns the cost of a setting: a thread hides loading behind the step, workers divide it."""

    def cost(setting: Setting) -> float:
        build = batch * (0.9 if (setting.batches_at_once or 1) > 1 else 1.0)
        if setting.num_workers:
            return max(step, 1.3 * build / min(setting.num_workers, cores)) + 2e-4
        return max(step + 2e-5, (step + build) / 2) if setting.prefetch else step + build

    return cost


def test_the_simplest_of_tied_settings_is_chosen() -> None:
    """All threads hide a batch of 1 ms behind a step of 5 ms; inline costs 6 ms."""
    outcome = Machine(loaded(5e-3, 1e-3), bare=5e-3).search()
    assert outcome.chosen.setting == Setting(residency="mmap", num_workers=0, prefetch=1, batches_at_once=1)
    assert outcome.chosen.seconds == pytest.approx(5.02e-3)
    assert len(outcome.chosen.runs) == FINAL_ROUNDS
    assert 1 < sum(each.final for each in outcome.candidates) <= FINALISTS


def test_nothing_is_faster_than_the_step_itself() -> None:
    """A batch of 0.05 ms does not matter beside 10 ms: nothing else is measured."""
    machine = Machine(loaded(1e-2, 5e-5), bare=1e-2)
    outcome = machine.search()
    assert outcome.chosen.setting == INLINE
    assert {setting for setting, _ in machine.runs} == {INLINE}
    rest = [each for each in outcome.candidates if each is not outcome.chosen]
    assert {each.verdict for each in rest} == {"cannot win: the choice takes no longer than the step without loading"}


def test_workers_that_cannot_win_are_not_started() -> None:
    """Without a step, a thread and the consumer build half each. One worker builds all."""
    machine = Machine(loaded(0.0, 1e-3))
    outcome = machine.search()
    assert 1 not in {setting.num_workers for setting, _ in machine.runs}
    assert outcome.chosen.setting.num_workers == 8
    assert outcome.chosen.seconds == pytest.approx(1.3e-3 / 8 + 2e-4)
    (one, _) = (each for each in outcome.candidates if each.setting.num_workers == 1)
    assert one.verdict == "cannot win: at least 1 ms, by the cost of a batch"


@pytest.mark.parametrize("noise", [0.01, 0.05])
@pytest.mark.parametrize(("step", "batch"), [(0.0, 1e-3), (1e-3, 3e-4), (1e-3, 5e-3), (2e-3, 1e-2), (5e-3, 6e-3)])
def test_the_choice_is_near_the_best(step: float, batch: float, noise: float) -> None:
    cost = loaded(step, batch)
    best = min(map(cost, SETTINGS))
    for seed in range(20):
        machine = Machine(cost, bare=step, noise=noise, seed=seed)
        assert cost(machine.search().chosen.setting) <= 1.05 * best
        assert machine.now < 60


def test_a_lucky_run_does_not_end_the_search() -> None:
    """Inline seems free at first. In truth it costs half as much again as a thread."""
    cost, count = loaded(4e-3, 2e-3), iter(range(1000))

    def lucky(setting: Setting) -> float:
        return 4e-3 if setting == INLINE and next(count) == 0 else cost(setting)

    outcome = Machine(lucky, bare=4e-3).search()
    assert outcome.chosen.setting.prefetch == 1
    assert outcome.chosen.seconds == pytest.approx(cost(outcome.chosen.setting))


def test_load_that_comes_and_goes_cancels() -> None:
    """In two of five rounds everything takes twice as long. Ratios within a round still show the tie."""
    machine = Machine(lambda setting: 0.0, bare=1e-3)
    slow = [0]

    def measure(setting: Setting, seconds: float) -> float:
        machine.now += seconds
        slow[0] += 1
        factor = 2.0 if slow[0] // len(SETTINGS) % 2 else 1.0
        return factor * (2e-3 if setting.prefetch else 4e-3)

    outcome = search(SETTINGS, Measurements(measure, machine.bare, lambda: 60 - machine.now))
    assert outcome.chosen.setting.prefetch == 1


def test_settings_that_fail_are_left_out() -> None:
    cost = loaded(0.0, 1e-3)

    def no_memory(setting: Setting) -> float:
        if setting.residency == "host":
            raise HostMemoryError("1 GiB is not available")
        return cost(setting)

    outcome = Machine(no_memory).search()
    assert outcome.chosen.setting.residency == "mmap"
    failed = [each for each in outcome.candidates if each.verdict == "failed: 1 GiB is not available"]
    assert failed and all(each.setting.residency == "host" and each.runs == [] for each in failed)

    def fail(setting: Setting) -> float:
        raise DeviceMemoryError(str(setting))

    with pytest.raises(DeviceMemoryError, match="residency=mmap, num_workers=0, prefetch=0"):
        Machine(fail).search()


def test_too_little_time_still_gives_a_choice() -> None:
    outcome = Machine(loaded(0.0, 1e-3)).search(seconds=0.01)
    assert outcome.chosen.setting == INLINE
    assert outcome.candidates[-1].verdict == "not measured: no time left"


def test_order_of_simplicity() -> None:
    """Processes, then threads, connections, memory, the GPU's multiprocessors."""
    ordered = [
        Setting(residency="mmap", num_workers=0, prefetch=0),
        Setting(residency="host", num_workers=0, prefetch=0),
        Setting(residency="mmap", num_workers=0, prefetch=1, batches_at_once=1),
        Setting(residency="mmap", num_workers=0, prefetch=2, batches_at_once=1),
        Setting(residency="host", num_workers=0, prefetch=1, batches_at_once=1),
        Setting(residency="pinned", backend="cuda", sm_budget=0.1, prefetch=2, batches_at_once=1),
        Setting(residency="pinned", backend="cuda", sm_budget=1.0, prefetch=2, batches_at_once=1),
        Setting(queue_pairs=4, prefetch=2, batches_at_once=1),
        Setting(residency="mmap", num_workers=1, prefetch=0),
    ]
    assert sorted(set(ordered), key=lambda each: each.simplicity) == ordered
