"""`gear-data serve`."""

from __future__ import annotations

import argparse
import atexit
import os
import signal
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

from gear_data.cli.arguments import add_command, add_dataset, numbers, print_json, size
from gear_data.cluster.addresses import Address
from gear_data.cluster.credentials import ServerCredentials, read_token
from gear_data.cluster.transport_names import AUTO, TRANSPORTS
from gear_data.common.cancellation import take
from gear_data.common.paths import absolute_path, is_remote, plain_path
from gear_data.errors import InvalidArgumentError
from gear_data.recording.rate_limit.limit import RateLimit

if TYPE_CHECKING:
    from gear_data.cluster.flight.call_counts import CallCounts
    from gear_data.cluster.placement import ShardPart
    from gear_data.cluster.server.prometheus import Metric
    from gear_data.cluster.server.served_generations import ServedGenerations
    from gear_data.cluster.writing.intake import EpisodeIntake
    from gear_data.storage.manifest import Manifest

#: Parses '0-3,7' to [0, 1, 2, 3, 7].
_shard_numbers = numbers("numbers of shards", "0-7 or 0,3,5-9")
#: Most parts in --shards I/N.
_MOST_PARTS = 1 << 24
#: Memory for episodes that are being received.
_WRITE_MEMORY_BYTES = 1 << 30
#: Options that count only without --writable, and only with it.
_OF_READING = ("shards", "residency", "transport", "token_file", "keep")
_OF_WRITING = (
    "write_token_file", "max_episode", "publish_every", "max_writers", "max_steps", "max_bytes", "evict", "min_steps",
    "samples_per_insert", "samples_error",
)  # fmt: skip
#: Seconds that a server waits for the end of running calls.
_SHUTDOWN_SECONDS = 5.0


def add_commands(commands: Any) -> None:
    """Declares the commands of this group."""
    summary = "serve a dataset's shards to other machines, or take episodes that they record"
    example = (
        "gear-data serve hopper/ --shards 0-7 --listen 127.0.0.1:7000\n"
        "  gear-data serve hopper/ --listen 0.0.0.0:7000 --tls-cert node.pem --tls-key node.key --token-file token\n"
        "  gear-data serve recorded/ --writable --listen 127.0.0.1:7001 --metrics 127.0.0.1:9100"
    )
    parser = add_command(commands, "serve", _serve, summary, example)
    add_dataset(parser)
    parser.add_argument(
        "--shards",
        type=_shards,
        metavar="RANGES|I/N",
        help="shards to serve, such as 0-7 or 0,3,5-9; or part I of N of every generation, such as 1/3; default all",
    )
    help = "address to listen on; port 0 chooses a free port"
    parser.add_argument("--listen", type=_address, required=True, metavar="HOST:PORT", help=help)
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
    help = "of a dataset that grows: keep an earlier generation so long after its last client; default 600"
    parser.add_argument("--keep", type=float, metavar="SECONDS", help=help)
    help = "answer with metrics in the text format of Prometheus, at http://HOST:PORT/metrics; port 0 chooses one"
    parser.add_argument("--metrics", type=_address, metavar="HOST:PORT", help=help)
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
    help = "evict parts of DATASET that are beyond so many steps, with --writable; default: no limit"
    parser.add_argument("--max-steps", type=int, metavar="N", help=help)
    help = "evict parts of DATASET that are beyond so many bytes, with --writable; default: no limit"
    parser.add_argument("--max-bytes", type=size, metavar="BYTES", help=help)
    help = "what leaves first: oldest (default), or a numeric column whose smallest values leave first"
    parser.add_argument("--evict", metavar="COLUMN", help=help)
    help = "steps before the first batch of gear_data.rate_limited, with --writable and --publish-every"
    parser.add_argument("--min-steps", type=int, metavar="N", help=help)
    help = "rows that training samples for each step: writers and training wait for each other"
    parser.add_argument("--samples-per-insert", type=float, metavar="ROWS", help=help)
    help = "margin of --samples-per-insert, in rows"
    parser.add_argument("--samples-error", type=float, metavar="ROWS", help=help)
    parser.set_defaults(defaults={name: parser.get_default(name) for name in (*_OF_READING, *_OF_WRITING)})


def _address(text: str) -> Address:
    try:
        return Address.parse(text)
    except InvalidArgumentError as error:  # of a ValueError, argparse would leave out the advice
        raise argparse.ArgumentTypeError(str(error)) from error


def _shards(text: str) -> list[int] | ShardPart:
    """Parses '0-3,7' to [0, 1, 2, 3, 7], and '1/3' to the first of three parts."""
    number, slash, count = text.partition("/")
    if slash:
        if not (number.isdecimal() and count.isdecimal() and 1 <= int(number) <= int(count) <= _MOST_PARTS):
            raise argparse.ArgumentTypeError(f"expected a part such as 1/3, 2/3 or 3/3, not {text!r}")
        from gear_data.cluster.placement import ShardPart

        return ShardPart(int(number), int(count))
    return _shard_numbers(text)


def _given(options: argparse.Namespace, names: Sequence[str]) -> str:
    """Returns the options of these names that have another value than without them; "" if there are none."""
    given = (name for name in names if getattr(options, name) != options.defaults[name])
    return ", ".join("--" + name.replace("_", "-") for name in given)


def _rate_limit(options: argparse.Namespace) -> RateLimit | None:
    given = options.min_steps, options.samples_per_insert, options.samples_error
    if all(each is None for each in given):
        return None
    if (options.samples_per_insert is None) != (options.samples_error is None):
        raise InvalidArgumentError(
            "--samples-per-insert and --samples-error belong together", hint="give both, or none of them"
        )
    if options.publish_every is None:
        raise InvalidArgumentError(
            "--min-steps and --samples-per-insert need --publish-every",
            hint="training waits for episodes that the server publishes",
        )
    return RateLimit(1 if options.min_steps is None else options.min_steps, *given[1:])


def _serve(options: argparse.Namespace) -> int:
    return _serve_for_writing(options) if options.writable else _serve_for_reading(options)


def _metrics(options: argparse.Namespace, read: Callable[[], Sequence[Metric]]) -> dict[str, str]:
    """Serves metrics if the user wants it. Returns their URL for the report."""
    if options.metrics is None:
        return {}
    from gear_data.cluster.server.prometheus import serve_metrics

    return {"metrics": f"http://{serve_metrics(options.metrics, read)}/metrics"}


def _print_metrics(report: Mapping[str, Any]) -> None:
    if "metrics" in report:
        print(f"metrics at {report['metrics']}")


def _reading_metrics(generations: ServedGenerations, counts: CallCounts) -> list[Metric]:
    from gear_data.cluster.server.prometheus import Metric, call_metrics

    metrics, served = call_metrics(counts), generations.newest_held()
    if served is None:
        return metrics
    manifest = served.shards.manifest
    size = sum(manifest.shards[number].bytes for number in served.shards.shards)
    return [
        Metric("shards", "Shards that this node serves.", len(served.shards.shards)),
        Metric("shard_bytes", "Bytes of these shards.", size),
        Metric("generation", "Number of the newest generation that is served.", manifest.generation),
        *metrics,
    ]


def _writing_metrics(intake: EpisodeIntake, newest: Manifest | None, counts: CallCounts) -> list[Metric]:
    from gear_data.cluster.server.prometheus import Metric, call_metrics

    published = [0, 0, 0, 0] if newest is None else [
        newest.generation, newest.steps, len(newest.shards), sum(shard.bytes for shard in newest.shards)
    ]  # fmt: skip
    generation, steps, shards, size = published
    return [
        Metric("episodes", "Episodes taken since the server started.", intake.episodes, counter=True),
        Metric("steps", "Steps of these episodes.", intake.steps, counter=True),
        Metric("generation", "Number of the newest published generation.", generation),
        Metric("published_steps", "Steps of the newest published generation.", steps),
        Metric("shards", "Shards of the newest published generation.", shards),
        Metric("shard_bytes", "Bytes of these shards.", size),
        *call_metrics(counts),
    ]


def _serve_for_reading(options: argparse.Namespace) -> int:
    from gear_data.cluster.flight.server import FlightServer
    from gear_data.cluster.server.served_generations import KEEP_SECONDS, GenerationOpener, ServedGenerations
    from gear_data.dataset.open import dataset_place
    from gear_data.storage.dataset_files import open_files

    if given := _given(options, _OF_WRITING):
        raise InvalidArgumentError(f"only with --writable: {given}", hint="give --writable, or leave them out")
    token = None if options.token_file is None else read_token(options.token_file)
    credentials = ServerCredentials.from_files(token, options.tls_cert, options.tls_key)
    # Checked before the shards are loaded, which may take long.
    credentials.check(options.listen)
    if options.keep is not None and not options.keep > 0:
        raise InvalidArgumentError("--keep must be above 0")
    with dataset_place(options.dataset, options.convert) as place:
        opener = GenerationOpener(open_files(place), options.residency, options.transport, options.shards)
        first = opener.first()
    generations = ServedGenerations(first, opener, options.keep or KEEP_SECONDS)
    server = FlightServer(generations, options.listen, credentials)
    shards, verbs = first.shards, first.rdma is not None
    del first  # it may be let go later
    address = Address(options.listen.host, server.port)
    report = {"listen": str(address), "shards": list(shards.shards), "of": len(shards.manifest.shards)}
    report |= {"verbs": verbs, "generation": shards.manifest.generation}
    report |= _metrics(options, lambda: _reading_metrics(generations, server.counts))
    if options.json:
        print_json(report)
    else:
        rdma = ", also by RDMA" if verbs else ""
        print(f"{len(shards.shards)} of {report['of']} shards of {options.dataset} at gear://{address}{rdma}")
        _print_metrics(report)
    sys.stdout.flush()
    del shards
    server.serve()
    return 0


def _serve_for_writing(options: argparse.Namespace) -> int:
    from gear_data.cluster.writing.intake import EpisodeIntake, IntakeLimits
    from gear_data.cluster.writing.server import WriteServer
    from gear_data.growing.seal_options import OLDEST, SealOptions
    from gear_data.recording.earlier_episodes import earlier_episodes, only_server
    from gear_data.recording.rate_limit.limiter import RateLimiter
    from gear_data.recording.sealing import FolderPublisher
    from gear_data.recording.sinks.journal_sink import JournalSink

    if given := _given(options, _OF_READING):
        raise InvalidArgumentError(
            f"a server with --writable serves no shards: leave out {given}",
            hint=None if options.token_file is None else "writers send the token of --write-token-file",
        )
    if options.convert is not None:
        raise InvalidArgumentError("--convert is for a source, and --writable takes episodes", hint="leave it out")
    if is_remote(location := plain_path(options.dataset)):
        raise InvalidArgumentError(
            "--writable makes a dataset in a folder of this machine, not at a URL",
            file=location,
            hint="name a folder; a Writer of an s3:// URL needs no server",
        )
    if options.max_episode < 1 or options.max_writers < 1:
        raise InvalidArgumentError("--max-episode and --max-writers must be at least 1")
    if options.publish_every is not None and not options.publish_every > 0:
        raise InvalidArgumentError("--publish-every must be above 0")
    rate_limit = _rate_limit(options)
    token = None if options.write_token_file is None else read_token(options.write_token_file)
    credentials = ServerCredentials.from_files(token, options.tls_cert, options.tls_key)
    credentials.check(options.listen)
    # A handler must not wait for a lock that this thread has, and a signal just before a wait does not end it.
    signals: SimpleQueue[int] = SimpleQueue()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda received, _: signals.put(received))
    folder = Path(absolute_path(location))
    with only_server(folder), ExitStack() as stack:
        seal_options = SealOptions(
            max_steps=options.max_steps, max_bytes=options.max_bytes, evict=options.evict or OLDEST
        )
        publisher = FolderPublisher(folder, seal_options)
        sink = JournalSink(publisher, options.publish_every)
        limiter = None
        if rate_limit is not None:
            limiter = stack.enter_context(RateLimiter(folder, rate_limit, "inserted"))
        limits = IntakeLimits(options.max_episode, max(_WRITE_MEMORY_BYTES, options.max_episode), options.max_writers)
        intake = EpisodeIntake(sink, earlier_episodes(folder), limits, limiter)
        server = WriteServer(intake, options.listen, credentials)
        address = Address(options.listen.host, server.port)
        report = {"listen": str(address), "episodes": sink.episodes}
        report |= _metrics(options, lambda: _writing_metrics(intake, publisher.newest(), server.counts))
        if options.json:
            print_json(report)
        else:
            print(f"takes episodes for {options.dataset} at gear://{address}")
            _print_metrics(report)
        sys.stdout.flush()
        take(signals)
        # After an error, the interpreter would shut the server down, and wait for calls of writers that hang.
        atexit.register(_end_failed)
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


def _end_failed() -> None:
    """Ends a process whose work failed."""
    with suppress(OSError):
        sys.stdout.flush()
    os._exit(1)
