"""Training steps against which settings are measured: simulated, or given."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from gear_data.common.keywords import check_range
from gear_data.errors import InvalidArgumentError
from gear_data.loaders.builders.batch import Batch

#: Seconds of one piece of simulated work. It holds no interpreter lock, like an operation of torch.
_PIECE_SECONDS = 1e-4
_CALIBRATIONS, _CALIBRATION_BYTES = 20, 1 << 18


@dataclass(frozen=True)
class TrainingStep:
    """A training step.

    Attributes:
        run: run(batch) trains on a batch. Work on a device may go on after the call.
        finish: waits for the device.
        text: a description, for the report.
        simulated: whether the step only takes time, and uses no device.
    """

    run: Callable[[Batch], object]
    finish: Callable[[], object]
    text: str
    simulated: bool


def make_step(step: Callable[[Batch], object] | None, step_ms: float, cores: int | None, *, gpu: bool) -> TrainingStep:
    """Returns the step that `tune` measures against.

    Args:
        step: a given step; None: the step is simulated.
        step_ms: milliseconds of a simulated step.
        cores: cores of the CPU that a simulated step keeps busy; None: 0 if batches go to a GPU, else 1.
        gpu: whether batches go to a GPU.

    Raises:
        InvalidArgumentError: a number is out of its range, or `step` cannot be called.
    """
    finish = _synchronize if gpu else _nothing
    if step is not None:
        if not callable(step):
            raise InvalidArgumentError(f"step must be callable with a batch, not {step!r}")
        return TrainingStep(step, finish, f"{getattr(step, '__qualname__', 'given')}", simulated=False)
    number = isinstance(step_ms, int | float) and not isinstance(step_ms, bool)
    if not number or not 0 <= step_ms <= 60_000:
        raise InvalidArgumentError(f"step_ms must be 0 to 60,000 milliseconds, not {step_ms!r}")
    if cores is None:
        cores = 0 if gpu else 1
    check_range("step_cores", cores, 0)
    seconds = step_ms / 1e3
    if not seconds:
        return TrainingStep(_nothing, finish, "no step", simulated=True)
    if not cores:
        return TrainingStep(lambda _: time.sleep(seconds), finish, f"{step_ms:g} ms asleep", simulated=True)
    text = f"{step_ms:g} ms on {cores} core{'s' if cores > 1 else ''}"
    return TrainingStep(_busy(seconds, cores), finish, text, simulated=True)


def _busy(seconds: float, cores: int) -> Callable[[Batch], object]:
    """Returns a step of a fixed amount of work: `seconds` on idle cores.

    The work is fixed, and not the time. So a setting whose threads or workers take the step's cores makes it longer, as
    they would make training longer.
    """
    data = bytes(_CALIBRATION_BYTES)
    # The fastest of several: other processes only make it slower.
    rate = _CALIBRATION_BYTES / min(_seconds(lambda: hashlib.sha256(data)) for _ in range(_CALIBRATIONS))
    pieces = max(1, round(seconds / _PIECE_SECONDS))
    piece = bytes(int(rate * seconds / pieces))

    def work() -> None:
        for _ in range(pieces):
            hashlib.sha256(piece)

    if cores == 1:
        return lambda _: work()
    pool = ThreadPoolExecutor(cores - 1, thread_name_prefix="gear-step")

    def step(_: Batch) -> None:
        others = [pool.submit(work) for _ in range(cores - 1)]
        work()
        for other in others:
            other.result()

    return step


def _seconds(call: Callable[[], object]) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def _nothing(*_: Any) -> None:
    pass


def _synchronize() -> None:
    import torch

    torch.cuda.synchronize()
