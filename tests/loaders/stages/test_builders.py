"""The builders of an iteration are for one CUDA device, and build there, whichever thread makes them."""

from __future__ import annotations

import math
import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from gear_data.loaders.stages.builders import StageBuilders


def test_all_threads_use_the_device_of_the_first_builder(monkeypatch: pytest.MonkeyPatch) -> None:
    """CUDA has a current device for each thread, which is device 0 at first."""
    local = threading.local()
    made: list[int] = []

    class Device:
        def __init__(self, number: int) -> None:
            self._number = number

        def __enter__(self) -> None:
            self._before, local.number = current_device(), self._number

        def __exit__(self, *error: object) -> None:
            local.number = self._before

    def current_device() -> int:
        return getattr(local, "number", 0)

    def builder(rows: Any, group: int) -> object:
        made.append(current_device())
        return SimpleNamespace(build=lambda steps: [current_device()])

    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", current_device)
    monkeypatch.setattr(torch.cuda, "device", Device)
    batches = SimpleNamespace(group=lambda rows: 1, builder=builder)
    first, second = (SimpleNamespace(from_step=at, end=end, batches=batches) for at, end in ((0, 5), (5, math.inf)))
    stages: Any = SimpleNamespace(newest=first, passed=math.inf, at=lambda step: first if step < 5 else second)
    rows: Any = None
    progress: Any = SimpleNamespace(next_step=0)
    with Device(1):
        builders = StageBuilders(stages, rows, progress)
    with ThreadPoolExecutor(1) as thread:
        assert thread.submit(builders.build, [2]).result() == [1]
        thread.submit(builders.at, 7).result()
        assert thread.submit(builders.build, [4, 7]).result() == [1, 1]
    assert made == [1, 1]
