"""Modules that benchmarks import. `fork_server` imports them once."""

# ruff: noqa: F401

import d3rlpy
import datasets
import h5py
import numba
import pandas  # pyarrow imports it if it is installed
import polars
import pyarrow.flight
import pyarrow.parquet
import tensordict
import torch
import torchrl.data

# The first compilation imports a second of modules.
numba.njit(lambda: 0)()
