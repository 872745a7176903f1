"""`gear-data convert`, `lint`, `repair`."""

from __future__ import annotations

import argparse
from typing import Any

import gear_data
from gear_data.cli.parsing import add_command, names, print_json, renaming, size
from gear_data.common.progress import format_bytes, pluralize


def add_commands(commands: Any) -> None:
    _add_convert(commands)
    _add_lint(commands)
    _add_repair(commands)


def _add_convert(commands: Any) -> None:
    example = "gear-data convert edbeeching/decision_transformer_gym_replay-hopper/ hopper/"
    parser = add_command(commands, "convert", _convert, "convert a trajectory dataset into GEAR shards", example)
    _add_source(parser)
    parser.add_argument("destination", metavar="DST", help="the dataset's folder or URL, to be made")
    parser.add_argument("--shard-bytes", type=size, default=512 << 20, metavar="N", help="default 512M")
    parser.add_argument("--on-bad-episode", choices=("error", "skip"), default="error", help="default error")
    parser.add_argument("--strict", action="store_true", help="refuse NaN and Inf, and all else that lint lists")
    parser.add_argument("--overwrite", action="store_true", help="replace the gear dataset at DST")
    parser.add_argument("--resume", action="store_true", help="go on with a half-done conversion")
    parser.add_argument("--engine", choices=("local", "ray"), default="local", help="default local")
    parser.add_argument(
        "--jobs", type=int, metavar="N", help="processes or Ray tasks at once, default as many as cores"
    )


def _add_source(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "source", metavar="SRC", help="a file, a folder, a URL (hf://datasets/..., s3://...), or a hub id"
    )
    # Written out, since finding them out brings every reader and the packages it needs.
    help = "auto (default), d4rl, episode-rows, lerobot, minari, minari-arrow, npz, numpy, rlds, robomimic, step-rows "
    help += "or torchrl; docs/reference/formats.md says what each is"
    parser.add_argument("--format", default="auto", help=help)
    parser.add_argument("--split", help="which split of the source, where it has several")
    parser.add_argument("--columns", type=names, metavar="A,B", help="columns to keep, by source or canonical name")
    parser.add_argument(
        "--rename", type=renaming, action="append", default=[], metavar="A=B", help="source column A becomes B"
    )
    parser.add_argument(
        "--episode-column", metavar="A", help="where a row is a step: the column that tells the episodes"
    )
    parser.add_argument("--step-column", metavar="A", help="the column that numbers the steps within an episode")
    parser.add_argument("--end-column", metavar="A", help="the column that is true at an episode's last step")
    parser.add_argument(
        "--max-episode-steps", type=int, metavar="N", help="where the source says nothing else, an episode has N steps"
    )
    parser.add_argument("--keep-encoded", action="store_true", help="leave PNG and JPEG images as they are")


def _source_options(options: argparse.Namespace) -> dict[str, Any]:
    names = ("format", "split", "columns", "episode_column", "step_column", "end_column", "max_episode_steps")
    chosen = {name: getattr(options, name) for name in (*names, "keep_encoded")}
    return {**chosen, "rename": dict(options.rename)}


def _convert(options: argparse.Namespace) -> int:
    report = gear_data.convert(
        options.source,
        options.destination,
        **_source_options(options),
        shard_bytes=options.shard_bytes,
        on_bad_episode=options.on_bad_episode,
        strict=options.strict,
        overwrite=options.overwrite,
        resume=options.resume,
        engine=options.engine,
        jobs=options.jobs,
    )
    if options.json:
        print_json(report.to_json())
        return 0
    print(f"format {report.format}: {report.reason}")
    for warning in report.warnings:
        print(f"noticed {warning}")
    rate = format_bytes(report.bytes / max(report.seconds, 1e-9))
    print(
        f"{pluralize(report.episodes, 'episode')}, {pluralize(report.steps, 'step')}, "
        f"{pluralize(report.shards, 'shard')}, {format_bytes(report.bytes)} "
        f"in {report.seconds:.1f} s ({rate}/s) -> {options.destination}"
    )
    return 0


def _add_lint(commands: Any) -> None:
    summary = "say what is odd about a trajectory dataset, without converting it; exit status 1 where something is"
    parser = add_command(commands, "lint", _lint, summary, "gear-data lint hopper.hdf5")
    _add_source(parser)


def _lint(options: argparse.Namespace) -> int:
    report = gear_data.lint(options.source, **_source_options(options))
    if options.json:
        print_json(report.to_json())
    else:
        print(f"format {report.format}: {report.reason}")
        for finding in report.findings:
            print(finding)
        kinds = f"{len(report.findings)} kind{'' if len(report.findings) == 1 else 's'} of findings"
        print(f"{pluralize(report.episodes, 'episode')}, {pluralize(report.steps, 'step')}, {kinds}")
    return 1 if report.findings else 0


def _add_repair(commands: Any) -> None:
    summary = "make a dataset's damaged shards again from its source"
    parser = add_command(commands, "repair", _repair, summary, "gear-data repair hopper/ --source hopper.parquet")
    parser.add_argument("dataset", metavar="DST")
    parser.add_argument("--source", required=True, metavar="SRC", help="what the dataset was converted from")


def _repair(options: argparse.Namespace) -> int:
    report = gear_data.repair(options.dataset, options.source)
    if options.json:
        print_json(report.to_json())
    elif report.shards:
        print(f"made again: {', '.join(report.shards)} ({pluralize(report.episodes, 'episode')})")
    else:
        print("the dataset is sound; nothing was changed")
    return 0
