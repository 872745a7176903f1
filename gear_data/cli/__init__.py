"""The command `gear-data`.

Exit status: 0 (done), 1 (the work failed), 2 (bad usage).
"""

from __future__ import annotations

import argparse
import io
import os
import sys
from collections.abc import Sequence

import gear_data
from gear_data.cli import (
    batches,
    conversion,
    curation,
    getting_started,
    hub,
    inspection,
    placement,
    recording,
    serving,
    tuning,
)
from gear_data.cli.arguments import Command, print_json
from gear_data.errors import GearError, InvalidArgumentError, UnknownNameError

#: Groups of commands, in the order of `gear-data --help`.
_GROUPS = (
    conversion,
    recording,
    inspection,
    curation,
    batches,
    hub,
    tuning,
    placement,
    serving,
    getting_started,
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit status."""
    options = build_parser().parse_args(arguments)
    run: Command = options.run
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a terminal may not have every character of a source
    try:
        status = run(options)
        sys.stdout.flush()
        return status
    except GearError as error:
        _print_error(options, error)
        return 2 if isinstance(error, InvalidArgumentError | UnknownNameError) else 1
    except KeyboardInterrupt as interrupt:
        notes = getattr(interrupt, "__notes__", [])
        print("\n  ".join(["gear-data: interrupted", *notes]), file=sys.stderr)
        return 1
    except BrokenPipeError:
        # The reader of the output ended (`| head`). Without this, Python would report the error again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as error:
        # Such as a missing permission; the message names the file.
        _print_error(options, error)
        return 1


def _print_error(options: argparse.Namespace, error: Exception) -> None:
    if options.json:
        print_json({**options.json_on_error, "error": type(error).__name__, "message": str(error)})
    print(f"gear-data: {error}", file=sys.stderr)


def build_parser() -> argparse.ArgumentParser:
    """Returns the parser of `gear-data` with all its commands."""
    parser = argparse.ArgumentParser(
        prog="gear-data", description="Convert trajectory datasets to Arrow shards; inspect, feed and export them."
    )
    parser.add_argument("--version", action="version", version=f"gear-data {gear_data.__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for group in _GROUPS:
        group.add_commands(commands)
    return parser
