"""Imports TorchTitan without its Triton kernels: Triton has wheels for GPUs only."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

kernels: Any = ModuleType("torchtitan.models.moe.kernels")
kernels.generate_permute_indices = None  # imported by name, and called by no example
sys.modules.setdefault(kernels.__name__, kernels)

import torchtitan.components.checkpoint  # noqa: E402
import torchtitan.components.lr_scheduler  # noqa: E402
import torchtitan.components.optimizer  # noqa: E402, F401
