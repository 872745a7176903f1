"""Ranks from each launcher's variables, in real processes and stores.

The variables are documented by the launchers: torch.distributed.run ("Environment Variables"), srun(1) ("OUTPUT
ENVIRONMENT VARIABLES"), Open MPI ("Environment variables set for MPI applications"). Further variables of Open MPI are
as `mpirun` 4.1.4 set them.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys

import pytest

from gear_data.cluster.ranks import find_ranks
from gear_data.errors import ClusterError
from tests.support.cluster import facts
from tests.support.cluster.runs import free_port

HOST = socket.gethostname()
LAUNCHERS = ("RANK", "WORLD_SIZE", "LOCAL_", "GROUP_", "ROLE_", "MASTER_", "TORCHELASTIC_", "SLURM", "OMPI_", "PMI")


def torchrun(rank: int, size: int, node: int) -> dict[str, object]:
    return {
        "RANK": rank, "WORLD_SIZE": size, "LOCAL_RANK": rank % 2, "LOCAL_WORLD_SIZE": 2, "GROUP_RANK": node,
        "GROUP_WORLD_SIZE": 2, "ROLE_RANK": rank, "ROLE_WORLD_SIZE": size, "ROLE_NAME": "default",
        "TORCHELASTIC_RESTART_COUNT": 0, "TORCHELASTIC_MAX_RESTARTS": 0, "TORCHELASTIC_RUN_ID": "none",
    }  # fmt: skip


def srun(rank: int, size: int, node: int) -> dict[str, object]:
    return {
        "SLURM_PROCID": rank, "SLURM_NTASKS": size, "SLURM_NPROCS": size, "SLURM_NODEID": node,
        "SLURM_LOCALID": rank % 2, "SLURM_NNODES": 2, "SLURM_JOB_ID": 200505, "SLURM_STEP_ID": 0,
        "SLURM_STEP_NUM_TASKS": size, "SLURM_TASKS_PER_NODE": "2(x2)", "SLURM_NODELIST": "gnode[10,20]",
    }  # fmt: skip


def open_mpi(rank: int, size: int, node: int) -> dict[str, object]:
    return {
        "OMPI_COMM_WORLD_RANK": rank, "OMPI_COMM_WORLD_SIZE": size, "OMPI_COMM_WORLD_LOCAL_RANK": rank % 2,
        "OMPI_COMM_WORLD_LOCAL_SIZE": 2, "OMPI_COMM_WORLD_NODE_RANK": rank % 2, "OMPI_UNIVERSE_SIZE": size,
        "OMPI_MCA_orte_ess_node_rank": rank % 2, "OMPI_FIRST_RANKS": 0, "OMPI_APP_CTX_NUM_PROCS": size,
        "PMIX_RANK": rank, "PMIX_NAMESPACE": 1888485377, "PMIX_ID": f"1888485377.{rank}", "PMIX_HOSTNAME": "vm",
    }  # fmt: skip


def mpich(rank: int, size: int, node: int) -> dict[str, object]:
    return {"PMI_RANK": rank, "PMI_SIZE": size, "MPI_LOCALRANKID": rank % 2, "MPI_LOCALNRANKS": 2, "PMI_FD": 9}


def open_mpi_in_a_slurm_job(rank: int, size: int, node: int) -> dict[str, object]:
    """Returns Open MPI's variables, with Slurm's variables of the job's script.

    On other nodes, Slurm's variables describe mpirun's daemons: one for each other node, counted from 0.
    """
    return {**srun(0, 1, 0), **open_mpi(rank, size, node)}


def torchrun_by_srun(rank: int, size: int, node: int) -> dict[str, object]:
    return {**srun(node, 2, node), **torchrun(rank, size, node)}


#: Launcher -> the names of its two nodes.
NODE_NAMES = {
    torchrun: ["00000000", "00000001"],
    srun: ["00000000", "00000001"],
    open_mpi: [HOST, HOST],
    mpich: [HOST, HOST],
    open_mpi_in_a_slurm_job: [HOST, HOST],
    torchrun_by_srun: ["00000000", "00000001"],
}
#: Node of each rank.
NODES = [0, 0, 1]


@pytest.fixture(scope="module")
def found():
    """Launcher -> the facts that each rank found."""
    runs = []
    for launcher in NODE_NAMES:
        master = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port(), "GEAR_DATA_JOIN_TIMEOUT": 30}
        ranks = [{**master, **launcher(rank, len(NODES), node)} for rank, node in enumerate(NODES)]
        runs.append([{name: str(value) for name, value in each.items()} for each in ranks])
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(LAUNCHERS)}
    command = [sys.executable, facts.__file__, json.dumps(runs)]
    output = subprocess.run(command, stdout=subprocess.PIPE, env=inherited, timeout=120, check=True).stdout
    return dict(zip(NODE_NAMES, json.loads(output), strict=True))


@pytest.mark.parametrize("launcher", NODE_NAMES)
def test_processes_of_a_launcher_find_each_other(found, launcher):
    size = len(NODES)
    expected = [[rank, size, NODE_NAMES[launcher][node], (rank - 1) % size] for rank, node in enumerate(NODES)]
    assert found[launcher] == expected


@pytest.mark.parametrize("missing", ["MASTER_ADDR", "MASTER_PORT", "OMPI_COMM_WORLD_SIZE"])
def test_missing_variables(monkeypatch, missing):
    for name in os.environ:
        if name.startswith(LAUNCHERS):
            monkeypatch.delenv(name)
    variables = {**open_mpi(0, 1, 0), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port()}
    for name, value in variables.items():
        if name != missing:
            monkeypatch.setenv(name, str(value))
    with pytest.raises(ClusterError, match="no launcher has set RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT"):
        find_ranks()
