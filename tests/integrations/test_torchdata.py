"""torchdata's StatefulDataLoader: rows of all ranks through a kill and a resume."""

from __future__ import annotations

from pathlib import Path

from tests.support.integrations.training_runs import SCRIPTS, RankServer, check_resumed, global_batches


def test_a_killed_run_with_workers_resumes_on_another_number_of_processes(
    ranks: RankServer, trained_on: Path, tmp_path: Path
) -> None:
    expected = global_batches(trained_on, 10, batch_size=64, context=20)
    check_resumed(
        ranks, SCRIPTS / "with_torchdata.py", trained_on, tmp_path, expected, world_sizes=(2, 1),
        imports=["torchdata.stateful_dataloader"],
    )  # fmt: skip


def test_a_run_without_workers_that_is_over(ranks: RankServer, trained_on: Path, tmp_path: Path) -> None:
    script, imports = SCRIPTS / "with_torchdata.py", ["torchdata.stateful_dataloader"]
    command = [trained_on, "--out", tmp_path, "--steps", 4, "--save-every", 4, "--workers", 0]
    assert [len(steps) for steps in ranks.train(script, command, 2, imports=imports).inputs] == [4, 4]
    assert ranks.train(script, command, 2, imports=imports).inputs == [[], []]
