"""`gear-data serve`."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import threading
from dataclasses import asdict
from pathlib import Path
from typing import Any

from gear_data.cli.arguments import add_command, add_dataset, print_json, size
from gear_data.cluster.addresses import Address
from gear_data.cluster.credentials import ServerCredentials, read_token
from gear_data.cluster.transport_names import AUTO, TRANSPORTS
from gear_data.common.paths import plain_path
from gear_data.errors import InvalidArgumentError

#: Largest shard number in --shards. No dataset has as many shards, and a list of 2^24 numbers fits in memory.
_LAST_SHARD = 1 << 24
#: Memory for episodes that are being received.
_WRITE_MEMORY_BYTES = 1 << 30
#: Seconds that a server waits for the end of running calls.
_SHUTDOWN_SECONDS = 5.0


def add_commands(commands: Any) -> None:
    """Declares the commands of this group."""
    summary = "serve a dataset's shards to other machines, or take episodes that they record"
    example = (
        "gear-data serve hopper/ --shards 0-7 --listen 127.0.0.1:7000\n"
        "  gear-data serve hopper/ --listen 0.0.0.0:7000 --tls-cert node.pem --tls-key node.key --token-file token\n"
        "  gear-data serve recorded/ --writable --listen 127.0.0.1:7001"
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
    help = "take episodes of gear_data.Writer('gear://HOST:PORT'), and append them to DATASET; a signal ends the server"
    parser.add_argument("--writable", action="store_true", help=help)
    help = "file with the token that writers must present, with --writable"
    parser.add_argument("--write-token-file", type=Path, metavar="FILE", help=help)
    help = "largest episode that is taken, with --writable; default 256M"
    parser.add_argument("--max-episode", type=size, default=256 << 20, metavar="BYTES", help=help)
    help = "publish a generation of DATASET so often, with --writable; default: only when the server ends"
    parser.add_argument("--publish-every", type=float, metavar="SECONDS", help=help)
    help = "writers that may send at the same time, with --writable; default 64"
    parser.add_argument("--max-writers", type=int, default=64, metavar="N", help=help)


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
    return _serve_for_writing(options) if options.writable else _serve_for_reading(options)


def _serve_for_reading(options: argparse.Namespace) -> int:
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


def _serve_for_writing(options: argparse.Namespace) -> int:
    from gear_data.cluster.writing.intake import EpisodeIntake, IntakeLimits
    from gear_data.cluster.writing.server import WriteServer
    from gear_data.recording.earlier_episodes import earlier_episodes, only_server
    from gear_data.recording.journal_sink import JournalSink
    from gear_data.recording.sealing import SealOptions

    if options.shards is not None or options.token_file is not None:
        raise InvalidArgumentError(
            "a server with --writable serves no shards: leave out --shards and --token-file",
            hint="writers send the token of --write-token-file",
        )
    if options.max_episode < 1 or options.max_writers < 1:
        raise InvalidArgumentError("--max-episode and --max-writers must be at least 1")
    if options.publish_every is not None and not options.publish_every > 0:
        raise InvalidArgumentError("--publish-every must be above 0")
    token = None if options.write_token_file is None else read_token(options.write_token_file)
    credentials = ServerCredentials.from_files(token, options.tls_cert, options.tls_key)
    credentials.check(options.listen)
    ended = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ended.set())
    folder = Path(plain_path(options.dataset))
    with only_server(folder):
        sink = JournalSink(folder, SealOptions(), options.publish_every)
        limits = IntakeLimits(options.max_episode, max(_WRITE_MEMORY_BYTES, options.max_episode), options.max_writers)
        intake = EpisodeIntake(sink, earlier_episodes(folder), limits)
        server = WriteServer(intake, options.listen, credentials)
        address = Address(options.listen.host, server.port)
        if options.json:
            print_json({"listen": str(address), "episodes": sink.episodes})
        else:
            print(f"takes episodes for {options.dataset} at gear://{address}")
        sys.stdout.flush()
        ended.wait()
        intake.close()
        publication = sink.close()
    if options.json:
        print_json({} if publication is None else asdict(publication))
    elif publication is not None:
        total = f"{publication.total_episodes} episodes, {publication.total_steps} steps"
        print(f"{total} in {options.dataset}, generation {publication.generation}")
    sys.stdout.flush()
    # Calls of writers that hang are not waited for.
    stopping = threading.Thread(target=server.shutdown, daemon=True)
    stopping.start()
    stopping.join(_SHUTDOWN_SECONDS)
    os._exit(0)
