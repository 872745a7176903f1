"""Sections of benchmarks/gpu.py at sizes for a stand-in of CuPy."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from gpu_sections import ceilings, collection, device, footprints, frames, knobs, selection
from gpu_sections.collection import CollectCase

from gear_data.residency.device import link
from tests.support.cuda.streams import CONSUMER, Streams

SMALL = [
    CollectCase(44, 20, 70),
    CollectCase(0, 20, 40),
    CollectCase(65536, 2, 3),
    CollectCase(1024, 7, 5),
    CollectCase(3, 9, 100),
]


def left() -> float:
    """Returns the seconds that are left for a section."""
    return 1e9


def small_training(monkeypatch: pytest.MonkeyPatch, *, stand_in: bool = False) -> ModuleType:
    """Returns the module of section (e), changed for a CPU.

    It has a small model, and no TorchRL.

    stand_in: whether torch.cuda is a stand-in, which has streams.
    """
    import torch
    from gpu_sections import training

    class Model(torch.nn.Linear):
        """A stand-in for a Decision Transformer, whose import is slow."""

        def forward(self, states: Any, **others: Any) -> Any:
            assert {"states", *others} == {*training.MODEL_KEYS, "return_dict"}
            return SimpleNamespace(action_preds=super().forward(states))

    class Graph:
        """A stand-in for a CUDA graph.

        torch.cuda.graph runs the step once, and does not record it.
        """

        captured = False

        def replay(self) -> None:
            assert self.captured

    @contextmanager
    def capture(graph: Graph, *, capture_error_mode: str) -> Iterator[None]:
        assert capture_error_mode == "thread_local"
        yield
        graph.captured = True

    if not stand_in:
        stream = SimpleNamespace(cuda_stream=CONSUMER, wait_stream=lambda other: None)
        monkeypatch.setattr(torch.cuda, "Stream", lambda: stream)
        monkeypatch.setattr(torch.cuda, "current_stream", lambda device=None: stream)
        monkeypatch.setattr(torch.cuda, "stream", lambda stream: nullcontext())
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    monkeypatch.setattr(torch.cuda, "graph", capture)
    monkeypatch.setattr(training, "DEVICE", "cpu")
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(training, "LOADERS", {training.OURS: ("host", "cpu"), "on no GPU": ("mmap", "cuda")})
    # TorchRL's, too.
    monkeypatch.setitem(sys.modules, "torchrl.data", None)
    monkeypatch.setattr(training, "build_model", lambda loader, hyperparameters: Model(11, 3))
    monkeypatch.setattr(training, "CONTEXT", 3)
    return training


def small_feeds(monkeypatch: pytest.MonkeyPatch, streams: Streams) -> ModuleType:
    """Returns the module of section (i), at sizes for a stand-in of CuPy.

    Peers run on the CPU.

    streams: of the stand-in, which torch waits for.
    """
    import torch
    from gpu_sections import feeds, peers

    small = [replace(workload, batch=3, context=5, steps=16 * 600) for workload in feeds.WORKLOADS[:2]]
    monkeypatch.setattr(feeds, "WORKLOADS", small)
    monkeypatch.setattr(feeds, "EPISODE", 50)
    monkeypatch.setattr(feeds, "ROUND_SECONDS", 1e-3)
    monkeypatch.setattr(feeds, "ROUNDS", 2)
    monkeypatch.setattr(peers, "DEVICE", "cpu")
    monkeypatch.setattr(peers, "WORKERS", 0)
    monkeypatch.setattr(torch.cuda, "synchronize", streams.finish_all)
    return feeds


def small_sections(monkeypatch: pytest.MonkeyPatch) -> None:
    """Gives the sections that launch kernels sizes for a stand-in of CuPy."""
    monkeypatch.setattr(device, "WARM_SECONDS", 0.0)
    monkeypatch.setattr(device, "_GROUP_MOST", 1)
    monkeypatch.setattr(device, "_REPEATS", 1)
    monkeypatch.setattr(link, "WARM_SECONDS", 0.0)
    monkeypatch.setattr(link, "_LEAST_BYTES", 1 << 12)
    monkeypatch.setattr(ceilings, "_QUICK_BYTES", 1 << 12)
    monkeypatch.setattr(collection, "QUICK_SOURCE_BYTES", 4 << 20)
    monkeypatch.setattr(footprints, "QUICK_FOOTPRINTS", (1 << 20, 2 << 20))
    monkeypatch.setattr(footprints, "CASES", SMALL[:1])
    monkeypatch.setattr(footprints, "_SETS", 2)
    monkeypatch.setattr(frames, "QUICK_CASES", (frames.FrameCase(3, 16, 18, 1, 1.6), frames.FrameCase(2, 8, 8, 4)))
    monkeypatch.setattr(selection, "EPISODES", (300, 500))
    monkeypatch.setattr(selection, "DRAWS", (50, 100))
    monkeypatch.setattr(knobs, "VARIANTS", knobs.VARIANTS[:1])
    monkeypatch.setattr(knobs, "CASES", (SMALL[0], SMALL[0]))
    monkeypatch.setattr(knobs, "CROSSOVER_BYTES", (1 << 12,) * 3)
    monkeypatch.setattr(knobs, "_REPEATS", 1)
