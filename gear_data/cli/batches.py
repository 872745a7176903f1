"""`gear-data feed` and `export`."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import gear_data
from gear_data.cli.arguments import (
    add_command,
    add_dataset,
    add_step_filters,
    add_where,
    filter_steps,
    frame_size,
    left_out,
    open_dataset,
    print_json,
)
from gear_data.common.progress import advance_with_text, format_bytes, pluralize, progress_bar
from gear_data.errors import InvalidArgumentError
from gear_data.exports.lerobot.videos.codecs import CODECS

#: Defaults of the batch options of `feed` and `export`.
_BATCH_DEFAULTS = {
    "batch_size": 256, "context": None, "preset": "raw", "seed": 0, "sampler": "uniform", "resize": None,
    "decode_threads": None,
}  # fmt: skip


def add_commands(commands: Any) -> None:
    """Declares the commands of this group."""
    _add_feed(commands)
    _add_export(commands)


def add_batch_options(parser: argparse.ArgumentParser) -> None:
    """Declares the options of batches."""
    add_where(parser)
    add_step_filters(parser)
    parser.add_argument("--batch-size", type=int, metavar="B", help="windows per batch, default 256")
    parser.add_argument("--context", type=int, metavar="K", help="steps per window, default 20, or as the preset has")
    help = "raw (default), decision_transformer, corl, d3rlpy, jat, lerobot, gato, transitions, openpi, "
    help += "octo or groot"
    parser.add_argument("--preset", help=help)
    parser.add_argument("--seed", type=int, metavar="N", help="seed of the sampler, default 0")
    parser.add_argument("--sampler", help="uniform (default), shuffle or fifo")
    help = "scale the frames of all cameras to H x W"
    parser.add_argument("--resize", type=frame_size, metavar="HxW", help=help)
    help = "threads that decode cameras, default the cores"
    parser.add_argument("--decode-threads", type=int, metavar="N", help=help)
    parser.set_defaults(**_BATCH_DEFAULTS, pack=None)


def open_windows(options: argparse.Namespace) -> gear_data.Dataset:
    """Opens the dataset of the arguments DATASET, --where, and those that leave out steps. Prints how many they are."""
    dataset = filter_steps(options, open_dataset(options))
    if not options.json and dataset.step_mask is not None:
        print(left_out(dataset))
    return dataset


def batch_arguments(options: argparse.Namespace) -> dict[str, Any]:
    """Returns the arguments of `SequenceLoader` that the options of batches give.

    Without --context, a window has as many steps as the preset says; with --pack, it is a whole episode.
    """
    values = {name: getattr(options, name) for name in _BATCH_DEFAULTS}
    video = gear_data.VideoOptions(threads=values.pop("decode_threads"))
    return {**values, "video": video}


def _loader(options: argparse.Namespace, dataset: gear_data.Dataset, **arguments: Any) -> Any:
    return gear_data.SequenceLoader(dataset, **batch_arguments(options), **arguments)


def _add_feed(commands: Any) -> None:
    example = "gear-data feed hopper/ --batch-size 256 --context 20 --preset decision_transformer --steps 2000"
    summary = "make training batches without training, and measure the rate"
    parser = add_command(commands, "feed", _feed, summary, example)
    add_dataset(parser)
    add_batch_options(parser)
    help = "fill rows of STEPS steps with whole windows; without --context, with whole episodes. --batch-size is rows"
    parser.add_argument("--pack", type=int, metavar="STEPS", help=help)
    parser.add_argument("--steps", type=int, default=1000, metavar="N", help="number of batches, default 1000")
    parser.add_argument("--prefetch", type=int, default=2, metavar="N", help="batches to prefetch, default 2")


def _feed(options: argparse.Namespace) -> int:
    if options.steps < 1:
        raise InvalidArgumentError(f"steps must be at least 1, not {options.steps}")
    dataset = open_windows(options)
    # A warm-up: the first batches compile kernels and load pages.
    for _ in _loader(options, dataset, pack=options.pack, prefetch=options.prefetch, steps=min(options.steps, 20)):
        pass
    loader = _loader(options, dataset, pack=options.pack, prefetch=options.prefetch, steps=options.steps)
    with progress_bar(options.steps, "feed", "batch", None) as bar:
        advance = advance_with_text(bar, _recent_rates(loader))
        for _ in loader:
            advance(1)
    metrics = loader.metrics()
    if options.json:
        print_json(metrics)
        return 0
    print(
        f"{metrics['batches']:,} batches: {metrics['windows_per_s']:,.0f} windows/s, "
        f"{metrics['padded_bytes_per_s'] / 1e9:.2f} GB/s padded, {metrics['valid_bytes_per_s'] / 1e9:.2f} GB/s valid "
        f"({metrics['pad_fraction']:.1%} padding, {metrics['wait_fraction']:.0%} of the time waiting)"
    )
    return 0


def _recent_rates(loader: gear_data.SequenceLoader) -> Callable[[], str]:
    """Returns a function that describes the time since its last call."""
    from gear_data.loaders.metrics import metrics_between

    before = loader.metrics()

    def text() -> str:
        nonlocal before
        earlier, before = before, loader.metrics()
        if before["batches"] == earlier["batches"]:
            return ""
        rates = metrics_between(earlier, before)
        return (
            f"{rates['windows_per_s']:,.0f} windows/s, {rates['padded_bytes_per_s'] / 1e9:.2f} GB/s, "
            f"{rates['wait_fraction']:.0%} waiting"
        )

    return text


def _add_export(commands: Any) -> None:
    summary = "export a dataset, or batches of it, to another format"
    example = (
        "gear-data export hopper/ hopper-parquet/ --where 'return > 3000'\n"
        "  gear-data export hopper/ hopper.hdf5 --format d4rl\n"
        "  gear-data export hopper/ eval/ --batches 100 --preset decision_transformer --seed 1"
    )
    parser = add_command(commands, "export", _export, summary, example)
    add_dataset(parser)
    parser.add_argument("output", metavar="OUT", help="folder to create, or a .parquet, .hdf5 or .npz file")
    help = "dataset: parquet (default), d4rl, minari, lerobot or npz; batches: safetensors (default), npz or parquet"
    parser.add_argument("--format", help=help)
    help = "steps per second, for lerobot; default from the dataset's source"
    parser.add_argument("--fps", type=float, metavar="F", help=help)
    help = "for lerobot: write columns of uint8 frames [H, W, 3] as videos"
    parser.add_argument("--videos", action="store_true", help=help)
    help = "for lerobot: encode all videos as av1 or h264; default: copy videos where possible, encode others as av1"
    parser.add_argument("--video-codec", choices=CODECS, help=help)
    parser.add_argument("--batches", type=int, metavar="N", help="export N batches instead of the dataset")
    help = "replace the export at OUT; nothing that is no export is removed"
    parser.add_argument("--overwrite", action="store_true", help=help)
    add_batch_options(parser)


def _export(options: argparse.Namespace) -> int:
    report: Any
    dataset = open_windows(options)
    if options.batches is None:
        ignored = [name for name, default in _BATCH_DEFAULTS.items() if getattr(options, name) != default]
        if ignored:
            flags = ", ".join("--" + name.replace("_", "-") for name in ignored)
            raise InvalidArgumentError(
                f"only for exports of batches: {flags}", hint="add --batches N to export batches"
            )
        report = gear_data.export(
            dataset,
            options.output,
            options.format or "parquet",
            fps=options.fps,
            videos=options.videos,
            video_codec=options.video_codec,
            overwrite=options.overwrite,
        )
        written = f"{pluralize(report.episodes, 'episode')}, {pluralize(report.steps, 'step')}"
        if report.left_out:
            written += f" (not exported, the format has no field for: {', '.join(report.left_out)})"
    else:
        for flag, given in (
            ("--fps", options.fps is not None),
            ("--videos", options.videos),
            ("--video-codec", options.video_codec is not None),
        ):
            if given:
                raise InvalidArgumentError(
                    f"{flag} does not apply to batches", hint=f"use {flag} to export a dataset with --format lerobot"
                )
        report = gear_data.export_batches(
            _loader(options, dataset),
            options.output,
            batches=options.batches,
            format=options.format or "safetensors",
            overwrite=options.overwrite,
        )
        written = (
            f"{report.batches:,} batch{'' if report.batches == 1 else 'es'}, {pluralize(report.windows, 'window')}"
        )
    if options.json:
        print_json(report.to_json())
    else:
        print(f"{written}, {format_bytes(report.bytes)} in {pluralize(len(report.files), 'file')} -> {options.output}")
        for note in getattr(report, "notes", ()):
            print(note)
    return 0
