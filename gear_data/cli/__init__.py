"""The command `gear-data`. Exit status: 0, 1 (the work failed), 2 (bad usage)."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

import gear_data
from gear_data.cli import batches, cluster, convert, look, setup
from gear_data.cli.parsing import Command, print_json
from gear_data.errors import GearError, InvalidArgumentError, UnknownNameError


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit status."""
    options = build_parser().parse_args(arguments)
    run: Command = options.run
    try:
        status = run(options)
        sys.stdout.flush()
        return status
    except GearError as error:
        _print_error(options, error)
        return 2 if isinstance(error, InvalidArgumentError | UnknownNameError) else 1
    except KeyboardInterrupt:
        print("gear-data: interrupted", file=sys.stderr)
        return 1
    except BrokenPipeError:
        # The reader of our output went away (`| head`); Python would complain again when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as error:
        # Permission denied and the like, which name their file.
        _print_error(options, error)
        return 1


def _print_error(options: argparse.Namespace, error: Exception) -> None:
    if options.json:
        print_json({**options.failed, "error": type(error).__name__, "message": str(error)})
    print(f"gear-data: {error}", file=sys.stderr)


def build_parser() -> argparse.ArgumentParser:
    """Returns the parser of `gear-data` with all its commands."""
    parser = argparse.ArgumentParser(
        prog="gear-data", description="Trajectory datasets in Arrow shards: convert, look at, feed, export."
    )
    parser.add_argument("--version", action="version", version=f"gear-data {gear_data.__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for family in (convert, look, batches, cluster, setup):
        family.add_commands(commands)
    return parser
