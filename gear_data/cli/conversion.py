"""`gear-data convert`, `lint`, `merge` and `repair`."""

from __future__ import annotations

import argparse
from contextlib import ExitStack
from typing import Any, get_args

import gear_data
from gear_data.cli.arguments import (
    add_command,
    frame_size,
    is_mixture,
    names,
    numbers,
    once,
    open_mixture_facts,
    pair,
    print_json,
    renaming,
    size,
    stacking,
)
from gear_data.common.progress import format_bytes, pluralize
from gear_data.errors import InvalidArgumentError
from gear_data.words import DepthUnit, EngineName, OnBadEpisode, ResetSteps, SourceFormat, VideoMode


def add_commands(commands: Any) -> None:
    """Declares the commands of this group."""
    _add_convert(commands)
    _add_lint(commands)
    _add_merge(commands)
    _add_repair(commands)


def _add_convert(commands: Any) -> None:
    example = "gear-data convert edbeeching/decision_transformer_gym_replay-hopper/ hopper/"
    example += "\n  gear-data convert hopper.hdf5 walker.hdf5 both/"
    example += "\n  gear-data convert rlds_folder/ robot/ --split train --split val"
    example += "\n  gear-data convert robot.h5 robot/ --map mapping.yaml"
    parser = add_command(commands, "convert", _convert, "convert a trajectory dataset into GEAR shards", example)
    _add_source(parser)
    parser.add_argument("destination", metavar="DST", help="folder or URL to create for the dataset")
    parser.add_argument(
        "--shard-bytes", type=size, default=512 << 20, metavar="N", help="size limit of a shard, default 512M"
    )
    _add_videos(parser)
    help = "stop at a malformed episode (error, default), or leave it out with a warning (skip)"
    parser.add_argument("--on-bad-episode", choices=get_args(OnBadEpisode), default="error", help=help)
    parser.add_argument("--strict", action="store_true", help="fail on NaN, Inf and every other finding of lint")
    parser.add_argument("--overwrite", action="store_true", help="replace the GEAR dataset at DST")
    parser.add_argument("--resume", action="store_true", help="continue an unfinished conversion")
    help = "run in processes of this machine (local, default) or on a Ray cluster (ray)"
    parser.add_argument("--engine", choices=get_args(EngineName), default="local", help=help)
    help = "parallel processes or Ray tasks; default all cores, fewer for a small source"
    parser.add_argument("--jobs", type=int, metavar="N", help=help)


def _add_source(parser: argparse.ArgumentParser) -> None:
    help = "file, folder, URL (hf://datasets/..., s3://...) or hub id of the source, or several to read as one dataset"
    parser.add_argument("sources", metavar="SRC", nargs="+", help=help)
    formats = [name for name in get_args(SourceFormat) if name not in ("auto", "in-memory")]
    help = f"auto (default), {', '.join(formats[:-1])} or {formats[-1]}; docs/reference/formats.md describes each"
    parser.add_argument("--format", default="auto", help=help)
    help = "split of the source, if it has several, for RLDS also train[:10%%]; may be repeated, or all: then the "
    help += "episode table has a column split"
    parser.add_argument("--split", action="append", help=help)
    help = "columns to keep, by source or canonical name; may be repeated"
    parser.add_argument("--columns", type=names, action="extend", metavar="A,B", help=help)
    help = "rename source column OLD to NEW; may be repeated"
    parser.add_argument("--rename", type=renaming, action="append", default=[], metavar="OLD=NEW", help=help)
    help = "column that identifies the episode of a step, for sources with one row per step; may be repeated: then the "
    help += "columns identify it together"
    parser.add_argument("--episode-column", metavar="A", action="append", help=help)
    help = "each file of a table is one episode"
    parser.add_argument("--file-is-episode", action="store_true", help=help)
    stack_help = "make one column NEW of columns of numbers, in this order; may be repeated"
    parser.add_argument("--stack", type=stacking, action="append", default=[], metavar="NEW=A,B", help=stack_help)
    help = (
        "add a camera NAME with one video file for each episode, such as 'observations.images.top=videos/top/*.mp4'; "
    )
    help += "may be repeated"
    parser.add_argument("--video-column", type=renaming, action="append", default=[], metavar="NAME=GLOB", help=help)
    parser.add_argument("--step-column", metavar="A", help="column that numbers the steps of an episode")
    parser.add_argument("--end-column", metavar="A", help="column that is true at the last step of an episode")
    help = "end episodes after N steps, for sources that mark no ends"
    parser.add_argument("--max-episode-steps", type=int, metavar="N", help=help)
    help = "first steps of episodes that only reset the environment: drop or keep them; default: drop them if they are "
    help += "clear"
    parser.add_argument("--reset-steps", choices=get_args(ResetSteps), help=help)
    help = "read only the episodes of these numbers, such as 0,5-9, of a LeRobot dataset; may be repeated"
    numbers_of = numbers("numbers of episodes", "0,5-9")
    parser.add_argument("--only-episodes", type=numbers_of, action="extend", metavar="IDS", help=help)
    help = "YAML file that says where the episodes and columns are, for HDF5, NumPy and Zarr files of unknown layout"
    parser.add_argument("--map", dest="mapping", metavar="FILE", help=help)
    help = "read the numbers of a column as another dtype, such as actions=float64; may be repeated"
    parser.add_argument("--dtype", type=pair("A=DTYPE"), action="append", default=[], metavar="A=DTYPE", help=help)
    help = "put a number in place of the nulls of a column of a table, such as force=nan; may be repeated"
    parser.add_argument("--fill-null", type=pair("A=N"), action="append", default=[], metavar="A=N", help=help)
    help = "whether the first line of CSV files has the names of the columns; without names they are 0, 1, ..."
    parser.add_argument("--header", action=argparse.BooleanOptionalAction, help=help)
    parser.add_argument(
        "--keep-encoded", action="store_true", help="keep PNG, JPEG and other images as the source encodes them"
    )
    help = "also read files that are symbolic links to places outside the source's folder"
    parser.add_argument("--follow-links", action="store_true", help=help)


def _add_videos(parser: argparse.ArgumentParser) -> None:
    help = (
        "what becomes of cameras' video files: keep (default) puts them into the dataset's folder, as clones or hard "
    )
    help += "links where the file system can; link refers to them where they are; frames decodes them to columns of "
    help += "pixels, and jpeg to columns of JPEG files"
    parser.add_argument("--videos", choices=get_args(VideoMode), default="keep", help=help)
    help = "height and width of the frames of --videos frames and jpeg; default: as in the video"
    parser.add_argument("--video-size", type=frame_size, metavar="HxW", help=help)
    help = "unit of LeRobot's quantised depth videos: millimetres (default) or metres"
    parser.add_argument("--depth-unit", choices=get_args(DepthUnit), default="mm", help=help)


def _source_options(options: argparse.Namespace, **videos: Any) -> dict[str, Any]:
    names = ("format", "split", "columns", "mapping", "keep_encoded", "follow_links")
    boundaries = (
        "episode_column",
        "step_column",
        "end_column",
        "max_episode_steps",
        "file_is_episode",
        "reset_steps",
        "only_episodes",
    )
    return {
        **{name: getattr(options, name) for name in names},
        "rename": once(options.rename, "--rename"),
        "stack": once(options.stack, "--stack"),
        "episodes": gear_data.EpisodeBoundaries(**{name: getattr(options, name) for name in boundaries}),
        "tables": gear_data.TableOptions(
            dtype=once(options.dtype, "--dtype"),
            fill_null=once(options.fill_null, "--fill-null"),
            header=options.header,
        ),
        "videos": gear_data.VideoStorage(cameras=once(options.video_column, "--video-column"), **videos),
    }


def _convert(options: argparse.Namespace) -> int:
    report = gear_data.convert(
        options.sources,
        options.destination,
        **_source_options(options, mode=options.videos, size=options.video_size, depth_unit=options.depth_unit),
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
        print(f"warning: {warning}")
    rate = format_bytes(report.bytes / max(report.seconds, 1e-9))
    print(
        f"{pluralize(report.episodes, 'episode')}, {pluralize(report.steps, 'step')}, "
        f"{pluralize(report.shards, 'shard')}, {format_bytes(report.bytes)} "
        f"in {report.seconds:.1f} s ({rate}/s) -> {options.destination}"
    )
    return 0


def _add_lint(commands: Any) -> None:
    summary = "report problems of a trajectory dataset without converting it; exit status 1 if there are any"
    summary += "; or show a mixture, and what cannot be joined"
    example = "gear-data lint hopper.hdf5\n  gear-data lint robot.h5 --suggest-map > mapping.yaml"
    example += "\n  gear-data lint mix.yaml --batch-size 256"
    parser = add_command(commands, "lint", _lint, summary, example)
    _add_source(parser)
    help = "of a mixture: windows of a batch, for the epochs, default 256"
    parser.add_argument("--batch-size", type=int, metavar="B", help=help)
    help = "only print a first mapping for --map, from the names and shapes of the arrays"
    parser.add_argument("--suggest-map", action="store_true", help=help)
    parser.set_defaults(defaults=vars(parser.parse_args(["SRC"])))


def _lint(options: argparse.Namespace) -> int:
    if is_mixture(options.sources[0]):
        return _lint_mixture(options)
    if options.batch_size is not None:
        raise InvalidArgumentError("--batch-size is for a mixture", hint="leave it out, or give mix.yaml")
    if options.suggest_map:
        return _suggest_map(options)
    report = gear_data.lint(options.sources, **_source_options(options))
    if options.json:
        print_json(report.to_json())
    else:
        print(f"format {report.format}: {report.reason}")
        for finding in report.findings:
            print(finding)
        kinds = f"{len(report.findings)} kind{'' if len(report.findings) == 1 else 's'} of findings"
        print(f"{pluralize(report.episodes, 'episode')}, {pluralize(report.steps, 'step')}, {kinds}")
    return 1 if report.findings else 0


def _lint_mixture(options: argparse.Namespace) -> int:
    """Prints the tables of a mixture's file."""
    others = options.defaults.keys() - {"sources", "batch_size", "json"}
    given = sorted(name for name in others if getattr(options, name) != options.defaults[name])
    if given or len(options.sources) > 1:
        options_given = ", ".join("--" + name.replace("_", "-") for name in given) or f"{len(options.sources)} sources"
        raise InvalidArgumentError(
            f"{options.sources[0]} is a mixture, and its lint takes no {options_given}", hint="lint the file alone"
        )
    from gear_data.cli.description import describe_mixture

    facts = open_mixture_facts(options.sources[0], options.batch_size)
    if options.json:
        print_json(facts)
    else:
        print(describe_mixture(facts))
    return 1 if facts["problems"] else 0


def _add_merge(commands: Any) -> None:
    summary = "merge datasets into one; shards of equal columns are linked, not written again"
    parser = add_command(commands, "merge", _merge, summary, "gear-data merge hopper-medium/ hopper-expert/ hopper/")
    parser.add_argument("datasets", metavar="DATASET", nargs="+", help="at least two GEAR datasets or sources")
    parser.add_argument("destination", metavar="DST", help="folder or URL to create for the merged dataset")
    parser.add_argument("--overwrite", action="store_true", help="replace the GEAR dataset at DST")
    parser.add_argument("--resume", action="store_true", help="continue an interrupted merge")


def _merge(options: argparse.Namespace) -> int:
    from gear_data.dataset.open import dataset_place

    with ExitStack() as stack:
        places = [stack.enter_context(dataset_place(each)) for each in options.datasets]
        report = gear_data.merge(places, options.destination, overwrite=options.overwrite, resume=options.resume)
    if options.json:
        print_json(report.to_json())
        return 0
    for warning in report.warnings:
        print(f"warning: {warning}")
    print(
        f"{pluralize(report.episodes, 'episode')}, {pluralize(report.steps, 'step')}, "
        f"{pluralize(report.shards, 'shard')} ({report.linked} linked), {format_bytes(report.bytes)} "
        f"in {report.seconds:.1f} s -> {options.destination}"
    )
    return 0


def _suggest_map(options: argparse.Namespace) -> int:
    from gear_data.ingest.lint import suggest_mapping

    text = suggest_mapping(options.sources, follow_links=options.follow_links)
    if options.json:
        print_json({"mapping": text})
    else:
        print(text, end="")
    return 0


def _add_repair(commands: Any) -> None:
    summary = "rebuild the damaged shards of a dataset from its source"
    parser = add_command(commands, "repair", _repair, summary, "gear-data repair hopper/ --source hopper.parquet")
    parser.add_argument("dataset", metavar="DATASET", help="folder of a GEAR dataset")
    help = "source that the dataset was converted from; all of them, in the same order, if there were several"
    parser.add_argument("--source", required=True, nargs="+", metavar="SRC", help=help)


def _repair(options: argparse.Namespace) -> int:
    report = gear_data.repair(options.dataset, options.source)
    if options.json:
        print_json(report.to_json())
    elif report.videos or report.shards:
        if report.videos:
            print(f"restored {', '.join(report.videos)}")
        if report.shards:
            print(f"rebuilt {', '.join(report.shards)} ({pluralize(report.episodes, 'episode')})")
    else:
        print("the dataset is sound; nothing was changed")
    return 0
