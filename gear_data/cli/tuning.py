"""`gear-data tune`."""

from __future__ import annotations

import argparse
from typing import Any

import gear_data
from gear_data.cli.arguments import add_command, add_dataset, print_json
from gear_data.cli.batches import add_batch_options, batch_arguments, open_windows


def add_commands(commands: Any) -> None:
    """Declares the command."""
    example = (
        "gear-data tune hopper/ --preset decision_transformer --step-ms 5\n"
        "  gear-data tune hopper/ --device cuda --step-ms 12 --output gpu.json"
    )
    summary = "measure which loader arguments keep up with training on this machine"
    parser = add_command(commands, "tune", _tune, summary, example)
    add_dataset(parser)
    add_batch_options(parser)
    parser.add_argument("--device", default="cpu", help="device of the batches: cpu (default) or cuda")
    help = "length of a simulated training step, default 5; 0: no step, for the most batches per second"
    parser.add_argument("--step-ms", type=float, default=5.0, metavar="MS", help=help)
    help = "cores that the simulated step keeps busy, as training on the CPU does, default 1; 0: it sleeps, as the "
    help += "CPU does while a GPU trains, default with --device cuda"
    parser.add_argument("--step-cores", type=int, metavar="N", help=help)
    help = "time that tuning may take, about; default 60"
    parser.add_argument("--seconds", type=float, default=60.0, metavar="S", help=help)
    help = "file to write, for SequenceLoader.from_config; default loader.json"
    parser.add_argument("--output", default="loader.json", metavar="FILE", help=help)


def _tune(options: argparse.Namespace) -> int:
    from gear_data.loaders.tuning.config_file import check_destination

    check_destination(options.output)  # now, and not after a minute
    report = gear_data.tune(
        open_windows(options),
        step_ms=options.step_ms,
        step_cores=options.step_cores,
        seconds=options.seconds,
        device=options.device,
        **batch_arguments(options),
    )
    report.save(options.output)
    if options.json:
        print_json({**report.to_json(), "output": options.output})
        return 0
    print(report)
    call = f"SequenceLoader.from_config(ds, {options.output!r})"
    print(f"wrote {options.output}: {call}{'.dataloader()' if report.setting.num_workers else ''}")
    return 0
