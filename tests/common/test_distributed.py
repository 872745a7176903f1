"""Ranks that exchange values notice a rank that has ended."""

from __future__ import annotations

import subprocess
import textwrap
from pathlib import Path

import pytest

from tests.support.running.warm_python import python

pytestmark = pytest.mark.processes

_RANK = textwrap.dedent("""
    import os, sys
    import torch.distributed
    from gear_data.common.distributed import all_gather, compute_on_rank_zero
    from gear_data.errors import ClusterError

    store, rank, call = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    torch.distributed.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    torch.distributed.barrier()
    if rank == 0:
        os._exit(0)
    try:
        all_gather(rank) if call == "all_gather" else compute_on_rank_zero(lambda: rank)
    except ClusterError as error:
        print(error)
    os._exit(0)
""")


def test_a_rank_that_has_ended_is_a_typed_error(tmp_path: Path) -> None:
    for call in ("all_gather", "compute_on_rank_zero"):
        command = [python(), "-c", _RANK, str(tmp_path / call)]
        ranks = [subprocess.Popen([*command, str(rank), call], stdout=subprocess.PIPE, text=True) for rank in range(2)]
        outputs = [rank.communicate(timeout=120)[0] for rank in ranks]
        assert outputs[1].startswith("the ranks of the run cannot exchange values: "), call
        assert "one of them may have ended" in outputs[1]
