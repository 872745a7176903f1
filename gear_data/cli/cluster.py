"""`gear-data plan` and `serve`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import gear_data
from gear_data.cli.arguments import add_command, add_dataset, names, print_json, size
from gear_data.cluster.addresses import Address
from gear_data.cluster.credentials import ServerCredentials, read_token
from gear_data.cluster.transport_names import AUTO, TRANSPORTS

#: Largest shard number in --shards. No dataset has as many shards, and a list of 2^24 numbers fits in memory.
_LAST_SHARD = 1 << 24


def add_commands(commands: Any) -> None:
    """Declares the commands of this group."""
    _add_plan(commands)
    _add_serve(commands)


def _add_plan(commands: Any) -> None:
    summary = "plan which node holds which shards"
    example = "gear-data plan hopper/ --nodes 4 --weights 'exp(return / 1000)' --budget 64G"
    parser = add_command(commands, "plan", _plan, summary, example)
    add_dataset(parser)
    help = "number of nodes, named node-0, node-1, ...; or their names, separated by commas"
    parser.add_argument("--nodes", type=_nodes, required=True, metavar="N|NAMES", help=help)
    help = "weight of each episode's steps: SQL over the episode table; default equal weights"
    parser.add_argument("--weights", metavar="SQL", help=help)
    help = "memory per node, such as 64G; free memory holds replicas of the shards that are drawn most often"
    parser.add_argument("--budget", type=size, metavar="BYTES", help=help)


def _nodes(text: str) -> list[str]:
    """Parses '3' to ['node-0', 'node-1', 'node-2'], and 'a,b' to ['a', 'b']."""
    if not text.isdecimal():
        return names(text)
    width = len(str(max(0, int(text) - 1)))
    # Numbers of equal width sort by value.
    return [f"node-{number:0{width}}" for number in range(int(text))]


def _plan(options: argparse.Namespace) -> int:
    dataset = gear_data.open(options.dataset)
    sampler = "uniform" if options.weights is None else gear_data.Weighted(options.weights, by="step")
    placement = dataset.placement(options.nodes, sampler, options.budget)
    if options.json:
        print_json(placement.to_json())
    else:
        print(placement)
    return 0


def _add_serve(commands: Any) -> None:
    summary = "serve a dataset's shards to other machines"
    example = (
        "gear-data serve hopper/ --shards 0-7 --listen 127.0.0.1:7000\n"
        "  gear-data serve hopper/ --listen 0.0.0.0:7000 --tls-cert node.pem --tls-key node.key --token-file token"
    )
    parser = add_command(commands, "serve", _serve, summary, example)
    add_dataset(parser)
    parser.add_argument(
        "--shards", type=_shards, metavar="RANGES", help="shards to serve, such as 0-7 or 0,3,5-9; default all"
    )
    help = "address to listen on; port 0 chooses a free port"
    parser.add_argument("--listen", type=Address.parse, required=True, metavar="HOST:PORT", help=help)
    parser.add_argument(
        "--residency",
        default="mmap",
        help="mmap (default); host: load all shards into memory; pinned: share them with processes that use GPUs",
    )
    help = "verbs: clients may read memory by RDMA; flight: TCP only; auto (default): verbs if there is an RDMA device"
    parser.add_argument("--transport", choices=TRANSPORTS, default=AUTO, help=help)
    parser.add_argument("--tls-cert", type=Path, metavar="FILE", help="TLS certificate, PEM")
    parser.add_argument("--tls-key", type=Path, metavar="FILE", help="private key of the certificate, PEM")
    help = "file with the token that clients must present; create one with: openssl rand -hex 32"
    parser.add_argument("--token-file", type=Path, metavar="FILE", help=help)


def _shards(text: str) -> list[int]:
    """Parses '0-3,7' to [0, 1, 2, 3, 7]."""
    found: set[int] = set()
    for part in text.split(","):
        first, dash, last = part.partition("-")
        if not first.isdecimal() or not (last if dash else first).isdecimal():
            raise argparse.ArgumentTypeError(f"expected shards such as 0-7 or 0,3,5-9, not {text!r}")
        begin, end = int(first), int(last or first)
        if end < begin or end > _LAST_SHARD:
            raise argparse.ArgumentTypeError(
                f"expected shards from 0 to {_LAST_SHARD} in ascending ranges, not {part!r}"
            )
        found.update(range(begin, end + 1))
    return sorted(found)


def _serve(options: argparse.Namespace) -> int:
    from gear_data.cluster.flight.server import FlightServer
    from gear_data.cluster.rdma.server import open_rdma_server
    from gear_data.cluster.server.shard_server import ShardServer
    from gear_data.storage.dataset_files import open_files

    token = None if options.token_file is None else read_token(options.token_file)
    credentials = ServerCredentials.from_files(token, options.tls_cert, options.tls_key)
    # Checked before the shards are loaded, which may take long.
    credentials.check(options.listen)
    shards = ShardServer(open_files(options.dataset), options.shards, options.residency)
    memory = open_rdma_server(shards, options.transport)
    server = FlightServer(shards, options.listen, credentials, memory)
    address = Address(options.listen.host, server.port)
    report = {"listen": str(address), "shards": list(shards.shards), "of": len(shards.manifest.shards)}
    report["verbs"] = memory is not None
    if options.json:
        print_json(report)
    else:
        rdma = ", also by RDMA" if memory is not None else ""
        print(f"{len(shards.shards)} of {report['of']} shards of {options.dataset} at gear://{address}{rdma}")
    sys.stdout.flush()
    server.serve()
    return 0
