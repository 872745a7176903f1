"""`gear-data cache`."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from gear_data.cli.arguments import add_command, print_json, size
from gear_data.common.progress import format_bytes, pluralize


def add_commands(commands: Any) -> None:
    """Declares the commands of this group."""
    summary = "list, measure and empty the cache of converted sources and fetched files"
    example = "gear-data cache list\n  gear-data cache prune --max-bytes 20G"
    actions = commands.add_parser("cache", help=summary, description=summary[0].upper() + summary[1:] + ".")
    actions = actions.add_subparsers(dest="action", required=True, metavar="ACTION")
    summary = "list the converted sources, the least recently used one first"
    _add(actions, "list", _list, summary, "gear-data cache list")
    _add(actions, "size", _size, "show the size of the cache", "gear-data cache size")
    summary = "remove the conversions of a source; exit status 1 if one is in use"
    parser = _add(actions, "remove", _remove, summary, "gear-data cache remove hopper.hdf5")
    parser.add_argument("names", metavar="NAME", nargs="+", help="path, URL or hub id of a source, or key of list")
    summary = "remove what was not used for the longest time, until the cache is small enough; keeps what is in use"
    parser = _add(actions, "prune", _prune, summary, example.splitlines()[1].strip())
    parser.add_argument("--max-bytes", type=size, required=True, metavar="BYTES", help="largest size, such as 20G")


def _add(actions: Any, name: str, run: Any, summary: str, example: str) -> argparse.ArgumentParser:
    parser = add_command(actions, name, run, summary, example)
    parser.add_argument("--folder", type=Path, metavar="DIR", help="folder of the cache, default $GEAR_DATA_CACHE")
    return parser


def _folder(options: argparse.Namespace) -> Path:
    from gear_data.storage.remote.cache import default_folder

    folder: Path | None = options.folder
    return default_folder() if folder is None else folder


def _list(options: argparse.Namespace) -> int:
    from gear_data.ingest.cached.entries import list_entries

    entries = list_entries(_folder(options))
    if options.json:
        print_json({"folder": str(_folder(options)), "conversions": [entry.to_json() for entry in entries]})
        return 0
    for entry in entries:
        used = datetime.fromtimestamp(entry.used, UTC).strftime("%Y-%m-%d %H:%M")
        print(f"{entry.key}  {format_bytes(entry.bytes)}  used {used}  {entry.source or 'unfinished'}")
    print(f"{pluralize(len(entries), 'conversion')} in {_folder(options)}")
    return 0


def _size(options: argparse.Namespace) -> int:
    from gear_data.ingest.cached.entries import cache_size

    found = cache_size(_folder(options))
    if options.json:
        print_json({"folder": str(_folder(options)), "bytes": found.bytes, **asdict(found)})
    else:
        parts = f"converted sources {format_bytes(found.conversions)}, fetched files {format_bytes(found.fetched)}"
        print(f"{format_bytes(found.bytes)} in {_folder(options)}: {parts}")
    return 0


def _remove(options: argparse.Namespace) -> int:
    from gear_data.ingest.cached.entries import find_entries, remove_entry

    found = {entry.key: entry for name in options.names for entry in find_entries(_folder(options), name)}
    removed = [entry for entry in found.values() if remove_entry(entry.folder)]
    kept = [key for key in found if key not in {entry.key for entry in removed}]
    if options.json:
        print_json({"removed": [entry.key for entry in removed], "in_use": kept})
    else:
        print(f"removed {pluralize(len(removed), 'conversion')}, {format_bytes(sum(entry.bytes for entry in removed))}")
        for key in kept:
            print(f"in use: {key}")
    return 1 if kept else 0


def _prune(options: argparse.Namespace) -> int:
    from gear_data.ingest.cached.entries import cache_size, prune

    removed = prune(_folder(options), options.max_bytes)
    left = cache_size(_folder(options)).bytes
    if options.json:
        print_json({"removed_bytes": removed, "bytes": left})
    else:
        in_use = "; the rest is in use" if left > options.max_bytes else ""
        print(f"removed {format_bytes(removed)}, {format_bytes(left)} left{in_use}")
    return 0
