"""Leases of manifests."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from gear_data.storage.generations.leases import take_lease


def test_a_manifest_that_another_process_is_removing(tmp_path: Path) -> None:
    """It has locked the file, and removes it next: a lease would keep nothing."""
    path = tmp_path / "manifest.json"
    path.write_text("{}")
    remover = os.open(path, os.O_RDWR)
    fcntl.flock(remover, fcntl.LOCK_EX)
    assert take_lease(path) is None
    os.close(remover)
    lease = take_lease(path)
    assert lease is not None and lease.is_current()
