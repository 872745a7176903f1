"""Arguments, argument types and JSON output that commands share."""

from __future__ import annotations

import argparse
import json
import math
import re
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import gear_data
from gear_data.common.typed_json import parse_yaml
from gear_data.errors import GearError, InvalidArgumentError

Command = Callable[[argparse.Namespace], int]
_Value = TypeVar("_Value")

#: Most numbers that an option names, such as ids of episodes. A list of them fits in memory.
_MOST_NUMBERS = 1 << 24


def add_command(commands: Any, name: str, run: Command, summary: str, example: str) -> argparse.ArgumentParser:
    """Declares a command and returns its parser.

    Args:
        commands: the subparsers of `gear-data`.
        name: name of the command.
        run: runs the command and returns its exit status.
        summary: one line of help, which starts with a verb in lower case.
        example: a command line, or several.
    """
    parser: argparse.ArgumentParser = commands.add_parser(
        name,
        help=summary,
        description=summary[0].upper() + summary[1:] + ".",
        epilog=f"example:\n  {example}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object, for scripts")
    # `json_on_error`: keys that the command's JSON has, in addition to the error, if the command fails.
    parser.set_defaults(run=run, json_on_error={})
    return parser


def add_dataset(parser: argparse.ArgumentParser) -> None:
    """Declares the argument DATASET, and the option --convert."""
    help = "folder or URL of a GEAR dataset; or a source, as of convert, which is converted into the cache once"
    parser.add_argument("dataset", metavar="DATASET", help=help)
    help = "options of the conversion of a source, as YAML: '{split: train, columns: [observations, actions]}'"
    parser.add_argument("--convert", type=_convert_options, metavar="YAML", help=help)


def _convert_options(text: str) -> gear_data.ConvertOptions:
    try:
        data = parse_yaml(text.encode("utf-8", "surrogateescape"), error=InvalidArgumentError, file="--convert")
        return gear_data.ConvertOptions.parse(data)
    except GearError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def add_where(parser: argparse.ArgumentParser) -> None:
    """Declares the option --where."""
    help = "use only the episodes that satisfy SQL over the episode table, such as 'return > 100 AND length >= 20', "
    help += "or 'return > quantile(return, 0.2)', which drops the worst fifth; may be repeated"
    parser.add_argument("--where", action="append", default=[], metavar="SQL", help=help)


def add_step_filters(parser: argparse.ArgumentParser) -> None:
    """Declares the options that leave out steps."""
    help = "use only windows whose first step satisfies SQL over the step columns, such as 'rewards > 0'; may be "
    help += "repeated"
    parser.add_argument("--where-steps", action="append", default=[], metavar="SQL", help=help)
    help = "use only windows whose first step is in a range of a JSON file: episode -> [[START, STOP], ...]; may be "
    help += "repeated"
    parser.add_argument("--keep-ranges", action="append", default=[], metavar="FILE", help=help)
    help = "use no window whose first step is in a run of at least SECONDS in which no element of a column changes by "
    help += "THRESHOLD from step to step; FPS: steps per second, default from the dataset's source"
    metavar = "COLUMN:THRESHOLD:SECONDS[:FPS]"
    parser.add_argument("--drop-idle", type=_idle, action="append", default=[], metavar=metavar, help=help)


def _idle(text: str) -> tuple[str, list[float]]:
    """Parses 'actions:0.001:0.5:15' to ('actions', [0.001, 0.5, 15.0])."""
    found = re.fullmatch(r"(.+?):([^:]+):([^:]+)(?::([^:]+))?", text)
    try:
        return found[1], [float(each) for each in found.groups()[1:] if each]  # type: ignore[index, union-attr]
    except (TypeError, ValueError):
        raise argparse.ArgumentTypeError(
            f"expected COLUMN:THRESHOLD:SECONDS, such as actions:0.001:0.5, not {text!r}"
        ) from None


def filter_steps(options: argparse.Namespace, dataset: gear_data.Dataset) -> gear_data.Dataset:
    """Returns the view of the options that leave out steps."""
    for condition in options.where_steps:
        dataset = dataset.filter_steps(condition)
    for file in options.keep_ranges:
        dataset = dataset.keep_ranges(file)
    for column, (threshold, seconds, *fps) in options.drop_idle:
        dataset = dataset.drop_idle(column, threshold=threshold, seconds=seconds, fps=fps[0] if fps else None)
    return dataset


def left_out(dataset: gear_data.Dataset) -> str:
    """Returns a line about the steps that the filters of steps leave out."""
    return f"leaves out {dataset.steps_left_out:,} of {dataset.num_steps:,} steps"


def open_dataset(options: argparse.Namespace) -> gear_data.Dataset:
    """Opens the dataset of the arguments DATASET and --where."""
    dataset = gear_data.open(options.dataset, convert=options.convert)
    for condition in options.where:
        dataset = dataset.filter(condition)
    return dataset


def is_mixture(path: str) -> bool:
    """Returns whether a path or URL is the file of a mixture."""
    return path.endswith((".yaml", ".yml"))


def open_mixture_facts(path: str, batch_size: int | None) -> dict[str, Any]:
    """Opens the mixture of a file, and returns its facts: see `mixture_facts`."""
    from gear_data.loaders.mixing.table import mixture_facts

    size = 256 if batch_size is None else batch_size
    if size < 1:
        raise InvalidArgumentError(f"--batch-size must be at least 1, not {size}")
    return mixture_facts(gear_data.Mixture.from_yaml(path), size)


def names(text: str) -> list[str]:
    """Parses 'A,B' to ['A', 'B']."""
    names = [name.strip() for name in text.split(",")]
    if not all(names):
        raise argparse.ArgumentTypeError(f"expected names separated by commas, not {text!r}")
    return names


def pair(form: str) -> Callable[[str], tuple[str, str]]:
    """Returns a parser of two texts with `=` between them, such as 'OLD=NEW'."""

    def parse(text: str) -> tuple[str, str]:
        first, separator, second = text.partition("=")
        if not (first and separator and second):
            raise argparse.ArgumentTypeError(f"expected {form}, not {text!r}")
        return first, second

    return parse


#: Parses 'OLD=NEW' to ('OLD', 'NEW').
renaming = pair("OLD=NEW")


def once(pairs: Iterable[tuple[str, _Value]], option: str) -> dict[str, _Value]:
    """Returns the pairs of an option that is given for each name, as a mapping.

    Raises:
        InvalidArgumentError: a name is given twice, of which only one value could count.
    """
    found: dict[str, _Value] = {}
    for name, value in pairs:
        if name in found:
            raise InvalidArgumentError(f"{option} names {name!r} twice", hint="name it once")
        found[name] = value
    return found


def stacking(text: str) -> tuple[str, list[str]]:
    """Parses 'NEW=A,B' to ('NEW', ['A', 'B'])."""
    new, parts = renaming(text)
    return new, names(parts)


def numbers(what: str, example: str) -> Callable[[str], list[int]]:
    """Returns a parser of numbers and ranges of them: '3,7-9' becomes [3, 7, 8, 9].

    Args:
        what: what the numbers are, for the error.
        example: what the user may write, for the error.
    """

    def parse(text: str) -> list[int]:
        found = [re.fullmatch(r"([0-9]{1,18})(?:-([0-9]{1,18}))?", part.strip()) for part in text.split(",")]
        ranges = [range(int(each[1]), int(each[2] or each[1]) + 1) for each in found if each is not None]
        if None in found or not all(ranges):
            raise argparse.ArgumentTypeError(f"expected {what}, such as {example}, in ascending ranges, not {text!r}")
        count = sum(map(len, ranges))
        if count > _MOST_NUMBERS:
            raise argparse.ArgumentTypeError(f"names {count:,} {what}, and takes at most {_MOST_NUMBERS:,}: {text!r}")
        return sorted(set().union(*ranges))

    return parse


def size(text: str) -> int:
    """Parses '512M' to 512 MiB; a plain number is bytes."""
    units = {"K": 10, "M": 20, "G": 30}
    number, shift = (text[:-1], units[text[-1].upper()]) if text[-1:].upper() in units else (text, 0)
    try:
        return int(number) << shift
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"expected bytes, such as 1000000 or 512M, not {text!r}") from error


def frame_size(text: str) -> tuple[int, int]:
    """Parses '224x320' to (224, 320), height and width."""
    height, _, width = text.lower().partition("x")
    if not (height.isdecimal() and width.isdecimal() and int(height) > 0 and int(width) > 0):
        raise argparse.ArgumentTypeError(f"expected height and width, such as 224x320, not {text!r}")
    return int(height), int(width)


def print_json(data: Any) -> None:
    """Prints one JSON object.

    NaN and infinities become null, because JSON has no such numbers.
    """
    print(json.dumps(_finite(data), allow_nan=False))


def _finite(data: Any) -> Any:
    if isinstance(data, dict):
        return {key: _finite(value) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return [_finite(value) for value in data]
    return None if isinstance(data, float) and not math.isfinite(data) else data
