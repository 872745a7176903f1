"""Cost of a dataset on 1 to 1,000 nodes, 1 TB to 1 PB: arithmetic, no simulation.

    python benchmarks/scale.py
    python benchmarks/scale.py --flight cluster.json --read-ns 150 --wire 25

docs/explanation/scale.md explains the columns. It says which numbers were measured and which are assumed.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from common import figure, format_table

NODES = (1, 2, 3, 10, 100, 1000)
DATASETS = (1e12, 1e13, 1e14, 1e15)
#: The paper's servers -> GB/s, without shapes.
PAPER = {1: 17.1, 2: 29.1, 3: 33.5}

#: Bytes of an episode in each process: offsets, shard, whether it is local; for weights the numbers, their sums and the
#: guide table.
PROCESS_EPISODE_BYTES = 8 + 8 + 1 + 8 + 8 + 8
#: Bytes of an episode's row in the table, which all processes of a node share.
TABLE_EPISODE_BYTES = 90
SHARD_BYTES, MANIFEST_SHARD_BYTES = 512 << 20, 300

#: Seconds per request and per byte, measured by benchmarks/cluster.py on a busy machine of two cores.
FLIGHT = (0.7e-3, 1.3e-9)


@dataclass(frozen=True)
class Family:
    """A kind of dataset.

    Attributes:
        name: its name.
        step_bytes, columns: bytes of a step, and number of columns, that batches read.
        episode_steps: steps of an average episode.
    """

    name: str
    step_bytes: int
    columns: int
    episode_steps: int


FAMILIES = (Family("locomotion", 66, 4, 500), Family("images 84x84x4", 28_240, 4, 1000))


@dataclass(frozen=True)
class Machine:
    """A node, and the cost of reading on it.

    Attributes:
        ranks: processes of a node.
        wire: bytes per second of its network card, in each direction.
        local: bytes per second that a node collects from its own memory.
        request, request_byte: seconds per request and per byte of Flight.
        read: seconds of a core per READ.
    """

    ranks: int
    wire: float
    local: float
    request: float
    request_byte: float
    read: float


@dataclass(frozen=True)
class Batches:
    """The batch of a rank."""

    windows: int
    context: int


def expected_peers(nodes: int, windows: int) -> float:
    """Returns the average number of other nodes that a batch reads.

    All shards are drawn equally often.
    """
    return (nodes - 1) * (1 - (1 - 1 / nodes) ** windows)


def cost(family: Family, nodes: int, batch: Batches, machine: Machine) -> dict[str, float]:
    """Returns the cost of a batch of one rank.

    It counts requests and READs, seconds of a core, and seconds of the network card, which the node's ranks share.
    """
    remote = (nodes - 1) / nodes
    size = batch.windows * batch.context * family.step_bytes
    requests = expected_peers(nodes, batch.windows)
    reads = batch.windows * family.columns * remote
    return {
        "remote": remote,
        "requests": requests,
        "reads": reads,
        "flight": requests * machine.request + size * remote * machine.request_byte,
        "verbs": reads * machine.read,
        "wire": machine.ranks * size * remote / machine.wire,
        "local": machine.ranks * size * (1 - remote) / machine.local,
        "size": size,
    }


def index(family: Family, dataset: float) -> dict[str, float]:
    """Returns the bytes of a dataset's index and manifest."""
    episodes = dataset / (family.step_bytes * family.episode_steps)
    return {
        "episodes": episodes,
        "process": episodes * PROCESS_EPISODE_BYTES,
        "node": episodes * TABLE_EPISODE_BYTES,
        "manifest": dataset / SHARD_BYTES * MANIFEST_SHARD_BYTES,
    }


def fit_flight(record: Mapping[str, Any]) -> tuple[float, float]:
    """Returns seconds per request and per byte, from a benchmark record.

    benchmarks/cluster.py writes the record. The result is a least-squares fit over message sizes, with one request in
    flight.
    """
    points = [(int(name.split("/")[0]), rate) for name, rate in record["channels"].items() if name.split("/")[1] == "1"]
    sizes = np.array([size for size, _ in points], float)
    seconds = sizes / np.array([rate for _, rate in points])
    byte, request = np.polyfit(sizes, seconds, 1)
    return max(0.0, float(request)), float(byte)


def paper_curve(local: float, wire: float) -> dict[int, float]:
    """Returns the GB/s of all servers together.

    Each of n servers collects one n-th from its own memory, then the rest over the network.
    """
    return {nodes: nodes / (1 / nodes / local + (nodes - 1) / nodes / wire) for nodes in (*PAPER, 10, 100, 1000)}


def reports(batch: Batches, machine: Machine) -> str:
    parts = []
    for family in FAMILIES:
        rows = []
        for nodes in NODES:
            found = cost(family, nodes, batch, machine)
            rows.append(
                [
                    f"{nodes:,}", f"{found['remote']:.1%}", figure(found["requests"]), figure(found["reads"]),
                    figure(found["flight"] * 1e3), figure(found["verbs"] * 1e3), figure(found["wire"] * 1e3),
                    figure(found["requests"] / max(found["flight"], 1e-12) if nodes > 1 else None),
                    figure(found["reads"] * machine.ranks / max(found["wire"], found["verbs"], 1e-12) / 1e6),
                    f"{2 * machine.ranks * (nodes - 1):,}",
                ]
            )  # fmt: skip
        header = [
            "nodes", "remote", "requests", "READs", "Flight, ms of a core", "verbs, ms of a core", "wire, ms",
            "requests/s of a rank", "million READs/s of a node", "queue pairs of a node",
        ]  # fmt: skip
        title = f"{family.name}: a batch of {batch.windows} x {batch.context} a rank, {machine.ranks} ranks a node"
        parts += [title, format_table(header, rows)]
    rows = []
    for family in FAMILIES:
        for dataset in DATASETS:
            found = index(family, dataset)
            rows.append(
                [
                    family.name, f"{dataset / 1e12:,.0f}", figure(found["episodes"] / 1e6),
                    figure(found["process"] / 1e9), figure(found["node"] / 1e9), figure(found["manifest"] / 1e6),
                    figure(dataset / 1e12 / 1000),
                ]
            )  # fmt: skip
    header = [
        "steps", "TB", "million episodes", "index of a process, GB", "table of a node, GB", "manifest, MB",
        "TB a node of 1,000",
    ]  # fmt: skip
    parts += ["Index", format_table(header, rows)]
    curve = paper_curve(machine.local / 1e9, 12.5)
    rows = [[f"{nodes:,}", figure(rate), figure(PAPER.get(nodes))] for nodes, rate in curve.items()]
    parts += ["All servers together with 100 Gbit/s each, GB/s", format_table(["servers", "model", "paper"], rows)]
    return "\n\n".join(parts)


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--flight", type=Path, help="a record of benchmarks/cluster.py, for the cost of a request")
    parser.add_argument("--read-ns", type=float, default=150.0, help="nanoseconds of a core per READ (default 150)")
    parser.add_argument("--wire", type=float, default=25.0, help="GB/s of a node's network card (default 25)")
    parser.add_argument(
        "--local", type=float, default=17.1, help="GB/s that a node collects from its own memory (default 17.1)"
    )
    parser.add_argument("--ranks", type=int, default=8, help="ranks per node (default 8)")
    parser.add_argument("--windows", type=int, default=256, help="windows in a rank's batch (default 256)")
    parser.add_argument("--context", type=int, default=20, help="steps in a window (default 20)")
    return parser


def main(arguments: Sequence[str] | None = None) -> None:
    options = make_parser().parse_args(arguments)
    request, byte = FLIGHT if options.flight is None else fit_flight(json.loads(options.flight.read_text()))
    machine = Machine(options.ranks, options.wire * 1e9, options.local * 1e9, request, byte, options.read_ns * 1e-9)
    print(f"Flight: {request * 1e6:.0f} us per request, {byte * 1e9:.2f} ns per byte; READ: {options.read_ns:.0f} ns\n")
    print(reports(Batches(options.windows, options.context), machine))


if __name__ == "__main__":
    main()
