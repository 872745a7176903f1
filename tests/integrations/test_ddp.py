"""DistributedDataParallel: gradients of several processes on a device."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch.distributed as dist

from gear_data.errors import ClusterError
from gear_data.integrations.ddp import choose_reduction, device_groups
from tests.support.integrations import ddp_checks
from tests.support.integrations.training_runs import SCRIPTS, RankServer, check_equal, global_batches

IMPORTS = ["torch.distributed", "torch.nn.parallel", "gear_data.integrations.ddp"]


@pytest.mark.parametrize(
    ("processes", "reduction"),
    [
        ([1], "flat"),
        ([1, 1, 1], "flat"),
        ([4], "multi_process"),
        ([2, 2], "multi_ring"),
        ([3, 3, 3, 3], "multi_ring"),
        ([3, 3], "hierarchical"),
        ([1, 2], "hierarchical"),
        ([2, 1, 2], "hierarchical"),
    ],
)
def test_the_layout_chooses_the_reduction(processes: list[int], reduction: str) -> None:
    assert choose_reduction(processes) == reduction


def test_gradients_on_four_processes(ranks: RankServer) -> None:
    """The program compares each layout's gradients with the mean over ranks."""
    logs = ranks.train(Path(ddp_checks.__file__), [], 4, imports=IMPORTS).logs
    results = [json.loads(log) for log in logs]
    # DistributedDataParallel reduces the gradients in buckets: of the last layers first.
    buckets = [count for _, count in results[0]["aaaa"][2]]
    assert sum(buckets) == 90 and buckets[0] == 1
    for rank, found in enumerate(results):
        for layout, names in {"aabb": [[0, 1], [2, 3]], "abab": [[0, 2], [1, 3]]}.items():
            pair = next(each for each in names if rank in each)
            place = pair.index(rank)
            ring = [each[place] for each in names]
            # Within the device first; then each process sums half of the values across devices.
            halves = [(count + 1 - place) // 2 for count in buckets]
            steps = [one for count, half in zip(buckets, halves, strict=True) for one in ([pair, count], [ring, half])]
            assert found[layout] == ["multi_ring", pair, [one for one in steps if one[1]]]
        assert found["aaaa"] == ["multi_process", [0, 1, 2, 3], [[[0, 1, 2, 3], count] for count in buckets]]
        assert found["abcd"] == ["flat", [rank], [[[0, 1, 2, 3], count] for count in buckets]]
        inside = [0, 1, 2] if rank < 3 else [3]
        assert found["aaab"][:2] == ["hierarchical", inside]
        within = [[inside, count] for count in buckets if rank < 3]
        leaders = [[[0, 3], count] for count in buckets if rank in (0, 3)]
        assert sorted(found["aaab"][2]) == sorted(within + leaders)
        assert found["unnamed"] == [0, 1, 2, 3]
        assert "the sum of gradients failed: ValueError: a peer is gone" in found["failure"]


def test_the_script(ranks: RankServer, trained_on: Path) -> None:
    expected = global_batches(trained_on, 6, batch_size=60, context=20)
    trained = ranks.train(SCRIPTS / "with_ddp.py", [trained_on, "--steps", 6], 4, imports=IMPORTS)
    check_equal(trained.global_batches(), expected)
    assert all(log.startswith("multi_ring: loss") for log in trained.logs)


def test_without_a_process_group() -> None:
    assert not dist.is_initialized()
    with pytest.raises(ClusterError, match="not initialised"):
        device_groups()
