"""`gear_data.tune` on this machine and on a stand-in for a GPU: settings, their batches, and the report."""

from __future__ import annotations

import itertools
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import gear_data
from gear_data import Mixture, SequenceLoader
from gear_data.collection.buffers import plain_memory
from gear_data.errors import InvalidArgumentError, WorkerError
from gear_data.loaders.frameworks import pinned_batches, torch_tensors
from gear_data.loaders.tuning import space as space_module
from gear_data.loaders.tuning.setting import Setting
from gear_data.loaders.tuning.space import make_space
from gear_data.loaders.tuning.training_step import make_step
from gear_data.loaders.tuning.trial import MIN_STEPS, Trials
from tests.support.cuda.gpu_stand_in import StandInGpu, stand_in
from tests.support.cuda.loader_checks import same

BATCHES = 4
ARGUMENTS: dict[str, Any] = {"batch_size": 8, "context": 5, "seed": 3, "sampler": "shuffle", "normalize": True}


def copies(batches: Any, read: Callable[[Any], Any] = lambda batch: {k: v.clone() for k, v in batch.items()}) -> Any:
    got = [read(batch) for batch in itertools.islice(batches, BATCHES)]
    if hasattr(batches, "close"):
        batches.close()
    return got


def space_of(
    dataset: Any, *, simulated: bool = True, fixed: Any = None, seconds: float = 60.0, **arguments: Any
) -> Any:
    framework = SequenceLoader(dataset, **arguments)._config.resolved_framework
    return make_space(dataset, framework, fixed or {}, simulated=simulated, seconds=seconds)


def step_of(run: Callable[[Any], object] = lambda batch: None) -> Any:
    return make_step(run, 0, None, gpu=False)


def values(settings: Any, name: str) -> set[Any]:
    return {getattr(each, name) for each in settings}


@pytest.mark.processes
def test_every_setting_gives_the_same_batches(rollouts_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1, 2})
    ds = gear_data.open(rollouts_path)
    space, trials = space_of(ds, **ARGUMENTS), Trials(ds, ARGUMENTS, step_of())
    assert values(space.settings, "residency") == {"mmap", "host"}
    assert values(space.settings, "num_workers") == {0, 1, 2, 3}
    assert values(space.settings, "prefetch") == {0, 1, 2, 4, 8}
    assert values(space.settings, "backend") == values(space.settings, "queue_pairs") == {None}
    assert space.left_out.keys() == {"residency=pinned", "residency=device", "backend", "sm_budget", "queue_pairs"}
    expected = copies(iter(SequenceLoader(ds, **ARGUMENTS, prefetch=0)))
    for setting in space.settings:
        loader = trials.loader(setting)
        same(copies(iter(loader.dataloader(setting.num_workers) if setting.num_workers else loader)), expected)


@pytest.mark.processes
def test_a_trial_measures_waiting_and_training(rollouts_path: Path) -> None:
    ds, seen = gear_data.open(rollouts_path), []

    def train(batch: Any) -> None:
        seen.append(batch.pop("observations").shape)  # a step may take keys out
        time.sleep(2e-3)

    trials = Trials(ds, {"batch_size": 8, "context": 5}, step_of(train))
    threads = set(threading.enumerate())
    # Each run ends its threads. A sleep takes at least its time.
    for setting in (Setting(prefetch=0), Setting(prefetch=8, batches_at_once=4), Setting(num_workers=1, prefetch=0)):
        seen.clear()
        assert trials.measure(setting, 0.01) >= 2e-3
        group = setting.batches_at_once or 1
        assert len(seen) >= 2 + MIN_STEPS and (len(seen) - 2) % group == 0
        assert set(seen) == {(8, 5, 3)}
        for thread in set(threading.enumerate()) - threads:
            thread.join(30)  # a thread that was told to end may still be ending
            assert not thread.is_alive(), thread
    slow = Trials(ds, {"batch_size": 8, "transform": lambda batch, rng: time.sleep(4e-3) or batch}, step_of(train))
    assert slow.measure(Setting(prefetch=0), 0.01) >= 6e-3
    assert trials.bare(0.01) >= 2e-3


def test_simulated_steps() -> None:
    assert make_step(None, 0, None, gpu=False).text == "no step"
    assert make_step(None, 5, None, gpu=True).text == make_step(None, 5, 0, gpu=False).text == "5 ms asleep"
    asleep, busy, two = (make_step(None, 20, cores, gpu=False) for cores in (0, 1, 2))
    assert (busy.text, two.text) == ("20 ms on 1 core", "20 ms on 2 cores")
    used = {}
    for name, step in (("asleep", asleep), ("busy", busy), ("two", two)):
        began = time.process_time()
        step.run({})
        used[name] = time.process_time() - began
    # Fixed work: the processor's time does not depend on other load much. The wall clock's would.
    assert used["asleep"] < 0.01 < used["busy"] < used["two"]
    trains: list[Any] = []
    given = make_step(trains.append, 5, None, gpu=False)
    given.run({"a": 1})
    assert trains == [{"a": 1}] and not given.simulated and asleep.simulated


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"steps": 5}, r"steps= does not matter for tuning\n.*from_config"),
        ({"epochs": 1}, "epochs= does not matter"),
        ({"seconds": 0}, "seconds must be a positive number, not 0"),
        ({"step_ms": -1}, "step_ms must be 0 to 60,000"),
        ({"step_ms": "5"}, "step_ms must be"),
        ({"step_cores": -1}, "step_cores must be an integer of at least 0, not -1"),
        ({"step": 5}, "step must be callable with a batch, not 5"),
        ({"batch_size": 0}, "batch_size must be an integer of at least 1"),
    ],
)
def test_arguments_that_are_refused(rollouts_path: Path, arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidArgumentError, match=words):
        gear_data.tune(gear_data.open(rollouts_path), **arguments)


def test_workers_that_cannot_run(rollouts_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_shared_memory(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    trials = Trials(gear_data.open(rollouts_path), {"batch_size": 8}, step_of())
    monkeypatch.setattr("multiprocessing.process.BaseProcess.start", no_shared_memory)
    with pytest.raises(WorkerError, match=r"workers do not run here: .*No space left"):
        trials.measure(Setting(num_workers=1, prefetch=0), 0.01)


def test_ranks_tune_apart(rollouts_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gear_data.loaders.tuning.tune.is_distributed", lambda: True)
    ds = gear_data.open(rollouts_path)
    with pytest.raises(InvalidArgumentError, match=r"would wait for each other\n.*rank= and world_size="):
        gear_data.tune(ds)
    report = gear_data.tune(ds, rank=0, world_size=2, seconds=0.1, step_ms=0, prefetch=0, num_workers=0, progress=False)
    assert report.setting.prefetch == 0


def test_a_report_and_its_file(rollouts_path: Path, tmp_path: Path) -> None:
    """A transform that sleeps makes everything but a thread slow. The busy machine cannot hide it."""
    ds, path = gear_data.open(rollouts_path), tmp_path / "loader.json"

    def slow(batch: Any, rng: Any) -> Any:
        time.sleep(5e-3)
        return batch

    arguments = {"batch_size": 8, "context": 5, "preset": "corl", "transform": slow}
    report = gear_data.tune(ds, step_ms=10, step_cores=0, seconds=8, progress=False, num_workers=0, **arguments)
    assert report.setting.num_workers == 0 and report.setting.prefetch
    facts = report.to_json()
    measured = [each for each in facts["settings"] if each["runs_ms"]]
    assert facts["step"] == "10 ms asleep" and facts["step_ms_without_loading"] >= 10
    assert facts["left_out"]["num_workers"] == "num_workers=0 is given"
    assert {"backend", "sm_budget", "queue_pairs"} < facts["left_out"].keys()
    assert all(each["step_ms"] >= 10 for each in measured) and facts["machine"]["cores"] >= 1
    inline = next(each for each in measured if each["setting"]["prefetch"] == 0)
    assert inline["step_ms"] >= 15
    (chosen,) = [each for each in facts["settings"] if each["verdict"].startswith("chosen")]
    assert chosen["setting"] == facts["choice"] and chosen["final"]
    text = str(report)
    assert "not tried: num_workers: num_workers=0 is given" in text
    assert f"choice: {report.setting}" in text and "residency=pinned, residency=device, backend, sm_budget: " in text
    report.save(path)
    loader = SequenceLoader.from_config(ds, path, transform=None)
    same(copies(iter(loader)), copies(iter(SequenceLoader(ds, **{**arguments, "transform": None}))))


def test_what_is_left_out(rollouts_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ds = gear_data.open(rollouts_path)
    for framework in ("numpy", "jax"):
        pytest.importorskip(framework)
        space = space_of(ds, framework=framework)
        assert space.left_out["num_workers"] == f"a DataLoader gives tensors, and the batches are of {framework}"
        assert values(space.settings, "num_workers") == {0}
    mixed = space_of(Mixture([(ds, 1.0), (ds, 1.0)]))
    assert mixed.left_out["residency"] == "each dataset of a mixture keeps its own"
    assert values(mixed.settings, "residency") == {None}
    fixed = space_of(ds, fixed={"prefetch": 3, "num_workers": 2})
    assert set(fixed.settings) >= {Setting(residency="mmap", num_workers=2, prefetch=3)}
    assert values(fixed.settings, "prefetch") == {3} and values(fixed.settings, "num_workers") == {2}
    with monkeypatch.context() as patch:
        patch.setattr(space_module, "available_memory", lambda: 100)
        space = space_of(ds)
        assert "do not fit the available memory" in space.left_out["residency=host"]
        assert values(space.settings, "residency") == {"mmap"}
        # A dataset that is in memory already stays there.
        assert values(space_of(gear_data.open(rollouts_path, residency="host")).settings, "residency") == {
            "mmap",
            "host",
        }
        patch.setattr(space_module, "gpu_count", lambda: 1)
        assert "device='cuda' tunes for the GPU" in space_of(ds).left_out["backend"]
    monkeypatch.setattr(space_module, "_LOAD_RATE", 1.0)
    assert "take too long to load" in space_of(ds).left_out["residency=host"]


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch, libraries: Path) -> Iterator[StandInGpu]:
    with stand_in(monkeypatch, libraries, order="consumer first") as gpu:
        # torch itself has no stand-in: what the CPU collects stays there.
        monkeypatch.setattr(pinned_batches, "pinned_memory", plain_memory)
        for module in (torch_tensors, pinned_batches):
            monkeypatch.setattr(module, "to_device", lambda batch, device, pin: batch)
        monkeypatch.setattr(torch.cuda, "synchronize", gpu.finish)
        yield gpu


@pytest.mark.processes
def test_settings_of_a_gpu(gpu: StandInGpu, rollouts_path: Path) -> None:
    """None of this has run on a GPU: the kernels run on the CPU."""
    ds, arguments = gear_data.open(rollouts_path), {**ARGUMENTS, "device": "cuda"}
    space = space_of(ds, simulated=False, **arguments)
    assert space.left_out == {
        "num_workers": "a worker must not use the GPU of its parent",
        "queue_pairs": "no other node is read",
    }
    kinds = {(each.backend, each.residency) for each in space.settings}
    assert kinds == {
        *(("cpu", residency) for residency in ("mmap", "host")),
        *(("cuda", residency) for residency in ("mmap", "host", "pinned", "device")),
    }
    assert values(space.settings, "sm_budget") == {None, 1.0, 0.5, 0.25, 0.1}
    simulated = space_of(ds, **arguments)
    assert values(simulated.settings, "sm_budget") == {None, 1.0}
    assert simulated.left_out["sm_budget"] == "a simulated step uses no multiprocessors; give step="
    expected = copies(iter(SequenceLoader(ds, **ARGUMENTS)))
    trials = Trials(ds, arguments, step_of())
    for setting in space.settings:
        if setting.sm_budget in (None, 1.0, 0.1) and setting.prefetch in (0, 2, 8):
            got = copies(iter(trials.loader(setting)), gpu.read)
            gpu.finish()
            same(got, expected)
    step_batches: list[Any] = []
    report = gear_data.tune(
        ds, step=lambda batch: step_batches.append(gpu.read(batch)), seconds=1, progress=False, **arguments
    )
    assert report.setting.backend in ("cpu", "cuda") and len(step_batches) > MIN_STEPS


@pytest.mark.processes
def test_a_gpu_without_cupy(rollouts_path: Path, gpu: StandInGpu, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cupy", None)
    space = space_of(gear_data.open(rollouts_path), device="cuda")
    assert values(space.settings, "backend") == {"cpu"}
    assert values(space.settings, "residency") == {"mmap", "host"}
    assert {"residency=pinned", "residency=device", "backend=cuda", "sm_budget"} < space.left_out.keys()
    assert "cupy" in space.left_out["backend=cuda"].lower()


def test_numbers_of_batches_ahead() -> None:
    assert Setting(prefetch=0).batches_ahead == 0
    assert Setting(num_workers=3, prefetch=0).batches_ahead == 6
    assert Setting(prefetch=4, batches_at_once=4).batches_ahead == 8
