"""The command `gear-data`.

Exit status: 0 (done), 1 (the work failed), 2 (bad usage).
"""

from __future__ import annotations

import argparse
import difflib
import io
import os
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

import gear_data
from gear_data.cli import (
    batches,
    cache,
    conversion,
    curation,
    editing,
    getting_started,
    hub,
    inspection,
    placement,
    recording,
    serving,
    tuning,
)
from gear_data.cli.arguments import Command, print_json
from gear_data.common.extras import import_extra
from gear_data.errors import (
    GearError,
    HostMemoryError,
    InvalidArgumentError,
    UnknownArgumentError,
    UnknownNameError,
    closest_name,
)

#: Modules of commands.
_MODULES = (
    conversion,
    recording,
    inspection,
    curation,
    editing,
    batches,
    cache,
    hub,
    tuning,
    placement,
    serving,
    getting_started,
)
#: Purpose -> its commands, as `gear-data --help` shows them.
PURPOSES = {
    "data": ("convert", "record", "journal", "merge", "filter", "edit", "dedupe", "split", "repair", "cache"),
    "look": ("inspect", "report", "verify", "lint"),
    "train": ("feed", "tune", "doctor", "demo"),
    "share": ("export", "push", "pull", "card"),
    "serve": ("serve", "plan"),
}
#: Earlier name of a command -> what has taken its place.
_RENAMED = {"stats": "inspect --full"}
#: The shell sets it when it asks for completions.
_COMPLETION = "_ARGCOMPLETE"


class Parser(argparse.ArgumentParser):
    """A parser of `gear-data`, or of one of its commands.

    An option must be written in full: a new option would make a short form of another one ambiguous. Bad usage ends the
    process with status 2. With `--json`, the error is printed as JSON, too.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(allow_abbrev=False, **options)
        self._given: Sequence[str] = ()

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parses arguments as `argparse` does, and refuses unknown ones at once: this parser knows the closest."""
        self._given = sys.argv[1:] if args is None else list(args)
        options, unknown = super().parse_known_args(self._given, namespace)
        if unknown:
            self._fail(self._unknown(unknown[0]))
        return options, unknown

    def error(self, message: str) -> NoReturn:
        """Prints the usage and an error, and exits with status 2."""
        self._fail(InvalidArgumentError(message))

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.dest == "command" and value in _RENAMED:
            raise argparse.ArgumentError(action, f"'{value}' is now 'gear-data {_RENAMED[value]}'")
        if action.choices is not None and value not in action.choices:
            raise argparse.ArgumentError(action, f"unknown value '{value}'\n  {closest_name(value, action.choices)}")

    def _unknown(self, argument: str) -> UnknownArgumentError:
        name = argument.partition("=")[0]
        help = f"see {self.prog} --help"
        if not name.startswith("-"):
            return UnknownArgumentError(f"unexpected argument '{argument}'", hint=help)
        close = difflib.get_close_matches(name, self._option_string_actions, n=1)
        return UnknownArgumentError(f"unknown option '{name}'", hint=f"did you mean '{close[0]}'?" if close else help)

    def _fail(self, error: GearError) -> NoReturn:
        self.print_usage(sys.stderr)
        if "--json" in self._given:
            keys = self.get_default("json_on_error") or {}
            print_json({**keys, "error": type(error).__name__, "message": str(error)})
        self.exit(2, f"{self.prog}: error: {error}\n")


class _Commands(Parser):
    """The parser of `gear-data`, whose help shows the commands by purpose."""

    def format_help(self) -> str:
        """Returns the help."""
        formatter = self._get_formatter()
        formatter.add_usage(self.usage, self._actions, self._mutually_exclusive_groups)
        formatter.add_text(self.description)
        (commands,) = (each for each in self._actions if isinstance(each, argparse._SubParsersAction))
        lines = {each.dest: each for each in commands._choices_actions}
        for title, actions in (
            *((purpose, [lines[name] for name in names]) for purpose, names in PURPOSES.items()),
            ("options", [each for each in self._actions if each.option_strings]),
        ):
            formatter.start_section(title)
            formatter.add_arguments(actions)
            formatter.end_section()
        formatter.add_text(self.epilog)
        return formatter.format_help()


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit status."""
    parser = build_parser()
    if _COMPLETION in os.environ:
        import_extra("argcomplete", "completion").autocomplete(parser)
    options = parser.parse_args(arguments)
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
    except MemoryError:
        hint = "end other programs, or raise the limit of the process (ulimit -v) or of its container"
        _print_error(options, HostMemoryError("this process needs more memory than it can have", hint=hint))
        return 1


def _print_error(options: argparse.Namespace, error: Exception) -> None:
    if options.json:
        print_json({**options.json_on_error, "error": type(error).__name__, "message": str(error)})
    print(f"gear-data: {error}", file=sys.stderr)


def build_parser() -> argparse.ArgumentParser:
    """Returns the parser of `gear-data` with all its commands."""
    parser = _Commands(
        prog="gear-data",
        description="Convert trajectory datasets to Arrow shards; inspect, feed and export them.",
        epilog="gear-data COMMAND --help shows the options of a command.",
    )
    parser.add_argument("--version", action="version", version=f"gear-data {gear_data.__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND", parser_class=Parser)
    for module in _MODULES:
        module.add_commands(commands)
    return parser
