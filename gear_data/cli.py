"""The command `gear-data`. Exit status: 0, 1 (the work failed), 2 (bad usage)."""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import gear_data
from gear_data.errors import GearError, InvalidArgumentError, UnknownNameError

Command = Callable[[argparse.Namespace], int]


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit status."""
    options = _parser().parse_args(arguments)
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
        _print_json({**options.failed, "error": type(error).__name__, "message": str(error)})
    print(f"gear-data: {error}", file=sys.stderr)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="gear-data", description="Trajectory datasets in Arrow shards: convert, look at, feed, export."
    )
    parser.add_argument("--version", action="version", version=f"gear-data {gear_data.__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for add in (_add_convert, _add_inspect, _add_verify, _add_feed, _add_export, _add_doctor, _add_demo):
        add(commands)
    return parser


def _command(commands: Any, name: str, run: Command, summary: str, example: str) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = commands.add_parser(
        name,
        help=summary,
        description=summary[0].upper() + summary[1:] + ".",
        epilog=f"example:\n  {example}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object, for scripts")
    # `failed`: what the command's JSON has besides the error when it failed.
    parser.set_defaults(run=run, failed={})
    return parser


def _print_json(data: Any) -> None:
    print(json.dumps(_finite(data), allow_nan=False))


def _finite(data: Any) -> Any:
    """NaN and infinities become null: JSON has no such numbers."""
    if isinstance(data, dict):
        return {key: _finite(value) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return [_finite(value) for value in data]
    return None if isinstance(data, float) and not math.isfinite(data) else data


# convert


def _add_convert(commands: Any) -> None:
    example = "gear-data convert edbeeching/decision_transformer_gym_replay-hopper/ hopper/"
    parser = _command(commands, "convert", _convert, "convert a trajectory dataset into GEAR shards", example)
    parser.add_argument("source", metavar="SRC", help="a file, a folder, a URL (hf://datasets/...), or a hub id")
    parser.add_argument("destination", metavar="DST", help="the dataset's folder, to be made")
    parser.add_argument("--format", default="auto", help=_format_help())
    parser.add_argument("--split", help="which split of the source, where it has several")
    parser.add_argument("--columns", type=_names, metavar="A,B", help="columns to keep, by source or canonical name")
    parser.add_argument(
        "--rename", type=_renaming, action="append", default=[], metavar="A=B", help="source column A becomes B"
    )
    parser.add_argument("--shard-bytes", type=_size, default=512 << 20, metavar="N", help="default 512M")
    parser.add_argument("--on-bad-episode", choices=("error", "skip"), default="error", help="default error")
    parser.add_argument("--strict", action="store_true", help="refuse NaN and Inf")
    parser.add_argument("--overwrite", action="store_true", help="replace the gear dataset at DST")
    parser.add_argument("--resume", action="store_true", help="go on with a half-done conversion")


def _format_help() -> str:
    from gear_data.ingest.formats import known_formats

    return "auto (default), or " + "; ".join(f"{item.name}: {item.summary}" for item in known_formats().values())


def _convert(options: argparse.Namespace) -> int:
    report = gear_data.convert(
        options.source,
        options.destination,
        format=options.format,
        split=options.split,
        columns=options.columns,
        rename=dict(options.rename),
        shard_bytes=options.shard_bytes,
        on_bad_episode=options.on_bad_episode,
        strict=options.strict,
        overwrite=options.overwrite,
        resume=options.resume,
    )
    if options.json:
        _print_json(report.to_json())
        return 0
    print(f"format {report.format}: {report.reason}")
    for warning in report.warnings:
        print(f"noticed {warning}")
    rate = report.bytes / max(report.seconds, 1e-9) / 1e6
    print(
        f"{report.episodes:,} episodes, {report.steps:,} steps, {report.shards} shards, {report.bytes / 1e6:,.1f} MB "
        f"in {report.seconds:.1f} s ({rate:,.0f} MB/s) -> {options.destination}"
    )
    return 0


def _names(text: str) -> list[str]:
    names = [name.strip() for name in text.split(",")]
    if not all(names):
        raise argparse.ArgumentTypeError(f"expected names separated by commas, not {text!r}")
    return names


def _renaming(text: str) -> tuple[str, str]:
    old, separator, new = text.partition("=")
    if not (old and separator and new):
        raise argparse.ArgumentTypeError(f"expected OLD=NEW, not {text!r}")
    return old, new


def _size(text: str) -> int:
    """'512M' -> 512 MiB; a plain number is bytes."""
    units = {"K": 10, "M": 20, "G": 30}
    number, shift = (text[:-1], units[text[-1].upper()]) if text[-1:].upper() in units else (text, 0)
    try:
        return int(number) << shift
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"expected bytes, such as 1000000 or 512M, not {text!r}") from error


# inspect, verify


def _add_inspect(commands: Any) -> None:
    parser = _command(commands, "inspect", _inspect, "show what a dataset holds", "gear-data inspect hopper/")
    parser.add_argument("dataset", metavar="DST")
    _add_where(parser)


def _add_where(parser: argparse.ArgumentParser) -> None:
    help = "only these episodes: SQL over the episode table, such as 'return > 100 AND length >= 20'"
    parser.add_argument("--where", metavar="SQL", help=help)


def _open(options: argparse.Namespace) -> gear_data.Dataset:
    dataset = gear_data.open(options.dataset)
    return dataset if options.where is None else dataset.filter(options.where)


def _inspect(options: argparse.Namespace) -> int:
    from gear_data.inspect import describe, summarize

    dataset = _open(options)
    if options.json:
        _print_json(summarize(dataset))
    else:
        print(describe(dataset))
    return 0


def _add_verify(commands: Any) -> None:
    summary = "read a whole dataset and check it against its manifest"
    parser = _command(commands, "verify", _verify, summary, "gear-data verify hopper/")
    parser.set_defaults(failed={"ok": False, "shards": []})
    parser.add_argument("dataset", metavar="DST")


def _verify(options: argparse.Namespace) -> int:
    report = gear_data.verify(options.dataset)
    if options.json:
        _print_json(report.to_json())
    else:
        for check in report.shards:
            print(f"{'ok ' if check.ok else 'BAD'} {check.file}{'' if check.ok else f': {check.error}'}")
        print("the dataset is sound" if report.ok else "the dataset is damaged")
    return 0 if report.ok else 1


# feed, export


#: What `feed` and `export` say of batches, where they say nothing else.
_BATCH_DEFAULTS = {"batch_size": 256, "context": 20, "preset": "raw", "seed": 0, "sampler": "uniform"}


def _add_batch_options(parser: argparse.ArgumentParser) -> None:
    _add_where(parser)
    help = "only windows that begin at such a step: SQL over the step columns, such as 'rewards > 0'"
    parser.add_argument("--where-steps", metavar="SQL", help=help)
    parser.add_argument("--batch-size", type=int, metavar="B", help="windows a batch, default 256")
    parser.add_argument("--context", type=int, metavar="K", help="steps a window, default 20")
    help = "raw (default), decision_transformer, corl, d3rlpy, jat, lerobot or gato"
    parser.add_argument("--preset", help=help)
    parser.add_argument("--seed", type=int, help="default 0")
    parser.add_argument("--sampler", help="uniform (default), shuffle or fifo")
    parser.set_defaults(**_BATCH_DEFAULTS)


def _open_windows(options: argparse.Namespace) -> gear_data.Dataset:
    dataset = _open(options)
    return dataset if options.where_steps is None else dataset.filter_steps(options.where_steps)


def _loader(options: argparse.Namespace, dataset: gear_data.Dataset, **arguments: Any) -> Any:
    return gear_data.SequenceLoader(
        dataset,
        batch_size=options.batch_size,
        context=options.context,
        preset=options.preset,
        sampler=options.sampler,
        seed=options.seed,
        **arguments,
    )


def _add_feed(commands: Any) -> None:
    example = "gear-data feed hopper/ --batch-size 256 --context 20 --preset decision_transformer --steps 2000"
    parser = _command(commands, "feed", _feed, "run the training feed dry and measure it", example)
    parser.add_argument("dataset", metavar="DST")
    _add_batch_options(parser)
    parser.add_argument("--steps", type=int, default=1000, metavar="N", help="batches, default 1000")
    parser.add_argument("--prefetch", type=int, default=2, metavar="N", help="batches made ahead, default 2")


def _feed(options: argparse.Namespace) -> int:
    from gear_data.progress import progress_bar

    if options.steps < 1:
        raise InvalidArgumentError(f"steps must be at least 1, not {options.steps}")
    dataset = _open_windows(options)
    # The first batches compile kernels and fault pages in.
    for _ in _loader(options, dataset, prefetch=options.prefetch, steps=min(options.steps, 20)):
        pass
    loader = _loader(options, dataset, prefetch=options.prefetch, steps=options.steps)
    with progress_bar(options.steps, "feed", "batch", None) as bar:
        for _ in loader:
            bar.update(1)
    facts = loader.metrics()
    if options.json:
        _print_json(facts)
        return 0
    print(
        f"{facts['batches']:,} batches: {facts['windows_per_s']:,.0f} windows/s, "
        f"{facts['padded_bytes_per_s'] / 1e9:.2f} GB/s padded, {facts['valid_bytes_per_s'] / 1e9:.2f} GB/s valid "
        f"({facts['pad_fraction']:.1%} padding, {facts['wait_fraction']:.0%} of the time waiting)"
    )
    return 0


def _add_export(commands: Any) -> None:
    summary = "write a dataset, or batches of it, in another format"
    example = (
        "gear-data export hopper/ hopper-parquet/ --where 'return > 3000'\n"
        "  gear-data export hopper/ eval/ --batches 100 --preset decision_transformer --seed 1"
    )
    parser = _command(commands, "export", _export, summary, example)
    parser.add_argument("dataset", metavar="DST")
    parser.add_argument("output", metavar="OUT", help="a folder to be made")
    parser.add_argument("--format", help="dataset: parquet (default); batches: safetensors (default), npz or parquet")
    parser.add_argument("--batches", type=int, metavar="N", help="export so many batches, not the dataset")
    _add_batch_options(parser)


def _export(options: argparse.Namespace) -> int:
    report: Any
    dataset = _open_windows(options)
    if options.batches is None:
        ignored = [name for name, default in _BATCH_DEFAULTS.items() if getattr(options, name) != default]
        if ignored:
            flags = ", ".join("--" + name.replace("_", "-") for name in ignored)
            raise InvalidArgumentError(
                f"the dataset itself is exported without {flags}", hint="--batches N exports batches"
            )
        report = gear_data.export(dataset, options.output, options.format or "parquet")
        what = f"{report.episodes:,} episodes, {report.steps:,} steps"
    else:
        report = gear_data.export_batches(
            _loader(options, dataset), options.output, batches=options.batches, format=options.format or "safetensors"
        )
        what = f"{report.batches:,} batches, {report.windows:,} windows"
    if options.json:
        _print_json(report.to_json())
    else:
        print(f"{what}, {report.bytes / 1e6:,.1f} MB in {len(report.files)} files -> {options.output}")
    return 0


# doctor, demo


def _add_doctor(commands: Any) -> None:
    _command(
        commands, "doctor", _doctor, "say what this machine offers and what to do about the rest", "gear-data doctor"
    )


def _doctor(options: argparse.Namespace) -> int:
    from gear_data.doctor import examine

    checks = examine()
    if options.json:
        _print_json({"checks": [check.to_json() for check in checks]})
    else:
        for check in checks:
            remedy = f"\n    {check.remedy}" if check.remedy else ""
            print(f"{'yes' if check.ok else 'no ':<4}{check.name:<15}{check.found}{remedy}")
    return 0


def _add_demo(commands: Any) -> None:
    summary = "run the main job: roll out, convert, train, export"
    parser = _command(commands, "demo", _demo, summary, "gear-data demo --out demo-output --seconds 60")
    parser.add_argument("--out", type=Path, default=Path("demo-output"), help="default demo-output")
    parser.add_argument("--seconds", type=float, default=60.0, help="of training, default 60")


def _demo(options: argparse.Namespace) -> int:
    from gear_data.demo import run_demo

    report = run_demo(options.out, train_seconds=options.seconds)
    if options.json:
        _print_json(report.to_json())
    else:
        print(report.summary())
    return 0


if __name__ == "__main__":
    sys.exit(main())
