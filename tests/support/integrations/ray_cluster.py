"""A Ray cluster of two workers on this machine."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def ray_cluster() -> Iterator[None]:
    """Starts the cluster, and stops it at the end. Ray's threads stay in this process."""
    import ray

    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    yield
    ray.shutdown()
