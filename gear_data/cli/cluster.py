"""`gear-data plan` and `serve`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import gear_data
from gear_data.cli.parsing import add_command, names, print_json, size
from gear_data.cluster.addresses import Address, read_token
from gear_data.cluster.rdma.transport import AUTO, TRANSPORTS

#: Far above any dataset's, and far below what a list of them would hold.
_LAST_SHARD = 1 << 24


def add_commands(commands: Any) -> None:
    _add_plan(commands)
    _add_serve(commands)


def _add_plan(commands: Any) -> None:
    summary = "say which node should hold which shards"
    example = "gear-data plan hopper/ --nodes 4 --weights 'exp(return / 1000)' --budget 64G"
    parser = add_command(commands, "plan", _plan, summary, example)
    parser.add_argument("dataset", metavar="DST")
    help = "how many there are (then they are node-0, node-1, ...), or their names, separated by commas"
    parser.add_argument("--nodes", type=_nodes, required=True, metavar="N|NAMES", help=help)
    help = "how often each step is drawn: SQL over the episode table; default all equally often"
    parser.add_argument("--weights", metavar="SQL", help=help)
    help = "memory of a node, such as 64G; what is left of it is filled with copies of what is drawn most often"
    parser.add_argument("--budget", type=size, metavar="BYTES", help=help)


def _nodes(text: str) -> list[str]:
    if not text.isdecimal():
        return names(text)
    width = len(str(max(0, int(text) - 1)))
    # Of equal width, so that they are sorted as they are counted.
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
    summary = "let other machines read a dataset's shards from this one"
    example = (
        "gear-data serve hopper/ --shards 0-7 --listen 127.0.0.1:7000\n"
        "  gear-data serve hopper/ --listen 0.0.0.0:7000 --tls-cert node.pem --tls-key node.key --token-file token"
    )
    parser = add_command(commands, "serve", _serve, summary, example)
    parser.add_argument("dataset", metavar="DST")
    parser.add_argument("--shards", type=_shards, metavar="RANGES", help="such as 0-7 or 0,3,5-9; default all")
    help = "where to listen; port 0 takes a free one"
    parser.add_argument("--listen", type=Address.parse, required=True, metavar="HOST:PORT", help=help)
    parser.add_argument("--residency", default="mmap", help="mmap (default) or host: all of them in memory")
    help = "verbs: clients may read memory by RDMA; flight: they may not; auto: where there is a device (default)"
    parser.add_argument("--transport", choices=TRANSPORTS, default=AUTO, help=help)
    parser.add_argument("--tls-cert", type=Path, metavar="FILE", help="certificate, PEM")
    parser.add_argument("--tls-key", type=Path, metavar="FILE", help="its private key, PEM")
    help = "a file whose text clients must show; make one with: openssl rand -hex 32"
    parser.add_argument("--token-file", type=Path, metavar="FILE", help=help)


def _shards(text: str) -> list[int]:
    """'0-3,7' -> [0, 1, 2, 3, 7]"""
    found: set[int] = set()
    for part in text.split(","):
        first, dash, last = part.partition("-")
        if not first.isdecimal() or not (last if dash else first).isdecimal():
            raise argparse.ArgumentTypeError(f"expected shards such as 0-7 or 0,3,5-9, not {text!r}")
        begin, end = int(first), int(last or first)
        if end < begin or end > _LAST_SHARD:
            raise argparse.ArgumentTypeError(f"{part!r} are no shards")
        found.update(range(begin, end + 1))
    return sorted(found)


def _serve(options: argparse.Namespace) -> int:
    from gear_data.cluster.flight.server import FlightServer, ServerCredentials
    from gear_data.cluster.rdma.server import open_rdma_server
    from gear_data.cluster.server.shard_server import ShardServer
    from gear_data.storage.dataset_files import open_files

    token = None if options.token_file is None else read_token(options.token_file)
    guard = ServerCredentials.from_files(token, options.tls_cert, options.tls_key)
    # Before shards are loaded, which may take long.
    guard.check(options.listen)
    served = ShardServer(open_files(options.dataset), options.shards, options.residency)
    memory = open_rdma_server(served, options.transport)
    server = FlightServer(served, options.listen, guard, memory)
    at = Address(options.listen.host, server.port)
    facts = {"listen": str(at), "shards": list(served.shards), "of": len(served.manifest.shards)}
    facts["verbs"] = memory is not None
    if options.json:
        print_json(facts)
    else:
        how = ", by RDMA too" if memory is not None else ""
        print(f"{len(served.shards)} of {facts['of']} shards of {options.dataset} at gear://{at}{how}")
    sys.stdout.flush()
    server.serve()
    return 0
