"""Imports what every rank needs, and loads the compiled kernels."""

from __future__ import annotations

import tempfile
from pathlib import Path

import torch
import torch._dynamo  # the first optimizer imports it

import gear_data
from tests.support.feed import data as feed_data

torch.set_num_threads(1)
with tempfile.TemporaryDirectory() as _folder:
    _dataset = feed_data.convert_episodes(feed_data.locomotion([5, 9], seed=1), Path(_folder) / "dataset")
    gear_data.SequenceLoader(_dataset, 4, context=3, prefetch=0).batch(0)
