"""Sections of benchmarks/gpu.py at sizes for a stand-in of CuPy."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from gpu_sections.collection import CollectCase

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


def small_training(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Returns the module of section (e), changed for a CPU.

    It has a small model, and no TorchRL.
    """
    import torch
    from gpu_sections import training

    class Model(torch.nn.Linear):
        """A stand-in for a Decision Transformer, whose import is slow."""

        def forward(self, states: Any, **others: Any) -> Any:
            assert {"states", *others} == {*training.MODEL_KEYS, "return_dict"}
            return SimpleNamespace(action_preds=super().forward(states))

    monkeypatch.setattr(training, "DEVICE", "cpu")
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(training, "LOADERS", {training.OURS: ("host", "cpu"), "on no GPU": ("mmap", "cuda")})
    # TorchRL's, too.
    monkeypatch.setitem(sys.modules, "torchrl.data", None)
    monkeypatch.setattr(training, "build_model", lambda loader, hyperparameters: Model(11, 3))
    monkeypatch.setattr(training, "CONTEXT", 3)
    return training
